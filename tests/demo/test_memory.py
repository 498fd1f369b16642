"""Peak memory from a chosen moment on."""

from __future__ import annotations

import pytest
from fusewheel.demo import memory


def test_reset_forgets_an_earlier_peak():
    if not memory.reset_peak():
        pytest.skip("this system cannot reset the peak")
    before = memory.peak_bytes()
    block = bytearray(b"x" * 2**26)
    during = memory.peak_bytes()
    del block
    memory.reset_peak()
    after = memory.peak_bytes()
    assert before is not None
    assert during is not None
    assert after is not None
    assert during - before > 2**25
    assert during - after > 2**25


def test_without_proc_the_peak_of_the_process_is_used(monkeypatch, tmp_path):
    monkeypatch.setattr(memory, "_STATUS", tmp_path / "missing" / "status")
    monkeypatch.setattr(memory, "_CLEAR_REFS", tmp_path / "missing" / "clear_refs")
    assert not memory.reset_peak()
    peak = memory.peak_bytes()
    assert peak is None or peak > 2**20
