"""The page shows what its blocks print."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterator
from typing import Any

import torch
from scripts import ROOT


def around(names: dict[str, Any]) -> Iterator[None]:
    printed = io.StringIO()
    torch.compiler.reset()
    with contextlib.redirect_stdout(printed):
        yield
    torch.compiler.reset()
    page = (ROOT / "docs" / "first-operator.md").read_text(encoding="utf-8")
    shown = re.findall(r"^```text\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert printed.getvalue() == "".join(shown)
