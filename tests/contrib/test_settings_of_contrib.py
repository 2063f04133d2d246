"""What contrib adds to the settings composes, is refused where no job reads it, and stays in the keys of results."""

import dataclasses
import json
import re
import shlex
from pathlib import Path

import pytest

from conftest import composed, every_second, with_ci_slow
from key_checks import NEUTRAL as NEUTRAL_IN_CORE
from key_checks import check_defaults, key_of_settings, outside_the_key
from setting_checks import OTHER, check_refused_before_loading, check_taken_settings_are_in_the_key, numbers
from thinkalike.config import MEASURES, ModelConfig, compose_job, measure_schema, options
from thinkalike.config.compose import keys_of
from thinkalike.config.compose_jobs import compose_open_job
from thinkalike.config.parts import model_settings
from thinkalike.config.schema import declared_of
from thinkalike.contrib import CONF
from thinkalike.contrib.populations.config import (
    NLIConfig,
    NLIJob,
    NumberedModel,
    PairsConfig,
    PopulationConfig,
    PopulationJob,
)
from thinkalike.contrib.pretraining.config import PretrainConfig
from thinkalike.contrib.pretraining.settings import PretrainedModel
from thinkalike.contrib.sae.config import SAEConfig
from thinkalike.errors import ConfigError
from thinkalike.instruments import asked_for, refuse_unread_settings
from thinkalike.models.fingerprints import checkpoint_fingerprint
from thinkalike.models.labels import distinct_labels
from thinkalike.models.load import load_model

pytestmark = pytest.mark.usefixtures("command_line")
HERE = Path(__file__).parent
OF_CONTRIB = [kind for kind, entry in MEASURES.items() if entry.module.startswith("thinkalike.contrib.")]


def test_the_settings_of_a_model_are_those_of_the_core_and_of_contrib():
    added = {item.name for schema in (PretrainedModel, NumberedModel) for item in dataclasses.fields(schema)}
    core = {item.name for item in dataclasses.fields(ModelConfig)}
    assert {item.name for item in dataclasses.fields(model_settings())} == added
    assert len(added - core) == 10
    assert isinstance(composed("model=gpt2").model, PretrainedModel)
    assert isinstance(composed("model=gpt2").target, NumberedModel)
    assert type(composed("task=pretrain", "model=gelu-3l-mini").model) is type(model_settings())


@pytest.mark.parametrize("name", sorted(path.stem for path in (CONF / "pairs").glob("*.yaml")))
def test_pairs_compose(name):
    assert name in options("pairs")
    assert composed(f"pairs={name}", "task=nli").pairs.source == {"mnli": "hub"}.get(name, name)


@pytest.mark.parametrize("name", sorted(path.stem for path in (CONF / "population").glob("*.yaml")))
def test_populations_compose(name):
    more = ["population.generalizing=[a,b]", "population.heuristic=[a,b]"] if name == "local" else []
    config = composed(f"population={name}", "measure=population", *more, entry="analyze")
    assert config.population.name == name
    assert name in options("population")


@pytest.mark.parametrize("kind", OF_CONTRIB)
def test_measures_compose_with_the_stimuli_of_the_paper(kind):
    config = composed(f"measure={kind}", "stimuli=salle2024", entry="analyze")
    assert (config.measure.kind, config.stimuli.kind) == (kind, "controlled")


@pytest.mark.parametrize("settings", [{"architecture": {"n_layers": 9}}, {"seed": 9}])
@pytest.mark.parametrize("call", [load_model, checkpoint_fingerprint])
def test_a_setting_that_would_only_change_the_name_is_refused(call, settings):
    model = composed("model=gelu-3l-mini").model
    with pytest.raises(ConfigError, match=rf"model\.{next(iter(settings))}"):
        call(dataclasses.replace(model, **settings))


