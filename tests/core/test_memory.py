"""Peak memory from a chosen moment on, and what is used and free."""

from __future__ import annotations

import sys

import pytest
from fusewheel._core import memory


def test_reset_forgets_an_earlier_peak():
    if not memory.reset_peak():
        pytest.skip("this system cannot reset the peak")
    before = memory.peak_bytes()
    block = bytearray(b"x" * 2**26)
    during = memory.peak_bytes()
    resident = memory.resident_bytes()
    del block
    memory.reset_peak()
    after = memory.peak_bytes()
    assert during - before > 2**25
    assert during - after > 2**25
    assert resident - after > 2**25


def test_without_proc_the_peak_of_the_process_is_used(monkeypatch, tmp_path):
    peak = memory.peak_bytes()
    monkeypatch.setattr(memory, "_STATUS", tmp_path / "missing" / "status")
    monkeypatch.setattr(memory, "_CLEAR_REFS", tmp_path / "missing" / "clear_refs")
    assert not memory.reset_peak()
    assert memory.peak_bytes() >= 0.9 * peak


def test_what_is_free_is_less_than_there_is():
    psutil = pytest.importorskip("psutil")
    assert 0 < memory.available_bytes() < psutil.virtual_memory().total


def test_without_psutil_a_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "psutil", None)
    for ask in (memory.reset_peak, memory.resident_bytes, memory.available_bytes):
        with pytest.raises(ImportError, match="pip install psutil"):
            ask()
