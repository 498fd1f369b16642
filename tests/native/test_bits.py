"""A choice reaches the kernels: another way has other bits, because it sums in another order.

Products of integers have the same bits by AMX, by VNNI and by words, and others than products of
floats.
"""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
from nightly import NIGHTLY

from .choices import AMX, BF16, LEVEL, VNNI, made, said, without

LEVELS = ("baseline", "v3", "v4")
OWN = ("OWN_FLOAT32", "OWN_BFLOAT16", "OWN_FLOAT16")
LINEAR = {"LINEAR_BFLOAT16", "LINEAR_FLOAT16"}
FAR = ("FAR_ROWS", "FAR_HALVES")
SWITCHES = (*OWN, "ROWS_IN_TURN", *FAR, "PREFETCH", "SPREAD_ROWS", "VNNI", "AMX", "BF16")


@functools.cache
def there() -> list[str]:
    """The levels that this processor can execute."""
    best = made(without())[LEVEL]
    return [level for level in LEVELS if level <= best]  # "baseline" < "v3" < "v4"


@functools.cache
def bits(level: str, switch: str, amx: str = "") -> dict[str, str]:
    """Digests of results at a level, with all switches on or off, or with AMX otherwise."""
    environment = {f"FUSEWHEEL_CPU_{name}": switch for name in SWITCHES} | {LEVEL: level}
    environment[AMX] = amx or switch
    path = str(Path(__file__).with_name("bits.py"))
    program = f"import runpy; runpy.run_path({path!r}, run_name='__main__')"
    return dict(line.split("=") for line in said(program, without() | environment).splitlines())


def test_each_level_has_bits_of_its_own():
    found = {level: bits(level, "0")["ISA"] for level in there()}
    assert len(set(found.values())) == len(there()), found


# A change tries the newest; a processor without a level has the one below instead.
@pytest.mark.parametrize(
    "level", [pytest.param(level, marks=NIGHTLY if level < LEVELS[-1] else ()) for level in LEVELS]
)
def test_each_switch_changes_the_bits(level: str):
    level = min(level, there()[-1])
    off, on = bits(level, "0"), bits(level, "1")
    expected = {*OWN, "ROWS_IN_TURN"}
    asked = made(without() | dict.fromkeys((AMX, BF16, VNNI), "1") | {LEVEL: level})
    if "1" in (asked[AMX], asked[BF16]):
        expected |= {"ATTENTION", "ATTENTION_BACKWARD", "BLOCKS", "GROUPED_BLOCKS"}
    if asked[VNNI] == "1":
        # At level v3 enough rows are multiplied as integers without it.
        expected |= {"VNNI"} if level == "v3" else {"VNNI", "INTEGERS"}
    changed = {name for name in off if off[name] != on[name]}
    assert changed - LINEAR - {"FAR_ROWS"} == expected
    assert level != "v3" or "FAR_ROWS" in changed  # attention_decode at other levels ignores it
    # Where ATen has no instructions for half types, it may sum in the same order.
    assert level < there()[-1] or changed & LINEAR


@NIGHTLY
def test_integers_have_the_same_bits_by_every_instruction():
    found = {
        bits(level, "1", amx)["INTEGERS"]
        for level in there()
        if level == "v3" or made(without() | {LEVEL: level})[VNNI] == "1"
        for amx in "01"
    }
    assert len(found) <= 1
    assert "v3" not in there() or bits("v3", "0")["INTEGERS"] in found
    assert bits("baseline", "0")["INTEGERS"] not in found
