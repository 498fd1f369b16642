"""What a user reads when an installation is not in order."""

from __future__ import annotations

import subprocess

import fusewheel
import fusewheel_cpu
import pytest
import torch
from fusewheel._core import load as _load

pytestmark = pytest.mark.matrix

FRONT = f"fusewheel {fusewheel.__version__}"


class Plugin:
    """A kernel wheel as the front sees it, with one thing wrong at a time."""

    device = "cpu"
    library = fusewheel_cpu.library

    def __init__(self, **facts: str):
        self.facts = {**fusewheel_cpu.facts, **facts}
        self.reason: Exception | None = None

    def unavailable(self) -> Exception | None:
        return self.reason


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch):
    def install(*plugins: Plugin) -> None:
        monkeypatch.setattr(_load, "_discover", lambda: [("other", p) for p in plugins])

    return install


def test_torch_too_old(monkeypatch):
    monkeypatch.setattr("torch.__version__", "2.9.1+cu128")
    with pytest.raises(fusewheel.TorchTooOldError, match=r"needs torch >= 2.10; found torch 2.9.1"):
        _load.load_backends()


@pytest.mark.parametrize("version", ["2.10.0", "2.16.0.dev20261120+cpu", "3.0", "2.13.0a0+git1"])
def test_newer_and_nightly_torch_are_accepted(version):
    _load._check_torch(version)


def test_versions_that_differ(installed):
    installed(Plugin(version="0.0.9"))
    with pytest.raises(fusewheel.VersionMismatchError, match=f"{FRONT} .*'other' of version 0.0.9"):
        _load.load_backends()


def test_no_wheel_at_all(installed):
    installed()
    with pytest.raises(fusewheel.NoBackendError, match="pip install fusewheel-cpu=="):
        _load.load_backends()


def test_only_an_unusable_wheel_says_why(installed):
    plugin = Plugin()
    plugin.reason = fusewheel.DriverTooOldError("driver 12.4 is older than 13.0")
    installed(plugin)
    with pytest.raises(fusewheel.NoBackendError, match=r"driver 12\.4 is older than 13\.0"):
        _load.load_backends()


def test_an_unusable_wheel_beside_a_good_one_is_skipped_with_its_reason(installed):
    skipped = Plugin()
    skipped.reason = fusewheel.DriverTooOldError("driver 12.4 is older than 13.0")
    installed(Plugin(), skipped)
    good, bad = _load.load_backends()
    assert good.loaded and good.reason is None
    assert not bad.loaded and bad.reason is skipped.reason


def test_library_that_does_not_load_says_the_systems_words(installed, tmp_path):
    plugin = Plugin()
    plugin.library = tmp_path / "libbroken.so"
    plugin.library.write_text("not a library")
    installed(plugin)
    message = r"'other' does not load: .*libbroken.so.*built for torch >= 2.10; found torch"
    with pytest.raises(fusewheel.LibraryLoadError, match=message):
        _load.load_backends()


def test_a_kernel_that_does_not_fit_its_schema_is_refused(installed, tmp_path):
    """Muladd's c is a float in the schema; a kernel that takes an int would read garbage bits."""
    source = tmp_path / "library.cpp"
    lines = r"mul(Tensor, Tensor) -> Tensor\nmuladd(Tensor, Tensor, int) -> Tensor\n"
    source.write_text(f'extern "C" const char* fusewheel_signatures() {{ return "{lines}"; }}')
    plugin = Plugin()
    plugin.library = tmp_path / "libwrong.so"
    subprocess.run(["c++", "-shared", "-fPIC", source, "-o", plugin.library], check=True)
    installed(plugin)
    with pytest.raises(fusewheel.SignatureMismatchError) as caught:
        _load.load_backends()
    assert "muladd(Tensor, Tensor, int) -> Tensor" in str(caught.value)
    assert "(Tensor, Tensor, float) -> Tensor" in str(caught.value)


def test_every_schema_has_a_kernel_in_every_library():
    import ctypes

    import fusewheel_cuda

    declared = {operator.name for operator in fusewheel.ops.operators()}
    # `run` executes programs, on a CPU only; it has no formula to declare.
    expected = {
        fusewheel_cpu.library: declared | {"bind", "run"},
        fusewheel_cuda.library: declared,
    }
    for library, names in expected.items():
        handle = ctypes.CDLL(str(library))
        handle.fusewheel_signatures.restype = ctypes.c_char_p
        lines = handle.fusewheel_signatures().decode().splitlines()
        assert {line.partition("(")[0] for line in lines} == names


def test_cuda_without_a_gpu_is_skipped_with_the_reason():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    cuda = next(b for b in fusewheel.backends() if b.name == "cuda")
    assert not cuda.loaded
    assert isinstance(cuda.reason, fusewheel.BackendUnavailableError)
    reason = "CPU-only" if torch.version.cuda is None else "no NVIDIA driver found"
    assert reason in str(cuda.reason)


def test_errors_are_import_errors():
    for name in fusewheel.__all__:
        thing = getattr(fusewheel, name)
        if isinstance(thing, type) and issubclass(thing, fusewheel.BackendError):
            assert issubclass(thing, ImportError)


def test_import_is_light(run):
    done = run(
        "import sys, torch, fusewheel\n"
        "print({'torch._dynamo', 'torch._inductor', 'transformers'} & set(sys.modules) or 'light')"
    )
    assert done.stdout == "light\n", done.stdout + done.stderr


def test_a_missing_front_attribute_is_an_attribute_error():
    with pytest.raises(AttributeError, match="nothing_of_the_kind"):
        fusewheel.nothing_of_the_kind  # noqa: B018


def test_info_names_versions_and_backends(run):
    done = run("from fusewheel.cli import main; main(['info'])")
    assert done.returncode == 0, done.stderr
    assert FRONT in done.stdout and "backend cpu" in done.stdout and "rms_norm" in done.stdout
