"""What CMake's `find_package(fusewheel)` says where something is missing."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import fusewheel_cpu
import pytest
import torch

HEAD = """
cmake_minimum_required(VERSION 3.25)
set(CMAKE_CXX_COMPILER_WORKS TRUE)
project(user CXX)
"""
TORCH = f"-Dfusewheel_TORCH={Path(torch.__file__).parent}"


def configure(folder: Path, text: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Runs CMake on a project of some lines; its message is one line."""
    (folder / "CMakeLists.txt").write_text(HEAD + text)
    prefix = f"-DCMAKE_PREFIX_PATH={fusewheel_cpu.cmake_prefix_path}"
    command = ("cmake", "-G", "Ninja", "-S", str(folder), "-B", str(folder / "build"), prefix)
    # Variables of CMake's own would be read too.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("CMAKE_")}
    done = subprocess.run(
        (*command, *options), check=False, capture_output=True, text=True, env=environment
    )
    done.stderr = " ".join(done.stderr.split())
    return done


def test_the_version_is_compared(tmp_path: Path) -> None:
    major, minor, *_ = fusewheel_cpu.facts["version"].split(".")
    text = (
        f"find_package(fusewheel {major}.{minor} REQUIRED)\nmessage(STATUS ${{fusewheel_VERSION}})"
    )
    done = configure(tmp_path, text, TORCH)
    assert done.returncode == 0 and f"-- {fusewheel_cpu.facts['version']}\n" in done.stdout
    text = f"find_package(fusewheel {major}.{int(minor) + 1} REQUIRED)"
    assert f'requested version "{major}.{int(minor) + 1}"' in configure(tmp_path, text).stderr


def test_torch_is_missing(tmp_path: Path) -> None:
    package = shutil.copytree(fusewheel_cpu.cmake_prefix_path, tmp_path / "a" / "share" / "cmake")
    done = configure(tmp_path, "find_package(fusewheel REQUIRED)", f"-DCMAKE_PREFIX_PATH={package}")
    assert done.returncode and f"torch >= 2.10 is not beside {tmp_path / 'a'}" in done.stderr


def test_another_system_is_refused(tmp_path: Path) -> None:
    text = "set(CMAKE_SYSTEM_NAME Darwin)\nfind_package(fusewheel REQUIRED)"
    assert "for Linux only, not Darwin" in configure(tmp_path, text, TORCH).stderr


@pytest.mark.parametrize(
    ("operator", "message"),
    [("mul", ""), ("rsm_norm", "no operator rsm_norm; there are activation/gelu.cpp")],
)
def test_an_operator_is_named(tmp_path: Path, operator: str, message: str) -> None:
    text = f"""
    find_package(fusewheel REQUIRED)
    add_library(kernels SHARED kernels.cpp)
    fusewheel_operators(kernels PrivateUse1 {operator})
    """
    (tmp_path / "kernels.cpp").touch()
    done = configure(tmp_path, text, TORCH)
    assert message in done.stderr and bool(message) == bool(done.returncode), done.stderr


def test_what_the_program_found_is_linked(tmp_path: Path) -> None:
    text = """
    add_library(torch INTERFACE IMPORTED)
    find_package(fusewheel REQUIRED)
    get_target_property(linked fusewheel::cpu INTERFACE_LINK_LIBRARIES)
    message(STATUS "linked ${linked}")
    """
    assert "linked torch;fusewheel::cpu_library" in configure(tmp_path, text, TORCH).stdout
