"""Finds where a small change can be made in C and C++ sources, with libclang.

Only what stands in a function's body as it is read: nothing that comes out of a macro, no constant
that the compiler must know, no text for people.
"""

from __future__ import annotations

import subprocess
import sysconfig
import tempfile
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path

from clang import cindex
from clang.cindex import CursorKind as Kind
from clang.cindex import TypeKind
from mutant import NUMBER, Site, numbered

#: What switches a mutant on; see switch.h.
SWITCH = "pc__mutant"

#: gcc's own header is beyond clang, which reads here only where expressions begin and end.
_ATOMICS = """
#define _Atomic(T) T
enum memory_order { memory_order_relaxed, memory_order_consume, memory_order_acquire,
                    memory_order_release, memory_order_acq_rel, memory_order_seq_cst };
typedef enum memory_order memory_order;
typedef int atomic_int; typedef unsigned atomic_uint; typedef _Bool atomic_bool;
typedef _Bool atomic_flag; typedef unsigned long atomic_ulong; typedef unsigned long atomic_size_t;
#define ATOMIC_VAR_INIT(v) (v)
#define ATOMIC_FLAG_INIT 0
#define atomic_init(p, v) ((void)(*(p) = (v)))
#define atomic_load(p) (*(p))
#define atomic_load_explicit(p, o) (*(p))
#define atomic_store(p, v) ((void)(*(p) = (v)))
#define atomic_store_explicit(p, v, o) ((void)(*(p) = (v)))
#define atomic_exchange(p, v) (*(p) = (v))
#define atomic_exchange_explicit(p, v, o) (*(p) = (v))
#define atomic_fetch_add(p, v) (*(p) += (v))
#define atomic_fetch_add_explicit(p, v, o) (*(p) += (v))
#define atomic_fetch_sub(p, v) (*(p) -= (v))
#define atomic_fetch_sub_explicit(p, v, o) (*(p) -= (v))
#define atomic_fetch_or(p, v) (*(p) |= (v))
#define atomic_fetch_or_explicit(p, v, o) (*(p) |= (v))
#define atomic_fetch_and(p, v) (*(p) &= (v))
#define atomic_fetch_and_explicit(p, v, o) (*(p) &= (v))
#define atomic_compare_exchange_strong(p, e, v) (*(p) == *(e) ? (*(p) = (v), 1) : 0)
#define atomic_compare_exchange_weak(p, e, v) (*(p) == *(e) ? (*(p) = (v), 1) : 0)
#define atomic_compare_exchange_strong_explicit(p, e, v, a, b) (*(p) == *(e) ? (*(p) = (v), 1) : 0)
#define atomic_compare_exchange_weak_explicit(p, e, v, a, b) (*(p) == *(e) ? (*(p) = (v), 1) : 0)
#define atomic_thread_fence(o) ((void)0)
#define atomic_signal_fence(o) ((void)0)
#define atomic_flag_test_and_set(p) (*(p) = 1)
#define atomic_flag_clear(p) ((void)(*(p) = 0))
"""

_FUNCTIONS = (Kind.FUNCTION_DECL, Kind.CXX_METHOD, Kind.FUNCTION_TEMPLATE, Kind.CONSTRUCTOR)
_LOOPS = (Kind.FOR_STMT, Kind.WHILE_STMT, Kind.DO_STMT)
#: What the compiler must know, or what is a type, a message or no code.
_CLOSED = (
    *(Kind.CXX_UNARY_EXPR, Kind.ASM_STMT, Kind.MS_ASM_STMT, Kind.STATIC_ASSERT, Kind.ENUM_DECL),
    *(Kind.INIT_LIST_EXPR, Kind.COMPOUND_LITERAL_EXPR, Kind.DECL_REF_EXPR, Kind.TYPE_REF),
    *(Kind.TEMPLATE_REF, Kind.STRUCT_DECL, Kind.UNION_DECL, Kind.CLASS_DECL, Kind.STRING_LITERAL),
    *(Kind.LAMBDA_EXPR, Kind.TYPEDEF_DECL, Kind.CXX_STATIC_CAST_EXPR),
)
_COMPARED = {
    "<": ("boundary", "<="),
    "<=": ("boundary", "<"),
    ">": ("boundary", ">="),
    ">=": ("boundary", ">"),
    "==": ("comparison", "!="),
    "!=": ("comparison", "=="),
    "+": ("arithmetic", "-"),
    "-": ("arithmetic", "+"),
    "&&": ("and or", "||"),
    "||": ("and or", "&&"),
}
_INTEGERS = (
    *(TypeKind.INT, TypeKind.UINT, TypeKind.LONG, TypeKind.ULONG, TypeKind.LONGLONG),
    *(TypeKind.ULONGLONG, TypeKind.SHORT, TypeKind.USHORT, TypeKind.UCHAR, TypeKind.SCHAR),
    *(TypeKind.CHAR_S, TypeKind.ENUM),
)


