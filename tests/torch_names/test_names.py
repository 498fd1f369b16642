"""The private names of torch: all in one room, and what happens where one is missing."""

from __future__ import annotations

import importlib
import json
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import fusewheel
import fusewheel._torch as room
import pytest
import torch
from fusewheel._torch import find as lookup
from fusewheel.errors import TorchChangedError

pytestmark = pytest.mark.matrix

SMOKE = Path(__file__).with_name("smoke.py")
PRIVATE = re.compile(
    r"\btorch\.(?!ops\.)(\w+\.)*_(?!check\b)[a-zA-Z]|forward_ad\._|\._op_dispatcher|\b_erased\b|\b_cdata\b"
)
# DTensor is loaded by those who use it only.
MODULES = sorted(m.name for m in pkgutil.iter_modules(room.__path__) if m.name != "find")


def test_private_names_are_in_one_room():
    front = Path(fusewheel.__file__).parent
    found = [
        f"{path.relative_to(front)}:{number}: {line.strip()}"
        for path in sorted(front.rglob("*.py"))
        if "_torch" not in path.parts
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if PRIVATE.search(line)
    ]
    assert not found, "\n".join(found)


def names_of(module: str) -> list[str]:
    text = (Path(room.__path__[0]) / f"{module}.py").read_text()
    return re.findall(r'find\(\s*f?"(torch\.[\w.]+)"', text)


NAMES = sorted({(module, name) for module in MODULES for name in names_of(module)})


@pytest.mark.parametrize(("module", "name"), NAMES, ids=[name for _, name in NAMES])
def test_name_is_there(module: str, name: str):
    """On this torch; where one is gone on another, its fallback has to be looked at."""
    missing = object()
    found = lookup.find(name, "test", missing)
    assert found is not missing, f"torch {torch.__version__} has no {name}: see _torch/{module}.py"


@pytest.mark.parametrize(("module", "name"), NAMES, ids=[name for _, name in NAMES])
def test_module_imports_without_name(module: str, name: str, monkeypatch: pytest.MonkeyPatch):
    """A second copy of the module: the first is in use."""
    path = Path(room.__path__[0]) / f"{module}.py"
    monkeypatch.setattr(lookup, "hidden", {name})
    monkeypatch.setattr(lookup, "looked_up", {})
    spec = importlib.util.spec_from_file_location(f"copy_of_{module}", path)
    copy = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = copy
    try:
        spec.loader.exec_module(copy)
    finally:
        del sys.modules[spec.name]


def test_missing_name_says_so(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lookup, "hidden", {"torch._C._len_torch_dispatch_stack"})
    monkeypatch.setattr(lookup, "looked_up", {})
    found = lookup.find("torch._C._len_torch_dispatch_stack", "see modes")
    with pytest.raises(TorchChangedError) as caught:
        found(1)
    assert str(caught.value) == (
        f"torch {torch.__version__} has no torch._C._len_torch_dispatch_stack, which fusewheel "
        "needs to see modes; this fusewheel was tested with torch 2.10 to 2.15"
    )


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="this Python has no TorchScript")
def test_everything_works_on_fallbacks():
    """All names that have a fallback are hidden at once."""
    done = subprocess.run([sys.executable, str(SMOKE)], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    names = json.loads(done.stdout.splitlines()[-1])
    # Also those that are looked up while programs are compiled.
    assert len(names) > 50 and "torch._dynamo.callback.callback_handler" in names
