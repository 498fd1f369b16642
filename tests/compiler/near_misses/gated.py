"""Products of an activation and another tensor."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from compiler.near_misses.cases import HALF, ROW, X, Y, case, make

case("geglu", lambda x, y: F.gelu(x) * y, X, Y)
case("gelu_times_number", lambda x: F.gelu(x) * 2, X)
case("gelu_times_row", lambda x, y: F.gelu(x) * y, X, ROW)
case("gelu_times_itself", lambda x: (lambda g: g * g)(F.gelu(x)), X)
case("gelu_used_twice", lambda x, y: (lambda g: (g * y, g.exp()))(F.gelu(x)), X, Y)
case("gelu_plus", lambda x, y: F.gelu(x) + y, X, Y)
case("geglu_of_other_dtype", lambda x, y: F.gelu(x) * y, X, HALF)
case("geglu_of_integers", lambda x, y: F.silu(x) * y, X, torch.arange(16))
case("geglu_in_place", lambda x, y: F.gelu(x).mul_(y), X, Y)
case("swiglu", lambda x, y: F.silu(x) * y, X, Y)
case("swiglu_of_sigmoid", lambda x, y: x * torch.sigmoid(x) * y, X, Y)
case("swiglu_of_sigmoid_turned", lambda x, y: y * (torch.sigmoid(x) * x), X, Y)
case("sigmoid_of_another", lambda x, y: x * torch.sigmoid(y) * y, X, Y)
case("sigmoid_in_place", lambda x, y: (x + 0).mul_(torch.sigmoid(x + 0)) * y, X, Y)
case("sigmoid_written", lambda x, y: (lambda z: z.mul_(torch.sigmoid(z)) * y)(x + 1), X, Y)
case("silu_alone", lambda x: F.silu(x), X)
case("silu_times_number", lambda x: F.silu(x) * 2, X)
case("silu_in_place", lambda x, y: F.silu(x + 1, inplace=True) * y, X, Y)
case("silu_over_input", lambda x, y: F.silu(x, inplace=True) * y, X.clone(), Y)
case("silu_over_used", lambda x, y: (lambda z: (F.silu(z, inplace=True) * y, z))(x + 1), X, Y)
case("silu_over_view", lambda x, y: F.silu((x + 1).view(16, 3), inplace=True) * y, X, make(16, 3))


def packed(first: Any, second: Any, product: Any) -> Any:
    return lambda x: product(x[first], x[second])


LOW, HIGH = (..., slice(None, 8)), (..., slice(8, None))
glu = lambda g, u: F.silu(g) * u  # noqa: E731
case("swiglu_complex", lambda x, y: F.silu(x) * y, X + 0j, Y + 0j)
case("packed", packed(LOW, HIGH, glu), X)
case("packed_turned", packed(HIGH, LOW, glu), X)
case("packed_gelu", packed(LOW, HIGH, lambda g, u: F.gelu(g) * u), X)
case("packed_gelu_turned", packed(HIGH, LOW, lambda g, u: F.gelu(g) * u), X)
case("packed_overlapping", packed((..., slice(0, 8)), (..., slice(7, 15)), glu), X)
case("packed_even_and_odd", packed((..., slice(0, 16, 2)), (..., slice(1, 16, 2)), glu), X)
case("packed_rows", lambda x: glu(x[:3], x[3:]), make(6, 16))
case("packed_quarters", packed((..., slice(0, 4)), (..., slice(4, 8)), glu), X)
case("packed_of_two", lambda x, y: glu(x[:, :8], y[:, 8:]), X, Y)
case("packed_one_half", lambda x, y: glu(x[:, :8], y), X, make(3, 8))
case("packed_half_used", lambda x: (lambda g, u: (glu(g, u), g))(x[:, :8], x[:, 8:]), X)
