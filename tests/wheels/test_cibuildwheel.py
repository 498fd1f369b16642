"""The release's configuration as cibuildwheel reads it, and what its commands name."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys

import pytest
from scripts import ROOT, load_script

CONFIGURATION = ROOT / "wheels" / "cibuildwheel.toml"
WHEELS = {
    "linux": ["cp311-manylinux_x86_64", "cp311-manylinux_aarch64"],
    "macos": ["cp311-macosx_arm64"],
    "windows": ["cp311-win_amd64"],
}
here = pytest.mark.skipif(
    importlib.util.find_spec("cibuildwheel") is None, reason="cibuildwheel is not installed"
)


@here
@pytest.mark.parametrize("package", ["fusewheel-cpu", "fusewheel-cuda"])
@pytest.mark.parametrize("platform", WHEELS)
def test_one_wheel_for_each_system_and_processor(platform, package):
    command = (
        *(sys.executable, "-m", "cibuildwheel", "--print-build-identifiers", "--archs", "all"),
        *("--platform", platform, "--config-file", str(CONFIGURATION), f"packages/{package}"),
    )
    # A setting from outside would hide what is in the file.
    env = {name: value for name, value in os.environ.items() if not name.startswith("CIBW_")}
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT, env=env)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == WHEELS[platform]


def test_the_commands_name_files_that_are_there():
    named = re.findall(r"\{project\}/([\w./-]+)", CONFIGURATION.read_text())
    assert {"wheels/prepare.py", "wheels/repair.py", "wheels/audit.py"} == set(named)
    assert all((ROOT / name).is_file() for name in named)


@pytest.mark.parametrize(
    "text", [b"/project/cpu_kernels/rotary/rope.cpp", b"/opt/python/cp311-cp311/bin"]
)
def test_the_audit_knows_the_folders_of_the_container(tmp_path, text):
    pytest.importorskip("elftools")
    audit = load_script("wheels/audit.py")
    library = tmp_path / "libfusewheel_cpu.so"
    library.write_bytes(b"\0" + text + b"\0")
    assert list(audit.folder_findings(library))
    library.write_bytes(b"\0./cpu_kernels/rotary/rope.cpp\0")
    assert not list(audit.folder_findings(library))
