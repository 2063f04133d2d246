"""Everything in conf/ composes, what does not exist is refused, and so is a setting that the job does not read."""

import contextlib
import dataclasses
import errno
import io
import math
import os
import re
import shlex
import sys

import pandas as pd
import pytest
from antlr4 import ParserRuleContext
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from conftest import composed, core_options, every_second
from stores import made
from thinkalike.cli.job import exit_as_asked
from thinkalike.cli.process import let_output_be_lost, own_process
from thinkalike.config import (
    DataConfig,
    LoggerConfig,
    ModelConfig,
    TrainConfig,
    TrainerConfig,
    compose_job,
    key_settings,
    measure_schema,
    options,
    setting,
)
from thinkalike.config.compose import (
    _LOADED_FILES,
    keys_of,
    parsed_overrides,
    read_overrides,
    with_quoted_paths,
)
from thinkalike.config.compose_jobs import compose_open_job
from thinkalike.config.overrides import check_given_once
from thinkalike.config.scale import chosen_scale
from thinkalike.errors import ConfigError, StoreError, ThinkalikeError
from thinkalike.instruments import refuse_unread_settings
from thinkalike.training.recipe import StitchConfig

pytestmark = pytest.mark.usefixtures("command_line")

NEEDED = {
    "model=local": ["model.path=/tmp", "model@target=gelu-3l-mini", "model.corpus=stdlib"],
    "model=hub": ["model.hub_id=a/b", "model@target=gelu-3l-mini"],
    "data=text": ["data.files=[a.txt]"],
    "data=states": ["data.files=[states]"],
    "data=hub": ["data.hub_id=a/b"],
    "stimuli=table": ["stimuli.path=words"],
    "stimuli=conllu": ["stimuli.path=words"],
}


def of_the_hub(word: str) -> bool:
    """Whether a model is one of the many that have a file of the same sort, for which the others stand."""
    return "-mini" not in word and word not in NEEDED


def several_at_once(*groups: str) -> list[tuple[str, ...]]:
    """Choices of one option of each group, until every option is in one; short groups begin again."""
    choices = [sorted((f"{group}={name}" for name in core_options(group)), key=of_the_hub) for group in groups]
    return [tuple(each[place % len(each)] for each in choices) for place in range(max(map(len, choices)))]


TRAIN = [(words, "train") for words in several_at_once("model", "data", "stitch", "trainer", "logger")]
ANALYZE = [(words, "analyze") for words in several_at_once("measure", "stimuli")]


@pytest.mark.parametrize(
    ("words", "entry"),
    [pytest.param(words, entry, marks=[pytest.mark.ci_slow] if of_the_hub(words[0]) else []) for words, entry in TRAIN]
    + every_second(ANALYZE),
)
def test_every_option_of_every_group_composes(words, entry):
    config = composed(*words, *(more for word in words for more in NEEDED.get(word, [])), entry=entry)
    for word in words:
        group, name = word.split("=")
        chosen = getattr(config, group)
        if group in ("stitch", "logger", "measure", "stimuli"):
            assert chosen.kind == name
        if group in ("model", "data"):
            assert chosen.name == (config.model.corpus if word == "data=auto" else name)
    assert config.model.corpus in options("data")


@pytest.mark.parametrize(
    ("model", "corpus", "entry"),
    [
        ("gelu-3l-mini", "stdlib", "train"),
        ("solu-3l", "c4-code", "train"),
        ("pythia-70m-deduped", "pile-val", "analyze"),
    ],
)
def test_auto_data_is_the_same_as_naming_it(model, corpus, entry):
    auto = composed(f"model={model}", entry=entry)
    assert auto.data.name == corpus
    assert auto == composed(f"model={model}", f"data={corpus}", entry=entry)


@pytest.mark.parametrize(
    ("words", "corpus"),
    [
        ([], "pydoc"),
        (["model@target=gpt2-mini"], "grammar"),
        (["model@target=solu-3l"], "c4-code"),
        (["model.corpus=stdlib", "model@target=gpt2-mini"], "stdlib"),
        (["model@target=local", "target.path=other"], "pydoc"),
    ],
)
def test_a_folder_reads_the_text_of_the_other_model_or_english(words, corpus):
    assert composed("model=local", "model.path=folder", *words).data.name == corpus


