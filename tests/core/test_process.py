"""Other processes that answer, raise, die and take too long."""

from __future__ import annotations

import functools
import operator
import os
import pickle
import sys
import time
from pathlib import Path

import pytest
import torch
from core.endings import killed, run_out
from fusewheel._core.process import Child, ChildError, run_program, values

VARIABLE = "FUSEWHEEL_TEST"
both = pytest.mark.parametrize("method", ["spawn", "fork"])


@both
def test_calls_reach_one_object(method):
    with Child(list, (1, 2), method=method) as child:
        child.call("append", 7)
        assert child.call("copy") == [1, 2, 7]


@both
def test_an_exception_arrives_with_its_traceback_and_the_child_lives_on(method):
    with Child(list, method=method) as child:
        with pytest.raises(ChildError, match="IndexError: pop from empty list") as error:
            child.call("pop")
        assert "Traceback" in error.value.details
        assert not error.value.late
        assert child.call("copy") == []


@both
def test_a_failing_factory_is_reported(method):
    with (
        Child(operator.floordiv, 1, 0, method=method) as child,
        pytest.raises(ChildError, match="ZeroDivisionError"),
    ):
        child.call("bit_length")


@both
def test_an_exit_is_reported_with_what_was_printed(method):
    with (
        Child(run_out, 3, method=method) as child,
        pytest.raises(ChildError, match=r"ended with exit status 3$") as error,
    ):
        child.call("anything")
    assert error.value.details == "printed\nby a program"
    assert error.value.explanation.endswith("status 3. printed\nby a program")


def test_a_signal_is_reported_in_words():
    with (
        Child(killed, method="fork") as child,
        pytest.raises(ChildError, match=r"ended by SIGKILL \(Killed\)"),
    ):
        child.call("anything")


@both
def test_the_environment_is_the_childs_alone(method):
    with Child(os.getenv, VARIABLE, method=method, environment={VARIABLE: "set"}) as child:
        assert child.call("upper") == "SET"
    assert VARIABLE not in os.environ


@both
def test_values_are_copies_and_tensors_keep_their_strides(method):
    given = torch.arange(6.0).view(2, 3).t()
    with Child(tuple, [given], method=method) as child:
        ((got,),) = values([child], 60)
    assert torch.equal(got, given)
    assert got.stride() == given.stride()


def test_a_forked_child_needs_no_pickle():
    found = [1]
    with pytest.raises((AttributeError, pickle.PicklingError)):
        Child(lambda: found)
    with Child(lambda: found, method="fork") as child:
        assert child.call("copy") == [1]


def test_processes_may_wait_for_each_other():
    first, second = os.pipe(), os.pipe()
    steps = [(first[1], second[0]), (second[1], first[0])]
    children = [Child(exchange, *step, method="fork") for step in steps]
    assert values(children, 60) == [b"x", b"x"]
    for child in children:
        child.close()
    for descriptor in first + second:
        os.close(descriptor)


def exchange(out: int, into: int) -> bytes:
    os.write(out, b"x")
    return os.read(into, 1)


def test_the_first_that_fails_ends_the_others():
    children = [Child(time.sleep, 600, method="fork"), Child(killed, method="fork")]
    with pytest.raises(ChildError, match="SIGKILL"):
        values(children, 600)
    assert not any(child._process.is_alive() for child in children)


def test_a_process_that_died_is_the_cause_of_what_others_raise():
    ours, theirs = os.pipe()
    raising, dying = Child(wait_for, ours, theirs, method="fork"), Child(killed, method="fork")
    dying._ask(None)
    dying._process.join()
    os.close(theirs)
    with pytest.raises(ChildError, match="SIGKILL"):
        values([raising, dying], 60)
    os.close(ours)


def test_a_process_may_end_after_others_have_noticed():
    ours, theirs = os.pipe()
    raising = Child(wait_for, ours, theirs, method="fork")
    dying = Child(leave_and_die, theirs, method="fork")
    os.close(theirs)
    with pytest.raises(ChildError, match="SIGKILL"):
        values([raising, dying], 60)
    os.close(ours)


def leave_and_die(theirs: int) -> None:
    os.close(theirs)
    time.sleep(0.1)
    killed()


def wait_for(ours: int, theirs: int) -> None:
    os.close(theirs)
    os.read(ours, 1)
    raise ConnectionError("the other one has gone")


def test_a_late_process_is_ended():
    child = Child(time.sleep, 600, method="fork")
    with pytest.raises(ChildError, match="no result in 0 seconds") as error:
        values([child], 0.1)
    assert error.value.late
    assert not child._process.is_alive()


def test_waiting_may_end_a_call():
    def waiting() -> None:
        raise TimeoutError

    with Child(time.sleep, 600, method="fork") as child, pytest.raises(TimeoutError):
        child.call("anything", waiting=waiting)
    assert not child._process.is_alive()


def test_nothing_is_left_behind():
    child = Child(list, method="fork")
    child.close()
    child.close()
    assert not child._process.is_alive()
    assert not Path(child._log).exists()


def test_a_program():
    python = functools.partial(run_program, seconds=60)
    assert python([sys.executable, "-c", "print('said')"]) == "said\n"
    with pytest.raises(ChildError, match="ended with exit status 1") as error:
        python([sys.executable, "-c", "raise ValueError('wrong')"])
    assert "ValueError: wrong" in error.value.explanation
    with pytest.raises(ChildError, match="ended by SIGABRT"):
        python([sys.executable, "-c", "import os; os.abort()"])


def test_a_program_has_variables_of_its_own_beside_ours():
    code = f"import os; print(os.environ['{VARIABLE}'], 'PATH' in os.environ)"
    found = run_program([sys.executable, "-c", code], 60, {VARIABLE: "theirs"})
    assert found == "theirs True\n" and VARIABLE not in os.environ


def test_a_late_program():
    with pytest.raises(ChildError, match="no result in 1 seconds") as error:
        run_program([sys.executable, "-c", "import time; time.sleep(600)"], 1)
    assert error.value.late
