"""GELU and formulas like it."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from compiler.near_misses.cases import X, Y, case


def formula(f: Any, a: float = 0.7071067811865476, b: float = 0.0, c: float = 1.0) -> Any:
    return lambda x: 0.5 * x * (c + f(a * (x + b * x * x * x)))


ROOT, CUBE = 0.7978845608028654, 0.044715
case("gelu", lambda x: F.gelu(x), X)
case("gelu_tanh", lambda x: F.gelu(x, approximate="tanh"), X)
case("gelu_double", lambda x: F.gelu(x), X.double())
case("gelu_of_erf", formula(torch.erf), X)
case("gelu_of_tanh", formula(torch.tanh, ROOT, CUBE), X)
case("gelu_of_sigmoid", lambda x: x * torch.sigmoid(2 * ROOT * (x + CUBE * x**3)), X)
case("gelu_quick", lambda x: x * torch.sigmoid(1.702 * x), X)
case("gelu_other_root", formula(torch.erf, 0.70711), X)
case("gelu_other_cube", formula(torch.tanh, ROOT, 0.0447), X)
case("gelu_other_sum", formula(torch.erf, c=2.0), X)
case("gelu_of_another", lambda x, y: 0.5 * y * (1 + torch.erf(x / 2**0.5)), X, Y)
case("gelu_of_sum", lambda x, y: formula(torch.erf)(x + y), X, Y)
case("gelu_in_place", lambda x: 0.5 * x * (1 + (x / 2**0.5).erf_()), X)
case("gelu_erf_used", lambda x: (lambda e: (0.5 * x * (1 + e), e))(torch.erf(x / 2**0.5)), X)
case("erf_alone", lambda x: torch.erf(x), X)
case("tanh_alone", lambda x: torch.tanh(x) * 2, X)
