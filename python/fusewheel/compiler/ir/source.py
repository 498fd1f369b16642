"""The line of the user's code that a node comes from."""

from __future__ import annotations

import os
import re
from typing import NamedTuple

import torch
from torch.fx import Node

_TORCH = os.path.join(os.path.dirname(torch.__file__), "")
_FRAME = re.compile(r'File "([^"]+)", line (\d+).*(?:\n +(?!File ")(.*))?')


class Line(NamedTuple):
    """A line of the user's code: ``path:line`` and its text, which is empty if not known."""

    source: str
    code: str


def line_of(node: Node) -> Line:
    """The innermost line outside of torch that a node comes from."""
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    own = [frame for frame in frames if not frame[0].startswith(_TORCH)] or frames
    if not own:
        return Line("<unknown>", "")
    path, number, code = own[-1]
    return Line(f"{path}:{number}", code.strip())
