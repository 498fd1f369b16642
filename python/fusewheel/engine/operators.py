"""Which operators a program may call."""

from __future__ import annotations

import ctypes
import functools

import torch

from fusewheel._core.backends import backends
from fusewheel._torch.overloads import OpOverload

# The letters of cpu_kernels/engine/operators.h. PyTorch's names of types differ between versions.
_LETTERS = {
    "Tensor": "T",
    "Optional[Tensor]": "O",
    "List[Tensor]": "L",
    "int": "i",
    "SymInt": "i",
    "float": "f",
    "bool": "b",
    "List[int]": "I",
    "List[SymInt]": "I",
    "Optional[int]": "N",
    "Optional[SymInt]": "N",
    "Optional[float]": "F",
    "Optional[ScalarType]": "d",
    "Optional[MemoryFormat]": "m",
    "Optional[Layout]": "-",
    "Optional[Device]": "-",
    "Optional[bool]": "-",
}


def letters_of(schema: torch.FunctionSchema) -> str:
    """A letter for the type of each argument.

    Raises:
        ValueError: if a program cannot call such an operator.
    """
    arguments = (*schema.arguments, *schema.returns)
    if any(argument.alias_info is not None for argument in arguments):
        raise ValueError("it writes to an argument, or returns a view of one")
    if not schema.returns or any(str(result.type) != "Tensor" for result in schema.returns):
        raise ValueError("its results are not tensors")
    found = ""
    for argument in schema.arguments:
        # `type` shows int for ScalarType and Layout; `real_type`, where it exists, does not.
        kind = str(getattr(argument, "real_type", argument.type))
        if kind not in _LETTERS:
            raise ValueError(f"its argument {argument.name} is of type {kind}")
        found += _LETTERS[kind]
    return found


def step_letters(operator: OpOverload | str) -> str | None:
    """The letters of an operator that programs may call, None for all others.

    Args:
        operator: an operator with its overload, or the name of a step that is no operator:
            ``"engine::add"``.
    """
    return _table().get(f"{operator}." if isinstance(operator, str) else _key(operator))


def step_operators() -> dict[str, str]:
    """All operators that programs may call and steps that are none, each with its letters."""
    return dict(_table())


def add_step(overload: OpOverload) -> None:
    """Let programs call an operator.

    It must be pure: the same arguments always give the same results, which share no memory with an
    argument, and nothing is written to.

    Args:
        overload: the operator, such as ``torch.ops.mylib.scale.default``. Its arguments are
            tensors, lists of tensors, numbers and lists of integers; its results are tensors.

    Raises:
        TypeError: if `overload` is not an operator with its overload.
        ValueError: if a program cannot call such an operator.
        RuntimeError: if the CPU kernels of fusewheel are not loaded.
    """
    if not isinstance(overload, OpOverload):
        raise TypeError(
            f"add_step: overload must be like torch.ops.ns.name.default, got {overload}"
        )
    schema = overload._schema
    try:
        letters = letters_of(schema)
    except ValueError as error:
        raise ValueError(f"add_step: programs cannot call {overload}: {error}") from None
    library = cpu_library()
    if library is None:
        raise RuntimeError("add_step: programs need the CPU kernels; install fusewheel-cpu")
    names = schema.name.encode(), schema.overload_name.encode()
    if library.fusewheel_add_step_operator(*names, letters.encode(), len(schema.returns)):
        raise ValueError(f"add_step: {overload} is there already, with other types of arguments")
    _table.cache_clear()


@functools.cache
def cpu_library() -> ctypes.CDLL | None:
    """The CPU kernels, None if they are not loaded."""
    for backend in backends():
        if backend.device == "cpu" and backend.loaded:
            library = ctypes.CDLL(str(backend.library))
            if hasattr(library, "fusewheel_step_operators"):
                library.fusewheel_step_operators.restype = ctypes.c_char_p
                return library
    return None


@functools.cache
def _table() -> dict[str, str]:
    library = cpu_library()
    if library is None:
        return {}
    lines = library.fusewheel_step_operators().decode().splitlines()
    return {key: letters for key, letters, _ in (line.split(" ") for line in lines)}


def _key(overload: OpOverload) -> str:
    return f"{overload._schema.name}.{overload._schema.overload_name}"
