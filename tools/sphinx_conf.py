"""Settings of Sphinx for the documentation site; `nox -s docs` builds it."""

import re
from typing import Any

from docutils import nodes
from fusewheel import __version__
from sphinx.domains.python import PyObject

project = "fusewheel"
author = "The fusewheel authors"
copyright = "2026, The fusewheel authors"
version = release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = f"fusewheel {__version__}"
html_show_sphinx = False
# As GitHub makes them, by which the pages link to each other.
myst_heading_anchors = 4
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
napoleon_numpy_docstring = False
# Attributes as a list, not each with a heading of its own.
napoleon_use_ivar = True
html_static_path = ["_static"]
html_css_files = ["site.css"]
# In docstrings a word between single backticks is code.
default_role = "code"
pygments_style = "default"
# A block that names no language is what a program printed.
highlight_language = "none"
# Two hyphens stay two: they begin options.
smartquotes_action = "q"


def _cells(row: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]]


def _tables(app: Any, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """A table in a docstring is one of Markdown: it becomes one of reStructuredText."""
    found: list[str] = []
    for before, line in zip(["", *lines], lines, strict=False):
        inside, follows = line.startswith("|"), before.startswith("|")
        if inside and not follows:
            found += [".. list-table::", "   :header-rows: 1", ""]
        if inside and set(line) - set("|-: "):  # the line below the heading has nothing else
            found += [
                f"   {' ' if place else '*'} - {text}" for place, text in enumerate(_cells(line))
            ]
        elif not inside:
            found += ["", line] if follows and line else [line]
    lines[:] = found


def _returns(app: Any, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """What a function returns, as it is written: its first words are no type, a colon or not."""
    if "Returns:" not in lines:
        return
    start = lines.index("Returns:")
    end = next((i for i in range(start + 1, len(lines)) if lines[i][:1].strip()), len(lines))
    text = [line[4:] for line in lines[start + 1 : end]]
    lines[start:end] = [f":returns: {text[0]}", *(f"    {line}" for line in text[1:]), ""]


def _dashes(app: Any, tree: Any, name: str) -> None:
    """A dash between an argument and its description, which Sphinx writes as two hyphens."""
    for text in list(tree.findall(nodes.Text)):
        if text.astext() == " -- ":
            text.parent.replace(text, nodes.Text(" \N{EN DASH} "))


def _pictures(app: Any, tree: Any, name: str) -> None:
    """Pictures as wide as the page; Sphinx makes those with a width links to the file."""
    for picture in tree.findall(nodes.image):
        picture["width"] = "100%"


for _field in PyObject.doc_field_types:
    if _field.name == "variable":
        _field.label = "Attributes"


def setup(app: Any) -> None:
    """Sphinx calls this."""
    app.connect("doctree-resolved", _dashes)
    app.connect("doctree-resolved", _pictures)
    app.connect("autodoc-process-docstring", _tables)
    # Before the extension that reads the sections of docstrings.
    app.connect("autodoc-process-docstring", _returns, priority=400)
