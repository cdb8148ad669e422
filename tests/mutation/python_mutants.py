"""Finds where a small change can be made in a Python source: inside function bodies only."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from pathlib import Path

from mutant import NUMBER, Site, numbered

#: What switches a mutant on; see switch.py.
SWITCH = "__pc_mutant__"

_COMPARED: dict[type[ast.cmpop], tuple[str, type[ast.cmpop]]] = {
    ast.Lt: ("boundary", ast.LtE),
    ast.LtE: ("boundary", ast.Lt),
    ast.Gt: ("boundary", ast.GtE),
    ast.GtE: ("boundary", ast.Gt),
    ast.Eq: ("comparison", ast.NotEq),
    ast.NotEq: ("comparison", ast.Eq),
    ast.Is: ("comparison", ast.IsNot),
    ast.IsNot: ("comparison", ast.Is),
    ast.In: ("comparison", ast.NotIn),
    ast.NotIn: ("comparison", ast.In),
}
#: Whose arguments are texts for people.
_SAY = ("print", "warn", "debug", "info", "warning", "error", "fail")
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def sites(root: Path, file: str) -> list[Site]:
    """Return all sites of a source, in the order of its text."""
    source = (root / file).read_bytes()
    found = sorted(_Finder(file, source).run(), key=lambda site: (site.start, site.end))
    return numbered(found)


class _Finder:
    """Walks over one source."""

    def __init__(self, file: str, source: bytes) -> None:
        self.file = file
        self.source = source
        self.lines = source.splitlines(keepends=True)
        self.begins = [0]
        for line in self.lines:
            self.begins.append(self.begins[-1] + len(line))

    def run(self) -> Iterator[Site]:
        yield from self.outside(ast.parse(self.source), "")

    def outside(self, node: ast.AST, name: str) -> Iterator[Site]:
        """Look for functions where no code is changed: in modules and classes."""
        for child in ast.iter_child_nodes(node):
            yield from self.definition(child, name)

    def definition(self, node: ast.AST, name: str) -> Iterator[Site]:
        if isinstance(node, _FUNCTIONS):
            inner = f"{name}.{node.name}".lstrip(".")
            if node.name != "__repr__":
                for statement in node.body:
                    yield from self.inside(statement, inner)
        elif isinstance(node, ast.ClassDef):
            yield from self.outside(node, f"{name}.{node.name}".lstrip("."))
        else:
            yield from self.outside(node, name)

    def inside(self, node: ast.AST, name: str) -> Iterator[Site]:
        """Yield the sites at a node of a function's body, and below it."""
        if isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
            yield from self.definition(node, name)
            return
        # Of an f-string Python tells no places; the others are texts, patterns or types.
        if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr | ast.pattern):
            return
        if isinstance(node, ast.Global | ast.Nonlocal | ast.Import | ast.ImportFrom):
            return
        yield from self.at(node, name)
        if isinstance(node, ast.AnnAssign):
            if node.value is not None:
                yield from self.inside(node.value, name)
        elif isinstance(node, ast.Call) and _called(node) in ("cast", *_SAY):
            yield from self.inside(node.func, name)
        else:
            for child in ast.iter_child_nodes(node):
                yield from self.inside(child, name)

    def at(self, node: ast.AST, name: str) -> Iterator[Site]:
        """Yield the changes that can be made of one node."""
        if isinstance(node, ast.expr):
            yield from self.expressions(node, name)
        if isinstance(node, ast.If | ast.IfExp | ast.While):
            yield from self.negated(node.test, name)
        elif isinstance(node, ast.comprehension):
            for test in node.ifs:
                yield from self.negated(test, name)
        elif isinstance(node, ast.Return) and node.value is not None:
            yield from self.returned(node.value, name)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            if _called(node.value) not in _SAY:
                yield from self.statement(node, name, "call deleted")
        elif isinstance(node, ast.stmt) and _left_out(node, name):
            yield from self.statement(node, name, "statement deleted")

    def expressions(self, node: ast.expr, name: str) -> Iterator[Site]:
        changed = copy.deepcopy(node)
        if isinstance(changed, ast.Compare) and len(changed.ops) == 1:
            operator, other = _COMPARED[type(changed.ops[0])]
            changed.ops = [other()]
            yield from self.expression(node, changed, name, operator)
        elif isinstance(changed, ast.BinOp) and isinstance(changed.op, ast.Add | ast.Sub):
            texts = (ast.JoinedStr, ast.List, ast.Tuple, ast.ListComp)
            ends = (changed.left, changed.right)
            if not any(isinstance(end, texts) or _text(end) for end in ends):
                changed.op = ast.Sub() if isinstance(changed.op, ast.Add) else ast.Add()
                yield from self.expression(node, changed, name, "arithmetic")
        elif isinstance(changed, ast.Constant) and type(changed.value) is int:
            changed.value += 1
            yield from self.expression(node, changed, name, "constant")
        elif isinstance(changed, ast.BoolOp):
            changed.op = ast.Or() if isinstance(changed.op, ast.And) else ast.And()
            yield from self.expression(node, changed, name, "and or")

    def negated(self, test: ast.expr, name: str) -> Iterator[Site]:
        simple = isinstance(test, ast.Constant) or (
            isinstance(test, ast.Compare) and type(test.ops[0]) not in (ast.Lt, ast.Gt)
        )
        if not simple and not (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING"):
            yield from self.expression(test, ast.UnaryOp(ast.Not(), test), name, "negated")

    def returned(self, value: ast.expr, name: str) -> Iterator[Site]:
        other: ast.expr = ast.Constant(None)
        if isinstance(value, ast.Constant):
            if type(value.value) is not bool:
                return
            other = ast.Constant(not value.value)
        elif isinstance(value, ast.Compare | ast.BoolOp) or (
            isinstance(value, ast.UnaryOp) and isinstance(value.op, ast.Not)
        ):
            other = ast.UnaryOp(ast.Not(), value)
        yield from self.expression(value, other, name, "returned")

    def expression(
        self, node: ast.expr, changed: ast.expr, name: str, operator: str
    ) -> Iterator[Site]:
        """Yield the site where one expression becomes another."""
        waits = (ast.Await, ast.Yield, ast.YieldFrom, ast.NamedExpr, ast.Starred)
        if any(isinstance(part, waits) for part in ast.walk(node)):
            return
        start, end = self.extent(node)
        mutated = ast.unparse(changed)
        kept = self.source[start:end].decode()
        planted = f"(({mutated}) if {SWITCH}({NUMBER}) else ({kept}))"
        original = ast.unparse(node)
        yield Site(self.file, name, operator, original, mutated, node.lineno, start, end, planted)

    def statement(self, node: ast.stmt, name: str, operator: str) -> Iterator[Site]:
        """Yield the site where a statement is left out."""
        start, end = self.extent(node)
        before = self.source[self.begins[node.lineno - 1] : start]
        after = self.source[end : self.begins[node.end_lineno or node.lineno]].strip()
        if before.strip() or after[:1] == b";":
            return  # it shares its line with another, which must not go with it
        kept = self.source[start:end].decode()
        planted = f"if not {SWITCH}({NUMBER}): {kept}"
        original = ast.unparse(node)
        yield Site(self.file, name, operator, original, "", node.lineno, start, end, planted)

    def extent(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return (
            self.begins[node.lineno - 1] + node.col_offset,
            self.begins[node.end_lineno - 1] + node.end_col_offset,
        )


def _called(call: ast.Call) -> str:
    """Return the last part of the name of what is called."""
    function = call.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _left_out(node: ast.stmt, name: str) -> bool:
    """Tell whether a function may go on without a statement: it gives no name its first value."""
    if isinstance(node, ast.Assign):
        parts = isinstance(node.targets[0], ast.Attribute | ast.Subscript)
        return parts and not name.endswith("__init__")
    return isinstance(node, ast.Break | ast.Continue | ast.AugAssign)


def _text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