def test_a_data_set_of_the_hub_is_named_as_it_is_there():
    name = "roneneldan/TinyStories"
    data = composed(f"data={name}", "data.subset=en", "data.field=story").data
    assert (data.name, data.hub_id, data.subset, data.split, data.field) == (name, name, "en", "train", "story")
    assert data.evaluation_tokens == composed("data=text", "data.files=[a.txt]").data.evaluation_tokens
    with pytest.raises(ConfigError, match=r"data=hub needs data\.hub_id="):
        composed("data=hub")


def test_overrides_of_data_survive_auto():
    own = {"evaluation_share": 0.3, "evaluation_tokens": 4096, "field": "content", "context": 64, "fit_tokens": 999}
    words = [f"data.{key}={value}" for key, value in own.items()]
    named = composed("model=solu-3l", "data=c4-code", *words).data
    assert {key: getattr(named, key) for key in own} == own
    assert composed("model=solu-3l", *words).data == named
    data = composed("model=gpt2", "data.source=text", "data.files=[a.txt]", "data.fit_tokens=null").data
    assert (data.source, data.files, data.fit_tokens) == ("text", ["a.txt"], composed("model=gpt2").data.fit_tokens)


@pytest.mark.parametrize(
    ("words", "scale", "why"),
    [
        (["model=gelu-3l-mini"], "mini", ""),
        (["model=solu-4l-mini", "model@target=gelu-3l-mini"], "mini", ""),
        (["model=solu-4l-mini", "model@target=gpt2"], "paper", "this machine has a GPU"),
        (["model=gpt2", "model@target=solu-4l-mini"], "mini", "this machine has no GPU"),
        (["model=small", "model@target=gelu-3l-mini"], "mini", "these models are small"),
        (["model=small", "model@target=gpt2"], "paper", "this machine has a GPU"),
        (["model=gpt2", "scale=mini"], "mini", ""),
        (["model=gelu-3l-mini", "scale=paper"], "paper", ""),
    ],
)
def test_scale_follows_the_models_and_the_machine(words, scale, why, minis, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: "no GPU" not in why)
    config = composed(*(word.replace("=small", f"={minis}/a") for word in words))
    assert chosen_scale(config.scale, (config.model, config.target)) == (scale, why)
    steps, report = {"mini": (300, 262144), "paper": (2000, 1048576)}[scale]
    assert (config.stitch.steps, config.data.evaluation_tokens) == (steps, report)
    assert config.stitch.warmup == steps // 10


def test_a_key_beats_the_scale():
    assert composed("scale=paper", "stitch.steps=77", "stitch.warmup=7").stitch.steps == 77


