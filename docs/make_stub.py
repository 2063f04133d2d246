"""Write what type checkers see of `thinkalike.measures`: its functions take arrays of every sort, not tensors alone.

python docs/make_stub.py       # into src/thinkalike/measures/__init__.pyi
"""

from __future__ import annotations

import ast
import builtins
import inspect
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from thinkalike import measures

STUB = Path(__file__).resolve().parents[1] / "src" / "thinkalike" / "measures" / "__init__.pyi"
HEAD = '''"""What type checkers see, by `python docs/make_stub.py`: every function takes arrays of every sort."""

from collections.abc import Hashable, Iterator, Sequence
from typing import Any

from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from thinkalike.arguments import Array
from thinkalike.measures.distances.neural import DistanceChoice
from thinkalike.measures.stitching.losses import Finish
from thinkalike.measures.stitching.moments import LayerPair
'''
LAYERS = 'Layers = Sequence[Float[Array, "_ _"] | NeuralDistances] | Float[Array, "l n d"]'


def text() -> str:
    """Return the stub, which no formatter has seen."""
    functions = {
        name: inspect.unwrap(each) for name in measures.__all__ if inspect.isfunction(each := getattr(measures, name))
    }
    homes = _homes(Path(str(measures.__file__)))
    others = [f"from {homes[name]} import {name} as {name}" for name in sorted({*measures.__all__} - {*functions})]
    lines = [f"def {name}{_signature(function)}: ..." for name, function in sorted(functions.items())]
    modules = [f"import {name}" for name in ("os", "torch") if any(f"{name}." in line for line in lines)]
    given = {*homes, *dir(builtins), *re.findall(r"\w+", HEAD), "os", "torch", "Layers"}
    for function in functions.values():
        further = [name for name in _names(function) if name not in given and name in vars(inspect.getmodule(function))]
        others += [f"from {function.__module__} import {name}" for name in further]
    names = ", ".join(f'"{name}"' for name in measures.__all__)
    return "\n".join([HEAD, *modules, *others, "", LAYERS, f"__all__ = [{names}]", "", *lines, ""])


def _homes(file: Path) -> dict[str, str]:
    """Return the module from which a file imports each name."""
    imports = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in imports for alias in node.names}


def _signature(function: Callable[..., Any]) -> str:
    """Return the signature of a function in which every tensor that it takes may be another array."""
    signature = inspect.signature(function)
    parameters = [
        each.replace(
            annotation=_Text(re.sub(r"\bTensor\b", "Array", each.annotation)),
            default=each.default if each.default is each.empty else ...,
        )
        for each in signature.parameters.values()
    ]
    returned = _Text(signature.return_annotation)
    return str(signature.replace(parameters=parameters, return_annotation=returned)).replace("Ellipsis", "...")


def _names(function: Callable[..., Any]) -> list[str]:
    """Return the names in the annotations of a function, without the strings that name its shapes."""
    trees = [ast.parse(annotation) for annotation in function.__annotations__.values()]
    return sorted({node.id for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Name)})


class _Text(str):
    """An annotation that is written without quotes."""

    def __repr__(self) -> str:
        return str(self)


def main() -> None:
    """Write the stub in the form of all files."""
    STUB.write_text(text())
    ruff = [sys.executable, "-m", "ruff"]
    subprocess.run([*ruff, "check", "--select=I", "--fix", "--quiet", STUB], check=True)
    subprocess.run([*ruff, "format", "--quiet", STUB], check=True)


if __name__ == "__main__":
    main()
