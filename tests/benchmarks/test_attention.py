"""What the table of attention lets run, without the clock."""

from __future__ import annotations

import argparse
import functools

import pytest
import torch
from benchmarks import attention, attention_cases
from benchmarks.attention_cases import FLEX, KINDS, OWN, SDPA, cases_of
from benchmarks.goals import PRODUCT, READ
from torch import Tensor


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr(attention_cases, "PACKED", (3, 1, 7))
    monkeypatch.setattr(attention_cases, "WINDOW", 3)
    monkeypatch.setattr(attention_cases, "COPIED", 10**6)
    monkeypatch.setattr(attention_cases, "LONG", 40)
    monkeypatch.setattr(attention_cases, "CACHED", 16)
    monkeypatch.setattr(attention, "COPIED", 10**6)


@pytest.mark.parametrize("kind", KINDS)
def test_competitors_agree(kind: str):
    for case in cases_of(kind, torch.float32, [9], flex=False):
        found = {name: run() for name, run in case.runs.items()}
        own = found.pop(OWN)
        assert found
        for theirs in found.values():
            if kind == "packed":
                continue  # padded, and of other values
            pair = ((t,) if isinstance(t, Tensor) else t for t in (own, theirs))
            for a, b in zip(*pair, strict=True):
                torch.testing.assert_close(a.reshape(b.shape), b)


@pytest.mark.parametrize("kind", ["causal", "window"])
def test_flex_attention_agrees(kind: str, monkeypatch: pytest.MonkeyPatch):
    """Traced, but not by Inductor."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    case = next(cases_of(kind, torch.float32, [9], flex=True))
    torch.testing.assert_close(case.runs[FLEX](), case.runs[OWN]())


def test_flops_are_those_of_the_scores_that_are_seen():
    (forward, *_), (packed, both) = (
        list(cases_of(kind, torch.float32, [4], flex=False)) for kind in ("causal", "packed")
    )
    assert forward.flops == 2 * 2 * 9 * 64 * 10
    assert packed.flops == 2 * 2 * 9 * 64 * (6 + 1 + 28)
    assert both.flops * 2 == packed.flops * 7


def test_a_cell_has_the_faster_of_pytorchs_and_its_goals(monkeypatch):
    seconds = {OWN: 1.0, SDPA: 3.0, f"{SDPA}, repeated": 2.0, PRODUCT: 1e9, READ: 1e9}
    monkeypatch.setattr(
        attention, "measure", lambda runs, _: {name: seconds[name] for name in runs}
    )
    options = argparse.Namespace(
        threads=[torch.get_num_threads()],
        dtypes=["float32"],
        kinds=["causal"],
        directions=["fwd", "fwd+bwd"],
        lengths=[8],
        flex=False,
        seconds=0.0,
    )
    forward, _, both, _ = attention.cells(options)
    assert forward.baselines == {SDPA: 2.0} and forward.ratio(SDPA) == 2.0
    assert forward.goals == {"1.4x SDPA": True, "75% of the product": True}
    assert (both.direction, both.goals["1.6x SDPA"]) == ("fwd+bwd", True)


def test_the_peak_of_a_long_case_is_judged_by_what_is_needed(monkeypatch):
    (case,) = cases_of("long", torch.float32, [], flex=False)
    peaks = iter((100, 100 + 3 * 40 * 64 * 4))
    monkeypatch.setattr(attention, "reset_peak", lambda: True)
    monkeypatch.setattr(attention, "peak_bytes", lambda: next(peaks))
    row = 40 * 64 * 4
    assert attention._peaks(case) == {OWN: (24 + 3) * row, attention.NEEDED: 2 * 24 * row}