REFUSED = {  # lines by what is said of them: the nearest thing that there is, or the key
    "needs target.hub_id=": ["train model@target=hub"],
    "or ORG/NAME": ["train data=stdlb", "train data=Pile10k", "train data=a--b/c"],
    "'gelu-3l'": ["train model=gelu3l", "train model@target=gelu3l"],
    "'linear'": ["train stitch=linaer", "train stitch=Linear"],
    "tensorboard, wandb": ["train logger=mlflow"],
    "or a folder, or ORG/NAME": [
        f"train {word}" for word in ("model=gpt22", "model=https://huggingface.co/org/name", "model@target=a/..b")
    ],
    "'model'": ["train modl=gelu-3l"],
    "'seed'": ["train seeed=1", "train +seeed=1"],
    "'stitch.steps'": ["train stitch.step=3", "train ++stitch.step=3"],
    "'target.dtype'": ["train target.dtyp=float32"],
    "did you mean stitch.lr_multiples": ["train lr_multiples=[1]"],
    "is not a setting": ["train trainer.xyzzy=3", "train foo=1"],
    "hydra.mode=foo is not possible: Invalid value 'foo', expected one of [RUN, MULTIRUN]": ["train hydra.mode=foo"],
    "hydra.job.chdir=foo is not possible: Value 'foo' is not a valid bool": ["analyze hydra.job.chdir=foo"],
    "hydra.output_subdir=[1] is not possible": ["train hydra.output_subdir=[1]"],
    "hydra.hydra_logging=foo is not possible": ["train hydra.hydra_logging=foo"],
    "measure is a setting of analyze": ["train measure=loss", "train 'measure={kind: loss}'"],
    "'stitch.kin' is not a setting; did you mean 'stitch.kind'?": ["train 'stitch={kin: linear}'"],
    "'stimuli.pth' is not a setting; did you mean 'stimuli.path'?": ["analyze 'stimuli={pth: x}'"],
    "brackets inside one another": [
        f"train layers={'[' * 600}{']' * 600}", f"train 'store={'${' * 600}seed{'}' * 600}'",
    ],
    "override_grammar": ["train layers=[[0,"],
    "' ' is a special character; write it in values alone": ["train 'seed =1'"],
    "'#' is a special character; write it in values alone": ["train 'a#b=1'"],
    "--multirun": ["train seed=1,2"],
    "removes a setting, and a job needs all of them": [
        f"train {word}" for word in (
            "~model", "~model=null", "~model@target", "~data", "~stitch", "~stitch=linear", "~trainer", "~task",
            "~seed", "~stitch.lr", "~nonsense",
        )
    ] + ["analyze ~measure", "analyze ~stimuli", "analyze measure=mlem ~stimuli.token"],
    "give data=grammar": ["train data.name=grammar"],
    "names what nobody chose": ["train model.name=somebodys", "analyze data.name=somebodys"],
    "gives no value": ["train store=???", "analyze model.name=???"],
    "'measure.folds' is not a setting": ["analyze measure.folds=5"],
    "'measure.batchs' is not a setting; did you mean 'measure.batches'?": ["analyze measure=cka measure.batchs=5"],
    "measure=ckaa is not known; did you mean 'cka'?": ["analyze measure=ckaa"],
    "measure=asymmetry is not known": ["analyze measure=asymmetry"],
    "stitch is a setting of train": ["analyze measure=cka stitch.steps=4"],
    "sede": ["train stitch.lr=${sede}"],
    "NOPE": ["train seed=${oc.env:NOPE}"],
    "stitch.steps": ["train stitch.steps=abc"],
    "stitch.lr_multiples": ["train stitch.lr_multiples=[0]", "train stitch.lr_multiples=[a]"],
    "seed": ["train seed=abc", "train seed=null", "train seed=${seed}"],
    "force": ["train force=perhaps"],
    "store": ["train store=", "train store=s3://a/b"],
    "model.revision": ["train \"model.revision=''\""],
    "data.files": ["train data.files=a.txt"],
    "target.context": ["train target.context=1"],
    "model.corpus": ["train model.corpus=stdlob"],
    "scale": ["train scale=small"],
    "dry_run": ["train dry_run=-1"],
    "budget": ["train budget=fast", "analyze measure=cka budget=5"],
    "measure.null": ["analyze measure=cka measure.null=99"],
    "measure.batches": ["analyze measure=cka measure.batches=0"],
    "measure.unit": ["analyze measure=cka measure.unit=letter", "analyze measure=jsd measure.unit=word"],
    "measure.conditional_on": ["analyze measure=distance_correlation measure.conditional_on=token"],
    "measure.neighbours": ["analyze measure=jaccard measure.neighbours=255 measure.tokens_per_batch=256"],
}  # fmt: skip


LINES = [(said, line) for said, lines in REFUSED.items() for line in lines]


@pytest.mark.parametrize(("said", "line"), every_second(LINES))
def test_a_line_that_cannot_be_composed_is_one_line_with_the_key(said, line):
    entry, *words = shlex.split(line)
    with pytest.raises(ConfigError) as caught:
        compose_job(entry, words)
    assert said in str(caught.value)
    assert str(caught.value).isprintable()


