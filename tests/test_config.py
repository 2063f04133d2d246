"""Everything in conf/ composes, what does not exist is refused, and so is a setting that the job does not read."""

from __future__ import annotations

import dataclasses
import statistics

import pytest
from omegaconf import OmegaConf

from conftest import composed
from thinkalike import config as conf
from thinkalike.config import (
    CONF,
    AnalyzeConfig,
    DataConfig,
    LoggerConfig,
    ModelConfig,
    PopulationConfig,
    PretrainConfig,
    SAEConfig,
    StitchConfig,
    TrainConfig,
    TrainerConfig,
    check_overrides,
    compose_job,
    measure_schema,
    not_in_key,
    options,
    relevant,
)
from thinkalike.config import compose as composing
from thinkalike.config.entry_points import OneLineErrors
from thinkalike.errors import ConfigError, ThinkalikeError, nearest, one_of
from thinkalike.instruments import instrument_of
from thinkalike.papers import experiment_named

NEEDED = {
    "model=local": ["model.path=/tmp", "model@target=gelu-3l-mini"],
    "model=hub": ["model.hub_id=a/b", "model@target=gelu-3l-mini"],
    "data=text": ["data.files=[a.txt]"],
}
EVERY = [
    f"{group}={name}" for group in ("model", "data", "stitch", "pairs", "trainer", "logger") for name in options(group)
]
OF_ONE_SORT = [option for option in EVERY if option.startswith("model=") and "-mini" not in option]  # names of the hub


@pytest.mark.parametrize(
    "override",
    [
        pytest.param(option, marks=[pytest.mark.slow] if option in OF_ONE_SORT and option not in NEEDED else [])
        for option in EVERY
    ],
)
def test_every_option_of_every_group_composes(override):
    group, name = override.split("=")
    config = composed(override, *NEEDED.get(override, []))
    assert isinstance(config, TrainConfig)
    chosen = getattr(config, group)
    if group in ("stitch", "logger"):
        assert chosen.kind == name
    if group == "data":
        assert chosen.name == ("stdlib" if name == "auto" else name)
        assert chosen.source in ("stdlib", "grammar", "text", "hub")
    if group == "model":
        assert chosen.corpus in options("data")
        assert chosen.name == name or name == "feather-bert", "a model is named as its file"


def test_the_groups_hold_what_the_parametrisation_assumes():
    groups = set(composing.GROUPS) - {"measure", "stimuli", "population"}  # which the other door has
    assert len(EVERY) == sum(len(list((CONF / group).glob("*.yaml"))) for group in groups) >= 50


@pytest.mark.parametrize("name", options("measure"))
def test_every_measure_composes(name):
    assert composed(f"measure={name}", door="analyze").measure.kind == name


@pytest.mark.parametrize("name", options("stimuli"))
def test_every_kind_of_stimuli_composes(name):
    needed = ["stimuli.path=words"] if name in ("table", "conllu") else []
    kind = "controlled" if name == "salle2024" else name
    assert composed(f"stimuli={name}", *needed, door="analyze").stimuli.kind == kind


@pytest.mark.parametrize("kind", ["controlled", "crossed"])
def test_an_experiments_stimuli_can_be_exchanged(kind):
    experiment = "experiment=salle2024/figure3"
    own = composed(experiment, door="analyze").stimuli
    assert (own.sentences, own.sample) == (450, 1500)
    other = composed(experiment, f"stimuli={kind}", door="analyze").stimuli
    assert (other.kind, other.sentences, other.sample) == (kind, None, None)


