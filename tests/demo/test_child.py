"""Worker processes that answer, raise and die."""

from __future__ import annotations

import functools
import operator
import os

import pytest
from fusewheel.demo.child import Child, ChildError

VARIABLE = "FUSEWHEEL_DEMO_TEST"


@pytest.fixture
def start(tmp_path):
    children = []

    def start_child(factory, env=None):
        children.append(Child(factory, tmp_path, env or {}))
        return children[-1]

    yield start_child
    for child in children:
        child.close()


def test_calls_reach_one_object(start):
    child = start(list)
    child.call("append", 7)
    assert child.call("copy") == [7]


def test_an_exception_arrives_with_its_traceback_and_the_child_lives_on(start):
    child = start(list)
    with pytest.raises(ChildError, match="IndexError: pop from empty list") as error:
        child.call("pop")
    assert "Traceback" in error.value.details
    assert child.call("copy") == []


def test_a_failing_factory_is_reported(start):
    with pytest.raises(ChildError, match="ZeroDivisionError"):
        start(functools.partial(operator.floordiv, 1, 0)).call("bit_length")


def test_a_dying_process_is_reported(start):
    with pytest.raises(ChildError, match="exit code 3"):
        start(functools.partial(os._exit, 3)).call("anything")


def test_the_environment_is_the_childs_alone(start):
    child = start(functools.partial(os.getenv, VARIABLE), {VARIABLE: "set"})
    assert child.call("upper") == "SET"
    assert VARIABLE not in os.environ