RECORDED = ["stimuli=table", "stimuli.path=words.csv", "activations=a.npz"]
UNREAD = [  # the key is the first override
    ("analyze", ["model@target=solu-3l-mini", "measure=loss"]),
    ("analyze", ["seed=1", "measure=cka"]),
    ("analyze", ["layers=all", "measure=jsd"]),
    ("analyze", ["activations=a.npz", "measure=loss"]),
    ("analyze", ["stimuli.balance=[PoS]", "measure=rsa"]),
    ("analyze", ["measure.permutations=5", "measure=cka"]),
    ("analyze", ["measure.noise=none", "measure=rsa"]),
    ("analyze", ["measure.batches=3", "measure=cka", *RECORDED]),
    ("train", ["stitch.rank=4", "stitch=linear"]),
    ("train", ["stitch.init=auto", "stitch=bias"]),
    ("train", ["stitch.lr=0.1", "stitch=least_squares"]),
    ("train", ["stitch.momentum=0.5", "stitch.optimizer=adam"]),
    ("train", ["data.sentences=5"]),
    *(("analyze", [f"{setting}=16", "measure=lineage"]) for setting in ("model.context", "target.context")),
    ("analyze", ["model.bos=true", "model=gelu-3l-mini", "measure=lineage"]),
    *(
        ("analyze", ["data.same_split=true", f"measure={kind}", "data=text", "data.files=[x.txt]"])
        for kind in ("loss", "cka", "ruler", "diff")
    ),
    *(("analyze", ["data.fit_tokens=500", f"measure={kind}"]) for kind in ("loss", "cka", "r2", "ruler", "diff")),
    *(
        ("train", [setting, f"stitch={kind}"])
        for kind in ("least_squares", "identity")
        for setting in ("trainer.matmul=high", "trainer.precision=bf16-mixed", "trainer.compile=true")
    ),
]
READ = [
    # The report of a text that the minis have read loses what repeats the rest.
    ("analyze", ["data.same_split=true", "measure=cka", "data=stdlib"]),
    (
        "analyze",
        ["data.same_split=true", "data=text", "data.files=[x.txt]", "measure=diff", "measure.null=continued_training"],
    ),
    ("analyze", ["model.dtype=bfloat16", "measure=lineage"]),
    ("analyze", ["data.fit_tokens=500", "measure=diff", "measure.null=continued_training"]),
    ("train", ["trainer.matmul=high", "stitch=linear"]),
    ("train", ["trainer.memory=8GB", "stitch=least_squares"]),
    ("analyze", ["measure.permutations=5", "measure=cka", "measure.null=true"]),
    ("analyze", ["model@target=gpt2", "measure=cka", *RECORDED]),
    ("train", ["stitch.rank=4", "stitch=low_rank", "stitch.lr=0.1", "stitch.controls=true", "stitch.ridge=1"]),
    ("train", ["stitch.init=auto", "stitch=low_rank"]),
    # What holds anyway is no error.
    ("train", ["trainer.matmul=highest", "stitch=least_squares"]),
    ("analyze", ["measure.resamples=1000", "measure=rsa"]),
    ("analyze", ["layers=same", "measure=cka", *RECORDED]),
    ("train", ["hydra.run.dir=.", "threads=2", "trainer.log_every=3", "logger=none"]),
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
    ("analyze", ["recipe=paper", "measure=rsa"]),
    ("analyze", ["scale=paper", "measure=rsa"]),
    ("analyze", ["scale=paper", "measure=distance"]),
    ("analyze", ["scale=paper", "measure=r2"]),
    ("analyze", ["model.corpus=pydoc", "data=stdlib"]),
    ("train", ["target.corpus=pydoc", "data=pydoc"]),
    ("train", ["model.corpus=null", "data.source=pydoc", "data.name=x"]),
    ("analyze", ["logger.project=x"]),
    ("train", ["logger.group=x", "logger=none"]),
    ("train", ["logger.entity=x", "logger=tensorboard"]),
]
WITH_EFFECT = [
    ("analyze", ["scale=paper", "measure=cka"]),
    ("analyze", ["scale=mini"]),
    ("analyze", ["scale=mini", "measure=rsa"]),  # as it is anyway
    ("analyze", ["recipe=default", "measure=rsa"]),
    ("analyze", ["recipe=paper", "measure=mlem"]),
    ("train", ["recipe=paper"]),
    ("train", ["scale=paper", "stitch.warmup=150"]),  # of one scale alone
    ("analyze", ["model.corpus=pydoc"]),
    ("analyze", ["logger.project=x", "logger=wandb"]),
]


@pytest.mark.parametrize(("entry", "words"), WITHOUT_EFFECT)
def test_a_setting_without_effect_beside_the_others_is_refused(entry, words):
    """Of the configuration that a command line leaves open, as `scale` and `recipe` decide what is left open."""
    with pytest.raises(ConfigError, match=re.escape(f"{words[0].partition('=')[0].lstrip('+')}=")):
        refuse_unread_settings(keys_of(words), compose_open_job(entry, words))


@pytest.mark.parametrize(("entry", "words"), WITH_EFFECT)
def test_a_setting_with_effect_beside_the_others_passes(entry, words):
    refuse_unread_settings(keys_of(words), compose_open_job(entry, words))


@pytest.mark.parametrize("source", ["pydoc", "stdlib", "grammar"])
def test_a_source_that_is_chosen_is_the_name_of_the_text(source):
    assert composed("model=gelu-3l-mini", f"data.source={source}", entry="analyze").data.name == source