def test_models_of_one_label_are_called_by_what_differs():
    models = [model_settings(name="pythia"), model_settings(name="pythia", seed=1, index=2)]
    assert distinct_labels(models) == ["pythia[index=0,seed=0]", "pythia[index=2,seed=1]"]
    assert distinct_labels([ModelConfig(name="pythia"), models[1]])[0] == "pythia", (
        "of the core, without these settings"
    )


def test_pretraining_has_one_model():
    config = composed("task=pretrain")
    assert (config.model.name, config.target.name) == ("gelu-3l-mini", "gelu-3l-mini")


def test_a_list_of_models_takes_numbers_and_no_court():
    listed = "models=[gelu-3l,{model:feather-bert,index:3}]"
    (job,) = asked_for(composed("measure=cka", listed, entry="analyze"))
    assert (job.target.name, job.target.index) == ("feather-bert-3", 3)
    with pytest.raises(ConfigError, match="models="):
        asked_for(composed("measure=court", "models=[gpt2-mini,bert-mini]", entry="analyze"))


@pytest.mark.ci_slow
def test_an_experiment_is_done_by_one_process(cli):
    words = ["experiment=salle2024/figure3", "scale=mini", "trainer.devices=2", "trainer=ddp"]
    assert "salle2024-figure3 is done by one" in cli("analyze.py", *words).error


def test_a_numbered_model_is_named_by_its_number():
    assert composed("model=feather-bert").model.name == "feather-bert-0"
    assert composed("model=feather-bert", "model.index=3").model.hub_id == "connectivity/feather_berts_3"


@pytest.mark.parametrize("kind", ["controlled", "crossed"])
def test_an_experiments_stimuli_can_be_exchanged(kind):
    experiment = "experiment=salle2024/figure3"
    own = composed(experiment, entry="analyze").stimuli
    assert (own.sentences, own.sample) == (450, 1500)
    other = composed(experiment, f"stimuli={kind}", entry="analyze").stimuli
    assert (other.kind, other.sentences, other.sample) == (kind, None, None)


REFUSED = {  # lines by what is said of them: the nearest thing that there is, or the key
    "'measure.folds' is not a setting": ["analyze experiment=brown2023/figure3 measure.folds=5"],
    "architecture": ["train model.architecture=3", "train task=pretrain model=gpt2"],
    "give population=feather-berts": ["analyze measure=population population.name=feather-berts"],
    "pretrain.tokens": ["train task=pretrain pretrain.tokens=0"],
    "pretrain.keep": [
        f"train task=pretrain pretrain.keep={keep}" for keep in ("log3", "\"'every=0'\"", "[9999]", "[-1]")
    ],
}  # fmt: skip


@pytest.mark.parametrize(("said", "line"), [(said, line) for said, lines in REFUSED.items() for line in lines])
def test_a_line_that_cannot_be_composed_is_one_line_with_the_key(said, line):
    entry, *words = shlex.split(line)
    with pytest.raises(ConfigError) as caught:
        compose_job(entry, words)
    assert said in str(caught.value)
    assert str(caught.value).isprintable()


UNREAD = [  # the key is the first override
    ("analyze", ["population.size=30", "measure=population", "population=feather-berts"]),
    ("analyze", ["model=gpt2", "measure=population"]),
    ("analyze", ["activations=a.npz", "experiment=salle2024/figure_s5", "scale=mini"]),
    ("analyze", ["measure.massive=drop", "experiment=salle2024/figure3", "scale=mini"]),  # its jobs keep all words
    ("train", ["stitch.steps=3", "task=nli", "model=bert-mini"]),
    ("train", ["pairs.heuristic=subsequence", "task=nli", "model=bert-mini"]),  # all parts are reported
    ("train", ["target.dtype=bfloat16", "task=sae"]),
    ("train", ["sae.source=gpt2-mini", "task=sae"]),
    ("train", ["model.index=77"]),
    ("analyze", ["model.index=3", "measure=loss", "model=gelu-3l-mini"]),
]
READ = [
    ("analyze", ["data.fit_tokens=500", "measure=probes"]),
    ("analyze", ["model.dtype=bfloat16", "measure=population"]),
    ("analyze", ["data=stdlib", "data.context=64", "experiment=brown2023/figure5", "scale=mini"]),
    ("analyze", ["pairs.report_pairs=100", "experiment=brown2023/figure8", "scale=mini"]),
    ("train", ["model.index=3", "task=nli", "model=feather-bert"]),
]


