"""`pip install fusewheel` from an index that holds the three wheels (a folder, nothing else)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
import zipfile
from importlib import metadata
from pathlib import Path

import fusewheel
import pytest
from nightly import NIGHTLY

pytestmark = pytest.mark.matrix

THREE = {"fusewheel", "fusewheel-cpu", "fusewheel-cuda"}
# What else the front needs, beside torch.
SMALL = {"click": "8.1", "psutil": "7.2", "tqdm": "4.67"}


def stub_wheel(folder: Path, name: str, version: str) -> None:
    """A wheel that has a name, a version and one file."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}/__init__.py": "",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{file},,\n" for file in (*files, f"{info}/RECORD"))
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        for file, text in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(file, text)


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    """The wheels as built, some torches, and a kernel wheel of a version that nobody wants."""
    built = os.environ.get("FUSEWHEEL_DIST")
    if built is None:
        pytest.skip("FUSEWHEEL_DIST names the folder of the built wheels; nox sets it")
    folder = tmp_path_factory.mktemp("index")
    for wheel in Path(built).glob("*.whl"):
        shutil.copy(wheel, folder)
        # What retag.py makes beside it, if it was not made: pip reads tags off the name.
        twin = wheel.name.replace("cp39-abi3", "py3-none")
        if not (Path(built) / twin).exists():
            shutil.copy(wheel, folder / twin)
    for version in ("2.9.1", "2.11.0", "2.12.0+cpu", "2.12.0+cu130", "2.13.0"):
        stub_wheel(folder, "torch", version)
    for name, version in SMALL.items():
        stub_wheel(folder, name, version)
    stub_wheel(folder, "fusewheel_cpu", "99.0")
    return folder


class Environment:
    """A fresh environment, and pip from outside of it."""

    def __init__(self, folder: Path, index: Path):
        venv.create(folder, with_pip=False)
        self.python, self.index = folder / "bin" / "python", index
        (self.site,) = folder.glob("lib/python*/site-packages")

    def pip(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = (sys.executable, "-m", "pip", "--python", str(self.python), *arguments)
        # Nothing but the folder: no configuration, no other index.
        clean = {key: value for key, value in os.environ.items() if not key.startswith("PIP_")}
        clean |= {"PIP_CONFIG_FILE": os.devnull, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        done = subprocess.run(command, check=False, capture_output=True, text=True, env=clean)
        self.output = done.stdout + done.stderr
        return done

    def install(self, *requirements: str) -> bool:
        source = ("--no-index", "--find-links", str(self.index))
        return self.pip("install", *source, *requirements).returncode == 0

    def put(self, name: str, version: str) -> None:
        """Installs a stub; unpacking it takes less than a second of pip's."""
        with zipfile.ZipFile(self.index / f"{name}-{version}-py3-none-any.whl") as archive:
            archive.extractall(self.site)

    def installed(self) -> dict[str, str]:
        found = metadata.distributions(path=[str(self.site)])
        return {one.metadata["Name"].replace("_", "-"): one.version for one in found}

    def files(self) -> set[Path]:
        return set(self.site.rglob("*"))


@pytest.fixture
def environment(tmp_path, index):
    return Environment(tmp_path / "venv", index)


@pytest.mark.parametrize(("extra", "cuda"), [("", False), ("[cuda]", True)])
def test_brings_its_kernels_and_leaves_without_a_trace(environment, extra, cuda):
    for name, version in {"torch": "2.11.0", **SMALL}.items():
        environment.put(name, version)
    before = environment.files()
    assert environment.install(f"fusewheel{extra}"), environment.output
    found = environment.installed()
    assert set(found) == THREE - (set() if cuda else {"fusewheel-cuda"}) | {"torch", *SMALL}
    assert {found[name] for name in THREE & set(found)} == {fusewheel.__version__}
    assert environment.pip("check").returncode == 0, environment.output
    environment.pip("uninstall", "--yes", *THREE)
    assert environment.files() == before


@pytest.mark.parametrize(
    "torch", [pytest.param("2.11.0", marks=NIGHTLY), "2.12.0+cpu", "2.12.0+cu130"]
)
def test_torch_that_is_there_stays(environment, torch):
    environment.put("torch", torch)
    assert environment.install("fusewheel[cuda]"), environment.output
    assert environment.installed()["torch"] == torch


def test_torch_comes_if_there_is_none_or_one_too_old(environment):
    environment.put("torch", "2.9.1")
    assert environment.install("fusewheel"), environment.output
    assert environment.installed()["torch"] == "2.13.0"


def test_another_version_of_a_kernel_wheel_does_not_fit(environment):
    assert not environment.install("fusewheel", "fusewheel-cpu==99.0")
    assert f"depends on fusewheel-cpu=={fusewheel.__version__}" in environment.output


@pytest.mark.parametrize(
    ("python", "abi", "tag"),
    [
        ("3.10", "cp310", "cp39-abi3"),
        ("3.14", "cp314", "cp39-abi3"),
        ("3.13", "cp313t", "py3-none"),
        ("3.14", "cp314t", "py3-none"),
    ],
)
def test_resolves_on_every_python(environment, python, abi, tag):
    """Free-threaded Python has no stable ABI; all others prefer the wheel that says so."""
    if abi.endswith("t") and int(metadata.version("pip").partition(".")[0]) < 25:
        pytest.skip("this pip takes free-threaded Python for any other")
    options = ("--only-binary", ":all:", "--dry-run", "--target", str(environment.site))
    system = ("--implementation", "cp", "--python-version", python, "--abi", abi)
    assert environment.install(*options, *system, "fusewheel[cuda]"), environment.output
    for name in ("cpu", "cuda"):
        assert f"/fusewheel_{name}-{fusewheel.__version__}-{tag}-" in environment.output
