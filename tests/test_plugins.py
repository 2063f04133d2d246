"""Plugins: the examples of docs/how-to/plugins.md run, their content is in the key, and no foreign path is run."""

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import thinkalike
from conftest import CLI, ROOT, composed
from thinkalike import StitchModule, plugins
from thinkalike.config import measure_schema
from thinkalike.errors import ConfigError, PluginError, StitchError
from thinkalike.instruments import instrument_of
from thinkalike.instruments.layer_pairs.of_user import OfFunction, StatesByUser, numbers_of_user
from thinkalike.job.planning import plan
from thinkalike.measures import LayerMeasure
from thinkalike.plugins import MeasurePlugin
from thinkalike.stitches.results import load_stitch, stitch_modules

DOCS = (Path(__file__).resolve().parents[1] / "docs" / "how-to" / "plugins.md").read_text()
EXAMPLES = {
    name: code
    for code in re.findall(r"```python\n(.*?)```", DOCS, re.DOTALL)
    for name in re.findall(r"^# (\w+\.py)", code)
}
STITCH, STEP = "my_stitch.py:two_layer", "my_callback.py:LargestStep"


def written(folder: Path) -> Path:
    """A folder with the examples."""
    for name, code in EXAMPLES.items():
        (folder / name).write_text(code)
    return folder


@pytest.fixture
def files(tmp_path, monkeypatch):
    """The examples, in the working folder."""
    monkeypatch.chdir(tmp_path)
    return written(tmp_path)


def changed(name: str, new: str = "128") -> None:
    Path(name).write_text(EXAMPLES["my_stitch.py"].replace("256", new))


@pytest.fixture(scope="module")
def trained(tmp_path_factory, minis, text_files):
    """A folder with the examples, and what a job of all of them printed there."""
    folder = written(tmp_path_factory.mktemp("plugins"))
    words = [f"stitch.kind={STITCH}", f"trainer.callbacks=[{STEP}]", "layers=[[1,2]]"]
    words += [f"model.path={minis}/a", f"target.path={minis}/b", "model.context=32", "target.context=32"]
    words += [
        "stitch.steps=2",
        "stitch.warmup=1",
        "stitch.tokens_per_step=256",
        "data=text",
        "data.evaluation_share=0.4",
    ]
    words += [f"data.files=[{text_files}/*.txt]", "data.evaluation_tokens=1024", "store=results"]
    return folder, CLI(folder)("train.py", *words)


@pytest.mark.ci_slow
def test_a_job_of_two_plugins_makes_a_result_that_loads(trained, monkeypatch):
    folder, done = trained
    monkeypatch.chdir(folder)
    result = done.result
    assert "largest gradient: " in done.stdout
    digests = {each["name"]: each["sha256"] for each in result.provenance["plugins"]}
    assert digests == {name: plugins.digest(name) for name in (STITCH, STEP)}
    (phi,) = stitch_modules(result, plugin="my_stitch.py").values()
    assert phi(torch.zeros(3, 32)).shape == (3, 32)
    assert isinstance(phi.map[1], torch.nn.GELU)
    assert phi.map[0].weight.abs().sum() > 0
    with pytest.raises(StitchError):
        load_stitch(result)
    with pytest.raises(ValueError, match="plugin"):
        phi.affine()


def test_a_path_that_a_result_names_is_never_run(trained, files):
    """Not by reading its stitches without a file, with another file, or as the recipe of another job."""
    result = trained[1].result
    trap = "open('ran', 'w').close()\n"
    Path("my_stitch.py").write_text(trap + EXAMPLES["my_stitch.py"])
    for given in ({}, {"plugin": "my_stitch.py"}):
        with pytest.raises(PluginError):
            stitch_modules(result, **given)
    assert not Path("ran").exists()
    plugins.load(STITCH)
    assert Path("ran").exists(), "control"


