"""What takes long to make, made once for all processes of a test run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock


def made_once(
    tmp_path_factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]
) -> Path:
    """A folder of this name, which the first process that asks fills by `make`."""
    run = tmp_path_factory.getbasetemp()
    if run.name.startswith("popen-"):  # that of one process of several
        run = run.parent
    folder, done = run / name, run / f"{name}.done"
    with FileLock(run / f"{name}.lock"):
        if not done.exists():
            folder.mkdir(exist_ok=True)
            make(folder)
            done.touch()
    return folder
