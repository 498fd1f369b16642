"""Holding the libraries to the instructions of an older CPU."""

from __future__ import annotations

import functools
import subprocess

import pytest
import torch
from demo.examples import example, example_report
from fusewheel._core.process import Child
from fusewheel.demo.measure import environment
from fusewheel.demo.settings import Settings
from fusewheel.demo.show import report as render

SETTINGS = Settings(dtypes=("fp32",), isa="avx2", new_tokens=5)
PROGRAM = "import torch; print(torch.backends.cpu.get_cpu_capability())"


def test_torch_obeys_in_the_worker_process(tmp_path):
    if torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"):
        pytest.skip("this CPU has less")
    run = functools.partial(subprocess.getoutput, f"{__import__('sys').executable} -c '{PROGRAM}'")
    found = environment(SETTINGS, tmp_path, "eager", "fp32")
    # A copy of this process: the one that it starts imports torch.
    with Child(run, environment=found, method="fork") as child:
        assert "AVX2" in child.call("strip").split()


def test_without_the_option_the_libraries_choose(tmp_path):
    found = environment(Settings(), tmp_path, "eager", "fp32")
    assert not {"ATEN_CPU_CAPABILITY", "FUSEWHEEL_CPU_ISA"} & set(found)


def test_the_heading_says_so():
    assert "held to avx2" in render.heading(example_report(example("eager"), settings=SETTINGS))
    assert "held to" not in render.heading(example_report(example("eager")))
