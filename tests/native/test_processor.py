"""What the CPU kernels choose by the processor, tried on processors that are not there."""

from __future__ import annotations

import functools
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
LEVELS = ("x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4")
# What gcc calls a feature in its macros and in __builtin_cpu_supports, where the names differ.
NAMES = {"sse4_1": "sse4.1", "sse4_2": "sse4.2"}
# Macros that name no feature that a program may ask for, or one that all processors here have.
NO_FEATURES = {"crc32", "lahf_sahf", "xsave", "sse3", "ssse3", "sse4.1", "sse4.2", "popcnt"}

Choose = Callable[..., dict[str, str]]

pytestmark = pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64"), reason="there is one level on other processors"
)


def compiler() -> str:
    found = shutil.which("g++")
    assert found is not None, "g++ is needed, as it is to build the wheels"
    return found


@functools.cache
def features(level: str) -> frozenset[str]:
    """What the compiler uses at a level and does not use below v3."""

    def macros(march: str) -> set[str]:
        command = (compiler(), f"-march={march}", "-dM", "-E", "-x", "c++", os.devnull)
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        names = (name.lower() for name in re.findall(r"#define __([A-Z][A-Z0-9_]*)__ 1\n", text))
        return {NAMES.get(name, name) for name in names}

    return frozenset(macros(level) - macros("x86-64-v2") - NO_FEATURES)


@pytest.fixture(scope="session")
def choose(tmp_path_factory: pytest.TempPathFactory) -> Choose:
    """What is chosen on a processor with some features, with some variables set."""
    program = tmp_path_factory.mktemp("processor") / "program"
    subprocess.run(
        [
            *(compiler(), "-std=c++17", "-Wall", "-Wextra", "-Werror", "-DFUSEWHEEL_X86=1"),
            *("-include", str(HERE / "fake_processor.h")),
            f"-I{ROOT / 'packages' / 'schema' / 'include'}",
            *(str(ROOT / "cpu_kernels" / "processor.cc"), "-o", str(program)),
        ],
        check=True,
    )

    def run(
        has: Iterable[str], maker: str = "intel", lines: int = 12, **variables: str
    ) -> dict[str, str]:
        has = set(has)
        complete = {level for level in LEVELS if features(level) <= has}
        fake = {
            "FAKE_FEATURES": ",".join(has | complete),
            "FAKE_MAKER": maker,
            "FAKE_LINES": str(lines),
        }
        env = fake | {f"FUSEWHEEL_CPU_{name}": value for name, value in variables.items()}
        done = subprocess.run([str(program)], check=True, capture_output=True, text=True, env=env)
        pairs = (line.partition("=") for line in done.stdout.splitlines())
        return {name.removeprefix("FUSEWHEEL_CPU_"): value for name, _, value in pairs}

    return run


def test_the_compiler_names_the_features():
    assert {"avx2", "fma", "bmi", "bmi2", "f16c", "lzcnt", "movbe"} <= features("x86-64-v3")
    assert {"avx512f", "avx512vl"} <= features("x86-64-v4")


@pytest.mark.parametrize(("level", "name"), [("x86-64-v3", "v3"), ("x86-64-v4", "v4")])
def test_a_level_wants_all_that_the_compiler_uses_at_it(choose: Choose, level: str, name: str):
    has = features(level)
    assert choose(has)["ISA"] == name
    assert choose(())["ISA"] == "baseline"
    for missing in has:
        lower = "baseline" if missing in features("x86-64-v3") else "v3"
        assert choose(has - {missing})["ISA"] == lower, missing


@pytest.mark.parametrize(
    ("wish", "expected"), [("baseline", "baseline"), ("v3", "v3"), ("v4", "v3"), ("", "v3")]
)
def test_a_wished_level_is_the_most(choose: Choose, wish: str, expected: str):
    assert choose(features("x86-64-v3"), ISA=wish)["ISA"] == expected


