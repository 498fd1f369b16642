"""Programs that hold their weights, which then need not be handed over in every call.

``fusewheel::bind(Tensor program, Tensor[] weights) -> Tensor`` keeps the last inputs of a program.
``fusewheel::run`` takes its result in place of the program, with the inputs in front of these.
What is kept are the tensors themselves, so a change of their values is seen. They are kept as long
as the memory of the result. In another process the result means nothing.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence

import torch
from torch import Tensor

from fusewheel._torch.autograd import below_autograd
from fusewheel.engine.operators import cpu_library

_library = torch.library.Library("fusewheel", "IMPL")

# The result of `bind` holds eight letters and the number of its weights.
_BYTES, _NUMBER_AT = 16, 8
_held: dict[int, list[weakref.ref[Tensor]]] = {}


def can_bind() -> bool:
    """Whether the CPU kernels are loaded, and torch is 2.11 or newer, on Linux.

    Older ones let no tensor hold others.
    """
    library = cpu_library()
    return library is not None and bool(library.fusewheel_can_bind())


def bind(program: Tensor, weights: Sequence[Tensor]) -> Tensor:
    """A program that holds its last inputs.

    Args:
        program: the `code` of a `Program`.
        weights: its last inputs. Unless gradients are switched off, none may require one.

    Returns:
        a uint8 tensor that takes the place of `program` in ``fusewheel::run``.

    Raises:
        RuntimeError: if there are more `weights` than inputs, if one requires a gradient while
            gradients are switched on, or where `can_bind` is false.
    """
    name: Tensor = torch.ops.fusewheel.bind(program, list(weights))
    number = _number(name)
    if number not in _held:
        _held[number] = [weakref.ref(weight) for weight in weights]
        weakref.finalize(name.untyped_storage(), _held.pop, number).atexit = False
    return name


def has_trained_weights(program: Tensor) -> bool:
    """Whether a program holds a weight that requires a gradient by now."""
    if not _held or type(program) is not Tensor or not _may_be_name(program):
        return False
    weights = _held.get(_number(program), ())
    return any(weight.requires_grad for held in weights if (weight := held()) is not None)


def _may_be_name(program: Tensor) -> bool:
    return (
        program.numel() == _BYTES
        and program.dtype == torch.uint8
        and program.device.type == "cpu"
        and program.is_contiguous()
    )


def _number(name: Tensor) -> int:
    return ctypes.c_uint64.from_address(name.data_ptr() + _NUMBER_AT).value


def _fake(program: Tensor, weights: Sequence[Tensor]) -> Tensor:
    raise RuntimeError("bind: weights must be tensors with memory, so it cannot be traced")


def _autograd(program: Tensor, weights: Sequence[Tensor]) -> Tensor:
    if torch.is_grad_enabled() and any(weight.requires_grad for weight in weights):
        raise RuntimeError("bind: weights must require no gradient: a program records none")
    with below_autograd():
        return bind(program, weights)


torch.library.register_fake("fusewheel::bind", _fake, lib=_library)
_library.impl("bind", _autograd, "Autograd")