@pytest.mark.ci_slow
def test_the_modules_of_a_result_are_those_of_the_package_too(files, cli, small_stitching):
    words = ["stitch=affine", "stitch.norm=pre", "stitch.seeds=2", "layers=[[0,1],[2,2]]", *small_stitching]
    result = cli("train.py", *words).result
    first, second = stitch_modules(result), stitch_modules(str(result.folder), seed=1)
    assert list(first) == [(0, 1), (2, 2)]
    assert isinstance(first[2, 2].pre, torch.nn.LayerNorm)
    assert not torch.equal(first[2, 2].map.weight, second[2, 2].map.weight)
    with pytest.raises(StitchError):
        stitch_modules(result, is_back=True)


WORDS = ["measure.batches=5", "measure.tokens_per_batch=256"]


@pytest.mark.ci_slow
@pytest.mark.parametrize(
    "more",
    [
        ["measure=my_measure.py:centroids", "measure.null=true", "measure.permutations=9"],
        ["measure={here}/my_powers.py:powers", "measure.power=3"],
    ],
)
@pytest.mark.drawn
def test_a_measure_of_a_plugin_is_as_the_others_are(files, cli, small_stitching, more):
    words = [word for word in small_stitching if not word.startswith(("stitch.", "data.evaluation_tokens"))]
    more = [word.replace("{here}", str(files)) for word in more]
    result = cli("analyze.py", *WORDS, *more, *words).result
    assert result.kind == more[0].rpartition(":")[2]
    assert {"source_layer", "target_layer", "value", "low", "high"} <= set(result.table)
    assert result.table["value"].between(-1, 1 + 1e-6).all()
    itself = result.table[(result.table["source"] == result.table["target"])]
    diagonal = itself[itself["source_layer"] == itself["target_layer"]]["value"]
    assert diagonal.to_numpy() == pytest.approx(1)
    assert [path.suffix for path in result.figures] == [".png", ".svg"]


def test_a_plugin_measure_may_be_asymmetric(files, cli, small_stitching):
    ratio = "ratio = MeasurePlugin(lambda X, Y: X.norm() / Y.norm(), scale=(0, 9))"
    (files / "ratio.py").write_text(f"from thinkalike.plugins import *\n{ratio}")
    words = [word for word in small_stitching if not word.startswith(("stitch.", "data.evaluation_tokens"))]
    table = cli("analyze.py", "measure=ratio.py:ratio", *WORDS, *words).result.table
    within = table[table["source"] == table["target"]]
    there = within.pivot_table("value", "source_layer", "target_layer").to_numpy()
    assert there[0, 2] < 0.8, "states grow with depth"
    assert there[2, 0] > 1.2
    assert there * there.T == pytest.approx(1, abs=0.05)  # a mean of ratios is not quite a ratio


@pytest.mark.ci_slow
def test_an_asymmetric_measure_is_read_in_bits_in_both_directions(files, cli, small_stitching):
    share = "share = MeasurePlugin(lambda X, Y: X.norm() / (X.norm() + Y.norm()))"
    (files / "share.py").write_text(f"from thinkalike.plugins import *\n{share}")
    words = [word for word in small_stitching if not word.startswith(("stitch.", "data.evaluation_tokens"))]
    result = cli("analyze.py", "measure=share.py:share", "ruler=bits", *WORDS, *words).result
    for name in ("equivalent_bits", "calibration_points"):
        table = result.tables[name]
        assert (table["value_forward"] + table["value_backward"]).to_numpy() == pytest.approx(1)
        assert table["value"].to_numpy() == pytest.approx(0.5)
    assert (table["value_forward"] - 0.5).abs().max() > 0.01, "control"


@pytest.mark.slow
def test_workers_of_a_sweep_load_the_plugin(files, cli, small_stitching):
    launcher = ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2"]
    done = cli.process("train.py", "-m", f"stitch.kind={STITCH},linear", *launcher, *small_stitching)
    assert done.status == 0, done.stderr
    assert done.stdout.count("results: ") == 2


