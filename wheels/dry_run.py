"""A release without an upload: a tag, and then an index on this machine that pip installs from.

    python wheels/dry_run.py tag FOLDER
        clones the last commit, writes what a release writes, commits and tags it
    python wheels/dry_run.py install WHEELS [--python 3.11 ...] [--torch torch==2.13.0]
            [--without-torch 3.10 ...]
        serves the wheels of a folder as an index, and installs `fusewheel` in fresh environments

With --python, pip brings what fusewheel asks for, and a program runs; --torch is installed before.
With --without-torch pip brings the packages alone: the files are looked at, and nothing runs that
needs torch. A Python that is too old must be refused, and so must a version that was not published.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import functools
import http.server
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pythons

ROOT = Path(__file__).resolve().parents[1]
TOO_OLD = "3.9"
URLS = '[project.urls]\nSource = "https://example.org/fusewheel"\n'
# What somebody does first; the numbers are compared with PyTorch's.
FIRST_PROGRAM = """
import torch, fusewheel
x, weight = torch.randn(4, 64), torch.rand(64)
y = fusewheel.rms_norm(x, (64,), weight, 1e-6)
torch.testing.assert_close(y, torch.nn.functional.rms_norm(x, (64,), weight, 1e-6))
layer = torch.compile(lambda x: torch.nn.functional.silu(x) * x, backend="fusewheel")
torch.testing.assert_close(layer(x), torch.nn.functional.silu(x) * x)
print("ran", fusewheel.__version__, "with torch", torch.__version__)
"""
LOOK = """
import fusewheel_cpu
from importlib import metadata
versions = {metadata.version(name) for name in ("fusewheel", "fusewheel-cpu")}
assert versions == {fusewheel_cpu.facts["version"]} and fusewheel_cpu.library.exists(), versions
(group,) = metadata.entry_points(group="console_scripts", name="fusewheel")
tag = metadata.distribution("fusewheel-cpu").read_text("WHEEL").partition("Tag: ")[2].split()[0]
print("installed", *versions, "as", tag)
"""


def tag(folder: Path) -> str:
    """Clones the last commit into a folder, makes a release of it; returns the tag."""
    _run("git", "clone", "--quiet", str(ROOT), str(folder))
    text = (folder / "python" / "fusewheel" / "_core" / "version.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "(.+)"$', text, re.MULTILINE)
    assert found is not None
    changes = folder / "CHANGELOG.md"
    heading = f"## [Unreleased]\n\n## [{found[1]}] - {datetime.date.today()}\n"
    text = changes.read_text(encoding="utf-8").replace("## [Unreleased]\n", heading, 1)
    changes.write_text(text, encoding="utf-8")
    who = ("-c", "user.name=dry run", "-c", "user.email=dry-run@localhost")
    for project in folder.glob("packages/fusewheel*/pyproject.toml"):
        text = project.read_text(encoding="utf-8")
        if "[project.urls]" not in text:  # until the repository has a home
            project.write_text(f"{text}\n{URLS}", encoding="utf-8")
    git = ("git", "-C", str(folder), *who)
    _run(*git, "commit", "--quiet", "--all", "--message", f"Release {found[1]}")
    name = f"v{found[1]}"
    _run(*git, "tag", name)
    check = (sys.executable, str(folder / "wheels" / "tag.py"))
    _run(*check, name)
    if subprocess.run((*check, f"{name}9"), check=False, capture_output=True).returncode == 0:
        raise SystemExit(f"wheels/tag.py accepts the tag {name}9 for the version {found[1]}")
    return name


def index(wheels: Sequence[Path], folder: Path) -> None:
    """Lays wheels out as an index: `simple/PACKAGE/FILE`."""
    for wheel in wheels:
        package = folder / "simple" / wheel.name.partition("-")[0].replace("_", "-")
        package.mkdir(parents=True, exist_ok=True)
        shutil.copy(wheel, package)


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *arguments: object) -> None:
        """Says nothing of each request."""


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of an index that a folder holds."""
    handler = functools.partial(_Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/simple"
        server.shutdown()


class Environment:
    """A fresh environment of one Python, and its pip."""

    def __init__(self, version: str, folder: Path) -> None:
        executable = pythons.interpreter(version, folder / "pythons", at_hand=True)
        _run(executable, "-m", "venv", str(folder / version))
        self.python = str(folder / version / "bin" / "python")

    def pip(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs its pip."""
        command = (self.python, "-m", "pip", "--disable-pip-version-check", *arguments)
        return subprocess.run(command, check=False, capture_output=True, text=True)

    def says(self, program: str) -> str:
        """What a program prints."""
        return _run(self.python, "-I", "-c", program).strip()


def install(
    wheels: Sequence[Path], full: Sequence[str], bare: Sequence[str], torch: str
) -> list[str]:
    """Publishes and installs; returns what was seen, a line for each step."""
    (front,) = (wheel for wheel in wheels if wheel.name.startswith("fusewheel-"))
    wanted = f"fusewheel=={front.name.split('-')[1]}"
    seen = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        index(wheels, folder)
        with served(folder) as address:
            for version in full:
                environment = Environment(version, folder)
                _must(environment.pip("install", torch), f"{version}: pip install {torch}")
                done = environment.pip("install", "--extra-index-url", address, wanted)
                _must(done, f"{version}: pip install {wanted}")
                _must(environment.pip("check"), f"{version}: pip check")
                seen.append(f"{version}: {environment.says(FIRST_PROGRAM)}")
                _must(environment.pip("uninstall", "--yes", "fusewheel", "fusewheel-cpu"), version)
            alone = ("install", "--no-deps", "--index-url", address)
            for version in bare:
                environment = Environment(version, folder)
                _must(environment.pip(*alone, wanted, "fusewheel-cpu"), f"{version}: pip install")
                seen.append(f"{version}, without torch: {environment.says(LOOK)}")
                if environment.pip(*alone, f"{wanted}.9").returncode == 0:
                    raise SystemExit(f"{version}: a version that was not published was installed")
            with contextlib.suppress(pythons.NotToBeHad):
                if Environment(TOO_OLD, folder).pip(*alone, wanted).returncode == 0:
                    raise SystemExit(f"Python {TOO_OLD} was not refused")
                seen.append(f"{TOO_OLD}: refused")
    return seen


def _must(done: subprocess.CompletedProcess[str], what: str) -> None:
    if done.returncode:
        raise SystemExit(f"{what} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


def _run(*command: str) -> str:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    _must(done, " ".join(command[:4]))
    return done.stdout


def main(arguments: Sequence[str]) -> int:
    """Runs one half of a release; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    half = parser.add_subparsers(dest="half", required=True)
    half.add_parser("tag").add_argument("folder", type=Path)
    second = half.add_parser("install")
    second.add_argument("wheels", type=Path)
    second.add_argument("--python", nargs="+", default=[])
    second.add_argument("--torch", default="torch")
    second.add_argument("--without-torch", nargs="+", default=[])
    given = parser.parse_args(arguments)
    if given.half == "tag":
        print(f"tagged {tag(given.folder)}")
        return 0
    wheels = sorted(given.wheels.glob("*.whl"))
    for line in install(wheels, given.python, given.without_torch, given.torch):
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
