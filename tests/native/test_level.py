"""The kernels go the way that the environment asks for. Sessions that ask for one run this too."""

from __future__ import annotations

import os

import fusewheel_cpu

from .choices import AMX, LEVEL, VNNI, made, without


def test_what_is_asked_for_is_in_force():
    asked = {name: os.environ[name] for name in fusewheel_cpu.choices() if name in os.environ}
    # A processor may have less than what is asked for; "baseline" < "v3" < "v4".
    for name in (LEVEL, VNNI, AMX):
        if name in asked:
            asked[name] = min(asked[name], made(without(name))[name])
    in_force = fusewheel_cpu.choices()
    assert {name: in_force[name] for name in asked} == asked


def test_without_variables_the_processor_decides():
    automatic = made(without())
    assert set(automatic) == set(fusewheel_cpu.choices())
    assert made(without() | automatic) == automatic