def test_the_groups_of_the_published_berts_are_those_of_the_paper():
    """By the published accuracies, whose mean and standard deviation the source gives."""
    found = composed("population=feather-berts", door="analyze").population
    assert found.generalizing == [99, 8, 37, 6, 95, 10, 39, 31, 67, 98]
    assert found.heuristic == [44, 73, 89, 48, 26, 70, 42, 15, 63, 25]
    heldout, challenge = (found.published[key] for key in ("heldout", "challenge"))
    assert statistics.mean(challenge) == pytest.approx(0.276572, abs=1e-9)
    assert statistics.stdev(challenge) == pytest.approx(0.123642852, abs=1e-8)
    assert statistics.mean(heldout) == pytest.approx(0.843392765, abs=1e-5)
    assert statistics.stdev(heldout) == pytest.approx(0.00241974, abs=1e-5)
    chosen = ["population.generalizing=[0,1]", "population.heuristic=[2,3]"]
    assert composed("population=feather-berts", *chosen, door="analyze").population.heuristic == [2, 3]


@pytest.mark.parametrize("name", options("population"))
def test_every_population_composes(name):
    groups = [f"population.{group}=[a,b]" for group in ("generalizing", "heuristic")] if name == "local" else []
    assert composed(f"population={name}", *groups, door="analyze").population.name == name


def test_a_population_is_numbered():
    model = composed("model=feather-bert", "model.index=7").model
    assert (model.name, model.hub_id) == ("feather-bert-7", "connectivity/feather_berts_7")


@pytest.mark.parametrize(
    ("model", "corpus"),
    [
        ("gelu-3l-mini", "stdlib"),
        ("solu-3l", "c4-code"),
        ("solu-4l-pile", "pile-val"),
        ("pythia-70m-deduped", "pile-val"),
    ],
)
@pytest.mark.parametrize("door", ["train", "analyze"])
def test_auto_data_is_the_same_as_naming_it(model, corpus, door):
    auto = composed(f"model={model}", door=door)
    assert auto.data.name == corpus
    assert auto == composed(f"model={model}", f"data={corpus}", door=door)


@pytest.mark.parametrize(
    ("override", "value"),
    [("report_share", 0.3), ("report_tokens", 4096), ("field", "content"), ("context", 64), ("fit_tokens", 999)],
)
def test_an_override_of_data_survives_auto(override, value):
    named = composed("model=solu-3l", "data=c4-code", f"data.{override}={value}").data
    assert getattr(named, override) == value
    assert composed("model=solu-3l", f"data.{override}={value}").data == named


def test_an_override_that_is_null_survives_auto():
    assert composed("model=solu-3l", "data.fit_tokens=null").data == composed("model=solu-3l").data


def test_a_source_on_the_command_line_survives_auto():
    data = composed("model=gpt2", "data.source=text", "data.files=[a.txt]").data
    assert (data.source, data.files) == ("text", ["a.txt"])


@pytest.mark.parametrize(
    ("words", "steps", "report"),
    [
        (["model=gelu-3l-mini"], 170, 262144),
        (["model=solu-4l-mini", "model@target=gelu-3l-mini"], 170, 262144),
        (["model=solu-4l-mini", "model@target=gpt2"], 2000, 1048576),
        (["model=gpt2", "model@target=solu-4l-mini"], 2000, 1048576),
        (["model=gpt2"], 2000, 1048576),
        (["model=gpt2", "scale=mini"], 170, 262144),
        (["model=gelu-3l-mini", "scale=paper"], 2000, 1048576),
    ],
)
def test_scale_sizes_the_recipe(words, steps, report):
    config = composed(*words)
    assert (config.stitch.steps, config.data.report_tokens) == (steps, report)
    assert config.stitch.warmup == steps // 10


def test_a_key_beats_the_scale():
    assert composed("scale=paper", "stitch.steps=77", "stitch.warmup=7").stitch.steps == 77


def test_the_target_follows_the_model_unless_given():
    assert composed("model=gpt2").target == composed("model=gpt2").model
    assert composed("model=gpt2", "model@target=gelu-3l").target.name == "gelu-3l"
    assert composed("model@target=gelu-3l").model.name == "gelu-3l-mini"


def test_a_local_model_needs_one_path():
    """As the help of train.py has it: model=local model.path=DIR."""
    config = composed("model=local", "model.path=/tmp")
    assert config.target.path == config.model.path == "/tmp"


# ---------------------------------------------------------------------------------------------------- the command line