@pytest.mark.parametrize(("entry", "words"), every_second(UNREAD))
def test_a_setting_the_job_does_not_read_is_refused_by_key(entry, words):
    key = words[0].partition("=")[0]
    with pytest.raises(ConfigError, match=f"{key}=|is about"):
        refuse_unread_settings(keys_of(words), composed(*words, entry=entry))


@pytest.mark.parametrize(("entry", "words"), READ)
def test_a_setting_that_the_job_reads_passes(entry, words):
    refuse_unread_settings(keys_of(words), composed(*words, entry=entry))


WITHOUT_EFFECT = [
    ("analyze", ["recipe=paper", "measure=atlas", "models=[gelu-3l-mini,solu-3l-mini]"]),
    ("train", ["recipe=paper", "task=nli"]),
    ("analyze", ["+model.architecture.foo=1"]),
    ("train", ["model.architecture.n_layers=3", "model=gelu-3l-mini"]),
    ("analyze", ["target.architecture={n_layers: 3}", "measure=cka"]),
    ("analyze", ["model.pretrain_lr=1", "measure=cka"]),
]
WITH_EFFECT = [
    ("analyze", ["recipe=paper", "scale=mini", "experiment=brown2023/figure1"]),
    ("train", ["scale=paper", "task=nli"]),
    ("train", ["model.architecture.n_layers=3", "task=pretrain", "model=gelu-3l-mini"]),
    ("train", ["model.cls_sep=true", "task=pretrain", "model=gelu-3l-mini"]),
]


@pytest.mark.parametrize(("entry", "words"), WITHOUT_EFFECT)
def test_a_setting_without_effect_beside_the_others_is_refused(entry, words):
    """Of the configuration that a command line leaves open, as `scale` and `recipe` decide what is left open."""
    with pytest.raises(ConfigError, match=re.escape(f"{words[0].partition('=')[0].lstrip('+')}=")):
        refuse_unread_settings(keys_of(words), compose_open_job(entry, words))


@pytest.mark.parametrize(("entry", "words"), WITH_EFFECT)
def test_a_setting_with_effect_beside_the_others_passes(entry, words):
    refuse_unread_settings(keys_of(words), compose_open_job(entry, words))


IMPOSSIBLE = [  # by the key that the message names
    ("sae.tokens", SAEConfig, {"tokens": 100}),
    ("sae.source", SAEConfig, {"start": "transferred"}),
    ("measure.side", measure_schema("population"), {"side": "left"}),
    ("population.generalizing", PopulationConfig, {"members": "feather-bert", "heuristic": [1, 2]}),
    ("population.per_group", PopulationConfig, {"base": "bert-mini", "size": 4, "per_group": 3}),
    ("population.heuristic", PopulationConfig, {"heuristic": [-1]}),
    ("population.parents", PopulationConfig, {"base": "bert-mini", "parents": {"G": []}}),
    ("population.null", PopulationConfig, {"base": "bert-mini", "parents": {"G": [], "H": []}, "null": ["G", "H"]}),
    ("population.null", PopulationConfig, {"base": "bert-mini", "parents": {"G": [], "H": []}, "null": ["G", "G"]}),
    ("model.pretrain_vocabulary", PretrainedModel, {"pretrain_vocabulary": 3}),
]


@pytest.mark.parametrize(("key", "schema", "values"), IMPOSSIBLE)
def test_an_impossible_value_is_refused_by_its_key(key, schema, values):
    with pytest.raises(ConfigError, match=key):
        schema(**values)


