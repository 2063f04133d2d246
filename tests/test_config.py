"""Everything in conf/ composes, and what cannot be is refused with the nearest thing that can."""

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
    NLIConfig,
    PairsConfig,
    PopulationConfig,
    PretrainConfig,
    StimuliConfig,
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
from thinkalike.config.doors.exits import OneLineErrors
from thinkalike.errors import ConfigError, ThinkalikeError, nearest, one_of

CKAConfig, MLEMConfig, PopulationMeasureConfig, RSAConfig = map(measure_schema, ("cka", "mlem", "population", "rsa"))
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


@pytest.mark.parametrize("override", ["model=gpt2", *(word for word in EVERY if word.startswith("data="))])
def test_data_and_models_compose_for_analyze(override):
    needed = [word for word in NEEDED.get(override, []) if "target" not in word]
    assert isinstance(composed(override, *needed, door="analyze"), AnalyzeConfig)


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


@pytest.mark.parametrize("more", [[], ["stitch=identity", "data=stdlib", "data.report_tokens=4096"]])
def test_an_unknown_scale_is_refused_whether_or_not_it_is_used(more):
    with pytest.raises(Exception, match="scale=papre is not known; did you mean 'paper'") as caught:
        composed("scale=papre", *more)
    assert "scale=papre is not known" in str(caught.value).splitlines()[0], "the door prints the first line only"


def test_the_target_follows_the_model_unless_given():
    assert composed("model=gpt2").target == composed("model=gpt2").model
    assert composed("model=gpt2", "model@target=gelu-3l").target.name == "gelu-3l"
    assert composed("model@target=gelu-3l").model.name == "gelu-3l-mini"


def test_a_local_model_needs_one_path():
    """As the help of train.py has it: model=local model.path=DIR."""
    config = composed("model=local", "model.path=/tmp")
    assert config.target.path == config.model.path == "/tmp"


# ---------------------------------------------------------------------------------------------------- the command line

WRONG = [
    ("model=gelu3l", "model=gelu3l is not known; did you mean 'gelu-3l'?"),
    ("model@target=gelu3l", "gelu3l is not known; did you mean 'gelu-3l'?"),
    ("stitch=linaer", "did you mean 'linear'?"),
    ("logger=mlflow", "logger=mlflow is not known; there is: csv, none, tensorboard, wandb"),
    ("model=schema", "model=schema is not known; there is: "),
    ("modl=gelu-3l", "'modl' is not a setting; did you mean 'model'?"),
    ("seeed=1", "'seeed' is not a setting; did you mean 'seed'?"),
    ("stitch.step=3", "'stitch.step' is not a setting; did you mean 'stitch.steps'?"),
    ("pretrain.token=3", "did you mean 'pretrain.tokens'?"),
    ("target.dtyp=float32", "'target.dtyp' is not a setting; did you mean 'target.dtype'?"),
    ("trainer.xyzzy=3", "'trainer.xyzzy' is not a setting"),
    ("model=gpt2,solu-3k", "model=solu-3k is not known; did you mean 'solu-3l'?"),
    ("model@target=gpt3,gpt2", "gpt3 is not known; did you mean 'gpt2'?"),
    ("layers=[[0,", "layers=[[0,"),
]
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


@pytest.mark.parametrize(("word", "message"), WRONG, ids=[word for word, _ in WRONG])
def test_a_misspelt_override_is_refused_with_the_nearest(word, message):
    with pytest.raises(ConfigError) as caught:
        check_overrides(["seed=1", word], TrainConfig)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("word", RIGHT)
def test_a_good_override_passes(word):
    check_overrides([word], TrainConfig)


def test_each_door_has_keys_of_its_own():
    check_overrides(["measure=loss"], AnalyzeConfig)
    with pytest.raises(ConfigError, match="'measure' is not a setting"):
        check_overrides(["measure=loss"], TrainConfig)


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


def test_what_is_relevant_is_neither_neutral_nor_a_default():
    assert relevant(_Outer("a")) == {"name": "a"}
    assert relevant(_Outer("a", _Inner(folder="there"))) == {"name": "a"}
    assert relevant(_Outer("a", _Inner(2.0, [0, 1], "there"))) == {
        "name": "a",
        "inner": {"rate": 2.0, "layers": [0, 1]},
    }


