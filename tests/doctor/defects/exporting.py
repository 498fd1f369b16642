"""torch.export."""

from __future__ import annotations

from typing import Any

import torch
from doctor.defects.compilers import opaque
from doctor.defects.declare import Twin, planted, random
from fusewheel.doctor import traps
from torch import Tensor

ONE = [(random(3, 4),)]
EVERY = ("export", "strict export", "dynamic export", "decomposed")


@planted(*EVERY, trap=traps.NO_FAKE, samples=ONE)
def exported_without_a_fake(twin: Twin) -> Any:
    return twin.operator(lambda x: x * 2, fake=None if twin.faulty else torch.empty_like)


@planted(*EVERY, trap=traps.COMPILED_VALUES, samples=ONE)
def another_formula_exported(twin: Twin) -> Any:
    return lambda x: x * (3 if torch.compiler.is_exporting() and twin.faulty else 2)


@planted("export", trap=traps.EXPORT, samples=ONE)
def branches_on_values(twin: Twin) -> Any:
    def function(x: Tensor) -> Tensor:
        return x * (2 if not twin.faulty or x.sum().item() > 0 else 3)

    return function


@planted("strict export", trap=traps.EXPORT, samples=ONE)
def hidden_from_dynamo(twin: Twin) -> Any:
    return opaque if twin.faulty else lambda x: x * 2


@planted("dynamic export", trap=traps.EXPORT, samples=ONE)
def exported_with_one_size(twin: Twin) -> Any:
    def fake(x: Tensor) -> Tensor:
        return x.new_empty([int(s) if twin.faulty else s for s in x.shape])

    return twin.operator(lambda x: x * 2, fake=fake)


@planted("decomposed", trap=traps.COMPILED_VALUES, samples=ONE)
def another_formula_decomposed(twin: Twin) -> Any:
    """A composite takes another formula for the tensors that it is decomposed with."""

    def kernel(x: Tensor) -> Tensor:
        return x * (2 if type(x) is Tensor or not twin.faulty else 3)

    return twin.operator(kernel, keys=("CompositeImplicitAutograd",), fake=None)
