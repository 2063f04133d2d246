"""Rules of the house: who may import whom, what an import costs, and that shapes are checked."""

import ast
import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from jaxtyping import TypeCheckError

import thinkalike
from source_imports import imported, imported_by_running, nodes
from thinkalike.measures.kernel_alignment import alignment
from thinkalike.measures.losses import token_loss

ROOT = Path(__file__).resolve().parents[1]
SRC = ROOT / "src"
FILES = sorted((SRC / "thinkalike").rglob("*.py"))

# A module imports from its own part and from lower levels only, as tests/test_path.py sees to it.
LEVELS = {
    "advice": -1,  # how settings are written, which errors know
    "errors": 0,
    "former_names": 0,
    "code_text": 0,
    "ranges": 0,
    "former_columns": 0,
    "registry": 0.25,  # knows former_columns; names classes of all levels, and imports them when a user chooses them
    "plugins": 0.5,  # knows errors
    "catalogue": 0.75,  # knows errors, former_columns, the registry and plugins
    "processes": 0.5,
    "files": 0.5,  # knows errors
    "matrices": 1,  # knows errors
    "columns": 1,  # knows errors, files and former_columns
    "shards": 0.75,  # knows errors and digests
    "config": 1,  # knows errors, former names, files, the catalogue, plugins and shards, and nothing else
    "digests": 0.5,  # knows errors
    "timing": 0.75,  # knows digests
    "global_state": 0,
    "memory": 0.5,  # knows errors
    "screen": 1,
    "hub": 1,  # knows errors
    "arguments": 1,
    "models": 2,
    "data": 2,
    "measures": 1.5,  # knows arguments, errors and processes at most: no models, files or configuration
    "tables": 3,
    "ranking": 0,
    "store": 2,
    "unkept": 2.2,  # knows store
    "states": 2.5,
    "stitches": 3,
    "evaluation": 3,
    "loggers": 3,
    "figures": 3,
    "job": 4,
    "training": 4,
    "instruments": 5,
    "state_arguments": 5.4,
    "inputs": 5.5,
    "jobs": 5.8,
    "functions": 6,
    "writing": 6.5,
    "listing": 6,
    "forecast": 5.6,
    "budget": 5.7,  # knows forecast
    "report": 7,
    "completion": 7,
    "cli": 8,
    "__main__": 9,
    "contrib": 10,  # imports the core, which finds its registry by name and never imports it
}
OWNERS = {
    "hydra": "config",
    "omegaconf": "config",
    "transformer_lens": "models",
    "rich": "screen",
    "datasets": "data",
    "httpx2": "hub",
    "pytorch_lightning": "training",
    "matplotlib": "figures",
}
# Parts whose libraries others use, too: a stitch names the type of Lightning's loggers.
BESIDE = {"contrib": ("training", "figures", "data"), "cli": ("config",), "instruments": ("training",)}


def part_of(file: Path) -> str:
    return file.relative_to(SRC / "thinkalike").parts[0].removesuffix(".py")


def found_in(files: Iterable[Path], look: Callable[[Path], Any]) -> dict[str, Any]:
    """Return what was found in files in which something was."""
    return {str(file.relative_to(ROOT)): found for file in files if (found := look(file))}


def foreign(part: str, source: str) -> list[str]:
    """Return the imports of libraries that another part owns."""
    names = ((name, OWNERS.get(name.split(".")[0], part)) for name in imported_by_running(source))
    return [name for name, owner in names if owner not in (part, *BESIDE.get(part, ()))]


def test_each_part_has_a_level_and_each_library_an_owner():
    assert {part_of(file) for file in FILES} - set(LEVELS) == {"__init__"}, "a new part needs a level"
    assert found_in(FILES, lambda file: foreign(part_of(file), file.read_text())) == {}


@pytest.mark.parametrize(
    ("part", "source", "breach"),
    [
        ("contrib", "import hydra", True),
        ("models", "class A:\n    def f(self):\n        from omegaconf import OmegaConf", True),
        ("instruments", "import matplotlib.pyplot as plt", True),
        ("config", "import hydra\nfrom thinkalike.errors import ConfigError", False),
        ("training", "import pytorch_lightning as pl\nfrom thinkalike.stitches.stitch import StitchModule", False),
    ],
)
def test_a_library_of_another_part_is_found_and_an_own_is_none(part, source, breach):
    assert len(foreign(part, source)) == breach