def sites(root: Path, folder: str, units: Sequence[str]) -> list[Site]:
    """Return all sites of the sources and headers below a folder, file by file.

    Args:
        root: The tree.
        folder: Whose functions are looked at.
        units: Sources, from the root, that together include every header worth a look.

    Raises:
        ValueError: If libclang cannot read a unit.
    """
    found: dict[tuple[str, int, int, str, str], Site] = {}
    with tempfile.TemporaryDirectory() as name:
        Path(name, "stdatomic.h").write_text(_ATOMICS)
        flags = [f"-I{name}", *_flags(root, folder)]
        for unit in units:
            for site in _unit(root, folder, unit, flags):
                key = (site.file, site.start, site.end, site.operator, site.mutated)
                found.setdefault(key, site)
    inside = sorted(found.values(), key=lambda site: (site.file, site.start, site.end))
    return numbered(inside)


def _flags(root: Path, folder: str) -> list[str]:
    """Return where headers are, this project's and the compiler's own."""
    own = sorted({path.parent for path in (root / folder).rglob("*.h")})
    tests = [root / "tests" / name for name in ("simt", "fakecuda")]
    where = subprocess.run(
        ["cc", "-print-file-name=include"], capture_output=True, text=True, check=True
    ).stdout.strip()
    paths = [*own, *tests, Path(where), Path(sysconfig.get_path("include"))]
    return [*(f"-I{path}" for path in paths), "-D_GNU_SOURCE", "-Wno-everything"]


def _unit(root: Path, folder: str, unit: str, flags: Sequence[str]) -> Iterator[Site]:
    language = "-std=gnu11" if unit.endswith(".c") else "-std=c++17"
    more = [] if unit.endswith(".c") else ["-DPC_KERNEL_DTYPE=1", "-DPC_KERNEL_OP=0"]
    options = cindex.TranslationUnit.PARSE_DETAILED_PROCESSING_RECORD
    tree = cindex.Index.create().parse(str(root / unit), [language, *more, *flags], None, options)
    base = (root / folder).resolve()
    files: dict[str, _File] = {}
    bodies = []
    for cursor in tree.cursor.get_children():
        place = cursor.location.file
        if place is None or not Path(place.name).resolve().is_relative_to(base):
            continue
        if place.name not in files:
            path = Path(place.name).resolve().relative_to(root.resolve())
            files[place.name] = _File(path.as_posix(), Path(place.name).read_bytes())
        if cursor.kind == Kind.MACRO_INSTANTIATION:
            files[place.name].macros.append((cursor.extent.start.offset, cursor.extent.end.offset))
        else:
            bodies.append((place.name, cursor))
    wrong = sorted(
        (each.location.file.name, each.location.offset)
        for each in tree.diagnostics
        if each.severity >= cindex.Diagnostic.Error and each.location.file
    )
    fatal = [each for each in tree.diagnostics if each.severity == cindex.Diagnostic.Fatal]
    if fatal and "too many errors" not in fatal[0].spelling:
        raise ValueError(f"{unit}: libclang says {fatal[0].spelling}")
    for file in files.values():
        file.macros.sort()
    for name, cursor in bodies:
        for function, body, result in _functions(cursor, ""):
            first, last = body.extent.start.offset, body.extent.end.offset
            # What libclang misunderstands is left alone, whole functions at a time.
            if not any(n == name and first <= at <= last for n, at in wrong):
                yield from _Walk(files[name], function, result).run(body)


def _functions(
    cursor: cindex.Cursor, outer: str
) -> Iterator[tuple[str, cindex.Cursor, cindex.Type]]:
    """Yield the functions that are defined at a cursor: name, body, type of the result."""
    name = f"{outer}.{cursor.spelling}".lstrip(".")
    if cursor.kind in _FUNCTIONS:
        for child in cursor.get_children():
            if child.kind == Kind.COMPOUND_STMT:
                yield name.split("<")[0], child, cursor.result_type.get_canonical()
    elif cursor.kind in (
        *(Kind.STRUCT_DECL, Kind.CLASS_DECL, Kind.CLASS_TEMPLATE, Kind.NAMESPACE),
        *(Kind.CLASS_TEMPLATE_PARTIAL_SPECIALIZATION, Kind.LINKAGE_SPEC, Kind.UNEXPOSED_DECL),
    ):
        for child in cursor.get_children():
            yield from _functions(child, name)