@dataclasses.dataclass
class _Inner:
    rate: float = 1.0
    layers: list = dataclasses.field(default_factory=lambda: [0])
    folder: str = setting("here", in_key=False)


@dataclasses.dataclass
class _Outer:
    name: str
    inner: _Inner = dataclasses.field(default_factory=_Inner)


def test_what_enters_a_key_is_no_default_and_can_change_numbers():
    assert key_settings(_Outer("a")) == {"name": "a"}
    assert key_settings(_Outer("a", _Inner(folder="there"))) == {"name": "a"}
    changed = {"rate": 2.0, "layers": [0, 1]}
    assert key_settings(_Outer("a", _Inner(**changed, folder="there"))) == {"name": "a", "inner": changed}


IMPOSSIBLE = [  # by the key that the message names; test_ranges.py has the ranges of all numbers
    ("model.dtype", ModelConfig, {"name": "m", "dtype": "float8"}),
    ("model.hub_id", ModelConfig, {"name": "m", "hub_id": "a/b/c"}),
    ("model.path", ModelConfig, {"name": "local"}),
    ("data.files", DataConfig, {"name": "d", "source": "text", "files": []}),
    ("stitch.kind", StitchConfig, {"kind": "afine"}),
    ("stitch.optimizer", StitchConfig, {"optimizer": "lion"}),
    ("stitch.norm", StitchConfig, {"kind": "procrustes", "norm": "pre"}),
    ("stitch.steps", StitchConfig, {"steps": 0}),
    ("stitch.warmup", StitchConfig, {"warmup": 2000}),
    ("stitch.init", StitchConfig, {"norm": "pre", "init": "procrustes"}),
    ("logger.kind", LoggerConfig, {"kind": "mlflow"}),
    ("measure.kernel", measure_schema("cka"), {"kernel": "rbv"}),
    ("measure.distance", measure_schema("rsa"), {"distance": "euclid"}),
    ("trainer.num_nodes", TrainerConfig, {"num_nodes": 2}),
]


@pytest.mark.parametrize(("key", "schema", "values"), IMPOSSIBLE)
def test_an_impossible_value_is_refused_by_its_key(key, schema, values):
    with pytest.raises(ConfigError, match=key):
        schema(**values)


def test_the_smallest_possible_values_are_taken():
    """The positive control of the refusals above."""
    assert StitchConfig(steps=1, warmup=0, momentum=0.0, tokens_per_step=2).steps == 1
    small = {"context": 2, "fit_tokens": 1, "evaluation_tokens": 2, "evaluation_share": 1e-6}
    assert DataConfig(name="d", source="text", files=["a"], **small).evaluation_share == 1e-6


def test_an_identity_trains_nothing():
    assert (StitchConfig(kind="identity").steps, StitchConfig(kind="identity").warmup) == (0, 0)
    assert composed("stitch=identity").stitch.steps == 0


def test_a_user_error_is_one_line_and_exit_status_1(capsys, monkeypatch):
    with pytest.raises(SystemExit) as caught, own_process():
        raise ThinkalikeError("first\nsecond")
    assert caught.value.code == 1
    assert capsys.readouterr().err == "error: first second\n"
    monkeypatch.setenv("THINKALIKE_TRACEBACK", "1")
    with pytest.raises(ThinkalikeError), own_process():
        raise ThinkalikeError("asked for")


@pytest.mark.parametrize(
    ("value", "is_printed"),
    [("1", True), ("true", True), ("0", False), ("", False), ("False", False), ("off", False), (" no ", False)],
)
def test_a_traceback_is_printed_where_the_environment_switches_it_on(value, is_printed, monkeypatch):
    monkeypatch.setenv("THINKALIKE_TRACEBACK", value)
    expected = ThinkalikeError if is_printed else SystemExit
    with pytest.raises(expected), own_process():
        raise ThinkalikeError("one line")