def test_one_module_imports_hydra():
    def imports_hydra(file: Path) -> bool:
        return bool({name.split(".")[0] for name in imported_by_running(file.read_text())} & {"hydra", "omegaconf"})

    assert list(found_in(FILES, imports_hydra)) == ["src/thinkalike/config/compose.py"]


JOBS = ("instruments", "contrib", "forecast", "budget", "job")  # what they print goes through `screen`


def test_jobs_print_what_fits_the_screen():
    def prints(file: Path) -> bool:
        source = file.read_text()
        if "print(" not in source:
            return False  # which is quicker than to parse it
        calls = [node for node in nodes(source) if isinstance(node, ast.Call)]
        return any(isinstance(call.func, ast.Name) and call.func.id == "print" for call in calls)

    assert found_in([file for file in FILES if part_of(file) in JOBS], prints) == {}
    assert prints(SRC / "thinkalike" / "screen" / "text.py"), "control"


def test_importing_the_package_is_light():
    """In a process of its own, without the hook that checks shapes."""
    heavy = ["torch", "numpy", "pandas", "transformers", "datasets", *OWNERS]
    code = f"""
import sys, thinkalike
assert set(thinkalike.__all__) <= set(dir(thinkalike))
found = [name for name in {heavy} if name in sys.modules]
assert not found, found
thinkalike.StitchModule
assert "torch" in sys.modules, "control"
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={"PYTHONPATH": str(SRC)})
    assert run.returncode == 0, run.stderr


def test_every_public_name_resolves_and_no_other():
    assert [name for name in thinkalike.__all__ if getattr(thinkalike, name).__name__ != name] == []
    with pytest.raises(AttributeError, match="module 'thinkalike' has no attribute 'stich'"):
        _ = thinkalike.stich


def test_a_wrong_shape_is_caught_by_its_signature():
    """The canary: each of these would run, or fail elsewhere, if the hook were off."""
    states, targets = torch.randn(5, 4), torch.zeros(5, dtype=torch.long)
    token_loss(states, torch.nn.Identity(), targets)
    for wrong in (states[:4], states[None]):
        with pytest.raises(TypeCheckError, match="token_loss"):
            token_loss(wrong, torch.nn.Identity(), targets)
    for wrong in (states.long()[:4], torch.tensor(1.0)):
        with pytest.raises(TypeCheckError, match="alignment"):
            alignment(wrong)


UNSAFE = ("pickle.load(", "pickle.Unpickler", "dill", "cloudpickle", "joblib.load", "shelve", "marshal.load")
MUST_BE = {"weights_only": "True", "allow_pickle": "False", "trust_remote_code": "False"}  # if they are given
ASKS = re.compile(r"\bAuto[A-Z]\w*\.from_pretrained$")  # on the screen whether to run code, unless told not to


def unsafe(source: str) -> list[str]:
    """Return the ways in which a source runs the code that a file may hold: unpickling, and options that allow it."""
    if not any(word.partition(".")[0] in source for word in (*UNSAFE, *MUST_BE)):
        return []  # which is quicker than to parse it
    calls = [node for node in nodes(source) if isinstance(node, ast.Call)]
    found = [f"{ast.unparse(call.func)}(" for call in calls]
    found = [called for called in found if any(part in called for part in UNSAFE)]
    for call in calls:
        given = {word.arg: ast.unparse(word.value) for word in call.keywords if word.arg}
        found += [f"{name}={given[name]}" for name, value in MUST_BE.items() if given.get(name, value) != value]
    return found


def asking(source: str) -> list[str]:
    """Return the calls by which transformers may ask on the screen whether to run the code of a folder."""
    if "from_pretrained" not in source:
        return []  # which is quicker than to parse it
    calls = [node for node in nodes(source) if isinstance(node, ast.Call) and ASKS.search(ast.unparse(node.func))]
    return [ast.unparse(call) for call in calls if "trust_remote_code" not in {word.arg for word in call.keywords}]


SOURCES = sorted(path for part in ("src", "tests", "benchmarks", "docs") for path in (ROOT / part).rglob("*.py"))


def test_no_file_that_is_read_can_run_code():
    texts = {str(file): file.read_text() for file in (*SOURCES, *ROOT.glob("*.py"))}
    assert {name: found for name, text in texts.items() if (found := unsafe(text))} == {}
    others = [text for name, text in texts.items() if "/tests/" not in name and "pickle" in text]  # of metrics
    assert [name for text in others for name in imported(text) if name.split(".")[0] == "pickle"] == []


def test_no_file_that_is_read_makes_transformers_ask_whether_to_run_code():
    texts = {str(file): file.read_text() for file in (ROOT / "src").rglob("*.py")}
    assert {name: found for name, text in texts.items() if (found := asking(text))} == {}
    assert len(asking("transformers.AutoTokenizer.from_pretrained(name)")) == 1, "control"
    assert asking("AutoConfig.from_pretrained(name, trust_remote_code=False)\nGPT2Model.from_pretrained(name)") == []


def test_the_folders_of_tests_are_packages_of_the_source():
    source = ROOT / "src" / "thinkalike"
    folders = {path.parent.relative_to(ROOT / "tests").parts[0] for path in (ROOT / "tests").glob("*/test_*.py")}
    assert {name for name in folders if not (source / name).is_dir()} == {"faults"}
    assert {"data", "measures"} <= folders, "control"


def test_no_test_module_imports_another():
    """What tests share is in tests/helpers or in conftest.py."""
    modules = list((ROOT / "tests").rglob("*.py"))
    found = {path.name: imported_test_modules(path.read_text()) for path in modules}
    assert {name: names for name, names in found.items() if names} == {}
    assert len(found) > 100, "control"
    planted = "from test_cka import cka\nimport tests.test_cka\ndef f():\n    from tests import (\n    a, test_b)"
    assert imported_test_modules(planted) == ["test_cka.cka", "tests.test_cka", "tests.test_b"], "control"


def imported_test_modules(source: str) -> list[str]:
    """Return what a source imports of test modules."""
    statements = re.findall(r"^\s*(?:from|import)\b(?:[^\n(]|\([^)]*\))*", source, re.MULTILINE)
    if not any("test_" in statement for statement in statements):
        return []  # which is quicker than to parse it
    return [name for name in imported(source) if any(part.startswith("test_") for part in name.split("."))]


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("pickle.load(file)", 1),
        ("joblib.load(path)", 1),
        ("torch.load(path, weights_only=False)", 1),
        ("np.load(path, allow_pickle=True)", 1),
        ("AutoModel.from_pretrained(name, trust_remote_code=True)", 1),
        ("torch.load(path, weights_only=True)\nnp.load(path, allow_pickle=False)\njson.load(file)", 0),
    ],
)
def test_a_way_to_run_code_is_found_and_a_safe_one_is_none(source, count):
    assert len(unsafe(source)) == count


def test_no_module_is_shadowed_by_a_name_of_its_own():
    shadowed, packages = [], ["thinkalike"]
    for name in packages:
        package = importlib.import_module(name)
        for module in pkgutil.iter_modules(package.__path__):
            inner = importlib.import_module(f"{name}.{module.name}")
            if not inspect.ismodule(getattr(package, module.name)) or module.name in getattr(package, "_HOME", ()):
                shadowed.append(inner.__name__)
            if module.ispkg:
                packages.append(inner.__name__)
    assert shadowed == []
    assert len(packages) > 15, "control"


COMMANDS = {"main"}  # functions that several programs have


def namesakes(sources: dict[str, str]) -> dict[str, list[str]]:
    """Return the functions and classes that several modules define, with these modules."""
    modules: dict[str, list[str]] = {}
    for module, source in sources.items():
        for name in re.findall(r"^(?:async def|def|class) (\w+)", source, re.MULTILINE):
            if not name.startswith("__"):
                modules.setdefault(name, []).append(module)
    return {name: listed for name, listed in modules.items() if len(set(listed)) > 1 and name not in COMMANDS}


def test_no_two_modules_of_the_core_define_one_name():
    core = [path for path in (SRC / "thinkalike").rglob("*.py") if "contrib" not in path.parts]
    assert namesakes({str(path.relative_to(SRC)): path.read_text() for path in core}) == {}
    assert namesakes({"a": "def rows(): ...", "b": "class rows: ..."}) == {"rows": ["a", "b"]}, "control"
