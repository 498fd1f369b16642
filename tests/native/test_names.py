"""In each kernel library a type has one definition.

The linker keeps one of several inline functions of one name, and never compares what they were
made for: two structs of one name would be read as each other, without a warning.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHARED = "packages/schema"
LIBRARIES = {"cpu": ("cpu_kernels", SHARED), "cuda": ("cuda_kernels", SHARED)}
SUFFIXES = {".h", ".cc", ".cpp", ".cu"}

# Comments, texts and preprocessor lines, which may hold braces.
NO_CODE = re.compile(
    r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'|^[ \t]*#(?:\\\n|[^\n])*',
    re.DOTALL | re.MULTILINE,
)
TOKEN = re.compile(
    r"\bnamespace(?P<space>[\w\s:]*)\{"
    r"|\b(?:struct|class|union|enum(?:\s+class)?)\s+(?:alignas\(\w+\)\s*)?(?P<type>\w+)"
    r"(?:\s+final)?\s*(?::[^;{}()]*)?\{"
    r"|(?P<open>\{)|(?P<close>\})"
)


def types(text: str) -> Iterator[str]:
    """The qualified names of the types a file defines in namespaces that have a name."""
    scopes: list[str | None] = []  # of what is open: a namespace, or None for anything else
    for token in TOKEN.finditer(NO_CODE.sub(" ", text)):
        if token["space"] is not None:
            scopes.append(token["space"].strip())
        elif token["close"]:
            scopes.pop()
        else:
            if token["type"] and None not in scopes and "" not in scopes:
                yield "::".join([*(scope for scope in scopes if scope), token["type"]])
            scopes.append(None)
    assert not scopes, "braces do not match"


def test_what_counts_as_a_definition():
    text = """
    #define OPEN {
    namespace a::b { /* struct No { */ struct Plain { struct Inner {}; };
    class Derived final : public Plain { void f() { struct Local {}; } };
    template <> struct Special<int> {}; struct Declared; enum class E : int { kOne };
    namespace { struct Hidden {}; }  // struct No {
    } // namespace
    const char* text = "struct No {"; struct Global {};
    """
    assert list(types(text)) == ["a::b::Plain", "a::b::Derived", "a::b::E", "Global"]


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_type_has_one_definition(library: str):
    places = defaultdict(list)
    for folder in LIBRARIES[library]:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in SUFFIXES:
                for name in types(path.read_text()):
                    places[name].append(str(path.relative_to(ROOT)))
    assert len(places) > 20
    # One definition for nvcc or the compiler, another for the emulator, are never seen together.
    twice = {name: files for name, files in places.items() if len(set(files)) > 1}
    assert twice == {}


def test_a_name_means_one_thing_in_both_libraries():
    """They share no memory, but whoever reads them does."""
    found = []
    for folder in ("cpu_kernels", "cuda_kernels"):
        paths = (p for p in sorted((ROOT / folder).rglob("*")) if p.suffix in SUFFIXES)
        found.append({n for p in paths for n in types(p.read_text()) if n.endswith("Args")})
    assert found[0] & found[1] == set()
