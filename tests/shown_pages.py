"""What the pages of docs/ show, and the surroundings in which their blocks run."""

from __future__ import annotations

import contextlib
import io
import os
import re
import warnings
from collections.abc import Iterator
from unittest import mock

import torch
from scripts import ROOT

_TEXT = re.compile(r"^```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def shown(page: str) -> list[str]:
    """The printed results that a page shows, in order."""
    return _TEXT.findall((ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8"))


def prints_what_it_shows(page: str) -> Iterator[None]:
    """The setup of a page whose blocks need no names: they print what the page shows."""
    printed = io.StringIO()
    torch.compiler.reset()
    with contextlib.redirect_stdout(printed):
        yield
    torch.compiler.reset()
    assert printed.getvalue() == "".join(shown(page))


@contextlib.contextmanager
def trainer() -> Iterator[None]:
    """For pages that train a small model with transformers' Trainer."""
    from accelerate.state import AcceleratorState

    with (
        warnings.catch_warnings(),
        # The Trainer talks to accelerate by environment variables. Inductor would take a minute.
        mock.patch.dict(os.environ),
        mock.patch("fusewheel.compiler.entry.dynamo.WORTHWHILE", 2.0),
    ):
        # peft asks transformers for something by an old name.
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated")
        warnings.filterwarnings("ignore", ".*pin_memory", UserWarning)
        yield
    AcceleratorState._reset_state(True)
