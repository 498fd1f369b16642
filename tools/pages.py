"""Writes the sources of the documentation site: the pages, and a reference from docstrings.

    python tools/pages.py FOLDER

fusewheel must be installed. `nox -s docs` runs this and then Sphinx.
"""

from __future__ import annotations

import inspect
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from speed import speeds

ROOT = Path(__file__).resolve().parents[1]
# Pages outside of docs/, by their names on the site.
OUTSIDE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
# The four kinds of pages, and the order in which they are read.
PARTS = {
    "Tutorials": ("first-model", "first-operator"),
    "How to": (
        *("modules", "transformers", "fine-tuning", "mixtures", "command-line", "quantization"),
        *("deployment", "torchscript", "distributed", "debugging", "patterns"),
        *("own-operators", "backends", "releasing", "contributing"),
    ),
    "Reference": (
        *("settings", "operators-reference", "api", "compatibility", "conformance"),
        *("benchmarks", "benchmarks-amd", "cuda-counts", "changelog"),
    ),
    "Explanations": (
        *("compiler", "small-backend", "operators", "jit-and-cpp", "one-wheel", "engine"),
        *("architecture", "doctor", "custom-operators"),
    ),
}
CONF = ROOT / "tools" / "sphinx_conf.py"
STYLE = ROOT / "tools" / "site.css"
# Modules whose public names are in the reference, beside the operators.
MODULES = (
    *("fusewheel", "fusewheel.nn", "fusewheel.transformers", "fusewheel.quantization"),
    *("fusewheel.compiler", "fusewheel.jit", "fusewheel.inductor", "fusewheel.distributed"),
    *("fusewheel.engine", "fusewheel.doctor"),
)


def page(text: str, of: Path) -> str:
    """A page with its links as they are on the site: all pages are in one folder there.

    Of a link to a file that is no page only the text is left.
    """

    def link(found: re.Match[str]) -> str:
        words, target, anchor = found[1], found[2], found[3] or ""
        path = (of.parent / target).resolve()
        name = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else target
        if name in OUTSIDE:
            return f"[{words}]({OUTSIDE[name]}{anchor})"
        if path.parent == ROOT / "docs":
            return f"[{words}]({path.name}{anchor})"
        return words

    return re.sub(r"\[([^\]]*)\]\((?!\w+:|#)([^)#\s]+)(#[^)\s]*)?\)", link, text)


def schema_text(schema: str) -> str:
    """A schema with a line for each argument: `f(Tensor x, float eps) -> Tensor`."""
    arguments, arrow, results = schema.rpartition(") -> ")
    name, _, listed = arguments.partition("(")
    lines = "".join(f"    {argument},\n" for argument in listed.split(", "))
    return f"{name}(\n{lines}{arrow}{results}"


def kernels() -> dict[str, list[str]]:
    """The devices for which an operator has a kernel, from where the sources register it."""
    folders = {
        "CPU": ("packages/schema/operators", "cpu_kernels"),
        "CUDA": ("packages/schema/operators", "cuda_kernels"),
    }
    found: dict[str, list[str]] = {}
    for device, places in folders.items():
        paths = [path for place in places for path in (ROOT / place).rglob("*.c*")]
        texts = "".join(path.read_text(encoding="utf-8") for path in paths)
        for name in set(re.findall(r'\(library,\s*"(\w+)"', texts)):
            found.setdefault(name, []).append(device)
    return found


def facts(operator: Any, family: str, devices: Sequence[str]) -> str:
    """A table of what the declaration of an operator says."""
    rows = {
        "family": family,
        "kernels": ", ".join(devices),
        "gradient": "an operator or a formula" if operator.backward else "that of the reference",
        "autocast": operator.autocast or "converts nothing",
        "counted floating-point operations": "yes" if operator.flops else "none",
        "distributed tensors": "yes" if operator.sharding else "no",
        "writes to": "an argument" if operator.mutates is not None else "nothing",
    }
    lines = [f"| {name} | {value} |" for name, value in rows.items() if value]
    return "\n".join(["| | |", "|---|---|", *lines])


def reference(functions: dict[str, Callable[..., Any]], operators: Sequence[Any]) -> str:
    """The page of the operators: what each computes, its schema, its kernels, its speed."""
    declared = {operator.name: operator for operator in operators}
    devices = kernels()
    recorded = speeds((ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8"))
    lines = ["# Operators", "", "Generated from the declarations of the operators, and from the"]
    lines += ["tables of [Benchmarks](benchmarks.md), which says how the speed was measured.", ""]
    lines += ["[Conformance](conformance.md) says in which part of PyTorch each of them works.", ""]
    for name in sorted(functions):
        family = functions[name].__module__.split(".")[2]
        lines += [f"## {name}", "", "```{eval-rst}", f".. autofunction:: fusewheel.{name}", "```"]
        if name in declared:
            schema = schema_text(str(declared[name].overload._schema))
            lines += [
                "",
                facts(declared[name], family, devices.get(name, [])),
                "",
                "```text",
                schema,
                "```",
            ]
        lines += ["", recorded[name], ""] if name in recorded else [""]
    return "\n".join(lines)


def api(modules: Sequence[Any], left_out: set[str]) -> str:
    """The page of everything else that is public, by module."""
    lines = ["# Python API", "", "Generated from the docstrings.", ""]
    seen: set[int] = set()
    for module in modules:
        lines += [f"## {module.__name__}", ""]
        for name in sorted(getattr(module, "__all__", ())):
            value = getattr(module, name)
            if name in left_out or inspect.ismodule(value) or id(value) in seen:
                continue
            seen.add(id(value))
            kind = "class" if inspect.isclass(value) else "function"
            if not callable(value) or not inspect.getdoc(value):
                continue
            lines += ["```{eval-rst}", f".. auto{kind}:: {module.__name__}.{name}", "```", ""]
    return "\n".join(lines)


def contents(pages: set[str]) -> str:
    """The table of contents, which stands unseen at the end of the first page.

    Raises:
        SystemExit: a page that has a place does not exist.
    """
    placed = {name for names in PARTS.values() for name in names}
    if placed - pages:
        raise SystemExit(
            f"tools/pages.py: PARTS names pages that are gone: {sorted(placed - pages)}"
        )
    parts = []
    others = tuple(sorted(pages - placed - {"index"}))
    for caption, names in (PARTS | ({"More": others} if others else {})).items():
        listed = "\n".join(names)
        parts.append(f"```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{listed}\n```\n")
    return "\n".join(parts)


def write(folder: Path) -> None:
    """Writes all sources of the site."""
    import importlib

    import fusewheel

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    shutil.copy(CONF, folder / "conf.py")
    (folder / "_static").mkdir()
    shutil.copy(STYLE, folder / "_static")
    for picture in (ROOT / "docs").glob("*.png"):
        shutil.copy(picture, folder)
    for path in (ROOT / "docs").glob("*.md"):
        (folder / path.name).write_text(page(path.read_text(encoding="utf-8"), path))
    for name, other in OUTSIDE.items():
        path = ROOT / name
        (folder / other).write_text(page(path.read_text(encoding="utf-8"), path))
    functions = fusewheel.ops.functions()
    text = reference(functions, fusewheel.ops.operators())
    (folder / "operators-reference.md").write_text(text)
    modules = [importlib.import_module(name) for name in MODULES]
    (folder / "api.md").write_text(api(modules, set(functions)))
    pages = {path.stem for path in folder.glob("*.md")}
    with (folder / "index.md").open("a") as index:
        index.write("\n" + contents(pages))


if __name__ == "__main__":
    write(Path(sys.argv[1]))