# -------------------------------------------------------------------------------------------------- values of each kind

IMPOSSIBLE = [
    (ModelConfig, {"name": "m", "processing": "row"}, r"model\.processing"),
    (ModelConfig, {"name": "m", "dtype": "float8"}, r"model\.dtype"),
    (ModelConfig, {"name": "local"}, r"model"),
    (DataConfig, {"name": "d", "source": "hubs"}, r"data\.source"),
    (DataConfig, {"name": "d", "source": "text"}, r"data"),
    (DataConfig, {"name": "d", "source": "text", "files": []}, r"data"),
    (DataConfig, {"name": "d", "context": 0}, r"data\.context"),
    (DataConfig, {"name": "d", "fit_tokens": -1}, r"data\.fit_tokens"),
    (DataConfig, {"name": "d", "report_tokens": 0}, r"data\.report_tokens"),
    (DataConfig, {"name": "d", "report_share": 0.0}, r"data\.report_share"),
    (DataConfig, {"name": "d", "report_share": 1.0}, r"data\.report_share"),
    (
        DataConfig,
        {"name": "d", "report_share": float("nan")},
        r"data\.report_share",
    ),
    (StitchConfig, {"kind": "afine"}, r"stitch\.kind"),
    (StitchConfig, {"norm": "prae"}, r"stitch\.norm"),
    (StitchConfig, {"schedule": "step"}, r"stitch\.schedule"),
    (StitchConfig, {"kind": "procrustes", "norm": "pre"}, r"stitch\.norm"),
    (StitchConfig, {"steps": 0}, r"stitch\.steps"),
    (StitchConfig, {"warmup": 2000}, r"stitch\.warmup"),
    (StitchConfig, {"warmup": -1}, r"stitch\.warmup"),
    (StitchConfig, {"lr": 0.0}, r"stitch\.lr"),
    (StitchConfig, {"lr": float("inf")}, r"stitch\.lr"),
    (StitchConfig, {"lr": float("nan")}, r"stitch\.lr"),
    (StitchConfig, {"momentum": 1.0}, r"stitch\.momentum"),
    (StitchConfig, {"tokens_per_step": 0}, r"stitch\.tokens_per_step"),
    (PretrainConfig, {"tokens": -1}, r"pretrain\.tokens"),
    (PretrainConfig, {"tokens_per_step": 0}, r"pretrain\.tokens_per_step"),
    (LoggerConfig, {"kind": "mlflow"}, r"logger\.kind"),
    (TrainConfig, {"task": "stich"}, r"task"),
    (RSAConfig, {"kind": "cka"}, r"measure\.kind"),
    (RSAConfig, {"kind": "los"}, r"measure"),
    (CKAConfig, {"level": "byte"}, r"measure\.level"),
    (CKAConfig, {"estimator": "based"}, r"measure\.estimator"),
    (CKAConfig, {"aggregate": "mean"}, r"measure\.aggregate"),
    (CKAConfig, {"kernel": "rbv"}, r"measure\.kernel"),
    (CKAConfig, {"flatten": "tokens"}, r"measure\.flatten"),
    (CKAConfig, {"batches": 0}, r"measure\.batches"),
    (CKAConfig, {"tokens_per_batch": -1}, r"measure\.tokens_per_batch"),
    (CKAConfig, {"skip_first_tokens": -1}, r"measure\.skip_first_tokens"),
    (RSAConfig, {"distance": "euclid"}, r"measure\.distance"),
    (RSAConfig, {"permutations": -1}, r"measure\.permutations"),
    (MLEMConfig, {"weights": "ful"}, r"measure\.weights"),
    (MLEMConfig, {"difference": "scale"}, r"measure\.difference"),
    (MLEMConfig, {"missing": "dropped"}, r"measure\.missing"),
    (MLEMConfig, {"scale": "max"}, r"measure\.scale"),
    (MLEMConfig, {"together": "words"}, r"measure\.together"),
    (MLEMConfig, {"folds": 1}, r"measure\.folds"),
    (MLEMConfig, {"permutations": 0}, r"measure\.permutations"),
    (MLEMConfig, {"null": -1}, r"measure\.null"),
    (MLEMConfig, {"alphas": [-1.0]}, r"measure\.alphas"),
    (MLEMConfig, {"alphas": []}, r"measure\.alphas"),
    (MLEMConfig, {"interactions": [["a"]]}, r"measure\.interactions"),
    (MLEMConfig, {"interactions": [["a", "a"]]}, r"measure\.interactions"),
    (MLEMConfig, {"interactions": [["a", "b"], ["b", "a"]]}, r"measure\.interactions"),
    (PopulationMeasureConfig, {"side": "fit"}, r"measure\.side"),
    (PopulationMeasureConfig, {"site": "updates"}, r"measure\.site"),
    (PopulationMeasureConfig, {"at_once": 0}, r"measure\.at_once"),
    (StimuliConfig, {"kind": "tables"}, r"stimuli\.kind"),
    (StimuliConfig, {"kind": "conllu"}, r"stimuli"),
    (StimuliConfig, {"kind": "table", "path": "x", "columns": "word"}, r"stimuli\.columns"),
    (StimuliConfig, {"balance": ["Number"]}, r"stimuli\.balance"),
    (PairsConfig, {"source": "file"}, r"pairs\.source"),
    (PairsConfig, {"fit_pairs": 0}, r"pairs\.fit_pairs"),
    (PairsConfig, {"report_pairs": None}, r"pairs\.report_pairs"),
    (NLIConfig, {"lr": 0.0}, r"nli\.lr"),
    (NLIConfig, {"warmup": 1.0}, r"nli\.warmup"),
    (
        PopulationConfig,
        {"members": "feather-bert", "heuristic": [1]},
        r"population\.generalizing",
    ),
    (
        PopulationConfig,
        {"members": "local", "generalizing": ["a", "b"], "heuristic": ["c"]},
        r"population\.heuristic",
    ),
    (PopulationConfig, {"base": "bert-mini", "size": 4, "per_group": 3}, r"per_group"),
    (TrainerConfig, {"num_nodes": 2}, r"trainer\.num_nodes"),
]


