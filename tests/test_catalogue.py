"""What installed packages add to the command line, and what of it is refused, with the name of the package."""

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest

from thinkalike import catalogue
from thinkalike.config import schema
from thinkalike.errors import PluginError
from thinkalike.registry import CORE

ROOT = Path(__file__).resolve().parents[1]
MEASURE = """
from dataclasses import dataclass
import torch
from thinkalike.measures import LayerMeasure

@dataclass(frozen=True)
class Mine(LayerMeasure):
    'A measure.'
"""
SETTINGS = "from dataclasses import dataclass\nfrom thinkalike.config import ModelConfig, DataConfig\n"
numbers = itertools.count()


def write_package(folder: Path, name: str, points: str, code: str) -> str:
    """Write an installed package with a module of its own; `MODULE` in the entry points stands for it."""
    module = f"{name}_module_{next(numbers)}"
    described = folder / f"{name}-1.0.dist-info"
    described.mkdir()
    (described / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (described / "entry_points.txt").write_text(f"[thinkalike.instruments]\n{points.replace('MODULE', module)}\n")
    (folder / f"{module}.py").write_text(code)
    return module


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Return a function that installs a package, and reads what all packages add."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def installed(name: str, points: str, code: str = "") -> None:
        write_package(tmp_path, name, points, code)
        packages = (CORE, catalogue._of_installed_packages())
        monkeypatch.setattr(catalogue, "PACKAGES", packages)
        monkeypatch.setattr(catalogue, "TASKS", catalogue._kinds_named_once(e for p in packages for e in p.tasks))
        monkeypatch.setattr(catalogue, "MEASURES", catalogue._kinds_named_once(e for p in packages for e in p.measures))
        monkeypatch.setattr(catalogue, "ADDED_SETTINGS", catalogue._schemas_by_part(packages))
        folders = catalogue._named_once(item for p in packages for item in p.conf.items())
        monkeypatch.setattr(catalogue, "CONF_FOLDERS", folders)

    return installed


def instrument_of(kind):
    return catalogue.instrument(catalogue.measure_entry(kind))


def test_a_measure_of_a_package_is_a_choice(install):
    install("first", "layer_measure.mine = MODULE:Mine", MEASURE)
    assert instrument_of("mine").kind == "mine"


def test_an_entry_point_may_name_an_object_inside_a_class(install):
    code = MEASURE + "class Outer:\n    Inner = Mine\n"
    install("first", "layer_measure.mine = MODULE:Outer.Inner", code)
    assert instrument_of("mine").kind == "mine"


@pytest.mark.parametrize(
    "point", ["layer_measure.cka = MODULE:Mine", "measure.loss = MODULE:Mine", "layer_measure.jaccard = MODULE:Mine"]
)
def test_a_name_of_this_package_is_not_replaced(install, point):
    install("first", point, MEASURE)
    kind = point.partition(" ")[0].partition(".")[2]
    with pytest.raises(
        PluginError, match=rf"named {kind}: those of thinkalike and of \w+\.{kind} of the package first;"
    ):
        instrument_of(kind)
    assert instrument_of("r2").kind == "r2", "other measures can be used"


def test_a_task_of_this_package_is_not_replaced(install):
    install("first", "task.stitch = MODULE:Mine", MEASURE)
    with pytest.raises(PluginError, match=r"named stitch: those of thinkalike and of task.stitch of the package first"):
        catalogue.instrument(catalogue.TASKS["stitch"])


@pytest.mark.parametrize("kind", ["layer_measure", "measure"])
def test_no_package_replaces_the_measure_of_another(install, kind):
    install("first", "layer_measure.mine = MODULE:Mine", MEASURE)
    install("second", f"{kind}.mine = MODULE:Mine", MEASURE)
    with pytest.raises(
        PluginError, match=r"named mine: .*package first and of .*package second; .*uninstall"
    ) as raised:
        instrument_of("mine")
    assert str(raised.value).endswith(("first or second", "second or first"))
    assert instrument_of("r2").kind == "r2"


def test_no_package_replaces_settings_folders_or_experiments_of_another(install, tmp_path):
    points = "settings.model.mine = MODULE:S\nconf.mine = MODULE:CONF\nexperiment = MODULE:made"
    for name in ("first", "second"):
        install(name, points, f"CONF = {str(tmp_path)!r}")
    for load in (
        lambda: schema._with_additions.__wrapped__("model"),
        catalogue.conf_folders,
        lambda: catalogue.experiment_named("x"),
    ):
        with pytest.raises(PluginError, match=r"of the package first and of .* of the package second; rename"):
            load()


@pytest.mark.parametrize(
    ("value", "code", "cause"),
    [
        ("MODULE:Mine", "raise RuntimeError('no\\nluck')", "cannot be loaded: RuntimeError: no luck"),
        ("MODULE:Mine", "import sys; sys.exit(3)", "cannot be loaded: SystemExit: 3"),
        ("MODULE:Mine", "def (", "cannot be loaded: SyntaxError: "),
        ("MODULE:Mine", "", "cannot be loaded: AttributeError: "),
        ("nowhere_at_all:Mine", "", "cannot be loaded: ModuleNotFoundError: No module named 'nowhere_at_all'"),
        ("MODULE", "", r"names \w+, which is not of the form module:object"),
        ("MODULE:", "", "which is not of the form module:object"),
        ("not a module:Mine", "", "names not a module:Mine, which is not of the form module:object"),
        ("MODULE:Mine", "import os as Mine", "is of the type module, and no subclass of (Instrument|LayerMeasure)"),
        ("MODULE:Mine", "Mine = 'text'", "is of the type str, and no subclass of"),
        ("MODULE:Mine", "class Mine: pass", "is the class Mine, and no subclass of"),
    ],
)
@pytest.mark.parametrize("kind", ["measure", "layer_measure"])
def test_a_measure_that_cannot_be_loaded_names_its_package(install, kind, value, code, cause):
    install("first", f"{kind}.mine = {value}", code)
    with pytest.raises(PluginError, match=rf"^the entry point {kind}.mine of the package first .*{cause}") as raised:
        instrument_of("mine")
    assert str(raised.value).endswith("repair that package, or uninstall it: pip uninstall first")
    assert "\n" not in str(raised.value)
    assert instrument_of("r2").kind == "r2"


@pytest.mark.parametrize(
    ("point", "declared", "cause"),
    [
        ("measure.mine", "kind='cka'", "is of kind=cka, which must be its name on the command line"),
        ("task.mine", "kind='cka'", "is of kind=cka, which is the name of a measure"),
        ("measure.mine", "kind='mine', reads=['nothing']", "cannot be loaded: TypeError: "),
    ],
)
def test_an_instrument_of_a_package_has_a_kind_of_its_own(install, point, declared, cause):
    code = f"from thinkalike.job import Instrument\nclass Mine(Instrument, {declared}):\n    run = print"
    install("first", f"{point} = MODULE:Mine", code)
    entries = {**catalogue.TASKS, **catalogue.MEASURES}
    with pytest.raises(PluginError, match=f"^the entry point {point} of the package first {cause}"):
        catalogue.instrument(entries["mine"])


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        ("raise RuntimeError('no')", "cannot be loaded: RuntimeError: no"),
        ("CONF = '/does/not/exist'", "is /does/not/exist, which is not a folder"),
        ("CONF = __file__", "which is not a folder"),
        ("CONF = 3", "is 3, and not the path of a folder"),
        ("CONF = None", "is None, and not the path of a folder"),
    ],
)
def test_a_folder_of_configurations_must_exist(install, code, cause):
    install("first", "conf.mine = MODULE:CONF", code)
    with pytest.raises(PluginError, match=rf"^the entry point conf.mine of the package first .*{cause}; repair"):
        catalogue.conf_folders()


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        ("raise ImportError('no')", "cannot be loaded: ImportError: no"),
        ("S = 3", "is 3, and no subclass of the schema of model"),
        ("class S: pass", "and no subclass of the schema of model"),
        ("@dataclass\nclass S(DataConfig): pass", "and no subclass of the schema of model"),
        ("class S(ModelConfig):\n    age: int = 3", "is S, which is no dataclass"),
        ("@dataclass\nclass S(ModelConfig):\n    dtype: str = 'x'", "has the setting dtype, which model has already"),
    ],
)
def test_settings_of_a_package_add_to_a_schema(install, code, cause):
    install("first", "settings.model.mine = MODULE:S", SETTINGS + code)
    with pytest.raises(PluginError, match=rf"^the entry point settings.model.mine of the package first .*{cause}"):
        schema._with_additions.__wrapped__("model")


