"""Changes of C++ and CUDA: of tokens, since nothing here understands the language.

clang-format puts spaces around operators of two operands and none around template brackets,
pointers and references; that is how they are told apart.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from mutants.mutant import Change

TOKEN = re.compile(
    r"""(?P<skip>\s+|//[^\n]*|/\*.*?\*/)
    |(?P<directive>^[ \t]*\#(?:[^\n]*\\\n)*[^\n]*)
    |(?P<text>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')
    |(?P<number>(?:0x[0-9a-fA-F]+|(?:\d[\d']*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)[uUlLfF]*)
    |(?P<name>[A-Za-z_]\w*)
    |(?P<operator><<=|>>=|->|::|\+\+|--|&&|\|\||[-+*/%<>=!&|^]=|<<|>>|.)""",
    re.VERBOSE | re.MULTILINE | re.DOTALL,
)
BINARY = {
    **{"+": "-", "-": "+", "*": "/", "/": "*", "%": "*"},
    **{"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="},
    **{"&&": "||", "||": "&&", "+=": "-=", "-=": "+=", "*=": "/=", "/=": "*="},
    **{"<<": ">>", ">>": "<<", "&": "|", "|": "&", "^": "&"},
}
NAMES = {"true": "false", "false": "true", "min": "max", "max": "min"}
# What is written and never computed: mutants of these are none, or do not compile.
NO_STATEMENT = {
    *("return", "using", "const", "constexpr", "static", "template", "if", "for", "while", "else"),
    *("do", "switch", "case", "default", "break", "continue", "typedef", "namespace", "struct"),
    *("class", "enum", "extern", "inline", "auto", "static_assert", "public", "private", "void"),
}
EXPRESSION = re.compile(
    r"(?:static_cast<[^;]*?>\()?[\w.:\[\]*()>-]*?[\w\])](?:\s*(?:[-+*/|&^%]|<<|>>)?=\s|\()"
)


@dataclass(frozen=True)
class Token:
    """A piece of the text: its offsets, what it is (a group of TOKEN), and itself."""

    start: int
    end: int
    what: str
    text: str


def tokens(text: str) -> list[Token]:
    """All but white space, comments and preprocessor directives."""
    found = (Token(m.start(), m.end(), m.lastgroup or "", m[0]) for m in TOKEN.finditer(text))
    return [token for token in found if token.what not in ("skip", "directive")]


def closing(found: list[Token], at: int) -> int:
    """The index of the bracket that closes the one at an index; the last token if none does."""
    opens = found[at].text
    closes = {"(": ")", "<": ">", "[": "]", "{": "}"}[opens]
    depth = 0
    for i in range(at, len(found)):
        text = found[i].text
        depth += (text == opens) - (text == closes) - 2 * (opens == "<" and text == ">>")
        if depth <= 0:
            return i
    return len(found) - 1


def without_values(found: list[Token]) -> set[int]:
    """Indices of tokens that no value depends on: assertions, hints, parameters of templates."""
    out: set[int] = set()
    for i, token in enumerate(found[:-1]):
        following = found[i + 1].text
        if (token.text == "template" and following == "<") or (
            following == "("
            and re.fullmatch(
                r"static_assert|alignas|__attribute__|__launch_bounds__|\w*prefetch\w*", token.text
            )
        ):
            out |= set(range(i, closing(found, i + 1) + 1))
        elif token.text == "__builtin_expect":  # the last argument is what to expect
            out |= {closing(found, i + 1) - 1}
    return out


def changes(text: str) -> Iterator[Change]:
    """Everything that can be broken in a file, one change for each place and way."""
    found = tokens(text)
    idle = without_values(found)
    for i, token in enumerate(found):
        if i in idle:
            continue
        around = text[token.start - 1 : token.start] + text[token.end : token.end + 1]
        beside = {found[j].what for j in (i - 1, i + 1) if 0 <= j < len(found)}
        if token.text in BINARY and around.isspace() and len(around) == 2:
            if "text" not in beside:  # a message that is put together
                yield Change(token.start, token.end, BINARY[token.text])
        elif token.text in NAMES:
            yield Change(token.start, token.end, NAMES[token.text])
        elif token.what == "number":
            yield Change(token.start, token.end, _other(token.text))
        elif token.text == "if" and found[i + 1].text == "(":
            start, end = found[i + 1].end, found[closing(found, i + 1)].start
            yield Change(start, end, f"!({text[start:end]})")
        elif token.text == "return" and found[i + 1].text != ";":
            yield Change(found[i + 1].start, _end(found, i), "{}")
    yield from _statements(text, found, idle)


def _statements(text: str, found: list[Token], idle: set[int]) -> Iterator[Change]:
    """Assignments and calls that are left out."""
    for i, token in enumerate(found):
        first = i == 0 or found[i - 1].text in ("{", "}", ";")
        if not first or i in idle or token.what != "name" or token.text in NO_STATEMENT:
            continue
        if token.text.startswith("FUSEWHEEL_") and not token.text.startswith("FUSEWHEEL_S"):
            continue  # a macro that declares something
        end = _end(found, i)
        statement = text[token.start : end]
        if end and EXPRESSION.match(statement):
            yield Change(token.start, end, "")


def _end(found: list[Token], i: int) -> int:
    """The offset of the semicolon that ends the statement from an index; 0 if there is none."""
    depth = 0
    for token in found[i:]:
        depth += (token.text in "({[") - (token.text in ")}]")
        if depth < 0:
            return 0
        if depth == 0 and token.text == ";":
            return token.start
    return 0


def _other(number: str) -> str:
    """Another number: the next whole one, or twice as much."""
    if re.fullmatch(r"\d+[uUlL]*", number):
        digits = re.match(r"\d+", number)
        assert digits is not None
        return f"{int(digits[0]) + 1}{number[digits.end() :]}"
    if number.startswith("0x"):
        return f"({number} >> 1)"
    return "1.0" if not float(number.rstrip("fFlL")) else f"(2 * {number})"
