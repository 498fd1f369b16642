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


@pytest.fixture
def nothing_frozen():
    """Pytest may have frozen what it imported."""
    gc.unfreeze()
    gc.collect()


def _is_old(value: object) -> bool:
    return any(value is old for old in gc.get_objects(generation=2))


@pytest.mark.parametrize("stays", [True, False])
@pytest.mark.usefixtures("nothing_frozen")
def test_what_stays_is_old_at_once(stays: bool):
    with without_collections(stays=stays):
        made: list[object] = [[]]
    assert _is_old(made) == stays


@pytest.mark.usefixtures("nothing_frozen")
def test_objects_have_their_age_while_the_user_collects_nothing(enabled: bool):
    with without_collections(stays=True):
        made: list[object] = [[]]
    assert _is_old(made) == enabled


def test_what_the_user_has_frozen_stays_frozen():
    kept: list[object] = [[]]
    gc.freeze()
    try:
        with without_collections(stays=True):
            pass
        # Other threads may free frozen objects meanwhile: their number says nothing.
        assert not any(value is kept for value in gc.get_objects())
    finally:
        gc.unfreeze()
