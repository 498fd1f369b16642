"""Packages on top of fusewheel, as far as none has to be built: `nox -s examples` does that."""

from __future__ import annotations

import re
import sys
from types import ModuleType

import fusewheel_cpu
import pytest
from scripts import ROOT, load_script

EXAMPLES = ROOT / "packages" / "examples"


@pytest.fixture(scope="module")
def gated_mlp() -> ModuleType:
    """The tests of the Python package, which call it."""
    sys.path.insert(0, str(EXAMPLES / "python"))
    try:
        return load_script("packages/examples/python/tests/test_gated_mlp.py")
    finally:
        sys.path.pop(0)


def test_a_layer_of_another_package(gated_mlp: ModuleType) -> None:
    gated_mlp.test_values_and_gradients(lambda function: function)
    gated_mlp.test_only_the_input_is_kept()


def test_a_backend_finds_what_it_is_built_with() -> None:
    """The operators it asks for, and the launchers and functions that it has to define."""
    made = (EXAMPLES / "backend" / "CMakeLists.txt").read_text()
    found = re.search(r"fusewheel_operators\(\w+ PrivateUse1 ([\w ]+)\)", made)
    assert found is not None
    root = fusewheel_cpu.library.parent
    kernels = (EXAMPLES / "backend" / "kernels.cpp").read_text()
    for operator in found[1].split():
        (file,) = (root / "share" / "fusewheel" / "operators").glob(f"*/{operator}.cpp")
        launchers = re.findall(r"^void (\w+)\(", file.read_text(), re.MULTILINE)
        assert launchers and all(f"void {name}(" in kernels for name in launchers)
    declared = re.findall(
        r"^(?:void|bool|int64_t) (\w+)\(",
        (root / "include" / "fusewheel" / "backend.h").read_text(),
        re.MULTILINE,
    )
    assert "on_stream" in declared
    assert {name for name in declared if f" {name}(" not in kernels} <= {"bind", "run"}