@contextlib.contextmanager
def stdout_that_fails(number, of, file):
    """Print to a file that raises an error of the system when it is written, or flushed."""

    class Failing(io.TextIOWrapper):
        def reconfigure(self, **_):
            """Leave the file as it is, without the flush that the usual one does."""

    def fail(*_):
        raise OSError(number, os.strerror(number))

    with file.open("wb") as opened, pytest.MonkeyPatch.context() as patched:
        patched.setattr(Failing, of, fail)
        patched.setattr(sys, "stdout", Failing(opened))
        yield


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EFBIG, errno.EIO])
@pytest.mark.parametrize("of", ["write", "flush"])
def test_output_that_is_cut_off_is_an_error(number, of, capsys, tmp_path):
    line = f"error: the output cannot be written as a whole: {os.strerror(number)}; write it to another place\n"
    for end in (bool, sys.exit):  # --help ends by sys.exit()
        with stdout_that_fails(number, of, tmp_path / "out"):
            assert status_of_printing(end) == 1
            assert capsys.readouterr().err == line


def status_of_printing(end):
    """Return the exit status of a process that prints and then ends by a function."""
    with pytest.raises(SystemExit) as caught, own_process():  # noqa: PT012
        print("a product")
        end()
    return caught.value.code


@pytest.mark.parametrize("of", ["write", "flush"])
def test_output_may_be_cut_off_if_the_result_is_kept_or_the_reader_has_seen_enough(of, capsys, tmp_path):
    with stdout_that_fails(errno.ENOSPC, of, tmp_path / "out"), own_process(), own_process():
        let_output_be_lost()
        print("where the result is")
    with stdout_that_fails(errno.EPIPE, of, tmp_path / "out"), own_process():
        print("more than the reader wants")
    with stdout_that_fails(errno.ENOSPC, of, tmp_path / "out"):
        assert status_of_printing(lambda: sys.exit(3)) == 3, "a status that says something stays"
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("status", [math.nan, math.inf, -math.inf, 300.0, -1.0, 2.7, 1e300, 126.0, 255.0, 0.5])
def test_a_result_asks_for_no_status_that_programs_lack(status):
    """It may come from anywhere, and the same job ends with the status that it asks for."""
    with pytest.raises(StoreError, match=r"asks for the exit status .*, which no job of this program has; do the job"):
        exit_as_asked(made(pd.DataFrame(), {"exit_status": status}))


@pytest.mark.parametrize(("scalars", "status"), [({"exit_status": 1.0}, 1), ({"exit_status": 2.0}, 2)])
def test_a_result_decides_the_exit_status(scalars, status):
    with pytest.raises(SystemExit) as ended:
        exit_as_asked(made(pd.DataFrame(), scalars))
    assert ended.value.code == status
    for more in ({"exit_status": 0.0}, {"mean": 3.0}):
        exit_as_asked(made(pd.DataFrame(), more))


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


def test_a_target_runs_as_the_source_but_is_itself():
    words = ["model=pythia-70m-deduped", "model.revision=step1000", "model.dtype=bfloat16", "model.corpus=pydoc"]
    target = composed(*words, "model@target=pythia-160m-deduped").target
    assert (target.revision, target.dtype, target.corpus) == (None, "bfloat16", "pile-val")
    assert composed(*words, "model@target=pythia-160m-deduped", "target.dtype=float32").target.dtype == "float32"


def test_a_target_is_read_at_the_heads_of_the_source():
    """A target that was named was read at all heads together, and the source at each of them."""
    words = ["measure=cka", "model=gpt2-mini", "model.site=z", "model.head=all"]
    for named in ([], ["model@target=gpt2-mini-s1"]):
        target = composed(*words, *named, entry="analyze").target
        assert (target.site, target.head) == ("z", "all")
        target = composed(*words, *named, "target.head=2", entry="analyze").target
        assert (target.site, target.head) == ("z", 2)
        target = composed(*words, *named, "target.site=mlp_out", entry="analyze").target
        assert (target.site, target.head) == ("mlp_out", None), "which has no heads"


@pytest.mark.parametrize("written", ["1_000", "1e5", "3.10", ".5", "1000", "+7"])
def test_a_text_keeps_what_a_command_line_says_of_it(written):
    """Hydra reads numbers, of which 3.10 would be the revision 3.1; a number stays a number."""
    words = ["model=gpt2", f"model.revision={written}", f"target={{revision: {written}}}", "seed=1_0"]
    config = composed(*words, "data=text", f"data.files=[{written},a]")
    assert (config.model.revision, config.target.revision, config.seed) == (written, written, 10)
    assert config.data.files == [written, "a"]
    listed = composed(f"models=[{{model: gpt2, revision: {written}, context: 1e3}}, {written}]", entry="analyze")
    first, second = listed.models
    assert (str(first["revision"]), first["context"], second) == (written, 1000, written)


