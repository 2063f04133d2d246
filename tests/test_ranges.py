"""Every number of every schema declares its range, and what is outside is refused by its key in one line."""

from __future__ import annotations

import dataclasses
import math
import typing
from pathlib import Path

import pytest
from omegaconf import OmegaConf

import thinkalike.config as conf
from thinkalike.config import (
    MEASURES,
    AnalyzeConfig,
    DataConfig,
    ModelConfig,
    PopulationConfig,
    StimuliConfig,
    TrainConfig,
    check_layers,
    check_overrides,
    compose_job,
    measure_schema,
)
from thinkalike.config.compose import GROUPS
from thinkalike.config.ranges import COUNTS, TOKENS_AT_ONCE, Checked, Range, check_range, ranged
from thinkalike.config.saes import SAEConfig
from thinkalike.config.training import NLIConfig, PretrainConfig
from thinkalike.errors import ConfigError

SCHEMAS = {
    **{part: schema for part, schema in GROUPS.items() if part != "measure"},
    "pretrain": PretrainConfig,
    "nli": NLIConfig,
    "sae": SAEConfig,
    "train": TrainConfig,
    "analyze": AnalyzeConfig,
    **{f"measure={kind}": measure_schema(kind) for kind in MEASURES},
}
NEEDED = {ModelConfig: {"name": "m"}, DataConfig: {"name": "d"}}
VALUES = (math.nan, math.inf, -math.inf, -1, 0, 1, 10**15, 2**70, 0.5, True)


def holds_numbers(kind) -> bool:
    return kind in (int, float) or any(holds_numbers(inner) for inner in typing.get_args(kind))


def numbers(schema) -> list[dataclasses.Field]:
    hints = typing.get_type_hints(schema)
    return [item for item in dataclasses.fields(schema) if holds_numbers(hints[item.name])]


FIELDS = [(name, item) for name, schema in SCHEMAS.items() for item in numbers(schema)]


def test_every_number_of_every_schema_has_a_range():
    assert [f"{name}: {item.name}" for name, item in FIELDS if "range" not in item.metadata] == []
    assert len(FIELDS) > 60, "control"
    assert all(issubclass(schema, Checked) for name, schema in SCHEMAS.items() if numbers(schema))


def test_the_parts_are_called_as_on_the_command_line():
    named = {name.partition("=")[0]: schema.part for name, schema in SCHEMAS.items() if issubclass(schema, Checked)}
    assert {name: part for name, part in named.items() if part not in (name, "")} == {}
    assert {name for name, part in named.items() if not part} == {"train", "analyze"}


def refusal_of(name, item, value) -> str | None:
    """What a schema says when it is checked with this value of a number; None: it takes it."""
    schema = SCHEMAS[name]
    given = [value] if item.default_factory is not dataclasses.MISSING else value
    values = {"measure": {"kind": name.partition("=")[2]}}.get(name.partition("=")[0], {}) | NEEDED.get(schema, {})
    config = schema.__new__(schema)
    for each in dataclasses.fields(schema):
        object.__setattr__(config, each.name, values.get(each.name, conf.relevance.default_of(each)))
    object.__setattr__(config, item.name, given)
    try:
        Checked.__post_init__(config)  # other checks may refuse it
    except ConfigError as error:
        return str(error)
    return None


@pytest.mark.parametrize("value", VALUES, ids=str)
def test_a_number_is_in_its_range_or_refused_by_its_key(value):
    for name, item in FIELDS:
        key, said = f"{SCHEMAS[name].part}.{item.name}".lstrip("."), refusal_of(name, item, value)
        assert (said is None) == (value in item.metadata["range"]), f"{name}: {key}"
        if said is not None:
            assert said.startswith(f"{key}=")
            assert "must be" in said
            assert "\n" not in said


# -------------------------------------------------------------------------------------------------------------- ranges


@pytest.mark.parametrize(
    ("allowed", "inside", "outside", "words"),
    [
        (Range(least=1, most=9), (1, 9, 4.5), (0, 10, -1), "positive and at most 9"),
        (Range(least=0), (0, 0.0, 1e300, 10**400), (-1e-9,), "at least 0 and finite"),
        (Range(above=0), (1e-300,), (0, 0.0, -1), "positive and finite"),
        (Range(least=0, below=1), (0, 0.999), (1, 1.0), "at least 0 and less than 1"),
        (Range(above=2, below=3), (2.5,), (2, 3), "more than 2 and less than 3"),
    ],
)
def test_a_range_contains_what_its_words_say(allowed, inside, outside, words):
    assert all(value in allowed for value in inside)
    assert not any(value in allowed for value in (*outside, math.nan, math.inf, -math.inf, True, "1", None))
    assert str(allowed) == words