WRONG = {  # by the nearest thing that there is
    "'gelu-3l'": ["model=gelu3l", "model@target=gelu3l"],
    "'linear'": ["stitch=linaer", "stitch=Linear"],
    "tensorboard, wandb": ["logger=mlflow"],
    "ORG/NAME": ["model=schema", "model=null", "model=https://huggingface.co/org/name"],
    "'model'": ["modl=gelu-3l"],
    "'seed'": ["seeed=1", "+seeed=1"],
    "'stitch.steps'": ["stitch.step=3", "++stitch.step=3"],
    "'target.dtype'": ["target.dtyp=float32"],
    "'solu-3l'": ["model=gpt2,solu-3k"],
    "stitch.rates or sae.rates": ["rates=[1]"],
    "is not a setting": ["trainer.xyzzy=3", "target=gpt2", "foo=1", "measure=loss"],
    "cannot read": ["layers=[[0,", "", "  ", "seed =1", "größe=1", "layers=[[0,0]]]", "store='it", "seed=cast(x)"],
}
RIGHT = [
    "model=gelu-3l",
    "model@target=gpt2",
    "model=gpt2,solu-3l",
    "model=glob(solu*)",
    "target.dtype=bfloat16",
    "stitch.steps=10,20",
    "stitch.steps=range(1,3)",
    "layers=[[0,0],[1,2]]",
    "model.architecture.n_layers=2",
    "data.files=[a.txt,b.jsonl]",
    "+model.architecture.rotary_dim=2",
    "~model.architecture.d_mlp",
    "hydra.run.dir=.",
    "hydra/launcher=joblib",
]


@pytest.mark.parametrize(("said", "word"), [(said, word) for said, words in WRONG.items() for word in words])
def test_a_misspelt_override_is_refused_with_the_nearest(said, word):
    with pytest.raises(ConfigError) as caught:
        check_overrides(["seed=1", word], TrainConfig)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("word", RIGHT)
def test_a_good_override_passes(word):
    check_overrides([word], TrainConfig)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["measure=rsa", "measure.kernel=rbf"], "'measure.kernel' is not a setting"),
        (["measure.folds=5"], "'measure.folds' is not a setting"),
        (["experiment=brown2023/figure3", "measure.folds=5"], "'measure.folds' is not a setting"),
        (["measure=cka", "measure.batchs=5"], "'measure.batchs' is not a setting; did you mean 'measure.batches'?"),
    ],
)
def test_what_a_measure_does_not_take_is_refused_with_what_does(words, message):
    with pytest.raises(ConfigError) as caught:
        check_overrides(words, AnalyzeConfig)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "words",
    [
        ["measure=cka", "measure.batches=5"],
        ["measure=cka,rsa", "measure.embed=true"],
        ["measure=cka,mlem", "measure.folds=4"],
        ["experiment=brown2023/figure3,salle2024/figure3", "measure.batches=5"],
    ],
)
def test_a_setting_of_a_measure_that_is_asked_for_passes(words):
    check_overrides(words, AnalyzeConfig)


# -------------------------------------------------------------------------------------- settings that no job reads