AMX = ("avx512bf16", "amx-tile", "amx-bf16", "amx-int8", "tiles-allowed")
V4 = ("avx512vnni", "avx512fp16", *AMX)
DEFAULTS = {
    "intel, baseline": (
        *((), "intel"),
        {"PREFETCH": "1", "OWN_BFLOAT16": "1", "OWN_FLOAT16": "1"},
    ),
    "intel, v3": ("v3", "intel", {"PREFETCH": "1", "OWN_BFLOAT16": "1", "OWN_FLOAT16": "1"}),
    "intel, v4": ("v4", "intel", {"PREFETCH": "1", "VNNI": "1", "AMX": "1"}),
    "amd, baseline": ((), "amd", {"ROWS_IN_TURN": "1", "OWN_BFLOAT16": "1", "OWN_FLOAT16": "1"}),
    "amd, v3": (
        "v3",
        "amd",
        {"OWN_FLOAT32": "1", "OWN_BFLOAT16": "1", "OWN_FLOAT16": "1"}
        | dict.fromkeys(("ROWS_IN_TURN", "FAR_ROWS"), "1"),
    ),
    "amd, v4": (
        "v4",
        "amd",
        {"VNNI": "1", "AMX": "1", "BF16": "1", "OWN_FLOAT32": "1"}
        | dict.fromkeys(("ROWS_IN_TURN", "FAR_ROWS", "FAR_HALVES"), "1"),
    ),
}
SWITCHES = (
    *("VNNI", "AMX", "BF16", "ROWS_IN_TURN", "FAR_ROWS", "FAR_HALVES", "PREFETCH"),
    *("SPREAD_ROWS", "OWN_FLOAT32", "OWN_BFLOAT16", "OWN_FLOAT16"),
)


@pytest.mark.parametrize("case", DEFAULTS)
def test_what_a_processor_decides(choose: Choose, case: str):
    level, maker, on = DEFAULTS[case]
    has = features(f"x86-64-{level}") if level else set()
    got = choose(has | set(V4 if level == "v4" else ()), maker)
    assert got == {"ISA": level or "baseline"} | dict.fromkeys(SWITCHES, "0") | on


def test_a_zen_5_reads_halves_in_turn(choose: Choose):
    has = features("x86-64-v4") | set(V4)
    assert choose(has | {"avxvnni"}, "amd") == choose(has, "amd") | {"FAR_HALVES": "0"}


@pytest.mark.parametrize(
    ("level", "lines", "spread"),
    [("v4", 8, "1"), ("v4", 11, "1"), ("v4", 12, "0"), ("v4", 0, "0"), ("v3", 8, "0")],
)
def test_rows_are_spread_where_a_set_is_too_small(
    choose: Choose, level: str, lines: int, spread: str
):
    assert choose(features(f"x86-64-{level}"), lines=lines)["SPREAD_ROWS"] == spread


@pytest.mark.parametrize("switch", SWITCHES)
@pytest.mark.parametrize("maker", ["intel", "amd"])
@pytest.mark.parametrize("value", ["0", "1"])
def test_every_choice_can_be_made_by_hand(choose: Choose, switch: str, maker: str, value: str):
    has = features("x86-64-v4") | set(V4)
    got = choose(has, maker, **{switch: value})
    assert got == choose(has, maker) | {switch: value}


def test_what_is_printed_makes_the_same_choices_again(choose: Choose):
    has = features("x86-64-v4") | set(V4)
    made = choose(has, "amd", ISA="v3", ROWS_IN_TURN="0")
    assert choose(has, "intel", **made) == made


def test_an_instruction_that_is_not_there_is_not_used(choose: Choose):
    for level in ("x86-64-v3", "x86-64-v4"):
        assert choose(features(level), VNNI="1")["VNNI"] == "0"
    held = choose(features("x86-64-v4") | set(V4), ISA="v3", VNNI="1", AMX="1", BF16="1")
    assert (held["VNNI"], held["AMX"], held["BF16"]) == ("0", "0", "0")
    without = features("x86-64-v4") | set(V4) - {"avx512bf16"}
    assert choose(without, "amd", BF16="1")["BF16"] == "0"


def test_each_level_has_a_vnni_of_its_own(choose: Choose):
    v3, v4 = features("x86-64-v3"), features("x86-64-v4")
    assert choose(v3 | {"avxvnni"})["VNNI"] == choose(v4 | {"avx512vnni"})["VNNI"] == "1"
    assert choose(v3 | {"avxvnni"}, VNNI="0")["VNNI"] == "0"
    assert choose(v3 | {"avx512vnni"})["VNNI"] == choose(v4 | {"avxvnni"})["VNNI"] == "0"
    assert choose(v4 | {"avx512vnni", "avxvnni"}, ISA="baseline")["VNNI"] == "0"


@pytest.mark.parametrize("missing", AMX)
def test_amx_wants_all_its_instructions_and_a_permission(choose: Choose, missing: str):
    has = features("x86-64-v4") | set(V4) - {missing}
    assert choose(has)["AMX"] == choose(has, AMX="1")["AMX"] == "0"


@pytest.mark.parametrize(("name", "expected"), [("ISA", "baseline, v3 or v4"), ("VNNI", "0 or 1")])
def test_a_value_that_cannot_be_is_refused(choose: Choose, name: str, expected: str):
    (message,) = choose((), **{name: "avx2"})
    assert message == f"{name} must be {expected}, got 'avx2'"  # the prefix is taken off above