def test_numbers_of_a_list_or_dictionary_are_each_in_range():
    check_range("key", {"a": [0, 1], "b": [0.5]}, Range(least=0, most=1))
    check_range("key", None, Range(least=0))
    with pytest.raises(ConfigError, match=r"key=\{'a': \[0, 2\]\}: 2 must be at least 0 and at most 1"):
        check_range("key", {"a": [0, 2]}, Range(least=0, most=1))
    with pytest.raises(ConfigError, match=r"key=\[None\]: None must be"):
        check_range("key", [None], Range(least=0))


def test_a_message_is_one_short_line_whatever_the_value():
    with pytest.raises(ConfigError) as caught:
        check_range("key", "a\n" * 500, Range(least=0))
    assert len(str(caught.value)) < 120
    assert "\n" not in str(caught.value)


def test_a_new_schema_is_checked_by_what_it_declares():
    @dataclasses.dataclass
    class Schema(Checked, part="new"):
        size: int = ranged(3, least=2, neutral=True)
        words: list[str] = dataclasses.field(default_factory=list)

    Schema.__dataclass_fields__["words"].type = "list[str]"
    assert Schema().size == 3
    assert Schema.__dataclass_fields__["size"].metadata["neutral"]
    with pytest.raises(ConfigError, match=r"new\.size=1 must be at least 2"):
        Schema(size=1)
    for wrong in ([3], [""], ["a", " "]):
        with pytest.raises(ConfigError, match=r"new\.words=.* must be a list of words, none of them empty"):
            Schema(words=wrong)


@pytest.mark.parametrize(
    "word", ["model.path=", "data.hub_id=", "sae.source=", "logger.group=", "store=", "model.revision=''"]
)
def test_what_is_left_empty_as_by_a_variable_that_is_not_set_is_refused(word):
    key = word.partition("=")[0]
    with pytest.raises(ConfigError, match=rf"^{key}= is empty; leave it out, or say what it is$"):
        compose_job("train", [word])


def test_products_of_counts_fit_64_bits():
    assert COUNTS * 10**6 < 2**63
    assert TOKENS_AT_ONCE * 10**9 < 2**63


# -------------------------------------------------------------------------------------------------- settings together


@pytest.mark.parametrize(
    "layers", [0, True, None, "", "most", [], [0], [[0]], [[0, 0, 0]], [[0, "a"]], [[0, 1.5]], [[True, False]], {0: 0}]
)
def test_layers_that_are_no_pairs_are_refused(layers):
    with pytest.raises(ConfigError, match="is not known; give same, all, or a list of pairs"):
        check_layers(layers)


def test_a_pair_of_layers_is_named_once():
    check_layers([[0, 0], [0, 1], [1, 0]])
    check_layers("all")
    with pytest.raises(ConfigError, match=r"names \[0,0\] twice"):
        check_layers([[0, 0], [1, 1], [0, 0]])


@pytest.mark.parametrize("store", ["", " ", "a\0b"])
@pytest.mark.parametrize("door", ["train", "analyze"])
def test_a_store_has_a_name(door, store):
    with pytest.raises(ConfigError, match="names no folder"):
        conf.roots.check_store(store)
    if "\0" not in store:
        with pytest.raises(ConfigError, match=r"^store= is empty"):
            compose_job(door, [f"store='{store}'"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["model=gpt2"], "model=gpt2 has no architecture to train"),
        (["pretrain.tokens=0"], r"pretrain\.tokens=0 trains nothing"),
        (["model.name=../up"], r"model\.name=\.\./up names the folder of a mini"),
        (["model.architecture.n_heads=7"], "n_heads=7 must divide d_model=128"),
        (["model.architecture.n_layers=0"], r"model\.architecture\.n_layers=0 must be positive"),
        (["model.architecture.d_mlp=1.5"], r"model\.architecture\.d_mlp=1\.5 must be positive"),
        (["model.architecture.normalization_type=no"], "normalization_type=no is not known"),
        (["model=gpt2-mini", "model.architecture.n_head=5"], "n_head=5 must divide n_embd=64"),
    ],
)
def test_a_mini_that_cannot_be_is_refused(words, message):
    with pytest.raises(ConfigError, match=message):
        compose_job("train", ["task=pretrain", *words])
    compose_job("train", ["task=pretrain"])


def test_keys_of_the_target_are_called_its_own():
    with pytest.raises(ConfigError, match=r"^target\.context=1 must be at least 2"):
        compose_job("train", ["target.context=1"])
    with pytest.raises(ConfigError, match=r"^model\.context=1 must be at least 2"):
        compose_job("train", ["model=gelu-3l-mini", "model.context=1"])


