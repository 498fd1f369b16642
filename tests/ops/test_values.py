"""Values, layouts and errors of every operator, against its reference."""

from __future__ import annotations

import re
from typing import Any

import fusewheel
import pytest
import torch
from contracts import CONTRACTS
from edge_of_memory import at_the_edge
from fusewheel.dispatch.operator import Make, Operator
from neighbours import assert_call_as_good_as_eager
from oracle import emulated, tensors_of
from torch import Tensor


def call(operator: Operator, function, arguments: tuple) -> tuple[Tensor, ...]:
    """The outputs, which are the written argument where the operator writes one."""
    result = function(*arguments)
    return tensors_of(result if operator.mutates is None else arguments[operator.mutates])


def fresh(arguments: tuple) -> tuple:
    return tuple(a.clone() if isinstance(a, Tensor) else a for a in arguments)


def test_the_installed_package_is_tested():
    assert "site-packages" in fusewheel.__file__


def test_as_good_as_eager(operator: Operator, dtype: torch.dtype):
    functions = operator.overload, operator.reference

    def outputs(function: Any, arguments: tuple[Any, ...]) -> tuple[Tensor, ...]:
        return call(operator, function, fresh(arguments))

    for index, arguments in enumerate(operator.samples(Make(dtype, seed=torch.initial_seed()))):
        what = f"{operator.name}, sample {index}, output"
        contract = CONTRACTS.get(operator.name)
        assert_call_as_good_as_eager(outputs, *functions, arguments, what, contract=contract)


def test_inputs_are_left_alone(operator: Operator):
    for arguments in operator.samples(Make(seed=torch.initial_seed())):
        before = fresh(arguments)
        operator.overload(*arguments)
        for i, (old, new) in enumerate(zip(before, arguments, strict=True)):
            if isinstance(old, Tensor) and i != operator.mutates:
                assert torch.equal(old, new)


def test_nothing_is_read_behind_an_argument(operator: Operator, dtype: torch.dtype):
    """It would end the process."""
    for arguments in operator.samples(Make(dtype, seed=torch.initial_seed())):
        operator.overload(*(at_the_edge(a) if isinstance(a, Tensor) else a for a in arguments))


def test_nothing_is_written_beside_the_output(operator: Operator):
    if operator.mutates is None:
        # Outputs of the operator's own: the gaps of its inputs hold NaN, which a read would show.
        for arguments in operator.samples(Make(seed=torch.initial_seed())):
            for output in call(operator, operator.overload, arguments):
                assert not output.isnan().any()
        return
    for arguments in operator.samples(Make(seed=torch.initial_seed())):
        shape = arguments[operator.mutates].shape
        base = torch.full([2 * s + 1 for s in shape], 7.0)
        view = base[tuple(slice(1, None, 2) for _ in shape)]
        at = operator.mutates
        operator.overload(*arguments[:at], view, *arguments[at + 1 :])
        view.fill_(7.0)
        assert bool((base == 7.0).all())


def test_repeated_runs_and_thread_counts_give_the_same_bits(operator: Operator):
    threads = torch.get_num_threads()
    # On a GPU PyTorch's matrix products know no threads; the CPU's, which stand in for them, do.
    counts = (1,) if emulated() or operator.products else (1, 2, 7)
    try:
        for arguments in operator.samples(Make(seed=torch.initial_seed())):
            torch.set_num_threads(1)
            start = fresh(arguments) if operator.in_place else arguments
            first = [t.clone() for t in call(operator, operator.overload, arguments)]
            for count in counts:
                torch.set_num_threads(count)
                given = fresh(start) if operator.in_place else arguments
                again = call(operator, operator.overload, given)
                assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    finally:
        torch.set_num_threads(threads)


def test_fake_promises_what_the_kernel_gives(operator: Operator, dtype: torch.dtype):
    if operator.mutates is not None:
        return
    for arguments in operator.samples(Make(dtype, seed=torch.initial_seed())):
        for real, fake in zip(
            call(operator, operator.overload, arguments),
            call(operator, operator.fake, arguments),
            strict=True,
        ):
            assert (real.shape, real.dtype, real.stride()) == (
                fake.shape,
                fake.dtype,
                fake.stride(),
            )


def test_bad_inputs_are_refused_by_name(operator: Operator, dtype: torch.dtype):
    for bad in operator.refusals(Make(dtype)):
        with pytest.raises((RuntimeError, TypeError, ValueError)) as caught:
            operator.overload(*bad.arguments)
        assert re.search(bad.message, str(caught.value), re.DOTALL), str(caught.value)


def test_bad_inputs_are_refused_without_autograd_too(operator: Operator):
    with torch.inference_mode():
        for bad in operator.refusals(Make()):
            with pytest.raises((RuntimeError, TypeError, ValueError)):
                operator.overload(*bad.arguments)


def test_another_device_is_refused(operator: Operator):
    for arguments in operator.samples(Make(seed=torch.initial_seed())):
        positions = [i for i, a in enumerate(arguments) if isinstance(a, Tensor)]
        if len(positions) < 2:
            continue
        mixed = list(arguments)
        mixed[positions[-1]] = mixed[positions[-1]].to("meta")
        name = operator.overload._schema.arguments[positions[-1]].name
        with pytest.raises(RuntimeError, match=f"{operator.name}: {name} must be on the device of"):
            operator.overload(*mixed)


def test_nan_in_gives_nan_out(operator: Operator):
    for arguments in operator.samples(Make(seed=torch.initial_seed())):
        spoiled = list(fresh(arguments))
        if spoiled[0].numel() == 0:
            continue
        spoiled[0][(0,) * spoiled[0].dim()] = float("nan")
        outputs = call(operator, operator.overload, tuple(spoiled))
        assert any(bool(o.isnan().any()) for o in outputs) or not any(o.numel() for o in outputs)


def test_a_device_without_kernels_runs_the_reference(operator: Operator):
    """Such a device's kernel, given CPU tensors: the reference's values in the kernel's layout."""
    for arguments in operator.samples(Make(seed=torch.initial_seed())):
        got = call(operator, operator.overload, fresh(arguments))
        want = call(operator, operator.reference, fresh(arguments))
        fallback = call(
            operator,
            lambda *a: operator.overload.redispatch(
                torch._C.DispatchKeySet(torch._C.DispatchKey.XPU), *a
            ),
            fresh(arguments),
        )
        for a, b, c in zip(got, want, fallback, strict=True):
            assert torch.equal(b, c)
            assert a.stride() == c.stride()


@pytest.mark.skipif(emulated(), reason="it is about the CPU kernels' own conversion")
def test_denormal_float16_is_read_where_denormal_floats_are_flushed():
    """A process may ask for denormal floats to be zero; a denormal float16 is a normal float."""
    x = (torch.arange(-1024, 1025) * 2.0**-24).half()
    try:
        torch.set_flush_denormal(True)
        got = fusewheel.mul(x, torch.ones((), dtype=x.dtype))
    finally:
        torch.set_flush_denormal(False)
    assert torch.equal(got, x)
