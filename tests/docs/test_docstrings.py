"""The docstring of every public operator says all that a caller has to know."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest
from fusewheel import ops
from fusewheel.ops import choices

FUNCTIONS = ops.functions()


def _sections(function: Callable[..., Any]) -> dict[str, str]:
    """The text in front of the sections, which is called "", and each section."""
    parts = re.split(
        r"^(Args|Returns|Raises):$", inspect.getdoc(function) or "", flags=re.MULTILINE
    )
    return {"": parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}


def _entries(section: str) -> dict[str, str]:
    """What a section says of each name."""
    found = re.split(r"^ {4}(\w+): ", section, flags=re.MULTILINE)[1:]
    return dict(zip(found[::2], found[1::2], strict=True))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_operator_is_described(name: str) -> None:
    function = FUNCTIONS[name]
    sections, parameters = _sections(function), inspect.signature(function).parameters
    assert set(sections) == {"", "Args", "Returns", "Raises"}
    first = sections[""].split("\n\n")[0]
    assert "`" in first, "the first paragraph has no formula"
    source = sections[""].partition("Source: ")[2]
    assert re.search(r"torch\.|\(\d{4}\)", source), "neither a paper nor a function of PyTorch"
    entries = _entries(sections["Args"])
    assert list(entries) == list(parameters)
    assert "float32, bfloat16, float16 or float64" in next(iter(entries.values()))
    for parameter in parameters.values():
        if parameter.default is not inspect.Parameter.empty:
            assert "default" in entries[parameter.name].lower(), parameter.name
    assert "RuntimeError" in _entries(sections["Raises"])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_word_has_the_type_of_its_choices(name: str) -> None:
    for parameter in inspect.signature(FUNCTIONS[name]).parameters.values():
        if isinstance(parameter.default, str):
            assert hasattr(choices, parameter.annotation), parameter