def test_the_data_of_a_corpus_exist():
    with pytest.raises(ConfigError, match=r"model\.corpus=stdlob is not known; did you mean 'stdlib'"):
        compose_job("train", ["model.corpus=stdlob"])


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        (StimuliConfig, {"kinds": {"a": 3}}, r"stimuli\.kinds\.a=3 must be a kind"),
        (
            StimuliConfig,
            {"kind": "table", "path": "x", "columns": {"word": 3}},
            r"stimuli\.columns\.word=3 must be the name of a column",
        ),
        (PopulationConfig, {"generalizing": [True, 1]}, r"population\.generalizing=\[True, 1\] must be numbers"),
        (PopulationConfig, {"heuristic": [-1]}, r"population\.heuristic=\[-1\] must be numbers"),
        (PopulationConfig, {"heuristic": [0.5]}, r"population\.heuristic=\[0\.5\] must be numbers"),
        (PopulationConfig, {"published": {"heldout": [0.5]}}, r"population\.per_group=6 needs twice as many"),
        (PopulationConfig, {"published": {"challenge": [0.5] * 11}}, r"population\.per_group=6 needs twice as many"),
        (PopulationConfig, {"published": {"challenge": [2.0] * 12}}, r"2\.0 must be at least 0 and at most 1"),
    ],
)
def test_lists_and_dictionaries_hold_what_they_should(kind, values, message):
    with pytest.raises(ConfigError, match=message):
        kind(**values)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("+foo=1", "'foo' is not a setting"),
        ("++x=1", "'x' is not a setting"),
        ("+stitch.stepz=3", "'stitch.stepz' is not a setting; did you mean 'stitch.steps'"),
        ("stitch.steps.more=3", "stitch.steps has no parts"),
        ("~stitch", "~stitch leaves out what a job needs"),
        ("~stitch.stepz", "'stitch.stepz' is not a setting"),
        ("model=null", "model=None is not known"),
        ("model={name:gelu-3l-mini}", "is not known; did you mean"),
        ("stitch='lineer',linear", "stitch=lineer is not known; did you mean 'linear'"),
    ],
)
def test_what_no_schema_has_is_refused_however_it_is_added(word, message):
    with pytest.raises(ConfigError) as caught:
        check_overrides([word], TrainConfig)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "word", ["+hydra.job.env_set.A=1", "+model.architecture.rotary_dim=2", "++stitch.steps=3", "stitch='linear',affine"]
)
def test_what_there_is_may_be_added(word):
    check_overrides([word], TrainConfig)


# ---------------------------------------------------------------------------------------------------- through the door

REFUSED = {
    "a device": (
        ["train.py", "model.device=cuda:77"],
        "model.device=cuda:77 is not on this machine; it has: auto, cpu",
    ),
    "the target's": (["train.py", "target.device=no"], "target.device=no is not on this machine"),
    "a family": (["analyze.py", "measure=loss", "model.family=lstm"], "model.family=lstm is not known"),
    "a BERT": (["train.py", "model@target=bert-mini"], "bert-mini predicts no next token, and task=stitch"),
    "a layer": (["train.py", "layers=[[0,3]]"], "[0,3] is out of range; the source has layers 0 to 2"),
    "a type": (["train.py", "seed=abc"], "seed=abc must be a whole number"),
    "a feature": (["analyze.py", "measure=rsa", "stimuli.features=[Nope]"], "has no feature Nope; there is: Gender"),
    "a store without a name": (["train.py", "store="], "store= is empty; leave it out"),
    "a store that is a file": (["train.py", "-m", "store={file}", "seed=0,1"], "cannot be written: File exists"),
    "a left-out group": (["train.py", "~stitch"], "~stitch leaves out what a job needs"),
    "a base": (
        ["analyze.py", "measure=population", "population.base=bert-min"],
        "population.base=bert-min is not known; did you mean 'bert-mini'?",
    ),
    "members": (
        ["analyze.py", "measure=population", "population=feather-berts", "population.members=nope"],
        "population.members=nope is not known; there is: ",
    ),
    "an unknown size": (
        ["train.py", "task=pretrain", "model=bert-mini", "+model.architecture.colour=red"],
        "model.architecture.colour is no size of model.family=bert",
    ),
    "a size that does not fit": (
        ["train.py", "task=pretrain", "model=bert-mini", "model.context=512"],
        "cannot be built for rows of 512 tokens",
    ),
    "a family of no minis": (
        ["train.py", "task=pretrain", "model.family=legacy"],
        "is not one that task=pretrain makes",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_is_refused_before_anything_is_loaded(case, door, tmp_path, monkeypatch):
    from thinkalike.models import load

    monkeypatch.setattr(load, "explained", None)  # loading a model would call it
    (script, *words), message = REFUSED[case]
    (tmp_path / "file").touch()
    refused = door(script, *(word.replace("{file}", str(tmp_path / "file")) for word in words))
    assert message in refused.error
    assert not list((tmp_path / "results").rglob("*"))


def test_every_yaml_of_the_project_is_in_range():
    """Composing them all is another test; this is the quick half of it: no number in conf/ is nan or infinite."""
    for path in Path(conf.CONF).rglob("*.yaml"):
        text = OmegaConf.to_yaml(OmegaConf.load(path), resolve=False)
        assert ".nan" not in text, path
        assert ".inf" not in text, path
