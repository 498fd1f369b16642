"""Front, kernel wheels, torch and driver that do not fit together: a typed error, or it works."""

from __future__ import annotations

import fusewheel
import fusewheel_cpu
import pytest
from installations import ISOLATED, Installation, fake_driver, zipped

VERSION = fusewheel.__version__
USE = """
import torch, fusewheel
a = torch.arange(100000.0)
assert torch.equal(fusewheel.mul(a, a), a * a)
print(sum(b.loaded for b in fusewheel.backends()))
"""


@pytest.fixture
def site(tmp_path):
    return Installation(tmp_path / "site")


def test_the_installations_of_these_tests_are_good_ones(site):
    site.package("fusewheel")
    site.package("fusewheel_cpu")
    done = site.run(USE + "print(fusewheel.__file__, fusewheel.backends()[0].library)")
    assert done.code == 0, done.errors
    assert done.output.count(str(site.folder)) == 2


def test_a_newer_front_with_an_older_wheel(site):
    site.torch("2.13.0")
    site.package("fusewheel", "1.1")
    site.package("fusewheel_cpu", "1.0")
    error = site.run("import fusewheel", *ISOLATED).error()
    assert error.startswith("VersionMismatchError: fusewheel 1.1 found the backend 'cpu' of"), error
    assert "version 1.0" in error and "pip install fusewheel==1.1 fusewheel-cpu==1.1" in error
    assert str(site.folder / "fusewheel_cpu") in error


def test_kernel_wheels_of_two_versions(site):
    site.torch("2.13.0", cuda="13.0")
    site.package("fusewheel", "1.0")
    site.package("fusewheel_cpu", "1.0")
    site.package("fusewheel_cuda", "1.1")
    error = site.run("import fusewheel", *ISOLATED).error()
    # Before the CPU kernels are loaded: the stand-in for torch would have refused them.
    assert error.startswith("VersionMismatchError: fusewheel 1.0 found the backend 'cuda'"), error
    assert "version 1.1" in error


@pytest.mark.parametrize("version", ["2.9.1", "2.9.1+cu128", "2.9.0.dev20250908+cpu", "1.13.1"])
def test_torch_too_old(site, version):
    site.torch(version)
    site.package("fusewheel")
    site.package("fusewheel_cpu")
    error = site.run("import fusewheel", *ISOLATED).error()
    assert error.startswith("TorchTooOldError: "), error
    assert f"needs torch >= 2.10; found torch {version}" in error


@pytest.mark.parametrize("version", ["2.17.0.dev20261120+cu130", "2.13.0a0+gitabc", "3.0", "main"])
def test_nightly_torch_gets_as_far_as_loading(site, version):
    site.torch(version)
    site.package("fusewheel")
    site.package("fusewheel_cpu")
    error = site.run("import fusewheel", *ISOLATED).error()
    assert error.startswith("LibraryLoadError: "), error
    assert f"stand-in for torch loads nothing (built for torch >= 2.10; found torch {version})" in (
        error
    )


def test_schemas_of_another_version_were_loaded_before(site):
    other = site.package("fusewheel_cpu") / "libfusewheel_schema.so"
    old, new = (text.encode() + b"\0" for text in (VERSION, "9" + VERSION[1:]))
    assert other.read_bytes().count(old) == 1
    other.write_bytes(other.read_bytes().replace(old, new))
    done = site.run(f"import torch; torch.ops.load_library({str(other)!r}); import fusewheel")
    assert done.error().startswith(f"VersionMismatchError: the backend 'cpu' of version {VERSION}")
    assert f"schemas of version 9{VERSION[1:]}" in done.error()


def test_an_old_driver(site, tmp_path):
    site.torch("2.13.0+cu126", cuda="12.6")
    site.package("fusewheel")
    site.package("fusewheel_cuda")
    driver = fake_driver(tmp_path / "driver", 12080)
    error = site.run("import fusewheel", *ISOLATED, LD_LIBRARY_PATH=str(driver)).error()
    # Nothing else is installed here; beside CPU kernels the same text is the reason it is skipped.
    assert error.startswith("NoBackendError: "), error
    assert "the NVIDIA driver supports CUDA 12.8" in error
    assert "built with CUDA 13.0 and needs driver 580 or newer" in error