def test_the_content_of_a_plugin_is_in_the_key(files, small_stitching):
    config, keys = composed(f"stitch.kind={STITCH}", "layers=[[1,2]]", *small_stitching), []
    for width in ("256", "256", "257"):
        changed("my_stitch.py", width)
        keys.append(plan(instrument_of(config), config).job.key)
    assert keys[0] == keys[1] != keys[2]


def test_a_job_runs_no_plugin_that_nobody_named(files, small_stitching, monkeypatch):
    """Whichever way its name came into the configuration."""
    config = composed("layers=[[1,2]]", *small_stitching)
    changed = replace(config, stitch=replace(config.stitch, kind=STITCH, init="identity", whiten=False))
    monkeypatch.setattr(plugins, "TRUSTED", set())
    with pytest.raises(PluginError, match=r"my_stitch\.py:two_layer, and code of yours"):
        plan(instrument_of(changed), changed)
    for load in (plugins.load, measure_schema):
        with pytest.raises(PluginError, match="code of yours"):
            load("my_measure.py:centroids")
    plugins.trust([STITCH])
    assert plan(instrument_of(changed), changed).plugins


def test_a_changed_plugin_is_run_anew(files):
    assert StitchModule(STITCH, 8, 8).map[0].weight.shape == (256, 8)
    changed("my_stitch.py")
    assert StitchModule(STITCH, 8, 8).map[0].weight.shape == (128, 8)


