"""Programs saved with an older release: their operators are there, and take what they took."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from scripts import load_script

schemas = load_script("wheels/schemas.py")
ROOT = Path(schemas.ROOT)
RULE = (
    "A released schema may only gain arguments with defaults; give the changed operator a new "
    "name. (`python wheels/schemas.py` records a version that is not released yet.)"
)


@pytest.mark.parametrize("version", schemas.recorded())
def test_schemas_of_a_release_are_kept(version):
    found = list(schemas.broken(schemas.recorded()[version], schemas.defined()))
    assert not found, "\n".join([f"Since {version}:", *found, RULE])


def test_every_release_is_recorded():
    changelog = (ROOT / "CHANGELOG.md").read_text()
    released = set(re.findall(r"^## \[?(\d+\.\d+\.\d+)", changelog, re.MULTILINE))
    assert released <= set(schemas.recorded())
    assert schemas.recorded()


def test_the_source_is_what_the_library_defines():
    import fusewheel

    names = {schema.partition("(")[0] for schema in schemas.defined()}
    # `run` has no declaration: it is what its program makes of it.
    assert names == {operator.name for operator in fusewheel.ops.operators()} | {"bind", "run"}
    for line in schemas.defined():
        name = line.partition("(")[0]
        registered = getattr(torch.ops.fusewheel, name).default._schema
        assert str(registered) == str(torch._C.parse_schema(f"fusewheel::{line}"))


OLD = "f(Tensor x, float eps, Tensor? bias=None) -> (Tensor y, Tensor rstd)"


@pytest.mark.parametrize(
    ("new", "reason"),
    [
        ("g(Tensor x) -> Tensor", "the operator is gone"),
        ("f(Tensor x, float eps) -> (Tensor, Tensor)", "the argument 'bias' is gone"),
        ("f(Tensor x, int eps, Tensor? bias=None) -> (Tensor, Tensor)", "'eps' was float and is"),
        ("f(Tensor x, float e, Tensor? bias=None) -> (Tensor, Tensor)", "'eps' and is 'e'"),
        (
            "f(Tensor(a!) x, float eps, Tensor? bias=None) -> (Tensor, Tensor)",
            "Tensor (mutated)",
        ),
        ("f(Tensor x, float eps, Tensor? bias) -> (Tensor, Tensor)", "default of 'bias' changed"),
        ("f(Tensor x, float eps, Tensor bias) -> (Tensor, Tensor)", "'bias' was Optional[Tensor]"),
        ("f(Tensor x, float eps, Tensor? bias=None) -> Tensor", "returns something else"),
        (
            "f(Tensor x, float eps, Tensor? bias=None, *, int n) -> (Tensor, Tensor)",
            "the new argument 'n' has no default",
        ),
    ],
)
def test_a_change_that_breaks_saved_programs_is_refused(new, reason):
    (found,) = schemas.broken([OLD], [new])
    assert found.startswith("f: ") and reason in found


def test_what_may_change():
    new = "f(Tensor x, float eps, Tensor? bias=None, int n=0) -> (Tensor out, Tensor r)"
    assert not list(schemas.broken([OLD], [new, "g(Tensor x) -> Tensor"]))


def test_a_saved_program_runs_where_its_operator_has_gained_an_argument(tmp_path):
    """What the rule rests on: TorchScript fills in the default."""
    saved = str(tmp_path / "saved.pt")
    with torch.library._scoped_library("saved", "DEF") as library:
        library.define("f(Tensor x) -> Tensor")
        library.impl("f", lambda x: x + 1, "CPU")

        def program(x):
            return torch.ops.saved.f(x)

        torch.jit.trace(program, torch.zeros(2)).save(saved)
    with torch.library._scoped_library("saved", "DEF") as library:
        library.define("f(Tensor x, int n=2) -> Tensor")
        library.impl("f", lambda x, n=2: x + n, "CPU")
        assert torch.jit.load(saved)(torch.zeros(2)).tolist() == [2.0, 2.0]
