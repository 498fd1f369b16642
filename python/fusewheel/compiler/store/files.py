"""The files: one for each key, in the user's own folder for what can be made again.

That is ``fusewheel`` in ``$XDG_CACHE_HOME``, which is ``~/.cache`` if it is not set.
``FUSEWHEEL_CACHE`` names another folder; with ``0`` nothing is kept.
"""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
from pathlib import Path
from typing import Any

import torch

_log = logging.getLogger("fusewheel.compiler")

# The files that were not used for the longest time are deleted. One has some 300 kB.
_MOST = 256
_ENDING = ".fusewheel-graph"


def folder() -> Path | None:
    """Where the files are; None if nothing is kept."""
    given = os.environ.get("FUSEWHEEL_CACHE")
    if given == "0":
        return None
    if given:
        return Path(given)
    try:
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:  # a user without a home
        return None
    return Path(home) / "fusewheel"


def read(key: str) -> dict[str, Any] | None:
    """What was written for a key; None if there is nothing, or if it cannot be read."""
    file = _file(key)
    if file is None:
        return None
    try:
        found: dict[str, Any] = torch.load(file, weights_only=True)
    except FileNotFoundError:
        return None
    except Exception as error:
        # Whatever is wrong with a file, it can be made again.
        _log.info("%s is left unread: %s", file, error)
        return None
    with contextlib.suppress(OSError):  # the file may be another user's
        os.utime(file)
    return found


def write(key: str, record: dict[str, Any]) -> None:
    """Keep a record; nothing happens where that is impossible."""
    file = _file(key)
    if file is None:
        return
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Others see all of a file or nothing.
        with tempfile.NamedTemporaryFile(dir=file.parent, suffix=_ENDING, delete=False) as own:
            try:
                torch.save(record, own)
                own.close()
                os.replace(own.name, file)
            except BaseException:
                os.unlink(own.name)
                raise
        _delete_oldest(file.parent)
    except (OSError, RuntimeError) as error:
        _log.info("%s is not written: %s", file, error)


def _file(key: str) -> Path | None:
    room = folder()
    return None if room is None else room / f"{key}{_ENDING}"


def _delete_oldest(room: Path) -> None:
    with contextlib.suppress(OSError):  # another process may delete them too
        files = [(file.stat().st_mtime, file) for file in room.glob(f"*{_ENDING}")]
        for _, file in sorted(files)[:-_MOST]:
            file.unlink()
