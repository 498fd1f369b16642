"""The line of the user's code that a node comes from."""

from __future__ import annotations

import os
import re
from typing import NamedTuple

import torch
from torch.fx import Node

_TORCH = os.path.join(os.path.dirname(torch.__file__), "")
_FRAME = re.compile(r'File "([^"]+)", line (\d+)(?:, in (\S+))?.*(?:\n +(?!File ")(.*))?')


class Line(NamedTuple):
    """A line of the user's code: ``path:line`` and its text, which is empty if not known."""

    source: str
    code: str


class Frame(NamedTuple):
    """A line on the way to a node, and the name of the function it stands in."""

    function: str
    line: Line
    is_torchs: bool


def frames_of(node: Node) -> list[Frame]:
    """The lines on the way to a node, the outermost first."""
    return [
        Frame(function, Line(f"{path}:{number}", code.strip()), path.startswith(_TORCH))
        for path, number, function, code in _FRAME.findall(node.meta.get("stack_trace") or "")
    ]


def line_of(node: Node) -> Line:
    """The innermost line outside of torch that a node comes from."""
    frames = frames_of(node)
    own = [frame for frame in frames if not frame.is_torchs] or frames
    return own[-1].line if own else Line("<unknown>", "")