class _File:
    """A source: its text, and where it names macros."""

    def __init__(self, name: str, text: bytes) -> None:
        self.name = name
        self.text = text
        self.macros: list[tuple[int, int]] = []

    def touched(self, start: int, end: int) -> bool:
        """Tell whether a stretch lies in the use of a macro, or is one."""
        at = bisect_right(self.macros, (start, 1 << 60)) - 1
        return any(a <= start and end <= b for a, b in self.macros[max(0, at - 3) : at + 1])

    def widened(self, start: int, end: int) -> tuple[int, int]:
        """Return a stretch with all of each macro's use in which it begins or ends."""
        for a, b in self.macros:
            if a <= start < b:
                start, end = a, max(b, end)
            elif a < end < b:
                end = b
        return start, end


class _Walk:
    """Walks over the body of one function."""

    def __init__(self, file: _File, function: str, result: cindex.Type) -> None:
        self.file = file
        self.function = function
        self.result = result

    def run(self, body: cindex.Cursor) -> Iterator[Site]:
        yield from self.statements(body, False)

    def statements(self, node: cindex.Cursor, loop: bool) -> Iterator[Site]:
        for child in node.get_children():
            yield from self.statement(child, loop)

    def statement(self, node: cindex.Cursor, loop: bool) -> Iterator[Site]:
        """Yield the sites of a statement. `loop`: what a break would end is one."""
        kind = node.kind
        children = list(node.get_children())
        if kind in (Kind.COMPOUND_STMT, Kind.LABEL_STMT, Kind.DEFAULT_STMT):
            yield from self.statements(node, loop)
        elif kind == Kind.CASE_STMT:
            yield from self.statement(children[-1], loop)  # what comes before is the label
        elif kind == Kind.IF_STMT:
            if b"constexpr" in self.text(node)[:16] or not children:
                return
            yield from self.condition(children[0])
            for child in children[1:]:
                yield from self.statement(child, loop)
        elif kind == Kind.SWITCH_STMT:
            yield from self.expression(children[0])
            yield from self.statement(children[-1], False)
        elif kind in _LOOPS:
            for child in children:
                if child.kind == Kind.COMPOUND_STMT or child == children[-1]:
                    yield from self.statement(child, True)
                else:
                    yield from self.statement(child, False)
        elif kind == Kind.DECL_STMT:
            for child in children:
                yield from self.declaration(child)
        elif kind == Kind.RETURN_STMT:
            for child in children:
                yield from self.returned(child)
                yield from self.expression(child)
        elif kind in (Kind.BREAK_STMT, Kind.CONTINUE_STMT):
            if loop:
                other = "continue" if kind == Kind.BREAK_STMT else "break"
                yield from self.jump(node, other)
        elif kind == Kind.CALL_EXPR:
            if not self.message(node):
                yield from self.deleted(node, "call deleted")
            yield from self.expression(node)
        elif kind in (Kind.BINARY_OPERATOR, Kind.COMPOUND_ASSIGNMENT_OPERATOR):
            if kind == Kind.COMPOUND_ASSIGNMENT_OPERATOR or self.operator(node)[0] == "=":
                yield from self.deleted(node, "assignment deleted")
            yield from self.expression(node)
        else:
            yield from self.expression(node)

    def declaration(self, node: cindex.Cursor) -> Iterator[Site]:
        """Yield the sites of a variable's first value, not of its type."""
        if node.kind != Kind.VAR_DECL or node.storage_class == cindex.StorageClass.STATIC:
            return
        text = self.text(node)
        children = list(node.get_children())
        equals = text.find(b"=")
        if children and equals >= 0 and b"constexpr" not in text:
            value = children[-1]
            if value.extent.start.offset >= node.extent.start.offset + equals:
                yield from self.expression(value)

    def condition(self, node: cindex.Cursor) -> Iterator[Site]:
        yield from self.negated(node)
        yield from self.expression(node)

    def expression(self, node: cindex.Cursor) -> Iterator[Site]:
        """Yield the sites of an expression and of what it is made of."""
        kind = node.kind
        if kind in _CLOSED:
            return
        children = list(node.get_children())
        if kind == Kind.BINARY_OPERATOR:
            operator, at = self.operator(node)
            if operator in _COMPARED:
                name, other = _COMPARED[operator]
                start, end = self.extent(node)
                text = self.file.text
                mutated = text[start:at] + other.encode() + text[at + len(operator) : end]
                yield from self.site(start, end, mutated.decode(), name)
        elif kind == Kind.INTEGER_LITERAL:
            start, end = self.extent(node)
            literal = self.file.text[start:end].decode()
            yield from self.site(start, end, f"{literal} + 1", "constant")
            return
        elif kind == Kind.CONDITIONAL_OPERATOR:
            yield from self.negated(children[0])
        elif kind == Kind.CALL_EXPR and self.message(node):
            return
        elif kind == Kind.StmtExpr:
            for child in children:
                yield from self.statement(child, False)
            return
        for child in children:
            yield from self.expression(child)

    def message(self, call: cindex.Cursor) -> bool:
        """Tell whether a call is given a text for people."""
        return any(
            part.kind == Kind.STRING_LITERAL
            for child in call.get_children()
            for part in (child, *child.get_children())
        )

    def operator(self, node: cindex.Cursor) -> tuple[str, int]:
        """Return the text of a binary operator, and where it stands; empty if that is unclear."""
        children = list(node.get_children())
        if len(children) != 2:
            return "", 0
        start = self.extent(children[0])[1]
        end = self.extent(children[1])[0]
        between = self.file.text[start:end]
        word = between.strip()
        if not word or b"\n//" in word or b"/*" in word:
            return "", 0
        return word.decode(), start + between.index(word)

    def negated(self, node: cindex.Cursor) -> Iterator[Site]:
        start, end = self.extent(node)
        text = self.file.text[start:end].decode()
        # Of two types: both sides of the choice are made a truth value.
        planted = f"({SWITCH}({NUMBER}) ? !({text}) : !!({text}))"
        if "\n" not in text:
            yield from self.site(start, end, f"!({text})", "negated", planted)

    def returned(self, node: cindex.Cursor) -> Iterator[Site]:
        start, end = self.extent(node)
        text = self.file.text[start:end].decode()
        if self.result.kind == TypeKind.BOOL:
            yield from self.site(start, end, f"!({text})", "returned")
        elif self.result.kind in _INTEGERS:
            zero = text in ("0", "0u", "PC_OK")
            yield from self.site(start, end, "1" if zero else "0", "returned")
        elif self.result.kind == TypeKind.POINTER and text != "NULL":
            yield from self.site(start, end, "0", "returned")

    def deleted(self, node: cindex.Cursor, operator: str) -> Iterator[Site]:
        start, end = self.extent(node)
        text = self.file.text[start:end].decode()
        planted = f"({SWITCH}({NUMBER}) ? (void)0 : (void)({text}))"
        yield from self.site(start, end, "", operator, planted)

    def jump(self, node: cindex.Cursor, other: str) -> Iterator[Site]:
        start, end = self.extent(node)
        text = self.file.text[start:end].decode()
        if self.file.text[end : end + 1] == b";":
            planted = f"{{ if ({SWITCH}({NUMBER})) {other}; else {text}; }}"
            yield from self.site(start, end + 1, f"{other};", "jump", planted)

    def site(
        self, start: int, end: int, mutated: str, operator: str, planted: str = ""
    ) -> Iterator[Site]:
        """Yield a site, unless a macro or a directive is in the way."""
        kept = self.file.text[start:end].decode()
        flat = " ".join(mutated.split())
        if self.file.touched(start, end) or not kept or not _balanced(kept):
            return
        if any(mark in kept for mark in ("#", "//", "/*", '"')):
            return
        planted = planted or f"({SWITCH}({NUMBER}) ? ({flat}) : ({kept}))"
        line = self.file.text.count(b"\n", 0, start) + 1
        original = " ".join(kept.split())
        yield Site(
            self.file.name, self.function, operator, original, flat, line, start, end, planted
        )

    def extent(self, node: cindex.Cursor) -> tuple[int, int]:
        return self.file.widened(node.extent.start.offset, node.extent.end.offset)

    def text(self, node: cindex.Cursor) -> bytes:
        start, end = self.extent(node)
        return self.file.text[start:end]


def _balanced(text: str) -> bool:
    depth = 0
    for letter in text:
        depth += (letter in "([{") - (letter in ")]}")
        if depth < 0:
            return False
    return depth == 0
