"""Every Python block of the README and of docs/ runs as it stands there.

The blocks of a page run in order, in one namespace and in an empty folder. What a block takes for
granted (a `model`, a module of the reader's own) comes from `tests/docs/setup/PAGE.py`: its
generator `around` puts these names into the namespace, and after the blocks have run it checks what
they did. A block that no test can run has the comment `<!-- not run: REASON -->` in front of it.
"""

from __future__ import annotations

import contextlib
import re
import runpy
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
from fresh import fresh
from scripts import ROOT

assert fresh

# Raised inside torch when it copies the description of a program.
pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")

# Its programs need the packages that they are about: `nox -s doctor_packages -- --check` runs them.
ELSEWHERE = ROOT / "docs" / "custom-operators.md"
PAGES = [ROOT / "README.md", *sorted({*(ROOT / "docs").glob("*.md")} - {ELSEWHERE})]
SETUP = Path(__file__).parent / "setup"
BLOCK = re.compile(
    r"(?:^<!-- not run: (?P<reason>.+?) -->\n+)?^ *```python\n(?P<code>.*?)^ *```$",
    re.MULTILINE | re.DOTALL,
)
# More would make a page that nobody tries.
MOST_NOT_RUN = 3


class Block(NamedTuple):
    code: str
    line: int
    """The number of lines of the page before the code."""
    reason: str | None
    """Why it is not run."""


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(
            textwrap.dedent(found["code"]),
            text.count("\n", 0, found.start("code")),
            found["reason"],
        )
        for found in BLOCK.finditer(text)
    ]


def run(page: Path, namespace: dict[str, Any]) -> None:
    for block in blocks(page):
        if block.reason is None:
            # A traceback names the line of the page.
            code = compile("\n" * block.line + block.code, str(page), "exec")
            exec(code, namespace)


@contextlib.contextmanager
def prepared(page: Path) -> Iterator[dict[str, Any]]:
    """The namespace of the page's blocks, with what its setup puts into it and checks of it."""
    module = ModuleType(f"docs_{page.stem}")  # one that Dynamo can import
    sys.modules[module.__name__] = module
    names = vars(module)
    path = SETUP / f"{page.stem}.py"
    around = contextlib.nullcontext()
    if path.exists():
        around = contextlib.contextmanager(runpy.run_path(str(path))["around"])(names)
    try:
        with around:
            yield names
    finally:
        del sys.modules[module.__name__]


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=lambda p: p.stem)
def test_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with prepared(page) as names:
        run(page, names)


def test_a_block_that_fails_names_the_line_of_its_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("Text.\n\n```python\nx = 1\n```\n\n* item\n\n  ```python\n  x /= 0\n  ```\n")
    with pytest.raises(ZeroDivisionError) as raised:
        run(page, {})
    assert (raised.traceback[-1].path, raised.traceback[-1].lineno) == (page, 9)


def test_a_block_may_say_why_it_is_not_run(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- not run: wants a GPU -->\n```python\n1 / 0\n```\n")
    assert [block.reason for block in blocks(page)] == ["wants a GPU"]
    run(page, {})


def test_nearly_all_blocks_are_run() -> None:
    left_out = [block for page in PAGES for block in blocks(page) if block.reason]
    assert len(left_out) <= MOST_NOT_RUN, left_out


def test_every_block_is_found() -> None:
    """A fence that the expression above does not see would never be tried."""
    for page in PAGES:
        fences = re.findall(r"^ *```python", page.read_text(encoding="utf-8"), re.MULTILINE)
        assert len(fences) == len(blocks(page)), page


def test_every_setup_has_its_page() -> None:
    stems = {page.stem for page in PAGES if blocks(page)}
    assert {path.stem for path in SETUP.glob("*.py")} <= stems
