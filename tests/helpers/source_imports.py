"""What a source file imports."""

import ast
from collections.abc import Iterable, Iterator
from functools import cache


@cache
def nodes(source: str) -> list[ast.AST]:
    return list(ast.walk(ast.parse(source)))


def imported(source: str) -> list[str]:
    """Return the dotted names of all imports, those inside functions too."""
    return [name for name, _ in all_imports(source)]


def imported_by_running(source: str) -> list[str]:
    """Return the same without what a source imports for type checkers alone, which uses no library."""
    return [name for name, is_for_types in all_imports(source) if not is_for_types]


@cache
def all_imports(source: str) -> tuple[tuple[str, bool], ...]:
    """Return the dotted name of each import, and whether it is for type checkers alone.

    Several tests ask for the imports of every source; the trees are not kept, as they are millions of objects.
    """
    found = []
    for statement in ast.parse(source).body:
        is_for_types = isinstance(statement, ast.If) and "TYPE_CHECKING" in ast.unparse(statement.test)
        found += [(name, is_for_types) for name in imports_among(statements(statement))]
    return tuple(found)


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a statement and all statements inside it; expressions, which are most of a tree, import nothing."""
    yield node
    for field in ("body", "orelse", "finalbody", "handlers", "cases"):
        for inner in getattr(node, field, ()):
            yield from statements(inner)


def imports_among(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield the dotted names of the imports among the nodes of a tree."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute, so that this test sees them"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
