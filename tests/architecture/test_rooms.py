"""Which room of the front may import which; docs/architecture.md shows the same table."""

from __future__ import annotations

import ast
import importlib
import operator
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import fusewheel

FRONT = Path(fusewheel.__file__).parent
PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"
FOUNDATIONS = {"errors", "_torch", "_core"}
COMPILER = {"compiler.ir", "compiler.read", "compiler.cost", "compiler.patterns"}
# What a room may import beside itself. A room below never imports one above.
ARROWS = {
    "errors": set(),
    "_torch": {"errors"},
    "_core": {"errors", "_torch"},
    "dispatch": FOUNDATIONS,
    "ops": FOUNDATIONS | {"dispatch"},
    "compiler.ir": FOUNDATIONS,
    "compiler.read": FOUNDATIONS | {"compiler.ir"},
    "compiler.cost": FOUNDATIONS | {"compiler.ir"},
    "compiler.patterns": FOUNDATIONS | {"compiler.ir", "compiler.read", "compiler.cost"},
    "compiler.match": FOUNDATIONS | COMPILER,
    "compiler.run": FOUNDATIONS | {"compiler.ir", "compiler.cost", "engine"},
    "compiler.lower": FOUNDATIONS | {"compiler.ir", "engine"},
    "compiler.store": FOUNDATIONS
    | {"compiler.ir", "compiler.cost", "compiler.patterns", "compiler.match", "engine"},
    "compiler.entry": FOUNDATIONS
    | COMPILER
    | {"compiler.match", "compiler.run", "compiler.lower", "compiler.store", "engine"},
    "distributed": FOUNDATIONS | {"dispatch", "ops"},
    "jit": FOUNDATIONS | {"dispatch", "ops", "compiler.ir", "compiler.match", "compiler.lower"},
    "engine": FOUNDATIONS,
    "quantization": FOUNDATIONS | {"ops"},
    "nn": FOUNDATIONS | {"ops", "quantization"},
    "transformers": FOUNDATIONS | {"ops", "quantization"},
    "doctor": FOUNDATIONS | {"dispatch", "ops"},
    "demo": FOUNDATIONS | {"compiler.cost", "quantization"},
}
# The public face: they hand on what the rooms offer.
FACES = {"__init__", "__main__", "cli", "compiler", "inductor"}
MANY = {Path("compiler/patterns"), Path("doctor/columns")}


def modules() -> dict[str, Path]:
    """Every module by its name without the first part."""
    found = {}
    for path in FRONT.rglob("*.py"):
        parts = list(path.relative_to(FRONT).with_suffix("").parts)
        if parts[-1] == "__init__":
            parts = parts[:-1] or ["__init__"]
        found[".".join(parts)] = path
    return found


MODULES = modules()


def imported(name: str) -> Iterator[str]:
    """The modules of ours that a module imports, also inside of functions; not for types alone."""
    tree = ast.parse(MODULES[name].read_text())
    for guarded in [n for n in ast.walk(tree) if isinstance(n, ast.If)]:
        if "TYPE_CHECKING" in ast.unparse(guarded.test):
            guarded.body = [ast.Pass()]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from known(alias.name)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}: imports are absolute, line {node.lineno}"
            for alias in node.names:
                yield from known(f"{node.module}.{alias.name}")
        elif is_dynamic(node):
            yield from known(node.args[0].value)


def is_dynamic(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and ast.unparse(node.func).endswith("import_module")
        and isinstance(node.args[0], ast.Constant)
    )


def known(dotted: str) -> Iterator[str]:
    """The module that a dotted name is, or is a part of."""
    parts = dotted.split(".")
    if parts[0] != "fusewheel":
        return
    for count in range(len(parts), 1, -1):
        if (name := ".".join(parts[1:count])) in MODULES:
            yield name
            return
    yield "__init__"


def room(module: str) -> str:
    parts = module.split(".")
    return ".".join(parts[:2]) if parts[0] == "compiler" else parts[0]


def test_arrows_go_down():
    wrong = [
        f"{module} imports {other}"
        for module in sorted(MODULES)
        if room(module) not in FACES
        for other in sorted(set(imported(module)))
        if room(other) != room(module) and room(other) not in ARROWS[room(module)]
    ]
    assert not wrong, "\n".join(wrong)


def test_table_is_a_table_of_floors():
    """It would allow a cycle otherwise."""
    left = dict(ARROWS)
    while left:
        lowest = [name for name, below in left.items() if not below & set(left)]
        assert lowest, f"{sorted(left)} stand on each other"
        for name in lowest:
            del left[name]


def test_every_room_is_in_the_table():
    assert {room(module) for module in MODULES} == set(ARROWS) | FACES


def test_no_module_imports_itself_by_way_of_others():
    edges = {name: {o for o in imported(name) if o != name} for name in MODULES}
    # A package's __init__ runs before what lies in it: only what it says of others counts.
    while True:
        free = {name for name, below in edges.items() if not below & set(edges)}
        if not free:
            break
        edges = {name: below for name, below in edges.items() if name not in free}
    assert not edges, f"these import each other in a circle: {sorted(edges)}"


def test_a_module_is_found_under_its_name():
    """No function takes the place of the module that it is in: `package.module.function` works."""
    import torch.distributed.tensor  # noqa: F401

    for name in sorted(set(MODULES) - {"__init__", "__main__"}):
        module = importlib.import_module(f"fusewheel.{name}")
        assert operator.attrgetter(name)(fusewheel) is module, f"fusewheel.{name} is something else"


def test_docs_show_the_same_table():
    """Each row of the second table of the page names a room and, last, what it imports."""
    shown = {}
    rows = re.findall(
        r"^\| `([a-z_/]+?)/(?:FAMILY/)?` \|.*\|(.*)\|$", PAGE.read_text(), re.MULTILINE
    )
    for name, below in rows:
        if name.replace("/", ".") in ARROWS:
            shown[name.replace("/", ".")] = set(re.findall(r"`(\w+)`", below))
    for name, below in ARROWS.items():
        if name in FOUNDATIONS - {"_torch", "_core"}:
            continue
        said = {other.removeprefix("compiler.") for other in below - FOUNDATIONS}
        if name == "compiler.entry":  # "all of compiler"
            said = {"compiler", "engine"}
        assert shown[name] == said, name


def test_folders_are_small():
    counts = Counter(path.parent.relative_to(FRONT) for path in MODULES.values())
    large = {str(folder): n for folder, n in counts.items() if n > 16 and folder not in MANY}
    assert not large
