"""An error is of the kind that CONTRIBUTING names, and blames the operator that was called."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import fusewheel
import pytest
import torch
from calls import WORDS
from fusewheel import ops
from fusewheel.dispatch.operator import Make, Operator
from torch import Tensor

NAMES = [operator.name for operator in ops.operators()]
FUNCTIONS = ops.functions()
# Public names of arguments that have another name in the schema: those of PyTorch's functions.
RENAMED = {"x": "input", "logits": "input", "q": "query", "k": "key", "v": "value"}


def assert_blames(name: str, error: Exception, kind: type[Exception]) -> None:
    message = str(error)
    assert type(error) is kind, f"{name}: a {type(error).__name__}: {message}"
    assert message.startswith(f"{name}: "), message
    others = [n for n in NAMES if n != name and re.search(rf"\b{n}:", message)]
    assert not others, message


def test_operators_refuse_with_runtime_errors_about_themselves(operator: Operator) -> None:
    for bad in operator.refusals(Make()):
        with pytest.raises(Exception) as caught:
            operator.overload(*bad.arguments)
        assert_blames(operator.name, caught.value, RuntimeError)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_refuse_a_choice_with_a_value_error(name: str) -> None:
    good = arguments_of(name)
    for parameter in choices(FUNCTIONS[name]):
        with pytest.raises(Exception) as caught:
            FUNCTIONS[name](**good, **{parameter: "x"})
        assert_blames(name, caught.value, ValueError)
        assert re.match(rf"{name}: {parameter} must be '.*, got 'x'$", str(caught.value))


def test_some_functions_have_choices() -> None:
    assert sum(len(choices(function)) for function in FUNCTIONS.values()) > 5


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_refuse_tensors_with_runtime_errors_about_themselves(name: str) -> None:
    refused = 0
    good = arguments_of(name)
    for parameter, argument in good.items():
        for wrong in changes(argument):
            if parameter == "target" and wrong.is_floating_point():
                continue  # probabilities, which go to PyTorch's function
            try:
                FUNCTIONS[name](**good | {parameter: wrong})
            except Exception as error:
                assert_blames(name, error, RuntimeError)
                refused += 1
    assert refused


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_name_the_argument_that_is_no_tensor(name: str) -> None:
    good = arguments_of(name)
    for parameter, argument in good.items():
        if not isinstance(argument, Tensor):
            continue
        for wrong in ([1.0, 2.0], "x", {}):
            with pytest.raises((TypeError, RuntimeError)) as caught:
                FUNCTIONS[name](**good | {parameter: wrong})
            if isinstance(caught.value, TypeError):
                kind = type(wrong).__name__
                assert str(caught.value) == f"{name}: {parameter} must be a tensor, got a {kind}"
            else:  # the dispatcher's, which knows the operator's name for it
                names = "|".join((parameter, *(k for k, v in RENAMED.items() if v == parameter)))
                assert re.search(rf"Tensor\]?' for argument '({names})'", str(caught.value))


def choices(function: Callable[..., Any]) -> list[str]:
    """The parameters that are one of a few words."""
    parameters = inspect.signature(function).parameters.values()
    return [p.name for p in parameters if isinstance(p.default, str)]


def arguments_of(name: str) -> dict[str, Any]:
    """The tensors of an operator's first sample and what else its public function must be given."""
    if name == "experts":  # which calls several operators
        return experts_arguments()
    of = "attention" if name == "scaled_dot_product_attention" else name
    operator = next(o for o in ops.operators() if o.name == of)
    schema = operator.overload._schema.arguments
    parameters = inspect.signature(getattr(fusewheel, name)).parameters
    sample = next(iter(operator.samples(Make(seed=3))))
    found = {a.name: value for a, value in zip(schema, sample, strict=False)}
    if "input" in parameters or "query" in parameters:
        found = {RENAMED.get(key, key): value for key, value in found.items()}
    if "normalized_shape" in parameters:
        found["normalized_shape"] = found["input"].shape[-1]
    empty = inspect.Parameter.empty
    return {
        name: WORDS.get(name, value)
        for name, value in found.items()
        if name in parameters and (isinstance(value, Tensor) or parameters[name].default is empty)
    }


def experts_arguments() -> dict[str, Any]:
    make, indices = Make(seed=3), torch.tensor([[0, 1], [2, 1], [0, 2]])
    sizes = {"x": (3, 8), "weights": (3, 2), "gate_up": (3, 10, 8), "down": (3, 8, 5)}
    biases = {"gate_up_bias": (3, 10), "down_bias": (3, 8)}
    return {"indices": indices} | {k: make(*size) for k, size in (sizes | biases).items()}


def changes(tensor: Any) -> Iterator[Tensor]:
    """What a tensor may wrongly be."""
    if not isinstance(tensor, Tensor):
        return
    yield tensor.to(torch.complex64)
    yield tensor.to(torch.int32)
    yield tensor.to_sparse()
    yield tensor.to("meta")
    yield tensor.unsqueeze(0)
    yield tensor.flatten()[0]
    yield tensor[..., :-1]
    yield tensor[:-1]