def test_the_smallest_possible_values_are_taken():
    """The positive control of the refusals above."""
    assert PretrainConfig(tokens=0, tokens_per_step=2).tokens == 0


def test_a_message_is_one_short_printable_line():
    with pytest.raises(ConfigError) as caught:
        PretrainConfig(tokens="\x1b[31m\n" * 500)
    assert len(str(caught.value)) < 200
    assert str(caught.value).isprintable()


def test_a_folder_as_the_target_keeps_its_own_classes():
    words = ["model=local", "model.path=/tmp", "model.classes=[entailment,non-entailment]"]
    assert composed(*words).target.classes == ["entailment", "non-entailment"]
    assert composed(*words, "target.path=/var").target.classes is None


def test_another_target_has_no_seed_of_the_source():
    words = ["model=pythia-70m-deduped", "model.seed=3", "model@target=pythia-160m-deduped"]
    assert composed(*words).target.seed == 0


NEUTRAL = {"pairs.fit", "pairs.report", "pairs.challenge", "model.members", "target.members"}


@pytest.mark.parametrize("root", [NLIJob, PopulationJob])
def test_every_setting_is_in_the_key_unless_declared_neutral(root):
    outside = outside_the_key(root, architecture={"d_model": 8})
    outside -= NEUTRAL_IN_CORE
    if root is PopulationJob:
        outside = {name for name in outside if not name.startswith("trainer.")}
    assert outside == NEUTRAL


def test_no_default_has_changed_without_a_word():
    schemas = (NLIConfig, NumberedModel, PairsConfig, PopulationConfig, PretrainConfig, PretrainedModel, SAEConfig)
    check_defaults(HERE / "defaults.json", schemas, OF_CONTRIB)


SCHEMAS = {"pretrain": PretrainConfig, "nli": NLIConfig, "sae": SAEConfig, "pairs": PairsConfig}
SCHEMAS |= {"population": PopulationConfig, "model": PretrainedModel, "numbered": NumberedModel}
SCHEMAS |= {f"measure={kind}": measure_schema(kind) for kind in OF_CONTRIB}


def test_every_number_of_every_schema_has_a_range():
    fields = [(name, item) for name, schema in SCHEMAS.items() for item in numbers(schema)]
    assert [f"{name}: {item.name}" for name, item in fields if declared_of(item).range is None] == []
    assert len(fields) > 60, "control"


NOT_HERE = {
    "population.members": "analyze.py measure=population population=feather-berts population.members=nope",
    "model.architecture.colour": "train.py task=pretrain model=bert-mini +model.architecture.colour=red",
    "legacy": "train.py task=pretrain model.family=legacy",
}


@pytest.mark.parametrize("said", NOT_HERE)
def test_what_cannot_be_is_refused_before_anything_is_loaded(said, cli, tmp_path, monkeypatch):
    check_refused_before_loading(said, NOT_HERE[said], cli, tmp_path, monkeypatch)


OTHER |= {"classes": "[a,b]", "architecture": "{n_layers: 2}"}
JOBS = {  # by name: what is fitted
    "pretrain": "train task=pretrain model=gelu-3l-mini",
    "nli": "train task=nli model=bert-mini",
    "sae": "train task=sae model=gpt2-mini",
    "relu": "train task=sae model=gpt2-mini sae.activation=relu",
}


@pytest.mark.parametrize("job", with_ci_slow(JOBS, "nli", "sae"))
def test_a_setting_that_is_taken_is_in_the_key(job):
    check_taken_settings_are_in_the_key(JOBS[job])


KEYS = HERE / "keys.json"  # by command line; one changes only with the version of its kind


@pytest.mark.parametrize("line", json.loads(KEYS.read_text()))
def test_stored_results_are_found_by_their_keys(line):
    assert key_of_settings(line) == json.loads(KEYS.read_text())[line]
