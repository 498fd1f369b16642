"""`nox -s new`: the files of a new operator. That they build and pass is tried by hand."""

from __future__ import annotations

import ast
import importlib.util
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = "packages/schema/src/schema.cpp"


def load():
    spec = importlib.util.spec_from_file_location("new", ROOT / "tools" / "new.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


NEW = load()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    rooms = ("packages/schema/operators", "cpu_kernels", "cuda_kernels", "python/fusewheel/ops")
    for room in (*rooms, "tests/ops"):
        (tmp_path / room / "activation").mkdir(parents=True)
    (tmp_path / "python/fusewheel/ops/activation/__init__.py").touch()
    (tmp_path / SCHEMA).parent.mkdir(parents=True)
    shutil.copy(ROOT / SCHEMA, tmp_path / SCHEMA)
    return tmp_path


def test_files_of_an_operator(checkout: Path):
    written = NEW.write(checkout, "squared_relu", "activation")
    assert [str(path) for path in written] == [
        SCHEMA,
        "packages/schema/operators/activation/squared_relu.cpp",
        "cpu_kernels/activation/squared_relu.cpp",
        "cuda_kernels/activation/squared_relu.cu",
        "python/fusewheel/ops/activation/squared_relu.py",
        "tests/ops/activation/test_squared_relu.py",
    ]
    for path in written:
        text = (checkout / path).read_text()
        assert "squared_relu" in text and "${" not in text
        if path.suffix == ".py":
            ast.parse(text)
    before, after = ((root / SCHEMA).read_text().splitlines() for root in (ROOT, checkout))
    assert [line for line in after if line not in before] == [
        '    "squared_relu(Tensor x) -> Tensor",',
        '    "squared_relu_backward(Tensor grad, Tensor x) -> Tensor",',
    ]
    assert after[after.index("};") - 1].startswith('    "squared_relu_backward(')


@pytest.mark.parametrize(
    ("stem", "family", "message"),
    [
        ("SquaredRelu", "activation", "is no name for an operator"),
        ("squared_relu", "sorting", "there is no family 'sorting', only activation"),
        ("gelu", "activation", "there is an operator gelu"),
    ],
)
def test_what_is_refused(checkout: Path, stem: str, family: str, message: str):
    with pytest.raises(ValueError, match=message):
        NEW.write(checkout, stem, family)


def test_nothing_is_overwritten(checkout: Path):
    file = checkout / "cpu_kernels/activation/squared_relu.cpp"
    file.write_text("mine")
    with pytest.raises(ValueError, match=r"there is cpu_kernels/activation/squared_relu.cpp"):
        NEW.write(checkout, "squared_relu", "activation")
    assert file.read_text() == "mine"
