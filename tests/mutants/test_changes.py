"""What is broken in a text, and what is left alone."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mutants import cpp_source, python_source
from mutants.mutant import Change, Mutant

Changes = Callable[[str], Iterator[Change]]


def mutated(changes: Changes, text: str) -> set[str]:
    found = (Mutant("cpu", Path("file"), text, change) for change in changes(text))
    return {mutant.mutated for mutant in found}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x = a + b\n", {"x = a - b\n"}),
        ("x = (a) < (b)\n", {"x = (a) <= (b)\n"}),
        ("x = a is not None\n", {"x = a is None\n"}),
        ("x = a and b or c\n", {"x = a or b or c\n", "x = a and b and c\n"}),
        ("x = not a\n", {"x = (a)\n"}),
        ("x = max(a, True)\n", {"x = min(a, True)\n", "x = max(a, False)\n"}),
        ("x = 0.5\n", {"x = 1.0\n"}),
        ("x = 'é', a * b\n", {"x = 'é', a / b\n"}),
        ("f(a)\n", {"pass\n"}),
        ("a.b = c\n", {"pass\n"}),
        ("[a for a in b if c]\n", {"[a for a in b if (not (c))]\n"}),
        ("def f():\n    return a\n", {"def f():\n    return None\n"}),
        ("def f():\n    return False\n", {"def f():\n    return True\n"}),
        ("def f():\n    return None\n", {"def f():\n    return 1\n"}),
        (
            "if a == b:\n    raise E(f'{c + d}')\n",
            {
                "if a != b:\n    raise E(f'{c + d}')\n",
                "if (not (a == b)):\n    raise E(f'{c + d}')\n",
                "if a == b:\n    pass\n",
            },
        ),
    ],
)
def test_python(text: str, expected: set[str]):
    found = mutated(python_source.changes, text)
    assert found == expected
    for each in found:
        ast.parse(each)


@pytest.mark.parametrize(
    "text",
    [
        '"""a + b"""\n',
        "def f(a: X | Y) -> X | Y: ...\n",
        "x: X | Y\n",
        "@frozen(a=True)\nclass C: ...\n",
        "__all__ = [a + b]\n",
        "if TYPE_CHECKING:\n    x = a + b\n",
        "assert a == b\n",
        "x = 'a' + b\n",
        "x = f'{a + b}'\n",
        "# a + b\nimport a\n",
    ],
)
def test_python_that_no_test_can_see(text: str):
    assert mutated(python_source.changes, text) == set()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x(a + b);", {"x(a - b);", ""}),
        ("x = a <= b;", {"x = a < b;", ""}),
        ("const A x = a && b;", {"const A x = a || b;"}),
        ("const A x = std::max<A>(a, true);", {"const A x = std::min<A>(a, true);"}),
        ("const A x = 7;", {"const A x = 8;"}),
        ("const A x = 0.5f;", {"const A x = (2 * 0.5f);"}),
        ("return a;", {"return {};"}),
        ("if (a) b();", {"if (!(a)) b();"}),
        ("static_cast<A*>(p)[i] = b;", {""}),
        ("to.x[i] += b;", {"to.x[i] -= b;", ""}),
    ],
)
def test_cpp(text: str, expected: set[str]):
    text = f"{{ {text} }}"
    found = mutated(cpp_source.changes, text)
    assert {f"{{ {e or ';'} }}" for e in expected} <= found
    assert len(found) <= len(expected) + 1  # max and true are two


@pytest.mark.parametrize(
    "text",
    [
        "// a + b\n/* a + b */\n",
        "#define F(a, b) \\\n  a + b\n",
        'static_assert(a + b == 4, "c");',
        "template <int n = 3 + 4, typename T>",
        "__builtin_prefetch(a + b);",
        "const T* x; T&& y; Vec<A> z;",
        'fail("a" + b);',
        "alignas(64) char x;",
    ],
)
def test_cpp_that_no_test_can_see(text: str):
    assert mutated(cpp_source.changes, text) <= {";"}


def test_a_mutant_is_shown_with_its_line_and_as_a_diff():
    mutant = Mutant("cpu", Path("a.h"), "x;\ny = a + b;\n", Change(9, 10, "-"))
    assert str(mutant) == "a.h:2: +  ->  -"
    assert mutant.diff().splitlines()[3:] == [" x;", "-y = a + b;", "+y = a - b;"]