@pytest.mark.parametrize(("kind", "values", "message"), IMPOSSIBLE)
def test_an_impossible_value_is_refused_with_its_name(kind, values, message):
    with pytest.raises(ConfigError, match=message):
        kind(**values)


def test_the_smallest_possible_values_are_taken():
    """The positive control of the refusals above."""
    assert StitchConfig(steps=1, warmup=0, momentum=0.0, tokens_per_step=2).steps == 1
    small = {"context": 2, "fit_tokens": 1, "report_tokens": 2, "report_share": 1e-6}
    assert DataConfig(name="d", source="text", files=["a"], **small).report_share == 1e-6
    assert PretrainConfig(tokens=0, tokens_per_step=2).tokens == 0


def test_an_identity_trains_nothing():
    assert (StitchConfig(kind="identity").steps, StitchConfig(kind="identity").warmup) == (0, 0)
    assert composed("stitch=identity").stitch.steps == 0


def test_a_refused_value_on_the_command_line_is_a_config_error():
    with pytest.raises(ConfigError, match=r"stitch\.steps=-1"):
        composed("stitch.steps=-1")


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
    ("door", "words", "message"),
    [
        ("train", ["stitch=linea"], "stitch=linea is not known; did you mean 'linear'?"),
        ("train", ["stitch.stepz=4"], "'stitch.stepz' is not a setting; did you mean 'stitch.steps'?"),
        ("train", ["stitch.steps=abc"], "stitch.steps=abc must be"),
        ("train", ["stitch.lr=${sede}"], "sede"),
        ("train", ["seed=1,2"], "seed=1,2 has several values"),
        ("train", "seed=1", "'seed=1' must be a list of words, one setting each"),
        ("training", [], "door=training is not known; did you mean 'train'?"),
        ("analyze", ["measure=cka", "measure.null=99"], "measure.null=99"),
        ("analyze", ["measure=cka", "stitch.steps=4"], "stitch.steps"),
    ],
)
def test_a_job_of_a_notebook_is_refused_as_the_door_refuses_it(door, words, message):
    with pytest.raises(ConfigError) as caught:
        compose_job(door, words)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


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
