"""What `nox -s sanitize` is there to find, planted: nothing found means something only then."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

KIND = os.environ.get("FUSEWHEEL_SANITIZE", "")
FAULTS = {
    "past_the_end": ("address", "AddressSanitizer: heap-buffer-overflow"),
    "overflow": ("undefined", "runtime error: signed integer overflow"),
    "misaligned": ("undefined", "runtime error: load of misaligned address"),
    "race": ("thread", "ThreadSanitizer: data race"),
}

pytestmark = pytest.mark.skipif(not KIND, reason="only under a sanitizer")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("faults") / "faults.so"
    options = ("-shared", "-fPIC", "-g1", f"-fsanitize={KIND}", "-fno-sanitize-recover=all")
    source = Path(__file__).with_name("faults.cpp")
    # The compiler itself has leaks, and no business with what is preloaded.
    env = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
    subprocess.run(["c++", *options, str(source), "-o", str(made)], check=True, env=env)
    return made


def run(library: Path, function: str) -> subprocess.CompletedProcess[str]:
    program = f"import ctypes; ctypes.CDLL({str(library)!r}).{function}(7)"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_ends_the_process(library: Path, fault: str):
    kind, message = FAULTS[fault]
    if kind not in KIND:
        pytest.skip(f"not what {KIND} looks for")
    done = run(library, fault)
    assert done.returncode != 0 and message in done.stderr, done.stderr


def test_no_fault_does_not(library: Path):
    done = run(library, "sound")
    assert done.returncode == 0, done.stderr
