"""What a source file imports."""

import ast
from collections.abc import Iterable, Iterator
from functools import cache


@cache
def tree(source: str) -> ast.Module:
    return ast.parse(source)


@cache
def nodes(source: str) -> list[ast.AST]:
    return list(ast.walk(tree(source)))


def imported(source: str) -> Iterator[str]:
    """Dotted names of all imports, those inside functions too."""
    return imports_among(nodes(source))


def imported_by_running(source: str) -> Iterator[str]:
    """The same without what a source imports for type checkers alone, which uses no library."""
    for statement in tree(source).body:
        is_for_types = isinstance(statement, ast.If) and "TYPE_CHECKING" in ast.unparse(statement.test)
        if not is_for_types:
            yield from imports_among(ast.walk(statement))


def imports_among(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Dotted names of the imports among the nodes of a tree."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute, so that this test sees them"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