RECORDED = ["stimuli=table", "stimuli.path=words.csv", "activations=a.npz"]
UNREAD = [  # the key is the first override
    ("analyze", ["model@target=solu-3l-mini", "measure=loss"]),
    ("analyze", ["data=pile-10k", "measure=mlem"]),
    ("analyze", ["seed=1", "measure=cka"]),
    ("analyze", ["layers=all", "measure=cka"]),
    ("analyze", ["trainer.log_every=3", "measure=cka"]),
    ("analyze", ["activations=a.npz", "measure=loss"]),
    ("analyze", ["stimuli.columns={word: w}", "measure=rsa"]),
    ("analyze", ["stimuli.balance=[PoS]", "measure=rsa"]),
    ("analyze", ["stimuli=crossed", "measure=cka"]),
    ("analyze", ["measure.permutations=5", "measure=cka"]),
    ("analyze", ["measure.noise=none", "measure=rsa"]),
    ("analyze", ["measure.resamples=9", "measure=rsa"]),
    ("analyze", ["measure.permutations=9", "measure=rsa", *RECORDED[:2], "activations=[a.npz,b.npz,c.npz]"]),
    ("analyze", ["measure.batches=3", "measure=cka", *RECORDED]),
    ("analyze", ["measure.level=word", "measure=cka", *RECORDED]),
    ("analyze", ["data=stdlib", "measure=cka", *RECORDED]),
    ("analyze", ["population.size=30", "measure=population", "population=feather-berts"]),
    ("analyze", ["measure.padding=99", "measure=population"]),
    ("analyze", ["model=gpt2", "measure=population"]),
    ("analyze", ["data.report_tokens=4096", "experiment=brown2023/figure1", "scale=mini"]),
    ("analyze", ["stimuli=crossed", "experiment=brown2023/figure6", "scale=mini"]),
    ("analyze", ["model.revision=main", "experiment=brown2023/figure1", "scale=mini"]),
    ("analyze", ["activations=a.npz", "experiment=salle2024/figure2", "scale=mini"]),
    ("train", ["stitch.steps=3", "task=nli", "model=bert-mini"]),
    ("train", ["pairs.label=neutral", "task=nli", "model=bert-mini"]),
    ("train", ["target.dtype=bfloat16", "task=sae"]),
    ("train", ["sae.source=gpt2-mini", "task=sae"]),
    ("train", ["data.sentences=5"]),
    ("train", ["model.index=77"]),
]
READ = [
    ("analyze", ["model.dtype=bfloat16", "measure=population"]),
    ("analyze", ["seed=3", "measure=asymmetry", "model@target=solu-3l-mini"]),
    ("analyze", ["measure.permutations=5", "measure=cka", "measure.null=true"]),
    ("analyze", ["model@target=gpt2", "measure=cka", *RECORDED]),
    ("analyze", ["data=stdlib", "data.report_tokens=4096", "experiment=brown2023/figure1", "scale=mini"]),
    ("analyze", ["pairs.report_pairs=100", "experiment=brown2023/figure8", "scale=mini"]),
    ("analyze", ["model.dtype=bfloat16", "experiment=brown2023/figure1", "scale=mini"]),
    ("train", ["model.index=3", "task=nli", "model=feather-bert"]),
    ("train", ["hydra.run.dir=.", "threads=2", "trainer.log_every=3", "logger=none"]),
]


def check(door, words):
    config = composed(*words, door=door)
    if door == "analyze" and config.experiment:
        experiment_named(config.experiment).jobs(config)
    else:
        instrument_of(config)


@pytest.mark.parametrize(("door", "words"), UNREAD)
def test_a_setting_that_the_job_does_not_read_is_refused_by_its_key(door, words):
    key = words[0].partition("=")[0].replace("model@target", "target")
    with pytest.raises(ConfigError, match=f"{key}=|is about"):
        check(door, words)


@pytest.mark.parametrize(("door", "words"), READ)
def test_a_setting_that_the_job_reads_passes(door, words):
    check(door, words)


# ----------------------------------------------------------------------------------------- what can change the numbers


@dataclasses.dataclass
class _Inner:
    rate: float = 1.0
    layers: list = dataclasses.field(default_factory=lambda: [0])
    folder: str = not_in_key("here")


@dataclasses.dataclass
class _Outer:
    name: str
    inner: _Inner = dataclasses.field(default_factory=_Inner)


def test_what_is_relevant_is_no_default_and_can_change_numbers():
    assert relevant(_Outer("a")) == {"name": "a"}
    assert relevant(_Outer("a", _Inner(folder="there"))) == {"name": "a"}
    assert relevant(_Outer("a", _Inner(2.0, [0, 1], "there"))) == {
        "name": "a",
        "inner": {"rate": 2.0, "layers": [0, 1]},
    }


# -------------------------------------------------------------------------------------------------- values of each kind