def test_a_folder_as_the_target_keeps_what_is_its_own():
    words = ["model=local", "model.path=/tmp", "model.side=encoder"]
    assert composed(*words).target.side == "encoder"
    assert composed(*words, "target.path=/var").target.side is None
    with pytest.raises(ConfigError, match=r"needs target\.path="):
        composed("model=gelu-3l-mini", "model@target=local")


NAMES_OF_PATHS = [
    "epoch=0-step=500.ckpt",
    "it's = here",
    "notes [v2] (1)",
    "a{b}",
    "a\\b=c",
    "a=\\",
    "a=\\'",
    "plain",
    "run ",
    " run",
    "run\t",
    "a,b",
    "a\\ b",
    "a\\,b",
    "\\'a",
]


@pytest.mark.parametrize("name", NAMES_OF_PATHS)
def test_a_path_that_is_there_is_meant_by_its_name(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).mkdir()
    for path in (name, f"./{name}"):
        (override,) = OverridesParser.create().parse_overrides(with_quoted_paths([f"model@target={path}"]))
        assert override.value() == path
    assert with_quoted_paths(["model=no=such", "data=grammar", "layers=[1,2]"])[0] == "model=no=such", (
        "no path is there"
    )


def test_what_is_no_bare_name_is_meant_as_hydra_reads_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["data.files=[a]", "seed=1", "layers=null", "model='./a'", "data.clean=true"]
    for word in words:
        (tmp_path / word.partition("=")[2]).mkdir(parents=True)
    assert with_quoted_paths(words) == words


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("store=~/x", """'~' is a special character; quote the value: "store='~/x'\""""),
        ("stimuli.path=~/w.csv", """'~' is a special character; quote the value: "stimuli.path='~/w.csv'\""""),
        ("store=größe", """'ö' is a special character; quote the value: "store='größe'\""""),
        ("store=a;b", """';' is a special character; quote the value: "store='a;b'\""""),
        ("data.files=[~/a.txt,b,é]", """quote the value: "data.files=['~/a.txt',b,'é']\""""),
        ("data.files=[a(1).txt]", """input '[a(1).'; quote the value: "data.files=['a(1).txt']\""""),
        ("data={files: [a&b], name: c}", """quote the value: "data={files: ['a&b'], name: c}\""""),
        ("store=(x)", """extraneous input '('; quote the value: "store='(x)'\""""),
        ("store=choice(~/a,b)", """quote the value: "store=choice('~/a',b)\""""),
        ("store=!x", """quote the value: 'store="!x"'"""),
        ("store=a\\~", """quote the value: 'store='"'"'a\\~'"'"''"""),
    ],
)
def test_a_value_that_hydra_cannot_read_is_quoted_in_the_remedy(word, said):
    with pytest.raises(ConfigError, match=re.escape(said) + "$") as caught:
        compose_job("train", [word])
    assert "hydra.cc" not in str(caught.value)
    assert "Exception" not in str(caught.value)
    (remedy,) = shlex.split(str(caught.value).rpartition("the value: ")[2])
    assert read_overrides([remedy]), "a shell and Hydra read what the remedy says"


def test_a_path_that_is_not_utf_8_is_refused_as_such():
    with pytest.raises(ConfigError, match="must be text in UTF-8"):
        ModelConfig(name="local", path=os.fsdecode(b"./gr\xf6\xdfe"))


def test_an_integer_that_python_cannot_print_is_refused_in_one_line():
    with pytest.raises(ConfigError, match="seed=an integer of thousands of digits"):
        TrainConfig(seed=1 << 20_000)


WRONG_ENTRIES = {
    "layers=[[0,0],[1,x]]": "layers=x must be a valid integer, at layers[1][1]",
    "layers=[[0,0],[1,1.0]]": "layers=1.0 must be a valid integer, at layers[1][1]",
    "layers=[[0,0],[1,true]]": "layers=True must be a valid integer, at layers[1][1]",
    "layers=[[0,0],[1,null]]": "layers=None must be a valid integer, at layers[1][1]",
    "layers=[[0,0],[1]]": "layers=[1] must have at least 2 items, not 1, at layers[1]",
    "layers=[[0,0],[1,2,3]]": "layers=[1, 2, 3] must have at most 2 items, not 3, at layers[1]",
    "layers=[[0,0],5]": "layers=5 must be a valid list, at layers[1]",
    "layers=[0,x]": "layers=x must be a valid integer, at layers[1]",
    "layers=[0,true]": "layers=[0, True] must have a number, and not true or false, at [1]",
    "data.files=[a,[b]]": "data.files=['b'] must be a valid string, at data.files[1]",
    "stitch.lr_multiples=[1,x]": "stitch.lr_multiples=x must be a valid number, at stitch.lr_multiples[1]",
    "trainer.callbacks=[[b]]": "trainer.callbacks=['b'] must be a valid string, at trainer.callbacks[0]",
}


