"""TorchScript's arithmetic on numbers, sizes and properties of tensors, in Python.

Only the TorchScript interpreter has these operations. Unlike operations on tensors, they do not
take symbolic sizes.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

Number = (bool, int, float, torch.SymInt, torch.SymFloat, torch.SymBool)
CONCRETE = (bool, int, float)

_DTYPES = (
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.complex64, torch.complex128),
)
_FORMATS = (
    *(torch.contiguous_format, torch.preserve_format),
    *(torch.channels_last, torch.channels_last_3d),
)


@cache
def _codes() -> dict[int, torch.dtype]:
    return {int(torch.ops.prim.dtype(torch.empty(0, dtype=d))): d for d in _DTYPES}


def code_of(dtype: torch.dtype) -> int:
    """The number that TorchScript has for a dtype.

    Raises:
        KeyError: if the dtype is not one of the common ones.
    """
    return {d: code for code, d in _codes().items()}[dtype]


def enumerated(kind: str, value: object) -> object:
    """The Python object for a number by which TorchScript passes it: dtypes, layouts, formats.

    Args:
        kind: the argument's type in its schema.
        value: the number.

    Raises:
        LookupError: if the number is not known.
    """
    if not isinstance(value, int) or isinstance(value, bool):
        return value
    if "ScalarType" in kind:
        return _codes()[value]
    if "MemoryFormat" in kind:
        return _FORMATS[value]
    if "Layout" in kind:
        return {0: torch.strided}[value]
    return value


def _size(x: Tensor, dim: int | None = None) -> Any:
    return list(x.shape) if dim is None else x.shape[dim]


def _add(a: Any, b: Any, alpha: Any = 1) -> Any:
    return a + b if alpha == 1 else a + b * alpha


def _sub(a: Any, b: Any, alpha: Any = 1) -> Any:
    return a - b if alpha == 1 else a - b * alpha


def _same(a: Any) -> Any:
    return a


def _div(a: Any, b: Any, rounding_mode: str | None = None) -> Any:
    if rounding_mode == "trunc":
        raise NotImplementedError(rounding_mode)
    return a / b if rounding_mode is None else a // b


def _item(items: Any, index: int) -> Any:
    return items[index]


def _int(a: Any) -> Any:
    return a if isinstance(a, (int, torch.SymInt)) and not isinstance(a, bool) else int(a)


def _float(a: Any) -> Any:
    return a if isinstance(a, (float, torch.SymFloat)) else torch.sym_float(a)


def _not(a: Any) -> Any:
    return torch.sym_not(a)


def _is(a: Any, b: Any) -> bool:
    return a is b


def _is_not(a: Any, b: Any) -> bool:
    return a is not b


def _false() -> bool:
    return False  # every rewrite assumes it, see `fusewheel.jit.inputs`


# They return their operand. NumToTensor makes a tensor without dimensions, and a number can be used
# instead of such a tensor.
SAME = frozenset(
    {
        "prim::NumToTensor",
        "prim::unchecked_cast",
        "prim::unchecked_unwrap_optional",
        "aten::_unwrap_optional",
        "aten::ScalarImplicit",
        "aten::IntImplicit",
        "aten::FloatImplicit",
    }
)

# Properties of tensors, lists and anything else.
PROPERTIES: dict[str, Callable[..., Any]] = {
    "aten::size": _size,
    "aten::dim": lambda x: x.dim(),
    "aten::len": len,
    "aten::numel": lambda x: x.numel(),
    "aten::is_floating_point": lambda x: x.is_floating_point(),
    "prim::dtype": lambda x: code_of(x.dtype),
    "prim::device": lambda x: x.device,
    "prim::is_cuda": lambda x: x.is_cuda,
    "prim::is_cpu": lambda x: x.is_cpu,
    "prim::requires_grad": lambda x: x.requires_grad,
    "aten::__is__": _is,
    "aten::__isnot__": _is_not,
    "aten::__getitem__": _item,
    "aten::is_autocast_enabled": _false,
    "aten::is_autocast_cpu_enabled": _false,
}

# Arithmetic of numbers.
ARITHMETIC: dict[str, Callable[..., Any]] = {
    "aten::add": _add,
    "aten::sub": _sub,
    "aten::mul": operator.mul,
    "aten::div": _div,
    "aten::floordiv": operator.floordiv,
    "aten::floor_divide": operator.floordiv,
    "aten::remainder": operator.mod,
    "aten::neg": operator.neg,
    "aten::eq": operator.eq,
    "aten::ne": operator.ne,
    "aten::lt": operator.lt,
    "aten::le": operator.le,
    "aten::gt": operator.gt,
    "aten::ge": operator.ge,
    "aten::__not__": _not,
    "aten::__and__": operator.and_,
    "aten::__or__": operator.or_,
    "aten::Int": _int,
    "aten::Float": _float,
    "aten::Bool": lambda a: a if isinstance(a, torch.SymBool) else bool(a),
    "prim::min": torch.sym_min,
    "prim::max": torch.sym_max,
}
