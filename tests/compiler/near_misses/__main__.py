"""Writes `outcomes.txt`."""

from __future__ import annotations

from unittest import mock

from compiler.near_misses import CASES, OUTCOMES, outcome
from fusewheel.compiler.cost import attention

with mock.patch.object(attention, "loss", lambda *args, **kwargs: None):
    OUTCOMES.write_text("".join(f"{n} -> {outcome(c)[0]}\n" for n, c in CASES.items()))
