"""Medians by a clock that stands still between the calls."""

from __future__ import annotations

import os
import time

import pytest
from benchmarks import timing


class Clock:
    def __init__(self):
        self.now = 0.0
        self.order = []

    def competitor(self, name, *seconds):
        """Takes these times in turn."""
        left = []

        def run():
            left[:] = left or seconds
            self.now += left.pop(0)
            self.order.append(name)

        return run


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(time, "perf_counter", lambda: clock.now)
    return clock


def test_the_median_of_calls_in_turn(clock):
    runs = {
        "slow": clock.competitor("slow", 0.25, 0.25, 1.0, 0.25, 0.25),
        "quick": clock.competitor("quick", 0.125),
    }
    assert timing.measure(runs, seconds=4.0) == {"slow": 0.25, "quick": 0.125}
    assert clock.order[-4:] == ["slow", "quick"] * 2


def test_a_sample_of_a_small_operator_is_many_calls(clock):
    runs = {"large": clock.competitor("large", 0.5), "small": clock.competitor("small", 2**-12)}
    found = timing.measure(runs, seconds=0.0)
    assert found == {"large": 0.5, "small": 2**-12}
    # 1 ms has four calls of a quarter of it.
    assert clock.order[-10:] == ["large", "small", "small", "small", "small"] * 2


def test_a_pause_and_calls_that_are_not_timed_come_before_each_turn(clock, monkeypatch):
    def sleep(seconds):
        clock.now += seconds
        clock.order.append("pause")

    monkeypatch.setattr(time, "sleep", sleep)
    runs = {name: clock.competitor(name, 0.5) for name in ("first", "second")}
    assert timing.measure(runs, seconds=0.0, pause=2.0) == {"first": 0.5, "second": 0.5}
    # Half of the pause has two calls, then comes the one that is timed.
    assert clock.order[-8:] == ["pause", *["first"] * 3, "pause", *["second"] * 3]


def test_the_program_starts_again_only_for_other_variables(monkeypatch):
    started = []
    monkeypatch.setattr(os, "execve", lambda *arguments: started.append(arguments[2]))
    monkeypatch.setenv("FUSEWHEEL_CPU_ISA", "v3")
    timing.require({"FUSEWHEEL_CPU_ISA": "v3"})
    assert not started
    timing.require({"FUSEWHEEL_CPU_ISA": "baseline"})
    assert started[0]["FUSEWHEEL_CPU_ISA"] == "baseline"
    assert started[0]["PATH"] == os.environ["PATH"]
