"""What a source file imports."""

import ast
from collections.abc import Iterator
from functools import cache


@cache
def nodes(source: str) -> list[ast.AST]:
    return list(ast.walk(ast.parse(source)))


def imported(source: str) -> Iterator[str]:
    """Dotted names of all imports, those inside functions too."""
    for node in nodes(source):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute, so that this test sees them"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
