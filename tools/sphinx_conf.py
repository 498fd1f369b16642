"""Settings of Sphinx for the documentation site; `nox -s docs` builds it."""

from typing import Any

from fusewheel import __version__

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
# In docstrings a word between single backticks is code.
default_role = "code"
pygments_style = "default"


def _tables(app: Any, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """A table in a docstring is one of Markdown: it is shown as it is written."""
    found: list[str] = []
    for before, line in zip(["", *lines], lines, strict=False):
        inside = line.startswith("|")
        if inside and not before.startswith("|"):
            found += ["::", ""]
        if not inside and before.startswith("|") and line:
            found.append("")
        found.append(f"    {line}" if inside else line)
    lines[:] = found


def setup(app: Any) -> None:
    """Sphinx calls this."""
    app.connect("autodoc-process-docstring", _tables)
