"""What the documentation names exists: files, folders, links, headings and nox sessions."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from scripts import ROOT

PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "packages").glob("*/README.md")),
    *sorted((ROOT / "packages" / "examples").glob("*/README.md")),
]
# A path is written from the root of the repository or from one of these.
BASES = [ROOT, ROOT / "python" / "fusewheel"]
# Files of a package made from the template, by the names that it has if nobody chooses others.
TEMPLATE = ROOT / "packages" / "template" / "project"
NAMES = {"my_operators": "{{ module }}", "scaled_square": "{{ operator }}"}
# Of these there are many, or the reader chooses the name.
PLACEHOLDER = re.compile(r"STEM|FAMILY|NAME|PACKAGE|\*+")
SUFFIXES = (".py", ".pyi", ".cpp", ".cc", ".cu", ".h", ".md", ".toml", ".cmake", ".yml")
FOLDERS = ("python", "tests", "packages", "cpu_kernels", "cuda_kernels", "wheels", "docs")
MADE = {line.strip("/") for line in (ROOT / ".gitignore").read_text().split()}
NOT_OURS = {
    "my_module.py",
    "pyproject.toml",  # the reader's own too
}


def _paths(text: str) -> Iterator[str]:
    """What looks like a path in backticks, and all that begins with a folder of the repository."""
    inline = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    yield from re.findall(r"`([\w.*-]+(?:/[\w.*-]*)*)`", inline)
    yield from re.findall(rf"(?<![\w/.-])(?:{'|'.join(FOLDERS)})/[\w./*-]*[\w/*]", text)


def _looks_like_a_path(name: str) -> bool:
    first, slash, _ = name.partition("/")
    if name in NOT_OURS or first in MADE or PLACEHOLDER.sub("", first) != first:
        return False
    if slash and any((base / first).is_dir() for base in BASES):
        return True
    return name.endswith(SUFFIXES) and name not in SUFFIXES


def _exists(name: str, page: Path) -> bool:
    pattern = PLACEHOLDER.sub("*", name).strip("/")
    if any(next(base.glob(pattern), None) for base in (*BASES, page.parent)):
        return True
    made = name
    for default, variable in NAMES.items():
        made = made.replace(default, variable)
    if any((TEMPLATE / file).exists() for file in (made, f"{made}.jinja")):
        return True
    # Or the end of one: `simd/math.h`.
    return any(next((ROOT / folder).rglob(pattern), None) for folder in FOLDERS)


def _anchors(page: Path) -> set[str]:
    """The headings as GitHub writes them in an address."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _missing_paths(page: Path) -> set[str]:
    found = set(_paths(page.read_text(encoding="utf-8")))
    return {name for name in found if _looks_like_a_path(name) and not _exists(name, page)}


def _broken_links(page: Path) -> list[str]:
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if re.match(r"\w+:", target):
            continue  # not in this repository
        path, _, anchor = target.partition("#")
        file = page.parent / path if path else page
        if not file.exists() or (anchor and anchor not in _anchors(file)):
            broken.append(target)
    return broken


def _sessions() -> set[str]:
    tree = ast.parse((ROOT / "noxfile.py").read_text())
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    return {f.name for f in functions if any("session" in ast.unparse(d) for d in f.decorator_list)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_names_what_exists(page: Path) -> None:
    assert not _missing_paths(page)
    assert not _broken_links(page)
    named = re.findall(r"nox(?:file\.py)? -s ([a-z_ ]+)", page.read_text(encoding="utf-8"))
    assert {name for names in named for name in names.split()} <= _sessions()


def test_what_does_not_exist_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A `heading`, and more\n"
        "`tests/gone.py`, `tests/oracle.py`, `ops/gone/`, `gone.h`, `torch/csrc/stable`, `dist/`\n"
        "```bash\nnox -s bench -- tests/gone_too.py\n```\n"
        "[a](gone.md) [b](#a-heading-and-more) [c](#gone) [d](https://example.org/gone.md)\n"
    )
    assert _missing_paths(page) == {"tests/gone.py", "tests/gone_too.py", "ops/gone/", "gone.h"}
    assert _broken_links(page) == ["gone.md", "#gone"]
    assert "bench" in _sessions() and "_build" not in _sessions()