def test_a_plugins_weights_are_seeded(files):
    config = composed(f"stitch.kind={STITCH}").stitch
    one, same, other = (StitchModule(STITCH, 8, 4, seed=seed).map[0].weight for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert (config.init, config.trained) == ("identity", True)


HEAD = "from thinkalike.plugins import *\nfrom torch import nn\n"
REFUSED = {
    "no file": ("nowhere.py:x", None),
    "nothing of this name": ("bad.py:x", "y = 1\n"),
    "an error": ("bad.py:x", "x = 1 / 0\n"),
    "an exit": ("bad.py:x", "import sys\nsys.exit(0)\n"),
    "a function that exits": ("bad.py:x", "import sys\nx = lambda d, e: sys.exit()\n"),
    "a module that exits": (
        "bad.py:x",
        HEAD + "class x(nn.Module):\n    __init__ = lambda *_: None\n    __call__ = exit\n",
    ),
    "no weights": ("bad.py:x", HEAD + "x = lambda d, e: nn.ReLU()\n"),
    "other widths": ("bad.py:x", HEAD + "x = lambda d, e: nn.Linear(d, e + 1)\n"),
    "a module that takes no states": ("bad.py:x", HEAD + "x = lambda d, e: nn.Linear(d + 1, e)\n"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_stitch_that_is_none_is_refused(files, what):
    name, code = REFUSED[what]
    if code:
        (files / "bad.py").write_text(code)
    with pytest.raises(PluginError, match=re.escape(name) + "|" + re.escape(name.partition(":")[0])):
        StitchModule(name, 8, 4)


def test_a_plugin_begins_as_it_is_made(files):
    with pytest.raises(ConfigError, match=r"stitch\.init"):
        composed(f"stitch.kind={STITCH}", "stitch.init=procrustes")


@pytest.mark.parametrize(
    "measure", ["MeasurePlugin(len, settings={'batches': 3})", "MeasurePlugin(len, settings={'k': None})"]
)
def test_settings_of_a_measure_have_names_and_defaults(files, measure):
    (files / "bad.py").write_text(HEAD + f"bad = {measure}")
    with pytest.raises(PluginError, match="bad"):
        composed("measure=bad.py:bad", f"seed={len(measure)}", entry="analyze")


def test_a_measure_cannot_have_the_name_of_one_of_the_package(files):
    (files / "bad.py").write_text("cka = max")
    with pytest.raises(PluginError, match="cka"):
        composed("measure=bad.py:cka", entry="analyze")


@pytest.mark.parametrize(
    "given",
    [torch.zeros(3, 3), "high", None, 10**400, 8e300, 1j, torch.tensor(0.3 + 5j), torch.tensor(0.3, device="meta")],
)
def test_a_measure_of_more_or_less_than_one_number_is_refused(given):
    compare = OfFunction("bad", lambda x, y: given).compare
    with pytest.raises(PluginError, match="bad"):
        compare(torch.zeros(3, 3), torch.zeros(3, 3))


def measure_class(**methods):
    return type("Mine", (LayerMeasure,), {"prepare": lambda self, layer, name: layer, **methods})


@pytest.mark.parametrize(("methods", "reason"), [
    ({"compare": lambda self, x, y: None}, "must give one real number"),
    ({"compare": lambda self, x, y: torch.ones(3)}, "must give one real number"),
    ({"compare": lambda self, x, y: x @ y}, "raised RuntimeError: mat1"),
    ({"compare": max, "prepare": lambda self, layer, name: {}["k"]}, "raised KeyError: 'k'"),
    ({"compare": lambda self, x, y: sys.exit(0)}, r"called sys\.exit\(0\)"),
    ({"compare": max, "prepare": lambda self, layer, name: sys.exit("no")}, r"called sys\.exit\(no\)"),
])  # fmt: skip
def test_a_class_of_ones_own_is_blamed_as_a_function_is(methods, reason):
    rows = torch.arange(12.0).reshape(6, 2).sin()
    with pytest.raises(PluginError, match=f"^measure Mine {reason}"):
        thinkalike.compare(rows, rows[:, :1], measure=measure_class(**methods))


def fast(value):
    """A class whose `compare_all` gives this for each pair of models, of one layer each."""
    return measure_class(
        compare=lambda self, x, y: 0.5,
        compare_all=lambda self, layers, model_pairs: dict.fromkeys(model_pairs.pairs, value),
    )


def no_layer(self, layers, model_pairs):
    raise KeyError("no such\nlayer")


@pytest.mark.parametrize(("measure", "reason"), [
    (measure_class(compare=max, compare_all=no_layer), "raised KeyError: "),
    (measure_class(compare=max, compare_all=lambda *given: None), "must give a dictionary .* none for"),
    (measure_class(compare=max, compare_all=lambda *given: {}), "must give a dictionary .* none for"),
    (fast(torch.ones(2, 1)), r"must give real numbers of the shape \(1, 1\): it has the shape"),
    (fast(torch.ones(1, 1) * 1j), "must give real numbers .* complex"),
    (fast([["high"]]), "must give real numbers"),
    (fast([[8e300]]), "gives 8e"),
])  # fmt: skip
def test_what_compares_all_layers_at_once_is_blamed_as_what_compares_two_is(measure, reason):
    rows = torch.arange(12.0).reshape(6, 2).sin()
    with pytest.raises(PluginError, match=f"^measure Mine {reason}") as raised:
        thinkalike.compare(rows, rows[:, :1], measure=measure)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("value", [torch.full((1, 1), 0.5), np.full((1, 1), 0.5), [[0.5]]])
def test_what_compares_all_layers_at_once_gives_numbers_in_any_form(value):
    rows = torch.arange(12.0).reshape(6, 2).sin()
    assert thinkalike.compare(rows, rows[:, :1], measure=fast(value)).arrays["value"] == 0.5


@pytest.mark.parametrize(
    "value", [np.ma.masked, np.ma.array(0.5, mask=True), [np.ma.masked], (np.ma.array([1], mask=[1]),)]
)
def test_what_is_masked_is_no_number(value):
    assert numbers_of_user(value, "bad").isnan()
    assert numbers_of_user([[np.ma.masked, 1.0]], "bad", (1, 2)).isnan().tolist() == [[True, False]]
    assert numbers_of_user(np.ma.array([0.5], mask=[False]), "bad") == 0.5, "control"


def test_an_instance_of_a_class_of_ones_own_is_a_measure():
    measure = measure_class(compare=lambda self, x, y: 0.5)()
    rows = torch.arange(12.0).reshape(6, 2).sin()
    assert thinkalike.compare(rows, rows[:, :1], measure=measure).arrays["value"] == 0.5

    def refuse(self, layer, name):
        raise ValueError(f"{name} is refused")

    refusing = StatesByUser(measure_class(compare=max, prepare=refuse), "mine")
    with pytest.raises(ValueError, match="X is refused"):
        refusing.layer_measure(refusing.settings()).of(rows, rows)


@pytest.mark.parametrize("wrong", [
    {"title": 3}, {"scale": ("a", "b")}, {"scale": (1, 2, 3)}, {"scale": (1, 0)}, {"scale": (0, float("nan"))},
    {"settings": ["a"]}, {"settings": {"1 a": 3}}, {"settings": {"class": 3}}, {"settings": {3: 3}},
])  # fmt: skip
def test_a_plugin_is_checked_when_it_is_made(wrong):
    plugin = MeasurePlugin(max)
    for name, value in wrong.items():  # the types of arguments are checked in tests alone
        object.__setattr__(plugin, name, value)
    with pytest.raises(PluginError, match=f"^MeasurePlugin: {next(iter(wrong))}"):
        plugin.__post_init__()


PACKAGE = {  # what an installed package has that adds settings of a model and a group of configurations
    "mine-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n",
    "mine-1.0.dist-info/entry_points.txt": "[thinkalike.instruments]\n"
    "settings.model.mine = mine:MyModel\n"
    "conf.mine = mine:CONF\n",
    "mine/__init__.py": """
from dataclasses import dataclass
from pathlib import Path
from thinkalike.config import ModelConfig, setting

CONF = Path(__file__).parent / "conf"

@dataclass
class MyModel(ModelConfig):
    \"\"\"A model with an age.\"\"\"

    age: int = setting(0, least=0, most=9)  # of the model
    colour: str = setting("red", only_for="another kind")  # of no job here
""",
    "mine/conf/model/aged.yaml": "defaults: [gpt2, _self_]\nname: aged\nage: 3\n",
    "mine/conf/mine_train.yaml": "# @package _global_\nhydra: {help: {footer: mine adds this}}\n",
}
ASKED = """
from thinkalike.advice import at_command_line
from thinkalike.config import ModelConfig, compose_job, key_settings, options
from thinkalike.config.compose import keys_of
from thinkalike.errors import ConfigError
from thinkalike.instruments import refuse_unread_settings

aged, plain = (compose_job("train", [f"model={name}"]).model for name in ("aged", "gpt2"))
assert isinstance(aged, ModelConfig)
assert (aged.age, aged.hub_id, plain.age) == (3, plain.hub_id, 0)
assert "aged" in options("model")
assert key_settings(aged) == {**key_settings(plain), "name": "aged", "age": 3}, "a default is in no key"
words = ["model=gpt2", "model.age=4"]
refuse_unread_settings(keys_of(words), compose_job("train", words))
for words in (["model=gpt2", "model.age=10"], ["model=gpt2", "model.colour=blue"]):
    try:
        with at_command_line():
            refuse_unread_settings(keys_of(words), compose_job("train", words))
    except ConfigError as error:
        assert str(error).startswith(words[1].partition("=")[0]), error
    else:
        raise AssertionError(words)
"""


@pytest.mark.ci_slow
def test_an_installed_package_adds_settings_groups_and_help(tmp_path):
    for name, content in PACKAGE.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    paths = os.pathsep.join([str(ROOT / "src"), str(tmp_path)])
    environment = {**os.environ, "PYTHONPATH": paths}
    for words in (["-c", ASKED], [str(ROOT / "train.py"), "--help"]):
        done = subprocess.run([sys.executable, *words], env=environment, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    assert "mine adds this" in done.stdout
    assert "aged" in done.stdout
