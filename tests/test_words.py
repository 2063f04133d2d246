"""The words of a command line: what is read, what is said of the rest, and what other frameworks call a setting."""

from __future__ import annotations

import dataclasses
import os
import re
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from conftest import ROOT, composed
from thinkalike.config import AnalyzeConfig, DataConfig, ModelConfig, TrainConfig, check_overrides, compose_job
from thinkalike.config.compose import SCHEMAS
from thinkalike.config.doors import sweeps
from thinkalike.config.doors.sweeps import jobs_of_sweep
from thinkalike.config.words import elsewhere
from thinkalike.config.words.plain import in_plain_words, one_line
from thinkalike.config.words.reading import at_home, parse_overrides, quoted, values_of
from thinkalike.errors import ConfigError, ResourceError, nearest

DOORS = {"train.py": TrainConfig, "analyze.py": AnalyzeConfig}

# ------------------------------------------------------------------------------------------------------ the home folder


@pytest.fixture
def home(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")


@pytest.mark.parametrize(
    ("word", "read"),
    [
        ("store=~/x", "/home/me/x"),
        ("store=~", "/home/me"),
        ("store='~/x'", "/home/me/x"),
        ("data.files=[~/a.txt,~/b/*.txt]", ["/home/me/a.txt", "/home/me/b/*.txt"]),
        ("data.files=[a.txt, ~/b.txt]", ["a.txt", "/home/me/b.txt"]),
        ("models=[{model:~/run,revision:main}]", [{"model": "/home/me/run", "revision": "main"}]),
        ("store='a~b'", "a~b"),
        ("store='x/~/y'", "x/~/y"),
        ("model.name='~ is about'", "~ is about"),
    ],
)
def test_a_tilde_is_the_home_folder_where_a_path_may_begin(home, word, read):
    (override,) = parse_overrides(at_home([word]))
    value = override.value()
    assert (values_of(override)[0] if not isinstance(value, list) else value) == read


def test_a_tilde_before_a_key_leaves_it_out():
    assert at_home(["~model.architecture.d_mlp", "~seed"]) == ["~model.architecture.d_mlp", "~seed"]


def test_a_user_has_a_home_and_no_one_has_none():
    assert at_home(["store=~root/x"]) == [f"store={os.path.expanduser('~root')}/x"]
    with pytest.raises(ConfigError, match="~nobodyatall is no one's home folder here"):
        parse_overrides(at_home(["store=~nobodyatall/x"]))


def test_a_tilde_of_a_file_or_of_python_is_the_home_folder_too(home):
    assert ModelConfig(name="x", path="~/run").path == "/home/me/run"
    data = DataConfig(name="x", files=["~/a", "b"], cache="~/c")
    assert (data.files, data.cache) == (["/home/me/a", "b"], "/home/me/c")
    assert compose_job("train", ["store=~/x"]).store == "/home/me/x"


# -------------------------------------------------------------------------------------------------- what cannot be read

UNREADABLE = {
    "": "a word of the command line is empty; write key=value",
    "  ": "is empty",
    "seed==1": "write one = between a setting and its value",
    "seed =1": "'seed ' can be no setting; write key=value without spaces around =",
    "größe=1": "'größe' can be no setting",
    "seed": "it has no value",
    "layers=[[0,0]": "the [ is not closed",
    "layers=[[0,0}": "the [ is not closed",
    "data.files={a": "the { is not closed",
    "layers=[[0,0]]]": "the ] is not opened",
    "seed=range(1": "the ( is not closed",
    "store='it": "the ' is not closed",
    "stitch=лин": """'stitch="лин"'""",
    "data.files=[a/*.txt,größe.txt]": """'data.files=[a/*.txt,"größe.txt"]'""",
    "model.name=it's": "the ' is not closed",
    "layers=(0,0)": """quote a value with spaces, accents or signs: 'layers="(0,0)"'""",
    "seed=cast(x)": "Unknown function 'cast'",
}


@pytest.mark.parametrize("word", UNREADABLE)
def test_what_cannot_be_read_says_why(word):
    with pytest.raises(ConfigError) as caught:
        parse_overrides(["scale=mini", word])
    assert str(caught.value).startswith(f"cannot read '{word}': ")
    assert UNREADABLE[word] in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("word", ["stitch=лин", "data.files=[a,größe b.txt]", "store=naïve path"])
def test_the_quotes_that_are_offered_are_right(word):
    with pytest.raises(ConfigError) as caught:
        parse_overrides([word])
    import shlex

    (better,) = shlex.split(str(caught.value).rpartition(": ")[2])
    value = parse_overrides([better])[0].value()
    assert re.sub(r"['\"]", "", better) == word
    assert value


@pytest.mark.parametrize("value", [None, True, 3, 1e-3, "a b", "it's", "null", "größe", ["a", 1], {"a": "b c"}, "a\\"])
def test_a_value_is_quoted_so_that_it_is_read_again(value):
    (override,) = OverridesParser.create().parse_overrides([f"key={quoted(value)}"])
    assert values_of(override)[0] == value


# ----------------------------------------------------------------------------------------- what Hydra and OmegaConf say

SAID = {
    "seed=abc": "seed=abc must be a whole number",
    "stitch.lr=fast": "stitch.lr=fast must be a number",
    "stitch.rates=[a]": "stitch.rates=[a] must be a list of numbers",
    "stitch.rates={a:1}": "stitch.rates={a:1} must be a list, such as [a,b]",
    "seed=[0]": "seed=[0] must be a whole number",
    "force=perhaps": "force=perhaps must be true or false",
    "seed=null": "seed=null must not be null",
    "store=[a]": "store=[a] must be a word, and not a list or a dictionary",
    "data.files=a.txt": "data.files=a.txt must be a list, such as [a,b]",
    "model.architecture=3": "model.architecture=3 must be of the form {name:value}",
    "+seed=1": "seed is there already: write seed=... without +",
    "+stitch=affine": "stitch is there already: write stitch=... without +",
    "model@other=gpt2": "'model@other' is not known; there is: model, model@target",
    "~model.architecture.nope": "model.architecture.nope is not there",
    "~stitch.steps": "~stitch.steps cannot be left out: every setting has a value",
    "seed=${NOPE}": "seed: ${NOPE} refers to no setting; an environment variable is ${oc.env:NOPE}",
    "seed=${oc.env:NO_SUCH_THING}": "seed: the environment variable NO_SUCH_THING is not set",
    "seed=${env:NOPE}": "seed: ${env:...} is not known; an environment variable is ${oc.env:NAME}",
    "seed=${seed}": "seed refers to itself; give it a value",
    "scale=small": "scale=small is not known; there is: auto, mini, paper",
    "hydra/launcher=submitit_slum": "hydra/launcher=submitit_slum is not known; did you mean 'submitit_slurm'?",
    "hydra/launcher=ray": "hydra/launcher=ray needs a plugin: pip install hydra-ray-launcher",
    "hydra/sweeper=nevergrad": "hydra/sweeper=nevergrad needs a plugin: pip install hydra-nevergrad-sweeper",
}


@pytest.mark.parametrize("word", SAID)
def test_what_libraries_refuse_is_said_in_plain_words(word, monkeypatch):
    monkeypatch.delenv("NOPE", raising=False)
    with pytest.raises(ConfigError) as caught:
        composed(word)
    assert str(caught.value) == SAID[word]


def test_a_reference_that_lacks_a_value_is_one_line():
    with pytest.raises(ConfigError, match=r"^stitch\.steps: \$\{\.\.\.\} takes other values: "):
        composed("stitch.steps=${at_scale:1}")


def test_what_is_not_known_is_said_as_it_is():
    assert in_plain_words("something  else:\n entirely") == "something else: entirely"
    assert in_plain_words("Error merging override a=1: never seen") == "a=1: never seen"


def test_slurm_without_its_plugin_names_the_command():
    from hydra.errors import MissingConfigException

    error = MissingConfigException("...", "hydra/launcher/submitit_slurm", ["basic"])
    assert one_line(error) == "hydra/launcher=slurm needs a plugin: pip install 'thinkalike[slurm]'"


def test_slurm_that_takes_no_jobs_is_one_line(tmp_path):
    def run():
        raise RuntimeError('Could not detect "srun", are you indeed on a slurm cluster?\nmore')

    def other():
        raise RuntimeError("another thing")

    words = ["-m", "hydra/launcher=slurm", f"store={tmp_path}"]
    with pytest.raises(ResourceError, match='SLURM does not take the jobs: Could not detect "srun", are you indeed'):
        sweeps.sweep(run, words, print)
    with pytest.raises(RuntimeError, match="another thing"):
        sweeps.sweep(other, words, print)


# ----------------------------------------------------------------------------------------------- misspelt and misplaced

MISPLACED = {
    "train.py measure=cka": "'measure' is not a setting; analyze.py has it, and this is train.py",
    "train.py experiment=brown2023/figure1": "analyze.py has it",
    "analyze.py task=nli": "train.py has it, and this is analyze.py",
    "analyze.py stitch.lr=1": "train.py has it",
    "train.py chosen=[a]": "'chosen' is not a setting",
    "train.py rates=[1]": "did you mean 'stitch.rates' or 'sae.rates'?",
    "train.py clip=1": "did you mean 'stitch.clip' or 'pretrain.clip' or 'nli.clip'?",
    "train.py target=gpt2": "the second model is named by model@target=gpt2",
    "train.py nli=3": "nli=3 cannot be; nli has settings of its own, such as nli.index=",
    "train.py @target=gpt2": "@target=gpt2 names no setting; write KEY=VALUE, or model@target=NAME",
    "train.py =1": "=1 names no setting",
    "train.py model@target.dtype=float16": "a setting is given as target.dtype=VALUE",
    "train.py ~nothing": "'nothing' is not a setting",
    "train.py family=mini": "'family' is not a setting",
    "train.py model=https://huggingface.co/org/name": "is an address; a model of the hub is named by its repository: "
    "model=org/name",
    "train.py model@target=hf://org/name": "model@target=org/name",
    "train.py model=gpt2@main": "a revision of gpt2 is model=gpt2 model.revision=main",
    "train.py model@target=org/name:v1": "a revision of org/name is model@target=org/name target.revision=v1",
    "train.py model=GPT2": "did you mean 'gpt2'?",
    "analyze.py measure=CKA": "did you mean 'cka'?",
    "analyze.py experiment=figure9": "did you mean 'brown2023/figure9'?",
    "analyze.py experiment=figure2": "there is: brown2023/figure2, salle2024/figure2",
    "train.py seed=1,2": "seed=1,2 has several values; sweep over them with -m",
    "train.py stitch.lr=0,1": "stitch.lr=0,1 has several values; sweep over them with -m",
    "train.py model.revision=a,b": """or quote what is one: model.revision='"a,b"'""",
    "train.py stitch.rates=0.5,2": "or give a list: 'stitch.rates=[0.5,2]'",
    "train.py layers=[0,0],[1,1]": "or give a list: 'layers=[[0,0],[1,1]]'",
    "train.py model=gpt2,solu-3l": "model=gpt2,solu-3l has several values; sweep over them with -m",
}


@pytest.mark.parametrize("line", MISPLACED)
def test_what_is_misplaced_is_refused_with_its_place(line):
    script, *words = line.split(" ")
    with pytest.raises(ConfigError) as caught:
        check_overrides(words, DOORS[script], sweeps=False)
    assert MISPLACED[line] in str(caught.value)


def test_names_are_near_whatever_their_case():
    assert nearest("LINEAR", ["linear", "Affine"]) == "did you mean 'linear'?"
    assert nearest("affin", ["linear", "Affine"]) == "did you mean 'Affine'?"


# ----------------------------------------------------------------------------------------------------- other frameworks

ELSEWHERE = {
    "train.py trainer.max_steps=3": "here it is stitch.steps",
    "train.py trainer.max_epochs=3": "here it is stitch.steps, pretrain.tokens, nli.epochs or sae.tokens, by task",
    "train.py +trainer.accelerator=gpu": "here it is model.device=",
    "train.py trainer.gradient_clip_val=1": "here it is stitch.clip",
    "train.py trainer.log_every_n_steps=1": "here it is trainer.log_every",
    "train.py seed_everything=1": "here it is seed",
    "train.py ckpt_path=last": "none is needed: a job that was interrupted goes on when its command is called again",
    "train.py optimizer.lr=1": "here it is stitch.lr",
    "train.py lr=0.1": "here it is stitch.lr",
    "train.py training_args.learning_rate=1": "here it is stitch.lr",
    "train.py per_device_train_batch_size=8": "here it is stitch.tokens_per_step",
    "train.py report_to=wandb": "here it is logger=",
    "train.py logger.wandb.project=x": "here it is logger.project",
    "train.py wandb.entity=x": "here it is logger.entity",
    "train.py logger.tags=[a]": "none is needed: a result is found by its key and settings",
    "train.py model_name_or_path=gpt2": "here it is model=NAME",
    "train.py per-device-train-batch-size=8": "here it is stitch.tokens_per_step",
    "train.py model.torch_dtype=float16": "here it is model.dtype",
    "analyze.py output_dir=x": "here it is store=DIR",
    "analyze.py trainer.max_steps=3": "in train.py it is stitch.steps",
    "analyze.py batch_size=3": "here it is measure.batches and measure.tokens_per_batch",
    "analyze.py metric=cka": "here it is measure=NAME",
    "analyze.py num_workers=3": "here it is threads=N",
    "analyze.py wandb_project=x": "here it is logger.project",
    "analyze.py model_b=gpt2": "here it is model@target=NAME",
    "analyze.py trainer.acelerator=gpu": "here it is model.device=",
}


@pytest.mark.parametrize("line", ELSEWHERE)
def test_what_other_frameworks_call_a_setting_is_named_as_here(line):
    script, word = line.split(" ")
    with pytest.raises(ConfigError) as caught:
        check_overrides([word], DOORS[script])
    assert f"' is not a setting; {ELSEWHERE[line]}" in str(caught.value)


def test_a_name_that_no_framework_has_is_as_near_as_before():
    assert elsewhere.called_here("model.colour", "train") is None
    with pytest.raises(ConfigError, match=r"did you mean 'stitch\.steps'"):
        check_overrides(["stitch.step=3"], TrainConfig)


def test_the_settings_that_the_tables_name_are_there():
    """Every word with a dot stands in the reference, and every word before an = is a setting of a door."""
    tables = (elsewhere.TRAINING, elsewhere.MEASURING, elsewhere.BOTH)
    text = " ".join(here for table in tables for here in table.values())
    named = set(re.findall(r"\b([a-z]+\.[a-z_]+)\b", text)) - {"hydra.launcher", "launcher.n_jobs", "target.device"}
    assert len(named) > 20
    reference = (ROOT / "docs" / "reference" / "settings.md").read_text()
    assert {name for name in named if f"`{name}`" not in reference} == set()
    roots = {item.name for schema in SCHEMAS.values() for item in dataclasses.fields(schema)}
    assert set(re.findall(r"(?:^|[ :])([a-z]+)=", text)) <= roots


def test_no_name_of_another_framework_is_a_setting_here():
    """It would never be looked up, or be refused although it is right."""
    for table, schema in ((elsewhere.TRAINING, TrainConfig), (elsewhere.MEASURING, AnalyzeConfig)):
        own = {item.name for item in dataclasses.fields(schema)}
        assert {name for names in (table | elsewhere.BOTH) for name in names.split()} & own == set()


# ----------------------------------------------------------------------------------------------- options, sweeps, Hydra

REFUSED = {
    "--seed=3": "unrecognized arguments: --seed=3; settings are given as key=value, without dashes",
    "--cfg nope": "argument --cfg/-c: invalid choice: 'nope'",
    "seed": "cannot read 'seed': it has no value; write key=value",
    "data.context=${model.contxt}": "data.context: ${model.contxt} refers to no setting",
    "data.context=${model.context} seed=-1": "error: seed=-1 must be at least 0",
    "seed=${nope}": "seed: ${nope} refers to no setting; an environment variable is ${oc.env:nope}",
    "stitch.steps=${stitch.warmup} stitch.warmup=${stitch.steps}": "stitch.steps refers to itself; give it a value",
    "hydra/launcher=joblib": "hydra/launcher=joblib is for the jobs of a sweep; add -m, also for a single job",
    "hydra/launcher=slurm seed=1": "hydra/launcher=slurm is for the jobs of a sweep",
    "-m hydra.output_subdir=.hydra seed=1,2": "hydra.output_subdir= of a sweep needs a folder for each of its jobs",
    "hydra.searchpath=[x]": "hydra.searchpath=[x] is said by --config-dir DIR here",
    "hydra.mode=MULTIRUN": "hydra.mode=MULTIRUN is said by -m here",
    "hydra.verbose=3": "hydra.verbose=3 must be true, the name of a logger, or a list of such names",
    "seed=range(5,1,0) -m": "seed=range(5,1,0) stands for no values: range() arg 3 must not be zero",
    "-m seed=range(5,1)": "seed=range(5,1) stands for no values; there would be no job",
    "-m model=glob(nope*)": "model=glob(nope*) stands for no values",
    "-m seed=interval(0,1)": "interval(...) is for sweepers that search: hydra/sweeper=optuna",
}


@pytest.mark.parametrize("line", REFUSED)
def test_what_hydra_would_pass_over_or_say_in_its_own_way_is_one_line(door, line):
    assert REFUSED[line] in door("train.py", *line.split(" ")).error


def test_options_may_stand_between_and_behind_overrides(door):
    shown = door("train.py", "seed=3", "--cfg", "job", "--package", "stitch", "stitch.steps=7", "stitch.warmup=1")
    assert shown.status == 0, shown.stderr
    assert "steps: 7" in shown.stdout
    assert "has several values" not in door("train.py", "seed=-1,-2", "-m", "store=x").stderr


@pytest.mark.parametrize(
    ("words", "count"),
    [
        (["seed=1,2", "stitch.lr=1,2,3"], "6"),
        (["seed=range(5)"], "5"),
        (["model=glob(solu-*-mini)"], "2"),
        (["stitch.lr=interval(0,1)", "seed=1,2"], "?"),
        ([], "1"),
    ],
)
def test_the_jobs_of_a_sweep_are_counted(words, count):
    assert jobs_of_sweep(parse_overrides(words)) == count


def test_hydras_own_record_of_a_job_is_kept_where_it_is_asked_for(door):
    refused = door("train.py", "hydra.output_subdir=.hydra", "stitch.momentum=1", "seed=3")
    assert "stitch.momentum=1.0 must be at least 0" in refused.error, "the record is written before the job begins"
    written = {path.name for path in (door.folder / ".hydra").iterdir()}
    assert written == {"config.yaml", "hydra.yaml", "overrides.yaml"}
    assert "seed: 3" in Path(door.folder, ".hydra", "config.yaml").read_text()