IMPOSSIBLE = [  # by the key that the message names; test_ranges.py has the ranges of all numbers
    ("model.processing", ModelConfig, {"name": "m", "processing": "row"}),
    ("model.dtype", ModelConfig, {"name": "m", "dtype": "float8"}),
    ("model.hub_id", ModelConfig, {"name": "m", "hub_id": "a/b/c"}),
    ("model.path", ModelConfig, {"name": "local"}),
    ("data.source", DataConfig, {"name": "d", "source": "hubs"}),
    ("data.files", DataConfig, {"name": "d", "source": "text", "files": []}),
    ("stitch.kind", StitchConfig, {"kind": "afine"}),
    ("stitch.optimizer", StitchConfig, {"optimizer": "lion"}),
    ("stitch.norm", StitchConfig, {"kind": "procrustes", "norm": "pre"}),
    ("stitch.steps", StitchConfig, {"steps": 0}),
    ("stitch.warmup", StitchConfig, {"warmup": 2000}),
    ("stitch.init", StitchConfig, {"norm": "pre", "init": "procrustes"}),
    ("sae.tokens", SAEConfig, {"tokens": 100}),
    ("sae.source", SAEConfig, {"start": "transferred"}),
    ("logger.kind", LoggerConfig, {"kind": "mlflow"}),
    ("task", TrainConfig, {"task": "stich"}),
    ("measure.level", measure_schema("cka"), {"level": "byte"}),
    ("measure.kernel", measure_schema("cka"), {"kernel": "rbv"}),
    ("measure.distance", measure_schema("rsa"), {"distance": "euclid"}),
    ("measure.weights", measure_schema("mlem"), {"weights": "ful"}),
    ("measure.side", measure_schema("population"), {"side": "left"}),
    ("population.generalizing", PopulationConfig, {"members": "feather-bert", "heuristic": [1, 2]}),
    ("population.per_group", PopulationConfig, {"base": "bert-mini", "size": 4, "per_group": 3}),
    ("population.parents", PopulationConfig, {"base": "bert-mini", "parents": {"G": []}}),
    ("trainer.num_nodes", TrainerConfig, {"num_nodes": 2}),
]


@pytest.mark.parametrize(("key", "schema", "values"), IMPOSSIBLE)
def test_an_impossible_value_is_refused_by_its_key(key, schema, values):
    with pytest.raises(ConfigError, match=key):
        schema(**values)


def test_the_smallest_possible_values_are_taken():
    """The positive control of the refusals above."""
    assert StitchConfig(steps=1, warmup=0, momentum=0.0, tokens_per_step=2).steps == 1
    small = {"context": 2, "fit_tokens": 1, "report_tokens": 2, "report_share": 1e-6}
    assert DataConfig(name="d", source="text", files=["a"], **small).report_share == 1e-6
    assert PretrainConfig(tokens=0, tokens_per_step=2).tokens == 0


def test_an_identity_trains_nothing():
    assert (StitchConfig(kind="identity").steps, StitchConfig(kind="identity").warmup) == (0, 0)
    assert composed("stitch=identity").stitch.steps == 0


def test_a_configuration_survives_its_file():
    config = composed("layers=[[0,0],[1,2]]")
    text = conf.to_yaml(conf.as_dict(config))
    assert OmegaConf.to_container(OmegaConf.create(text)) == conf.as_dict(config)


# -------------------------------------------------------------------------------------------------------------- errors


def test_a_typo_gets_one_name_and_nonsense_the_list():
    assert nearest("lineer", ["linear", "affine"]) == "did you mean 'linear'?"
    assert nearest("xyzzy", ["linear", "affine"]) == "there is: affine, linear"


def test_one_of_takes_what_is_there_and_refuses_the_rest():
    one_of("key", "a", iter("ab"))
    with pytest.raises(ConfigError, match="key=c is not known; there is: a, b"):
        one_of("key", "c", iter("ab"))


