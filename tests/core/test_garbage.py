"""Blocks without the garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from fusewheel._core.garbage import without_collections


@pytest.fixture(params=[True, False], ids=["on", "off"])
def enabled(request: pytest.FixtureRequest) -> Iterator[bool]:
    """The state that the user chose."""
    before = gc.isenabled()
    (gc.enable if request.param else gc.disable)()
    yield request.param
    (gc.enable if before else gc.disable)()


def test_afterwards_the_collector_is_as_it_was(enabled: bool):
    with without_collections():
        assert not gc.isenabled()
        with without_collections():
            pass
        assert not gc.isenabled()
    assert gc.isenabled() == enabled


def test_also_after_an_error(enabled: bool):
    with pytest.raises(ValueError, match="inside"), without_collections():
        raise ValueError("inside")
    assert gc.isenabled() == enabled
