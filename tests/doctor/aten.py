"""Operators of PyTorch's own with small arguments: there is nothing for the doctor to find."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten


def make(*shape: int) -> Tensor:
    # Between 0.5 and 1.5: inside every domain, and away from the kinks.
    return torch.rand(shape, generator=torch.Generator().manual_seed(sum(shape))) + 0.5


def operators() -> Iterator[tuple[Any, tuple[Any, ...]]]:
    x, y, z = make(3, 4), make(3, 4) + make(3, 1), make(4, 5)
    index = torch.tensor([2, 0, 1])
    unary = "abs neg exp log sqrt rsqrt sin cos tanh sigmoid silu erf relu reciprocal square expm1"
    for name in unary.split():
        yield getattr(aten, name).default, (x,)
    yield aten.gelu.default, (x,)
    yield aten.softplus.default, (x,)
    yield aten.add.Tensor, (x, y)
    yield aten.sub.Tensor, (x, y)
    yield aten.mul.Tensor, (x, make(4))
    yield aten.div.Tensor, (x, y)
    yield aten.pow.Tensor_Scalar, (x, 3)
    yield aten.maximum.default, (x, y)
    yield aten.where.self, (x > 1, x, y)
    yield aten.lerp.Tensor, (x, y, make(3, 4) * 0.5)
    yield aten.addcmul.default, (x, y, make(3, 4))
    yield aten.sum.dim_IntList, (x, [1])
    yield aten.mean.dim, (x, [0])
    yield aten.amax.default, (x, [1])
    yield aten.prod.dim_int, (x, 1)
    yield aten.var.correction, (x, [1])
    yield aten.logsumexp.default, (x, [1])
    yield aten.cumsum.default, (x, 1)
    yield aten._softmax.default, (x, 1, False)
    yield aten._log_softmax.default, (x, 1, False)
    yield aten.mm.default, (x, z)
    yield aten.bmm.default, (make(2, 3, 4), make(2, 4, 5))
    yield aten.addmm.default, (make(3, 5), x, z)
    yield aten.mv.default, (x, make(4))
    yield aten.dot.default, (make(4), make(4))
    yield aten.view.default, (x, [-1])
    yield aten.permute.default, (x, [1, 0])
    yield aten.expand.default, (make(3, 1), [3, 4])
    yield aten.slice.Tensor, (x, 1, 1, 3)
    yield aten.select.int, (x, 0, 1)
    yield aten.cat.default, ([x, y], 1)
    yield aten.stack.default, ([x, y],)
    yield aten.clone.default, (x,)
    yield aten.index_select.default, (x, 0, index)
    yield aten.gather.default, (x, 1, index[:, None])
    yield aten.tril.default, (x,)
    yield aten.flip.default, (x, [0])
    yield aten.native_layer_norm.default, (x, [4], make(4), make(4), 1e-5)
    yield aten.embedding.default, (make(5, 4), index)
    yield aten.argmax.default, (x, 1)
    yield aten.gt.Tensor, (x, y)
    yield aten.mul_.Tensor, (x, y)
    yield aten.add_.Tensor, (x, y)
    yield (
        aten.convolution.default,
        (
            *(make(1, 2, 6), make(3, 2, 3), make(3)),
            *([1], [0], [1], False, [0], 1),
        ),
    )
    yield aten.bernoulli.default, (x / 2,)