def test_no_driver(site, tmp_path):
    site.torch("2.13.0+cu130", cuda="13.0")
    site.package("fusewheel")
    site.package("fusewheel_cuda")
    (tmp_path / "libcuda.so.1").write_text("no library")
    error = site.run("import fusewheel", *ISOLATED, LD_LIBRARY_PATH=str(tmp_path)).error()
    assert error.startswith("NoBackendError: ") and "no NVIDIA driver found" in error


def test_torch_for_cuda_12_with_a_wheel_for_cuda_13(site, tmp_path):
    """The kernels bring their own CUDA runtime: what counts is the driver, not torch's CUDA."""
    driver = fake_driver(tmp_path / "driver", 13000)
    text = "import torch; torch.version.cuda = '12.8'" + USE
    done = site.run(text, LD_LIBRARY_PATH=str(driver))
    assert (done.code, done.output) == (0, "2\n"), done.errors


def test_importing_writes_nothing(site):
    """Hence a read-only site-packages will do."""
    packages = [site.package(name) for name in ("fusewheel", "fusewheel_cpu", "fusewheel_cuda")]
    files = {file: file.stat() for package in packages for file in package.rglob("*")}
    for path in (*files, *packages):
        path.chmod(0o555 if path.is_dir() else 0o444)
    done = site.run(USE, PYTHONDONTWRITEBYTECODE="1")
    assert done.code == 0, done.errors
    after = {file: file.stat() for package in packages for file in package.rglob("*")}
    assert {f: s.st_mtime_ns for f, s in after.items()} == {
        f: s.st_mtime_ns for f, s in files.items()
    }


def test_a_zipped_front_works(site):
    site.package("fusewheel")
    archive = zipped(site, "fusewheel")
    done = site.run(USE + "print(fusewheel.__file__)", path=str(archive))
    assert done.code == 0 and str(archive) in done.output, done.errors


def test_a_zipped_kernel_wheel_is_refused(site):
    site.torch("2.13.0")
    site.package("fusewheel")
    site.package("fusewheel_cpu")
    archive = zipped(site, "fusewheel", "fusewheel_cpu", "torch")
    error = site.run("import fusewheel", *ISOLATED, path=str(archive)).error()
    assert error.startswith("LibraryLoadError: the backend 'cpu' (fusewheel_cpu) is inside a zip")
    assert str(archive) in error and "install it unpacked" in error


def test_two_installations_of_one_version(site, tmp_path):
    """The first on the path is used; the second may be loaded by hand and changes nothing."""
    site.package("fusewheel_cpu")
    second = Installation(tmp_path / "second")
    library = second.package("fusewheel_cpu") / fusewheel_cpu.library.name
    done = site.run(
        f"sys.path.insert(1, {str(second.folder)!r})\n{USE}\n"
        "print([str(b.library) for b in fusewheel.backends() if b.name == 'cpu'])\n"
        f"torch.ops.load_library({str(library)!r})\n{USE}"
    )
    assert done.code == 0, done.errors
    assert done.output == f"1\n{[str(site.folder / 'fusewheel_cpu' / library.name)]}\n1\n"


def test_two_installations_of_two_versions(site, tmp_path):
    """An older wheel first on the path is found out, and the message says where it is."""
    site.package("fusewheel_cpu", "0.0.1")
    error = site.run("import fusewheel").error()
    assert error.startswith("VersionMismatchError: ")
    assert f"'cpu' of version 0.0.1 ({site.folder / 'fusewheel_cpu'})" in error


def test_metadata_without_its_package(site):
    site.torch("2.13.0")
    site.package("fusewheel")
    (site.package("fusewheel_cpu") / "__init__.py").rename(site.folder / "gone.py")
    error = site.run("import fusewheel", *ISOLATED).error()
    assert error.startswith("LibraryLoadError: the backend 'cpu' (fusewheel_cpu) is installed but")
    assert "provides no device, library, facts, unavailable; install it again" in error


FORK = """
import os, signal, torch, fusewheel
torch.set_num_threads({threads})
a = torch.arange(100000.0)
{before}
child = os.fork()
if child == 0:
    signal.alarm(30)
    torch.set_num_threads(1)
    os._exit(0 if torch.equal(fusewheel.mul(a, a), a * a) else 3)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.parametrize("before", ["", "fusewheel.mul(a, a)"])
def test_a_fork_after_loading(site, before):
    """As torch's own data loaders do it: one thread in the child, whatever the parent had run."""
    done = site.run(FORK.format(before=before, threads=2))
    assert done.output == "0\n", done.errors
