"""Operators at the limits of what columns apply to, and what each column says of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from doctor.aten import make
from doctor.defects.declare import Twin
from doctor.limited import (
    dense_alone,
    doubled_and_more,
    every_result,
    first_alone,
    first_in_float32,
    flat_too,
    in_float32,
    in_float64,
    in_pieces,
    little,
    most_for_none,
    much,
    nowhere,
    of_two_dtypes,
    same_dtypes,
    scaled,
    second_alone,
    second_back,
    twice,
    two_results,
    unless,
    unless_factor,
    unscaled,
    without_gradient,
)
from fusewheel.doctor.columns import COLUMNS
from fusewheel.doctor.outcome import Status

aten = torch.ops.aten
WORKS, REFUSES, NO = Status.WORKS, Status.REFUSES, Status.NOT_APPLICABLE
Names = tuple[str, ...]
X = make(3, 4)

# Columns by what they need.
EXACT: Names = ("forward mode", "jvp", "jacrev", "jacfwd")
JACOBIANS: Names = ("jacrev", "jacfwd", "hessian")
TRANSFORMED: Names = ("grad", "vjp", "hessian", "vmap of grad", "functional_call")
KEPT: Names = ("saved hooks", "changed input", "unused output", "checkpoint", "selective")
GRAPH: Names = (*KEPT, *TRANSFORMED, "compiled backward", "second", "detached")
SIZES: Names = ("compiled sizes", "dynamic export")
VECTORS: Names = ("gaps", "expanded")
MATRICES: Names = ("permuted", "overlapping")
LAYOUTS: Names = (*VECTORS, *MATRICES)
NO_VECTOR, NO_MATRIX = (f"no floating tensor of {n} dimensions that is only read" for n in (1, 2))
AUTOCAST: Names = ("autocast", "CUDA autocast")
PROCESSES: Names = ("fork", "spawn")
GROUPS: Names = ("DTensor", "FSDP2")
IN_CPP: Names = ("C++ TorchScript", "C++ package")
PLAIN: Names = ("eager", "registration", "schema", "profiler", "empty", "0-dim")
FAKES: Names = ("fake", "meta")
DISPATCHER: Names = ("registration", "selective", "opcheck", "meta", "copies", *PROCESSES)
RANDOM: Names = tuple(
    c.name for c in COLUMNS if c.name not in {*PLAIN, *FAKES, "written", "opcheck", "scalars"}
)


@dataclass(frozen=True)
class Limit:
    """What a column says of one call.

    Attributes:
        column: its name.
        status: what it must find.
        reason: the exact words.
        op: the operator.
        arguments: its arguments.
    """

    column: str
    status: Status
    reason: str
    op: Any
    arguments: tuple[Any, ...]


LIMITS: list[Limit] = []


def limit(
    op: Any,
    *arguments: Any,
    works: Names = (),
    no: Mapping[str, Names] = MappingProxyType({}),
    refuses: Mapping[str, Names] = MappingProxyType({}),
) -> None:
    """Declares a call, the columns in which it works, and for each reason those in which it does
    not apply, or is refused.
    """
    for status, reasons in ((WORKS, {"": works}), (NO, no), (REFUSES, refuses)):
        for reason, columns in reasons.items():
            LIMITS.extend(Limit(column, status, reason, op, arguments) for column in columns)


def operator(kernel: Callable[..., Any], *schema: str, **settings: Any) -> Any:
    """An operator of the dispatcher, under the name of its kernel."""
    return Twin(f"limit_{kernel.__name__}", faulty=False).operator(kernel, *schema, **settings)


limit(
    *(aten.bernoulli.p, X, 0.5),
    works=(*PLAIN, *FAKES),
    no={
        "random": RANDOM,
        "no float argument": ("scalars",),
        "writes nothing": ("written",),
        "opcheck is for custom operators": ("opcheck",),
    },
)
limit(
    *(aten.floor.default, X),
    works=(*PLAIN, *FAKES, *AUTOCAST, "fork", "compiled sizes", "no grad"),
    no={
        "not differentiable": (*GRAPH, *EXACT, "gradient", "FSDP2"),
        "no module to import is known": ("spawn",),
    },
)
limit(
    *(aten.bitwise_not.default, torch.arange(12).view(3, 4)),
    works=("fork", "no grad"),
    no={
        "no floating tensor": (*GRAPH, *EXACT, "gradient", "vmap", "0-dim"),
        NO_VECTOR: VECTORS,
        NO_MATRIX: MATRICES,
        "no float32 tensor": AUTOCAST,
    },
)
limit(
    *(twice, X),
    works=("profiler", "trace", "script", "free threads"),
    no={
        "not a dispatcher operator": DISPATCHER,
        "not a dispatcher operator: no schema": ("schema", "scalars"),
        "one output": ("unused output",),
        "writes nothing": ("written",),
    },
)
limit(
    *(aten.pow.Tensor_Scalar, X, 3),
    works=("fork", *AUTOCAST),
    no={"no float argument": ("scalars",)},
)
limit(
    *(operator(without_gradient), X),
    works=("compile", "no grad"),
    no={"backward gives no gradient": GRAPH, "defined in Python": IN_CPP},
)
limit(
    *(operator(in_pieces, keys=("CompositeImplicitAutograd",), fake=None), X),
    no={"decomposes into others before a policy sees it": ("selective",)},
)
limit(
    *(unless(lambda x: x.dtype != torch.float16, "x must be float16"), X.half()),
    no={
        "takes neither float32 nor float64": ("gradient", "detached"),
        "takes no float64": (*EXACT, "second", "hessian"),
        "no float32 tensor": AUTOCAST,
    },
)
limit(
    *(in_float32, X),
    no={"takes no float64": (*EXACT, "second", "hessian")},
    refuses={"mixed dtypes: x must be float32": AUTOCAST},
)
# How exact finite differences are depends on the size of the values.
limit(little, X, works=("gradient", "detached"))
limit(much, X, works=("gradient", "detached"))
limit(aten.exp.default, make(10, 10), works=(*JACOBIANS, *EXACT))
limit(
    *(aten.exp.default, make(10, 20)),
    works=("forward mode",),
    no={"no sample of at most 100 elements": JACOBIANS},
)
limit(
    *(aten.exp.default, make(15, 15)),
    works=("gradient", "detached"),
    no={"no sample of at most 200 elements": (*EXACT, "second", "hessian")},
)
limit(
    *(aten.expand.default, make(3, 1), [3, 50]),
    works=("hessian",),
    no={
        "no sample of at most 100 elements": ("jacrev", "jacfwd"),
        "gives a view": ("changed input", "no grad"),
    },
    refuses={"no dimension may be empty": ("empty",)},
)
limit(
    *(aten.exp.default, make()),
    works=("0-dim", "no grad"),
    no={
        "no dimensions": ("empty",),
        "no dimension of more than one element": SIZES,
        NO_VECTOR: VECTORS,
        NO_MATRIX: MATRICES,
        "a tensor without dimensions": ("FSDP2",),
    },
)
limit(aten.exp.default, make(4), works=VECTORS, no={NO_MATRIX: MATRICES})
limit(
    *(aten.exp.default, make(1, 4)),
    works=LAYOUTS,
    no={"no dimension of more than one element": SIZES},
)
limit(aten.exp.default, make(2, 3), works=(*SIZES, *LAYOUTS))
for one in (make(3, 1), make()):
    limit(aten.exp.default, one.double().expand(3, 4), works=(*EXACT, "gradient", "second"))
limit(
    *(aten.exp.default, make(0, 4)),
    works=("schema", "deterministic", "fork"),
    no={NO_VECTOR: VECTORS, NO_MATRIX: MATRICES, "no floating tensor": ("0-dim",)},
)
limit(aten.mul.Tensor, X, make(0, 1, 1), no={"no floating tensor": ("0-dim",)})
for rows in (range(3, 16), (3, *range(16, 22))):
    cannot_grow = unless(lambda x, rows=rows: x.shape[0] not in rows, "x must have other rows")
    limit(cannot_grow, X, no={"the leading dimension cannot grow": SIZES})
limit(
    *(unless(lambda x: not x.is_contiguous(), "x must be contiguous"), X),
    refuses={"x must be contiguous": LAYOUTS},
)
limit(
    *(unless(lambda x: bool((x[:1] == x[1:]).all()), "rows must differ"), X),
    refuses={"rows must differ": ("expanded",)},
)
limit(
    *(unless(lambda x: not x.dim(), "x must have a dimension"), X),
    refuses={"x must have a dimension": ("0-dim",)},
)
limit(unless(lambda x: x.shape == (1,), "x must have no dimension"), X, works=("0-dim",))
limit(flat_too, X, works=("0-dim",))
limit(aten.rand_like.default, X, works=("0-dim",))
limit(aten.equal.default, X, X, works=("schema",))
limit(same_dtypes, X, X, refuses={"mixed dtypes: y must have the dtype of x": AUTOCAST})
limit(first_alone, X, X, works=("gradient", *EXACT, "second", *AUTOCAST, *GROUPS))
limit(second_alone, X, X, works=("gradient", *EXACT, "second", "detached"))
limit(first_in_float32, X, X, works=("gradient", "detached"))
limit(
    *(of_two_dtypes, X, X.double()),
    works=("detached",),
    no={"takes no float64": (*EXACT, "second", "hessian")},
)
limit(most_for_none, X, works=("empty",))
limit(in_float64, X, works=("subclass", "dispatch mode"))
writes = operator(doubled_and_more, "(Tensor(a!) x) -> Tensor")
limit(writes, X, works=("written", "subclass", "dispatch mode"))
limit(every_result, X, works=("gradient", "forward mode"))
limit(two_results, X, X, works=("gradient", "unused output", "second", "no grad"))
# Whole numbers beside a result, of which there is no derivative.
limit(aten.max.dim, X, 1, works=("gradient", *EXACT, *TRANSFORMED, *KEPT[:2], "checkpoint"))
limit(
    aten.mul.Tensor, X, (make(4) - 1).log(), works=("saved hooks", "forward mode", "deterministic")
)
# A composite that gives its argument back, which its schema does not say.
limit(aten.dropout.default, X, 0.5, False, works=("schema",))
SECOND = "(Tensor x, Tensor(a) y) -> Tensor(a)"
limit(operator(second_back, SECOND, fake=second_back), X, make(4), works=("schema",))
limit(
    *(aten.exp.default, X.to("meta")),
    no={
        "not on a CPU": ("huge", *GROUPS),
        "the program is for a CPU": IN_CPP,
    },
)
for first in (make(0, 4), make(1, 4), make(2, 4), make()):
    limit(aten.mul_.Tensor, first, make(4)[: first.dim()].sum(), works=("written",))
limit(aten.bitwise_or_.Tensor, torch.arange(6).view(3, 2), torch.tensor(1), works=("written",))
limit(nowhere, X, no={"no kernel for CUDA": ("CUDA graph", "CUDA autocast")})
TIMES = "(Tensor x, float f) -> Tensor"
like_x = lambda x, f: torch.empty_like(x)  # noqa: E731
for kernel in (scaled, unscaled):
    op = operator(kernel, TIMES, fake=like_x)
    limit(op, X, 2.0, works=("scalars", "fork", "script"))
# Of the numbers that a column tries one may be refused.
for refused in (1.25, 1.75, 2.25):
    limit(operator(unless_factor(refused), TIMES, fake=like_x), X, 2.0, works=("scalars",))
limit(
    *(operator(dense_alone, "(Tensor(a!) x) -> ()", fake=lambda x: None), X),
    refuses={"x must be contiguous": ("written",)},
)
