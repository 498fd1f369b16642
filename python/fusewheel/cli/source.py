"""What a command is given as a model: a file, a folder, or a name in a hub."""

from __future__ import annotations

import re
from pathlib import Path

import click

_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
_FILES = (".gguf", ".safetensors")


def check_there(model: str) -> None:
    """Refuse a path at which nothing is; transformers would look for it in the hub for long.

    `a/b` may be a name in the hub or a path: it is a path if there is a folder `a` here.

    Raises:
        UsageError: `model` reads like a path, and nothing is there.
    """
    path = Path(model)
    is_name = _NAME.fullmatch(model) and not model.lower().endswith(_FILES)
    in_a_folder = len(path.parts) > 1 and path.parent.is_dir()
    if (not is_name or in_a_folder) and not path.exists():
        raise click.UsageError(f"no such file or folder: {model}")
