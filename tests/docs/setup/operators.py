"""The page shows what its blocks print."""

from __future__ import annotations

import contextlib
import io
import re
import warnings
from collections.abc import Iterator
from typing import Any

from scripts import ROOT


def around(names: dict[str, Any]) -> Iterator[None]:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), warnings.catch_warnings():
        # Dynamo's own, where it gives up.
        warnings.simplefilter("ignore")
        yield
    page = (ROOT / "docs" / "operators.md").read_text(encoding="utf-8")
    shown = re.findall(r"^```text\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert printed.getvalue() == "".join(shown)
