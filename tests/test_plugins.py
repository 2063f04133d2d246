"""Plugins: the examples of docs/plugins.md run, their content is in the key, and what is wrong with one is one line."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

import pytest
import torch
from pytorch_lightning import Callback

from conftest import composed
from thinkalike import plugins
from thinkalike.config import MEASURES, options
from thinkalike.config.plugging import plug_in
from thinkalike.errors import ConfigError, PluginError, StitchError
from thinkalike.instruments import instrument
from thinkalike.job import key_of
from thinkalike.measures import Stitch
from thinkalike.stitches import load_stitch, stitch_modules
from thinkalike.training.optimizers import optimizer_of
from thinkalike.training.run import _of_plugins

DOCS = (Path(__file__).resolve().parents[1] / "docs" / "plugins.md").read_text()
EXAMPLES = {
    name: code
    for code in re.findall(r"```python\n(.*?)```", DOCS, re.DOTALL)
    for name in re.findall(r"^# (\w+\.py)", code)
}


@pytest.fixture
def files(tmp_path, monkeypatch):
    """The examples, in the working folder; afterwards no plugin is known."""
    monkeypatch.chdir(tmp_path)
    for name, code in EXAMPLES.items():
        (tmp_path / name).write_text(code)
    yield tmp_path
    plug_in(None)


def test_the_page_has_an_example_of_each_kind(files):
    kinds = {each.split()[0] for name in EXAMPLES for plugin in plug_in(name) for each in plugin.describe()["adds"]}
    assert kinds == {"stitch", "measure", "optimizer", "callback"}


# ------------------------------------------------------------------------------------------------------------ the jobs


def test_a_stitch_an_optimiser_and_a_callback_of_plugins_make_a_result_and_the_stitch_comes_back(
    files, door, small_stitching
):
    more = ["stitch.optimizer=signs", "trainer.callbacks=[largest_step]", "layers=[[1,2]]"]
    used = "plugins=[my_stitch.py,my_optimizer.py,my_callback.py]"
    done = door("train.py", used, "stitch=two_layer", *more, *small_stitching)
    result = done.result
    assert "largest gradient: " in done.stdout
    told = {each["name"]: each["adds"] for each in result.provenance["plugins"]}
    assert told == {
        "my_stitch.py": ["stitch two_layer"],
        "my_optimizer.py": ["optimizer signs"],
        "my_callback.py": ["callback largest_step"],
    }
    again = door("train.py", used, "stitch=two_layer", *more, *small_stitching)
    assert "already done" in again.stderr
    with pytest.raises(PluginError, match="not those that are here"):
        stitch_modules(result, plugin="my_stitch.py")  # one of three
    (phi,) = stitch_modules(result).values()
    assert phi(torch.zeros(3, 32)).shape == (3, 32)
    assert isinstance(phi.map[1], torch.nn.GELU)
    assert phi.map[0].weight.abs().sum() > 0
    with pytest.raises(StitchError, match="are of a plugin"):
        load_stitch(result)
    with pytest.raises(ValueError, match="a plugin's, which may be no affine map"):
        phi.affine()
    (files / "my_stitch.py").write_text(EXAMPLES["my_stitch.py"].replace("256", "128"))
    with pytest.raises(PluginError, match="not those that are here"):
        stitch_modules(result)


def test_the_modules_of_a_result_are_those_of_the_package_too(files, door, small_stitching):
    words = ["stitch=affine", "stitch.norm=pre", "stitch.seeds=2", "layers=[[0,1],[2,2]]", *small_stitching]
    result = door("train.py", *words).result
    first, second = stitch_modules(result), stitch_modules(str(result.folder), seed=1)
    assert list(first) == [(0, 1), (2, 2)]
    assert isinstance(first[2, 2].pre, torch.nn.LayerNorm)
    assert not torch.equal(first[2, 2].map.weight, second[2, 2].map.weight)
    with pytest.raises(StitchError, match="keeps no stitches of seed 0, back"):
        stitch_modules(result, is_back=True)


WORDS = ["plugins=[my_measure.py,my_powers.py]", "measure.batches=5", "measure.tokens_per_batch=256"]


@pytest.mark.parametrize("more", [["measure=centroids", "measure.null=true"], ["measure=powers", "measure.power=3"]])
def test_a_measure_of_a_plugin_is_as_the_others_are(files, door, small_stitching, more):
    words = [word for word in small_stitching if not word.startswith("stitch.")]
    result = door("analyze.py", *WORDS, *more, *words).result
    kind = more[0].partition("=")[2]
    assert result.kind == kind
    assert {"source_layer", "target_layer", "value", "low", "high"} <= set(result.table)
    assert result.table["value"].between(-1, 1 + 1e-6).all()
    itself = result.table[(result.table["source"] == result.table["target"])]
    diagonal = itself[itself["source_layer"] == itself["target_layer"]]["value"]
    assert diagonal.to_numpy() == pytest.approx(1)
    assert [path.suffix for path in result.figures] == [".png", ".svg"]
    assert result.plot()[1]


def test_the_order_of_two_layers_may_matter_to_a_measure_of_a_plugin(files, door, small_stitching):
    ratio = "register_measure('ratio', lambda X, Y: X.norm() / Y.norm(), scale=(0, 9))"
    (files / "ratio.py").write_text(f"from thinkalike.plugins import *\n{ratio}")
    words = [word for word in small_stitching if not word.startswith("stitch.")]
    table = door("analyze.py", "plugins=[ratio.py]", "measure=ratio", *WORDS[1:], *words).result.table
    within = table[table["source"] == table["target"]]
    there = within.pivot_table("value", "source_layer", "target_layer").to_numpy()
    assert there[0, 2] < 0.8, "states grow with depth"
    assert there[2, 0] > 1.2
    assert there * there.T == pytest.approx(1, abs=0.05)  # a mean of ratios is not quite a ratio


@pytest.mark.slow
def test_workers_of_a_sweep_load_the_plugin(files, door, small_stitching):
    launcher = ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2"]
    done = door.process(
        "train.py", "-m", "plugins=[my_stitch.py]", "stitch=two_layer,linear", *launcher, *small_stitching
    )
    assert done.status == 0, done.stderr
    assert "stitch=two_layer" in done.stdout
    assert done.stdout.count("results: ") == 2


# --------------------------------------------------------------------------------------------------------------- keys


def key(*words):
    config = composed("model=gelu-3l-mini", *words)
    chosen = instrument("thinkalike.instruments.stitching.instrument")
    own = plug_in(config.plugins)
    return key_of(chosen, {}, {"plugins": plugins.fingerprint(own)} if own else {})


def test_the_content_of_a_plugin_is_in_the_key_and_not_its_place(files):
    before = key("plugins=[my_stitch.py]")
    shutil.copy("my_stitch.py", "other.py")
    assert key("plugins=[other.py]") == before
    assert key("plugins=[my_stitch]") == before
    assert key("plugins=my_stitch.py") == before
    assert key() != before
    Path("my_stitch.py").write_text(EXAMPLES["my_stitch.py"].replace("256", "257"))  # of the same length
    assert key("plugins=[my_stitch.py]") != before


def test_a_changed_plugin_is_run_anew_and_others_are_forgotten(files):
    assert composed("plugins=[my_stitch.py]", "stitch=two_layer").stitch.kind == "two_layer"
    assert Stitch("two_layer", 8, 8).map[0].weight.shape == (256, 8)
    Path("my_stitch.py").write_text(EXAMPLES["my_stitch.py"].replace("256", "128"))
    composed("plugins=[my_stitch.py]")
    assert Stitch("two_layer", 8, 8).map[0].weight.shape == (128, 8)
    assert "two_layer" in options("stitch")
    composed()
    assert "two_layer" not in options("stitch")
    with pytest.raises(ValueError, match="kind=two_layer"):
        Stitch("two_layer", 8, 8)
    composed("plugins=[my_powers.py]", "measure=powers", door="analyze")
    assert "powers" in MEASURES
    composed(door="analyze")
    assert "powers" not in MEASURES


def test_a_package_counts_whole_and_is_imported_whole(files):
    package = files / "mine"
    package.mkdir()
    (package / "__init__.py").write_text("from mine import maps\n")
    (package / "maps.py").write_text(EXAMPLES["my_stitch.py"])
    before = key("plugins=[mine]", "stitch=two_layer")
    (package / "maps.py").write_text(EXAMPLES["my_stitch.py"].replace("256", "64"))
    assert key("plugins=[mine]", "stitch=two_layer") != before
    assert Stitch("two_layer", 8, 8).map[0].weight.shape == (64, 8)
    sys.modules.pop("mine.maps")


def test_the_seed_draws_the_weights_and_the_schedule_has_the_plugins_rate(files):
    config = composed("plugins=[my_stitch.py,my_optimizer.py]", "stitch=two_layer", "stitch.optimizer=signs").stitch
    one, same, other = (Stitch("two_layer", 8, 4, seed=seed).map[0].weight for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert (config.peak, config.init, config.trained) == (1e-3, "identity", True)
    weight = torch.nn.Parameter(torch.zeros(2))
    optimizer = optimizer_of(config, [{"params": [weight], "lr": config.peak, "weight_decay": 0.0}])
    weight.sum().backward()
    optimizer.step()
    assert weight.detach().tolist() == pytest.approx([-1e-3, -1e-3])


def test_registering_outside_of_a_plugin_does_nothing():
    @plugins.register_stitch("nobody")
    def nobody(width_in, width_out):
        return None

    assert nobody(1, 1) is None
    assert "nobody" not in plugins.active("stitch")


# ---------------------------------------------------------------------------------------------------- what is refused

HEAD = "from thinkalike.plugins import *\nfrom torch import nn\nimport torch\n"
STITCH = HEAD + "@register_stitch('bad')\ndef bad(d, e):\n    return "
REFUSED = {
    "no module": ("nowhere", None, "plugin nowhere is no module that Python finds"),
    "no module inside a module": ("json.nowhere.at_all", None, "plugin json.nowhere.at_all is no module"),
    "no file": ("nowhere.py", None, "plugin nowhere.py is not there"),
    "an error": ("bad.py", "x = 1\ny = 1 / 0\n", "plugin bad.py cannot be imported: ZeroDivisionError: .* at line 2"),
    "no Python": ("bad.py", "def (\n", "plugin bad.py cannot be imported: SyntaxError"),
    "nothing": ("bad.py", "x = 1\n", "plugin bad.py registers nothing"),
    "a taken name": ("bad.py", HEAD + "register_measure('cka', max)", "plugin bad.py: thinkalike has a measure cka"),
    "a name twice": ("bad.py", HEAD + 2 * "register_callback('a')(int)\n", "the callback a is registered twice"),
    "no name": ("bad.py", HEAD + "register_stitch('Two Layers')(int)", "a stitch cannot be called 'Two Layers'"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_wrong_with_a_plugin_is_one_line(files, door, what):
    name, code, message = REFUSED[what]
    if code:
        (files / name).write_text(code)
    assert re.search(message, door("train.py", f"plugins=[{name}]", "model=gelu-3l-mini").error)


def test_names_of_two_plugins_do_not_meet(files):
    shutil.copy("my_stitch.py", "other.py")
    with pytest.raises(PluginError, match=r"plugin other.py: my_stitch.py has a stitch two_layer; choose another name"):
        plug_in(["my_stitch.py", "other.py"])


@pytest.mark.parametrize(
    ("made", "message"),
    [
        ("3", "stitch bad makes a int without weights"),
        ("nn.ReLU()", "stitch bad makes a ReLU without weights"),
        ("nn.Linear(d, e + 1)", r"stitch bad makes \(2, 3, 8\) into \(2, 3, 5\), not \(2, 3, 4\)"),
        ("nn.Linear(d + 1, e)", r"stitch bad does not take \(2, 3, 8\): mat1"),
    ],
)
def test_a_stitch_that_is_none_is_refused(files, made, message):
    (files / "bad.py").write_text(STITCH + made)
    plug_in("bad.py")
    with pytest.raises(PluginError, match=message):
        Stitch("bad", 8, 4)


def test_an_optimiser_and_a_callback_that_are_none_are_refused(files):
    (files / "bad.py").write_text(HEAD + "register_optimizer('bad', lr=1.0)(len)\nregister_callback('bad')(int)\n")
    config = composed("plugins=[bad.py]", "stitch.optimizer=bad", "trainer.callbacks=[bad]")
    with pytest.raises(PluginError, match=r"optimizer bad makes a int, not a torch|optimizer bad makes a int: give"):
        optimizer_of(config.stitch, [])
    with pytest.raises(PluginError, match="callback bad makes a int: give a Callback"):
        _of_plugins(config.trainer)
    plug_in("my_callback.py")
    assert isinstance(
        _of_plugins(composed("plugins=[my_callback.py]", "trainer.callbacks=[largest_step]").trainer)[0], Callback
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["plugins=3"], "plugins=3 must be names of modules"),
        (["stitch.kind=two_layer"], "stitch.kind=two_layer is not known"),
        (["trainer.callbacks=[a]"], "trainer.callbacks=a is of no plugin"),
        (["plugins=[my_callback.py]", "trainer.callbacks=[a]"], "trainer.callbacks=a is not known"),
        (["plugins=[my_stitch.py]", "stitch.optimizer=signs"], "stitch.optimizer=signs is not known"),
        (["plugins=[my_stitch.py]", "stitch=two_layer", "stitch.init=procrustes"], "it begins as it is made"),
    ],
)  # fmt: skip
def test_words_that_no_plugin_explains_are_refused(files, words, message):
    with pytest.raises(Exception, match=message):
        composed(*words)


@pytest.mark.parametrize(
    ("settings", "message"),
    [("{'batches': 3}", "the setting batches needs a name of its own"), ("{'k': None}", "the setting k needs")],
)
def test_settings_of_a_measure_have_names_and_defaults(files, settings, message):
    (files / "bad.py").write_text(HEAD + f"register_measure('bad', len, settings={settings})")
    with pytest.raises(PluginError, match=message):
        composed("plugins=[bad.py]", "measure=bad", door="analyze")


@pytest.mark.parametrize(("given", "said"), [("x", "tensor of shape"), ("'high'", "str"), ("None", "NoneType")])
def test_a_measure_of_more_or_less_than_one_number_is_refused(files, door, small_stitching, given, said):
    (files / "bad.py").write_text(HEAD + f"register_measure('bad', lambda x, y: {given})")
    words = [word for word in small_stitching if not word.startswith("stitch.")]
    refused = door("analyze.py", "plugins=[bad.py]", "measure=bad", *WORDS[1:], *words)
    assert f"measure bad gives a {said}" in refused.error


def test_an_experiment_takes_no_plugins(files):
    from thinkalike.papers import reproduce

    config = composed("experiment=brown2023/figure1", "scale=mini", "plugins=[my_stitch.py]", door="analyze")
    with pytest.raises(ConfigError, match="does jobs of its own; leave plugins="):
        reproduce(config)


def test_the_provenance_is_plain(files):
    assert json.dumps([each.describe() for each in plug_in("my_stitch.py")])