def test_a_job_of_a_notebook_takes_words_of_any_sort():
    words = ["measure=cka", "model=gpt2-mini"]
    for given in (words, tuple(words), iter(words), map(str, words)):
        config = compose_job("analyze", given)
        assert (config.measure.kind, config.model.name) == ("cka", "gpt2-mini")


@pytest.mark.parametrize(
    ("said", "door", "words"),
    [
        ("stitch.steps", "train", ["stitch.steps=abc"]),
        ("sede", "train", ["stitch.lr=${sede}"]),
        ("NOPE", "train", ["seed=${oc.env:NOPE}"]),
        ("seed", "train", ["seed=${seed}"]),
        ("seed=1,2", "train", ["seed=1,2"]),
        ("seed=1", "train", "seed=1"),
        ("training", "training", []),
        ("measure.null", "analyze", ["measure=cka", "measure.null=99"]),
        ("stitch.steps", "analyze", ["measure=cka", "stitch.steps=4"]),
    ],
)
def test_what_cannot_be_composed_is_refused_in_one_line(said, door, words):
    with pytest.raises(ConfigError) as caught:
        compose_job(door, words)
    assert said in str(caught.value)
    assert str(caught.value).isprintable()


def test_a_user_error_is_one_line_and_exit_status_1(capsys, monkeypatch):
    monkeypatch.delenv("THINKALIKE_TRACEBACK", raising=False)
    with pytest.raises(SystemExit) as caught, OneLineErrors():
        raise ThinkalikeError("first\nsecond")
    assert caught.value.code == 1
    assert capsys.readouterr().err == "error: first\n"


def test_a_bug_keeps_its_traceback_and_so_does_an_error_on_request(monkeypatch):
    with pytest.raises(ZeroDivisionError), OneLineErrors():
        _ = 1 / 0
    monkeypatch.setenv("THINKALIKE_TRACEBACK", "1")
    with pytest.raises(ThinkalikeError), OneLineErrors():
        raise ThinkalikeError("asked for")


# -------------------------------------------------------------------------------------------------------------- target


def test_a_folder_with_a_name_of_its_own_is_its_own_target():
    config = composed("model=local", "model.path=/x", "model.name=mine")
    assert config.target == config.model
    other = composed("model=local", "model.path=/x", "model.name=mine", "target.path=/y", "target.name=yours").target
    assert (other.path, other.name) == ("/y", "yours")


def test_the_target_is_the_source_in_all_that_is_not_named():
    words = ["model=pythia-70m-deduped", "model.revision=step1000", "model.dtype=bfloat16", "model.context=64"]
    config = composed(*words)
    assert config.target == config.model
    main = composed(*words, "target.revision=main").target
    assert (main.revision, main.dtype, main.context) == ("main", "bfloat16", 64)


def test_a_target_of_its_own_runs_as_the_source_does_and_is_otherwise_itself():
    words = ["model=pythia-70m-deduped", "model.revision=step1000", "model.dtype=bfloat16", "model.seed=3"]
    target = composed(*words, "model@target=pythia-160m-deduped").target
    assert (target.revision, target.dtype, target.seed) == (None, "bfloat16", 0)
    assert composed(*words, "model@target=pythia-160m-deduped", "target.dtype=float32").target.dtype == "float32"


def test_a_numbered_target_has_its_own_name_and_repository():
    config = composed("model=feather-bert", "model.index=3", "target.index=5", "task=nli")
    assert (config.model.name, config.target.name) == ("feather-bert-3", "feather-bert-5")
    assert config.target.hub_id.endswith("_5")
    assert composed("model=feather-bert", "model.index=3", "task=nli").target.index == 3


def test_a_folder_as_the_target_keeps_what_is_its_own():
    words = ["model=local", "model.path=/tmp", "model.classes=[entailment,non-entailment]"]
    assert composed(*words).target.classes == ["entailment", "non-entailment"]
    assert composed(*words, "target.path=/var").target.classes is None
    with pytest.raises(ConfigError, match=r"needs target\.path="):
        composed("model=gelu-3l-mini", "model@target=local")
