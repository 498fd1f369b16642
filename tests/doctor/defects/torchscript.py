"""TorchScript, and programs without Python."""

from __future__ import annotations

from typing import Any

import torch
from doctor.defects.compilers import Opaque
from doctor.defects.declare import Twin, planted, random
from fusewheel.doctor import traps
from torch import Tensor

ONE = [(random(3, 4),)]


def double(x: Tensor) -> Tensor:
    return x * 2


def numpy_double(x: Tensor) -> Tensor:
    return torch.from_numpy(x.detach().numpy() * 2)


@planted("trace", "freeze", "jit saved", trap=traps.BAKED)
@planted("script", trap=traps.NOT_SCRIPTABLE)
def through_numpy(twin: Twin) -> Any:
    return numpy_double if twin.faulty else double


@planted("trace", "jit saved", trap=traps.PYTHON_OP, samples=ONE)
def python_in_the_graph(twin: Twin) -> Any:
    return Opaque.apply if twin.faulty else double


@planted("script", trap=traps.BAKED)
def scripted_otherwise(twin: Twin) -> Any:
    def function(x: Tensor) -> Tensor:
        if torch.jit.is_scripting():
            return x * 3
        return x * 2

    return function if twin.faulty else double
