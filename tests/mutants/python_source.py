"""Changes of Python: of expressions and statements, as its own parser finds them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from mutants.mutant import Change

OPERATORS: dict[type[ast.AST], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "*"),
    ast.Pow: ("**", "*"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
    ast.And: ("and", "or"),
    ast.Or: ("or", "and"),
}
FUNCTIONS = {"min": "max", "max": "min", "any": "all", "all": "any"}
# These say what types are, or are messages: no test could tell.
UNTOUCHED = (ast.JoinedStr, ast.Assert, ast.Import, ast.ImportFrom, ast.Global, ast.Nonlocal)


class Finder:
    """Finds what can be broken in the text of a module."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.found: list[Change] = []
        self.starts = [0]
        for line in text.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        self.lines = text.splitlines()

    def offset(self, line: int, column: int) -> int:
        """From what the parser says, which counts bytes of UTF-8."""
        before = self.lines[line - 1].encode()[:column].decode()
        return self.starts[line - 1] + len(before)

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        """The offsets of a node."""
        assert node.end_lineno is not None and node.end_col_offset is not None
        start = self.offset(node.lineno, node.col_offset)
        return start, self.offset(node.end_lineno, node.end_col_offset)

    def replace(self, node: ast.expr | ast.stmt, new: str) -> None:
        """Adds the change of a whole node."""
        self.found.append(Change(*self.span(node), new))

    def between(self, left: ast.expr, right: ast.expr, operator: ast.AST) -> None:
        """Adds the change of the operator between two operands."""
        if type(operator) not in OPERATORS:
            return
        old, new = OPERATORS[type(operator)]
        start, end = self.span(left)[1], self.span(right)[0]
        pattern = rf"\b{old}\b" if old[0].isalpha() else re.escape(old)
        place = re.search(pattern.replace(r"\ ", r"\s+"), self.text[start:end])
        if place is not None:
            self.found.append(Change(start + place.start(), start + place.end(), new))

    def visit(self, node: ast.AST) -> None:
        """Adds what can be broken in a node and below it."""
        if isinstance(node, UNTOUCHED) or _is_for_types(node):
            return
        self.expression(node)
        self.statement(node)
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "type_params"):
                continue
            if isinstance(node, ast.Raise):
                continue  # what is in it is a message
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    self.visit(child)

    def expression(self, node: ast.AST) -> None:
        """Operators, constants, conditions and calls of min and max."""
        if isinstance(node, ast.BinOp) and not (_is_text(node.left) or _is_text(node.right)):
            self.between(node.left, node.right, node.op)
        elif isinstance(node, ast.Compare) and len(node.ops) == 1:
            self.between(node.left, node.comparators[0], node.ops[0])
        elif isinstance(node, ast.BoolOp):
            for left, right in zip(node.values, node.values[1:], strict=False):
                self.between(left, right, node.op)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            start, end = self.span(node.operand)
            self.replace(node, f"({self.text[start:end]})")
        elif isinstance(node, ast.Constant):
            self.constant(node)
        elif isinstance(node, ast.Name) and node.id in FUNCTIONS:
            self.replace(node, FUNCTIONS[node.id])
        elif isinstance(node, (ast.If, ast.IfExp)):
            self.negate(node.test)
        elif isinstance(node, ast.comprehension):
            for test in node.ifs:
                self.negate(test)

    def constant(self, node: ast.Constant) -> None:
        """True, False and numbers."""
        if isinstance(node.value, bool):
            self.replace(node, str(not node.value))
        elif isinstance(node.value, int):
            self.replace(node, str(node.value + 1))
        elif isinstance(node.value, float):
            self.replace(node, repr(2 * node.value or 1.0))

    def negate(self, test: ast.expr) -> None:
        """A condition."""
        start, end = self.span(test)
        self.replace(test, f"(not ({self.text[start:end]}))")

    def statement(self, node: ast.AST) -> None:
        """Statements that are left out, and other results."""
        if (
            (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call))
            or isinstance(node, (ast.AugAssign, ast.Raise, ast.Continue, ast.Break, ast.Delete))
            or (isinstance(node, ast.Assign) and not isinstance(node.targets[0], ast.Name))
        ):
            self.replace(node, "pass")
        elif isinstance(node, ast.Return) and node.value is not None:
            constant = node.value.value if isinstance(node.value, ast.Constant) else ...
            if not isinstance(constant, bool):  # that one becomes the other
                self.replace(node, "return 1" if constant is None else "return None")


def changes(text: str) -> Iterator[Change]:
    """Everything that can be broken in a module, one change for each place and way."""
    finder = Finder(text)
    finder.visit(ast.parse(text))
    yield from finder.found


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and not isinstance(node.value, (bool, int, float))
    )


def _is_for_types(node: ast.AST) -> bool:
    """Whether a node is of no use when the program runs."""
    if isinstance(node, ast.If):
        return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    if isinstance(node, ast.Assign):
        target = node.targets[0]
        return isinstance(target, ast.Name) and target.id == "__all__"
    return isinstance(node, ast.AnnAssign) and node.value is None
