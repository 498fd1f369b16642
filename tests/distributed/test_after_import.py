"""Rules are registered when DTensor is imported, whenever that is."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys

import pytest
from fusewheel._core.after_import import after_import
from nightly import NIGHTLY

PROGRAM = """
import sys
import torch, fusewheel
assert not any(name.startswith("torch.distributed.tensor") for name in sys.modules)
from torch.distributed.tensor import DTensor
rules = DTensor._op_dispatcher.sharding_propagator.op_strategy_funcs
assert all(o.overload in rules for o in fusewheel.ops.operators())
"""


# The import of DTensor succeeds although what fusewheel does in it raises an error.
FAILING = """
import torch, fusewheel
def failing():
    raise {error}("planted")
fusewheel.ops.operators = failing
from torch.distributed.tensor import DTensor
print(DTensor.__name__, fusewheel.mul(torch.ones(1), torch.ones(1)).item())
"""
# A torch whose function takes other arguments.
CHANGED = """
from torch.distributed.tensor import DTensor
propagator = type(DTensor._op_dispatcher.sharding_propagator)
propagator.register_op_strategy = lambda self, *, overload: None
import torch, fusewheel
print(DTensor.__name__, fusewheel.mul(torch.ones(1), torch.ones(1)).item())
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "fusewheel_late_module.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield "fusewheel_late_module"
    sys.modules.pop("fusewheel_late_module", None)


def test_acts_once_after_the_import(module):
    finders, seen = list(sys.meta_path), []
    after_import(module, lambda: seen.append(sys.modules[module].value))
    # To look for a module is not to import it.
    assert importlib.util.find_spec(module) is not None
    assert seen == []
    importlib.import_module(module)
    importlib.reload(sys.modules[module])
    assert seen == [1]
    assert sys.meta_path == finders


def test_acts_at_once_after_an_earlier_import(module):
    importlib.import_module(module)
    seen = []
    after_import(module, lambda: seen.append(1))
    assert seen == [1]


def test_a_module_that_fails_may_be_tried_again(module, tmp_path):
    file, seen = tmp_path / "fusewheel_late_module.py", []
    after_import(module, lambda: seen.append(1))
    file.write_text("raise ValueError\n")
    importlib.invalidate_caches()
    with pytest.raises(ValueError):
        importlib.import_module(module)
    file.write_text("value = 22\n")
    importlib.invalidate_caches()
    importlib.import_module(module)
    assert seen == [1]


@pytest.mark.matrix
def test_operators_have_rules_once_dtensor_is_imported():
    subprocess.run([sys.executable, "-W", "error", "-c", PROGRAM], check=True)


ERRORS = ("TypeError", "RuntimeError", "ImportError", "fusewheel.errors.TorchChangedError")


@pytest.mark.parametrize(
    "program",
    [
        *(pytest.param(FAILING.format(error=e), id=e, marks=NIGHTLY) for e in ERRORS[:3]),
        pytest.param(FAILING.format(error=ERRORS[3]), id=ERRORS[3]),
        pytest.param(CHANGED, id="torch"),
    ],
)
def test_no_error_breaks_the_import_of_dtensor(program: str):
    """One line says what does not work, also where warnings are errors."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False
    )
    assert done.stdout == "DTensor 1.0\n", done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("fusewheel's operators take no distributed tensors with torch ")
    assert re.search("Error: (planted|.*argument)", line)