@pytest.mark.parametrize("word", WRONG_ENTRIES)
def test_of_a_list_the_wrong_entry_is_named(word):
    with pytest.raises(ConfigError) as caught:
        compose_job("train", [word])
    assert str(caught.value) == WRONG_ENTRIES[word]


@pytest.mark.parametrize(
    "line",
    [
        "stitch={lr:0.5} stitch={steps:9}",
        "stitch=affine stitch={lr:0.5}",
        "stitch={lr:0.5} stitch=affine",
        "stitch={} stitch={lr:1}",
        "model.device_map={a:0} model.device_map={b:0}",
        "model@target={dtype:a} target={context:64}",
    ],
)
def test_mappings_give_the_settings_inside(line):
    check_given_once(read_overrides(line.split()))


def test_what_is_no_number_and_given_once_is_not_given_twice():
    check_given_once(read_overrides(["measure.tokens_per_batch=nan"]))
    with pytest.raises(ConfigError, match="give one setting twice"):
        check_given_once(read_overrides(["seed=nan", "seed=1"]))


@pytest.mark.parametrize(
    "line",
    [
        "stitch={lr:0.5} stitch.lr=0.6",
        "stitch={lr:0.5} +stitch={lr:0.7}",
        "stitch=affine stitch=low_rank",
        "model.device_map=auto model.device_map={a:0}",
        "model={device_map:{a:0}} model.device_map=auto",
        "seed=1 seed={a:1}",
    ],
)
def test_one_setting_given_twice_is_refused(line):
    first, second = line.split()
    with pytest.raises(ConfigError) as caught:
        check_given_once(read_overrides([first, second]))
    assert str(caught.value) == f"{first} and {second} give one setting twice; leave one of them out"


def test_files_of_the_package_are_read_once_and_composed_anew(monkeypatch):
    """Reading them took a quarter of the time of composing, and Hydra changes what it composes."""
    default = compose_job("train", ["model=gpt2-mini"])
    read, load = [], OmegaConf.load
    monkeypatch.setattr(OmegaConf, "load", lambda file: read.append(file) or load(file))
    changed = compose_job("train", ["model=gpt2-mini", "stitch.lr=0.25", "model.context=32"])
    assert (changed.stitch.lr, changed.model.context) == (0.25, 32)
    assert compose_job("train", ["model=gpt2-mini"]) == default
    assert read == []
    _LOADED_FILES.clear()
    compose_job("train", ["model=gpt2-mini"])
    assert read, "control"


def test_an_override_is_parsed_once_and_in_time_that_grows_with_its_length(monkeypatch):
    parsed = []
    visited = []
    parse_rule = OverridesParser.parse_rule
    get_child = ParserRuleContext.getChildren

    def counted(self, text, rule):
        parsed.append(text)
        return parse_rule(self, text, rule)

    def counted_children(self, predicate=None):
        for child in get_child(self, predicate):
            visited.append(child)
            yield child

    monkeypatch.setattr(OverridesParser, "parse_rule", counted)
    monkeypatch.setattr(ParserRuleContext, "getChildren", counted_children)
    files = [f"part-{number}-of-this-test.txt" for number in range(200)]
    word = f"data.files=[{','.join(files)}]"
    config = compose_job("train", ["model=gelu-3l-mini", "data=text", word])
    assert config.data.files == files
    assert parsed.count(word) == 1
    assert len(visited) < 100 * len(files), "each element is not looked for from the beginning"


def test_what_is_done_to_an_override_changes_no_later_reading_of_it():
    word = "data.files=[1.10,{a: b}]"
    first = parsed_overrides([word])[0]
    first._value.clear()
    assert [str(entry) for entry in parsed_overrides([word])[0].value()] == ["1.10", "{'a': 'b'}"]
