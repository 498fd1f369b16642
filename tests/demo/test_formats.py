"""The table of generation in every format of the weights."""

from __future__ import annotations

import dataclasses

import pytest
from demo.examples import example, example_report
from fusewheel.demo.models import formats
from fusewheel.demo.settings import LLAMA_CPP, Settings
from fusewheel.demo.show import report as render
from fusewheel.demo.show.results import ModeResult, PhaseResult

SETTINGS = Settings(dtypes=("fp32", "int4"), new_tokens=5)


def results():
    blocks = example("eager", "int4", speed=4.0)
    del blocks.phases["train"]
    blocks.phases["lora"] = PhaseResult(3.0, 0, 0, seconds=[3.0, 2.0, 2.5])
    llama = example(LLAMA_CPP, "int4-int8", speed=2.0)
    return [
        example("eager"),
        blocks,
        example("fusewheel", "int4", speed=5.0),
        example("fusewheel", "int4-int8", speed=6.0),
        llama,
    ]


def test_decoding_is_compared_with_eager_fp32_and_llama_cpp():
    line = formats.lines(SETTINGS, results())[2]
    # Four tokens after the first in 2 s by eager.
    assert line.tokens_per_s == pytest.approx(10.0)
    assert line.speed_up == pytest.approx({"fp32 eager": 5.0, LLAMA_CPP: 2.5})


def test_without_llama_cpp_there_is_no_such_column():
    (_, line, *_) = formats.lines(SETTINGS, results()[:-1])
    assert set(line.speed_up) == {"fp32 eager"}


def test_a_run_without_the_blocks_has_no_such_table():
    settings = dataclasses.replace(SETTINGS, dtypes=("fp32",))
    assert formats.lines(settings, results()[:1]) == []
    assert render.formats_table(example_report(example("eager"))) == ""


def test_the_fastest_mode_of_each_format_is_named():
    found = formats.lines(SETTINGS, results())
    # llama.cpp is what they are compared with.
    assert formats.fastest(SETTINGS, found) == ["int4 fusewheel"]


def test_the_table_lines_up():
    report = dataclasses.replace(
        example_report(*results(), settings=SETTINGS), formats=formats.lines(SETTINGS, results())
    )
    header, _, *body = render.formats_table(report).splitlines()
    assert header.split()[-3:] == ["LoRA", "step", "ms"]
    assert body[1].split() == ["int4", "eager", "125.0", "8.0", "4.00x", "2.00x", "100.0", "2,500"]
    assert body[2].split()[0] == "fusewheel"
    assert len(body) == len(results())


def test_a_failure_and_a_disturbance_show():
    broken = ModeResult("int4", "eager", error="load: boom")
    disturbed = example("fusewheel", "int4")
    disturbed.phases["decode"].seconds = [1.0, 9.0]
    found = formats.lines(SETTINGS, [example("eager"), broken, disturbed])
    table = formats.cells(found)
    assert "failed" in table[2]
    assert table[3][4].startswith("~")