def test_two_packages_add_settings_of_different_names(install):
    code = SETTINGS + "@dataclass\nclass S(ModelConfig):\n    AGE: int = 3\n"
    install("first", "settings.model.a = MODULE:S", code)
    install("second", "settings.model.b = MODULE:S", code.replace("AGE", "height"))
    assert {"AGE", "height"} <= {*schema._with_additions.__wrapped__("model").__dataclass_fields__}
    install("third", "settings.model.c = MODULE:S", code)
    with pytest.raises(
        PluginError, match=r"settings.model.c of the package third has the setting AGE, which model has"
    ):
        schema._with_additions.__wrapped__("model")


@pytest.mark.ci_slow
def test_a_command_needs_of_a_package_what_it_names_alone(tmp_path):
    """A file of a package that nobody would read is refused; a broken measure is no concern of the others."""
    write_package(tmp_path, "first", "measure.mine = MODULE:Mine\nlayer_measure.cka = MODULE:Mine", "raise OSError(3)")
    words = ["measure=loss", "model=gpt2-mini", "--cfg", "job"]

    def done(*words):
        paths = os.pathsep.join([str(ROOT / "src"), str(tmp_path)])
        environment = {**os.environ, "PYTHONPATH": paths}
        command = [sys.executable, str(ROOT / "analyze.py"), *words]
        return subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)

    assert done(*words).returncode == 0
    refused = done("measure=cka", *words[1:])
    assert refused.stderr.startswith("error: several things are named cka: ")
    assert refused.stderr.count("\n") == 1

    folder = tmp_path / "conf"
    write_package(tmp_path, "second", "conf.mine = MODULE:CONF", f"CONF = {str(folder)!r}")
    (folder / "model").mkdir(parents=True)
    (folder / "model" / "mine.yaml").write_text("defaults: [gpt2-mini, _self_]\n")
    assert done(*words).returncode == 0
    (folder / "model" / "gpt2-mini.yaml").write_text("defaults: [schema, _self_]\npath: nowhere\n")
    refused = done(*words)
    assert refused.stderr.startswith(f"error: the entry point conf.mine of the package second has {folder}")
    assert "never read" in refused.stderr
    assert refused.stderr.count("\n") == 1
