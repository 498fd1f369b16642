"""Pythons unpacked from Debian's packages, with an apt-get that serves packages made here."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import fusewheel_cpu
import pytest
from scripts import load_script

debian = load_script("wheels/debian.py")
emulated_python = load_script("wheels/emulated_python.py")
old_glibc = load_script("wheels/old_glibc.py")

pytestmark = pytest.mark.skipif(
    shutil.which("dpkg-deb") is None, reason="packages are made and unpacked by Debian's dpkg"
)

APT = """#!/bin/sh
echo "$*" >> {log}
for option in "$@"; do
    case "$option" in -oDir::Cache=*) cache=${{option#*=}} ;; esac
done
case " $* " in
    *" broken "*) echo "E: Unable to locate package broken" >&2; exit 100 ;;
    *" indextargets "*) echo "http://a.security.mirror/debian http://mirror/debian" ;;
    *" install "*) cp {packages}/*.deb "$cache/archives" ;;
    *" source "*) touch some_1.0.orig.tar.xz ;;
esac
"""


class Apt:
    """Stands for apt-get: notes how it was called, and "downloads" what `package` has made."""

    def __init__(self, folder: Path) -> None:
        self._log, self._packages = folder / "log", folder / "packages"
        self.bin = folder / "bin"
        self.bin.mkdir(parents=True)
        self._packages.mkdir()
        self.program("apt-get", APT.format(log=self._log, packages=self._packages))

    def program(self, name: str, text: str) -> None:
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def package(self, name: str, files: dict[str, bytes]) -> None:
        root = self._packages / name
        (root / "DEBIAN").mkdir(parents=True)
        control = f"Package: {name}\nVersion: 1\nArchitecture: all\nMaintainer: a\nDescription: a\n"
        (root / "DEBIAN" / "control").write_text(control)
        for path, data in files.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes(data)
            (root / path).chmod(0o755)
        subprocess.run(("dpkg-deb", "--build", str(root)), check=True, capture_output=True)

    def calls(self) -> list[str]:
        return self._log.read_text().splitlines()


@pytest.fixture
def apt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Apt:
    made = Apt(tmp_path / "apt")
    monkeypatch.setenv("PATH", str(made.bin), prepend=":")
    return made


def test_packages_are_unpacked_and_the_machine_is_left_alone(apt: Apt, tmp_path: Path):
    apt.package("one", {"usr/share/one": b"1"})
    apt.package("two", {"usr/share/two": b"2"})
    work, root = tmp_path / "work", tmp_path / "root"
    debian.Debian(work, "arm64").unpack(("one", "two"), root)
    assert {p.name: p.read_bytes() for p in (root / "usr/share").iterdir()} == {
        "one": b"1",
        "two": b"2",
    }
    update, install = apt.calls()
    assert update.endswith(" update")
    assert install.endswith(" install --download-only --no-install-recommends --yes one two")
    for call in (update, install):
        assert "-oAPT::Architecture=arm64" in call
        for setting in ("State=", "State::Lists=", "State::status=", "Cache="):
            assert f"-oDir::{setting}{work}" in call


def test_another_suite_comes_from_the_mirror_of_this_machine(apt: Apt, tmp_path: Path):
    made = debian.Debian(tmp_path / "work", "amd64", "testing")
    lines = (tmp_path / "work" / "sources.list").read_text().splitlines()
    signed = f"[signed-by={debian.KEYS}] http://mirror/debian testing main"
    assert lines == [f"deb {signed}", f"deb-src {signed}"]
    assert f"-oDir::Etc::SourceList={tmp_path / 'work' / 'sources.list'}" in apt.calls()[-1]
    assert made.source("some") == tmp_path / "work" / "some_1.0.orig.tar.xz"


def test_what_apt_says_is_in_the_error(apt: Apt, tmp_path: Path):
    made = debian.Debian(tmp_path / "work", "amd64")
    with pytest.raises(subprocess.CalledProcessError) as caught:
        made.unpack(("broken",), tmp_path / "root")
    assert caught.value.stderr == "E: Unable to locate package broken\n"


def test_an_emulated_python_is_called_by_its_own_name(apt: Apt, tmp_path: Path):
    apt.package("python3", {"usr/bin/python3": b"of Arm"})
    apt.program("qemu-aarch64", '#!/bin/sh\nprintf "%s\\n" "$@"\n')
    folder = tmp_path / "arm64"
    (folder / "bin").mkdir(parents=True)  # what was there is removed
    assert emulated_python.main([str(folder)]) == 0
    assert any("Architecture=arm64" in c and " python3 libstdc++6" in c for c in apt.calls())
    python, root = folder / "bin" / "python", folder / "debian"
    command = (str(python), "-c", "print('a b')")
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    own = ["-L", str(root), "-0", str(python), str(root / "usr/bin/python3")]
    assert done.stdout.splitlines() == [*own, "-c", "print('a b')"]
    assert f"home = {root / 'usr' / 'bin'}\n" in (folder / "pyvenv.cfg").read_text()
    assert emulated_python.main([]) == 2


PYTHON = """
#include <stdio.h>
int main(int count, char** words) {
  FILE* out = fopen("%s", "w");
  for (int i = 1; i < count; ++i) fprintf(out, "%%s\\n", words[i]);
  FILE* maps = fopen("/proc/self/maps", "r");
  for (int c = fgetc(maps); c != EOF; c = fgetc(maps)) fputc(c, out);
  return fclose(out) != 0 ? 1 : 7;
}
"""


def test_the_probe_runs_on_the_libraries_of_an_older_debian(
    apt: Apt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Debian's Python is a program here that notes its arguments and what it is mapped from."""
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=":")
    monkeypatch.setenv("PATH", str(apt.bin), prepend=":")
    source, program, noted = (tmp_path / name for name in ("p.c", "p", "noted"))
    source.write_text(PYTHON % noted)
    subprocess.run(("gcc", str(source), "-o", str(program)), check=True)
    listed = subprocess.run(("ldd", str(program)), check=True, capture_output=True, text=True)
    (linker,) = (word for word in listed.stdout.split() if "/ld-linux-" in word)
    place = f"lib/{platform.machine()}-linux-gnu/{Path(linker).name}"
    files = {"usr/bin/python3": program.read_bytes(), place: Path(linker).read_bytes()}
    apt.package("python3", files)
    wheel, folder = tmp_path / "small.whl", tmp_path / "folder"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("fusewheel_cpu/__init__.py", "")
    assert old_glibc.main([str(wheel), str(folder)]) == 7
    probe, torch, package, *maps = noted.read_text().splitlines()
    assert Path(probe) == old_glibc.PROBE and (Path(torch) / "libtorch_cpu.so").exists()
    assert Path(package) == folder / "wheel" / "fusewheel_cpu" and Path(package).is_dir()
    assert any(line.endswith(f"{folder}/python/debian/{place}") for line in maps)
    assert any("libstdc++.so.6" in line for line in maps), "torch's libraries find it loaded"
    assert "oldoldstable" in next(folder.rglob("sources.list")).read_text()
    assert old_glibc.main([str(wheel)]) == 2


@pytest.mark.parametrize("complete", [True, False])
def test_the_probe_fails_where_the_wheel_does(
    complete: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The Python at hand stands for that of Debian."""
    monkeypatch.setattr(old_glibc.pythons, "unpack", lambda *_: Path(sys.executable))
    wheel = tmp_path / "small.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for file in fusewheel_cpu.library.parent.glob("*.so"):
            if complete or file == fusewheel_cpu.library:
                archive.write(file, f"fusewheel_cpu/{file.name}")
    assert (old_glibc.main([str(wheel), str(tmp_path / "folder")]) == 0) is complete
