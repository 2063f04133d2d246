"""A folder of configurations may be a stranger's: composing it runs no code, ends soon, and fails in one line."""

import os
import re
from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf

from conftest import every_second
from foreign_files import CALLBACKS, folder_of
from thinkalike import plugins
from thinkalike.config import compose_job
from thinkalike.config.compose import references_in, trust_plugins_of
from thinkalike.config.compose_jobs import compose_inner_job
from thinkalike.config.references import check_references
from thinkalike.errors import ConfigError, PluginError

# ruff: noqa: E501 (a file of configuration is one line)

LOG = "{version: 1, handlers: {h: {(): builtins.open, file: run.log, mode: w}}, root: {handlers: [h]}}"
TOUCH = "{_target_: pathlib.Path.touch, self: run.log}"
JOB = "defaults: [train, _self_]\n"

# files of a folder by name; the job is mine.yaml, and the word is in what is said of it
RUN_CODE = {
    "callbacks": {"mine": f"{JOB}hydra: {{callbacks: {{x: {TOUCH}}}}}"},
    "hydra.run": {"mine": f"{JOB}hydra: {{run: {{dir: made}}}}"},
    "hydra.sweep": {"mine": f"{JOB}hydra: {{sweep: {{dir: made}}}}"},
    "hydra.job_logging": {"mine": f"{JOB}hydra: {{job_logging: {LOG}}}"},
    "hydra.searchpath": {"mine": f"{JOB}hydra: {{searchpath: ['pkg://module_of_mine']}}"},
    "hydra.output_subdir": {"mine": f"{JOB}hydra: {{output_subdir: made}}"},
    "hydra.job": {"mine": f"{JOB}hydra: {{job: {{chdir: true}}}}"},
    "sets hydra.hydra_logging": {
        "mine": "defaults: [train, {override hydra/hydra_logging: log}, _self_]", "hydra/hydra_logging/log": LOG,
    },
    "pairs/touch.yaml sets hydra.callbacks": {"mine": "defaults: [train, {pairs@hydra.callbacks.x: touch}, _self_]", "pairs/touch": TOUCH},
    "own/touch.yaml sets hydra.callbacks": {"mine": "defaults: [train, touch, _self_]", "touch": f"# @package hydra.callbacks.x\n{TOUCH}"},
    "hydra.launcher._target_": {
        "mine": "defaults: [train, {override hydra/launcher: mine}, _self_]",
        "hydra/launcher/mine": "defaults: [joblib, _self_]\n_target_: module_of_mine.Launcher",
    },
    "hydra.launcher.setup": {"mine": f"{JOB}hydra: {{launcher: {{setup: [touch run.log]}}}}"},
    "hydra.launcher.submitit_folder": {"mine": f"{JOB}hydra: {{launcher: {{submitit_folder: '${{store}}'}}}}"},
    "hydra.sweeper.custom_search_space": {"mine": f"{JOB}hydra: {{sweeper: {{custom_search_space: module_of_mine.f}}}}"},
    "hydra.sweeper.sampler._target_": {"mine": f"{JOB}hydra: {{sweeper: {{sampler: {TOUCH}}}}}"},
    "params.hydra.job_logging": {"mine": f"{JOB}hydra: {{sweeper: {{params: {{hydra.job_logging: x}}}}}}"},
    **{
        f"params.{key}": {"mine": f"{JOB}hydra: {{sweeper: {{params: {{'{key}': x}}}}}}"}
        for key in (
            "+hydra.output_subdir", "++hydra.job.env_set.PATH", "~hydra.callbacks", "~~hydra.run.dir", "+~hydra.mode",
            "+hydra/job_logging", "++hydra", "model@hydra.job", "+model@hydra.job", " hydra.verbose", "++ hydra.verbose",
            "a/../hydra/launcher", "\\uff48ydra.verbose", "++stitch.\\u2024lr", "1", "x=1,++hydra.verbose",
        )
    },
    **{
        f"additional_parameters.{key}": {"mine": f"{JOB}hydra: {{launcher: {{additional_parameters: {{{written}: 1}}}}}}"}
        for key, written in {
            "x touch": '"x\\ntouch run.log\\n#"', "x y": "x y", "x=y": '"x=y"', "1": "1", "1.5": "1.5",
            "-x": "-x", "\u00e4": "\u00e4", "x;y": "x;y",
        }.items()
    },
    "sweeper.search_space.++hydra.verbose": {"mine": f"{JOB}hydra: {{sweeper: {{search_space: {{++hydra.verbose: {{low: 1}}}}}}}}"},
    "launcher.x touch run.log": {"mine": f'{JOB}hydra: {{launcher: {{"x\\ntouch run.log": {{y: 1}}}}}}'},
    "params.stitch.kind": {"mine": f"{JOB}hydra: {{sweeper: {{params: {{stitch.kind: 'module_of_mine.py:f'}}}}}}"},
    "names module_of_mine.py:f": {"mine": f"{JOB}stitch: {{kind: 'module_of_mine.py:f'}}"},
    "module_of_mine.py:f, and code": {"mine": f"{JOB}store: module_of_mine.py\nstitch: {{kind: '${{store}}:f'}}"},
    "names ./module_of_mine.py:f": {"mine": "defaults: [analyze, {override measure: './module_of_mine.py:f'}, _self_]"},
}  # fmt: skip

NINE = ", ".join(["*{0}"] * 9)
BOMB = "\n".join(
    f"{name}: &{name} [{NINE.format(before)}]" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
DOUBLED = "\n".join(f"    a{n + 1}: ${{model.device_map.a{n}}}${{.a{n}}}" for n in range(40))
ENDLESS = {
    "100,000 values": {"mine": f"a: &a [1]\n{BOMB}"},
    "without end": {"mine": "a: &a [*a]"},
    "*wram stands for nothing; write &wram before": {"mine": "warmup: &warm 4\nsteps: *wram\n"},
    "it has the anchor &x twice": {"mine": "a: &x 4\nb: &x 5\n"},
    "*later stands for nothing": {"mine": "a: *later\nb: &later 1\n"},
    "own/mine.yaml: ${hydra:job.num} is not read; name a setting": {"mine": f"{JOB}x: '${{hydra:job.num}}'"},
    "nested more than": {"mine": f"a: {'[' * 90_000}"},
    "includes itself": {"mine": "defaults: [mine]"},
    "include each other": {
        **{f"a{n}": f"defaults: [a{n + 1}@x, a{n + 1}@y]" for n in range(30)}, "a30": "z: 1", "mine": "defaults: [a0]",
    },
    "1,000,000 values": {"mine": f"{JOB}model:\n  device_map:\n    a0: some letters\n{DOUBLED}"},
    "more than 262,144 bytes": {"mine": "a: " + "b" * 300_000},
    "counts for 100": {"mine": f"{JOB}store: '{'${' * 100_000}'"},
    "is not read": {"mine": f"{JOB}seed: ${{${{store}}}}"},
}  # fmt: skip


@pytest.mark.parametrize("said", RUN_CODE)
def test_a_configuration_folder_runs_no_code(said, cli):
    entry = "analyze.py" if "analyze" in RUN_CODE[said]["mine"] else "train.py"
    folder_of(cli, RUN_CODE[said])
    before = sorted(os.listdir(cli.folder))
    error = cli(entry, "-cd", "own", "-cn", "mine").error
    assert said in error
    assert sorted(os.listdir(cli.folder)) == before


@pytest.mark.timeout(60)
@pytest.mark.parametrize("said", ENDLESS)
def test_a_configuration_without_end_is_refused(said, cli):
    assert said in folder_of(cli, ENDLESS[said])("train.py", "-cd", "own", "-cn", "mine").error


@pytest.mark.parametrize(
    "text",
    ["a", "- a\n- b", "defaults: {a: 1}", "defaults: [{a: 1, b: 2}]", "# @package a b c\na: 1", "a: [", "hydra: 1"],
)
def test_a_damaged_file_is_one_line(text, cli):
    assert folder_of(cli, {"mine": text})("train.py", "-cd", "own", "-cn", "mine").error


def test_a_results_own_configuration_runs_no_code(cli):
    folder_of(cli, {"config": f"seed: 1\nhydra: {{callbacks: {{x: {TOUCH}}}}}"})
    assert "hydra.callbacks" in cli("train.py", "-cp", f"{cli.folder}/own", "-cn", "config").error
    assert not (cli.folder / "run.log").exists()


def test_what_a_launcher_and_a_sweeper_need_is_taken_of_a_file(cli):
    chosen = "hydra: {sweeper: {params: {stitch.lr: 'choice(0.1,1)', ++stitch.steps: 5}}, launcher: {n_jobs: 2}}"
    text = f"defaults: [train, {{override hydra/launcher: joblib}}, _self_]\n{chosen}\nseed: 4"
    shown = folder_of(cli, {"mine": text})("train.py", "-cd", "own", "-cn", "mine", "--cfg", "all").stdout
    settings = yaml.safe_load(shown)
    assert settings["seed"] == 4
    assert settings["hydra"]["launcher"]["n_jobs"] == 2
    assert settings["hydra"]["sweeper"]["params"] == {"stitch.lr": "choice(0.1,1)", "++stitch.steps": "5"}


def test_what_the_command_line_says_is_taken(cli):
    folder_of(cli, {"mine": f"{JOB}stitch: {{kind: 'module_of_mine.py:f'}}"})
    words = ["-cd", "own", "-cn", "mine", "stitch.kind=module_of_mine.py:f", "hydra.verbose=true", "--cfg", "all"]
    assert yaml.safe_load(cli("train.py", *words).stdout)["hydra"]["verbose"] is True


OTHER_PLUGINS = [
    "stitch.kind=plugins/module_of_mine.py:f",
    "store=/x/module_of_mine.py:f",
    "stitch.kind=./module_of_mine.py:f",
    "stitch.kind=module_of_mine.py:f2",
    "stitch.kind=MODULE_OF_MINE.py:f",
    "model.path='x module_of_mine.py:f'",
    "trainer.callbacks=[x/module_of_mine.py:f,module_of_mine.py]",
    "store=.py:f",
]


@pytest.mark.parametrize("word", every_second(OTHER_PLUGINS))
@pytest.mark.parametrize("setting", ["stitch: {kind", "trainer: {callbacks", "store: 'module_of_mine'\nstitch: {kind"])
def test_a_plugin_of_a_file_runs_only_where_the_command_line_names_the_same_one(word, setting, cli):
    name = "${store}.py:f" if "store" in setting else "module_of_mine.py:f"
    value = f"['{name}']" if "callbacks" in setting else f"'{name}'"
    folder_of(cli, {"mine": f"{JOB}{setting}: {value}}}"})
    assert ", and code of yours" in cli("train.py", "-cd", "own", "-cn", "mine", word, "dry_run=true").error
    assert not (cli.folder / "run.log").exists()


@pytest.mark.parametrize(
    "word",
    [
        "stitch.kind='module_of_mine.py:f'",
        "+trainer.callbacks=[a, module_of_mine.py:f]",
        "stitch={kind: module_of_mine.py:f}",
        "stitch.kind=linear,module_of_mine.py:f",
        "stitch.kind=choice('module_of_mine.py:f', linear)",
    ],
)
def test_the_plugins_of_a_command_line_are_known_in_every_form(word, monkeypatch):
    monkeypatch.setattr(plugins, "TRUSTED", set())
    trust_plugins_of([word])
    assert "module_of_mine.py:f" in plugins.TRUSTED


@pytest.mark.parametrize(
    "word", [CALLBACKS, "stitch.kind=module_of_mine.py:f", "trainer={callbacks: [module_of_mine.py:f]}"]
)
def test_a_job_inside_a_job_runs_what_a_person_named_for_it(word, monkeypatch):
    monkeypatch.setattr(plugins, "TRUSTED", set())
    with pytest.raises(PluginError, match="module_of_mine"):
        compose_inner_job("train", [word])
    trust_plugins_of([f"measure.train=['seed=1','{word}']".replace('"', r"\'") if "'" not in word else word])
    compose_inner_job("train", [word])


@pytest.mark.parametrize(
    "word", ["hydra.searchpath=[pkg://module_of_mine]", "hydra/launcher=joblib", "++hydra.verbose=true"]
)
def test_a_job_inside_a_job_takes_no_setting_of_hydras(word):
    with pytest.raises(ConfigError, match="setting of Hydra's"):
        compose_inner_job("train", [word])


@pytest.mark.parametrize(
    "name", every_second(["module_of_mine:f", "os:getcwd", "thinkalike.plugins:load", "EarlyStopping", "a.py", ":f"])
)
def test_a_callback_is_an_object_of_a_file(name, cli):
    """Of a module it would be imported from the working folder, as Python looks there first."""
    folder_of(cli, {"mine": f"{JOB}trainer: {{callbacks: ['{name}']}}"})
    said = cli("train.py", "-cd", "own", "-cn", "mine").error
    assert f"trainer.callbacks={name} must be FILE.py:NAME" in said
    assert not (cli.folder / "run.log").exists()
    with pytest.raises(PluginError, match=r"FILE\.py:NAME"):
        plugins.load(name)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("train", []),
        ("model/gelu-3l-mini", []),
        ("model/gelu-3l-mini", ["model@target=gelu-3l-mini"]),
        ("stitch/linear", []),
    ],
)
def test_a_file_that_has_the_name_of_one_of_the_package_is_refused(name, words, cli):
    folder_of(cli, {name: "seed: 3"})
    assert f"own/{name}.yaml is never read" in cli("train.py", "-cd", "own", *words, "dry_run=true").error


@pytest.mark.parametrize(
    "name",
    every_second(
        ["stimuli/schema", "model/schema", "model/gpt2", "measure/cka", "task/stitch", "train_schema",
         "logger/wandb", "hydra/job_logging/stdout"]
    ),
)  # fmt: skip
@pytest.mark.parametrize("job", ["train.py", "analyze.py"])
def test_a_file_that_no_job_can_read_is_refused_whatever_the_job_asks_for(name, job, cli):
    folder_of(cli, {name: "seed: 3"})
    assert f"own/{name}.yaml is never read" in cli(job, "-cd", "own", "--cfg", "job").error


@pytest.mark.parametrize("name", ["stimuli/mine", "model/gpt2-tuned", "stitch/schema", "mine/schema"])
def test_a_file_with_a_name_of_its_own_is_no_concern_of_a_job_that_does_not_ask_for_it(name, cli):
    folder_of(cli, {name: "seed: 3"})
    assert cli("train.py", "-cd", "own", "--cfg", "job").status == 0


NAMED_ONLY = {  # settings of a file, and what is said of it
    "model: {name: solu-3l-mini}": "override model: solu-3l-mini in its defaults",
    "model: {name: gelu-3l-mini, dtype: bfloat16}": "override model: gelu-3l-mini in its defaults",
    "target: {name: gpt2-mini}": "override model@target: gpt2-mini in its defaults",
    "data: {name: grammar}": "override data: grammar in its defaults",
    "data: {name: grammar, context: 64}": "override data: grammar in its defaults",
    "model: {name: somebodys}": "model.name=somebodys names what nobody chose; give model=NAME, too",
    "data: {name: my text}": "data.name=my text names what nobody chose; give data=NAME, too",
    "model: solu-3l-mini": "or write override model: solu-3l-mini in its defaults",
    "target: gpt2-mini": "or write override model@target: gpt2-mini in its defaults",
    "stimuli: {name: controlled}": "'stimuli.name' is not a setting; did you mean",
}


@pytest.mark.parametrize("text", every_second(NAMED_ONLY))
def test_the_name_of_an_option_among_the_settings_of_a_file_chooses_nothing(text, cli):
    """Another option's weights and text would be read, and called by this name."""
    begins = ANALYZE.replace("_self_", "{override measure: cka}, _self_")
    folder_of(cli, {"mine": f"{begins}{text}"})
    assert NAMED_ONLY[text] in cli("analyze.py", "-cd", "own", "-cn", "mine", "dry_run=true").error


@pytest.mark.parametrize(
    "text",
    [
        "model: {name: mine, path: /x}",
        "model: {name: gpt2, path: /x}",
        "data: {name: my text, source: text, files: [a.txt]}",
        pytest.param("data: {name: pydoc, source: pydoc}", marks=pytest.mark.ci_slow),
        "target: {name: the same in half precision, dtype: bfloat16}",
    ],
)
def test_a_name_beside_a_place_is_the_name_of_what_is_there(text, cli):
    begins = ANALYZE.replace("_self_", "{override measure: cka}, _self_")
    done = folder_of(cli, {"mine": f"{begins}{text}"})("analyze.py", "-cd", "own", "-cn", "mine", "dry_run=true")
    assert "names" not in done.stderr


@pytest.mark.parametrize("item", ["model: {name: gpt2}", "override model: {name: gpt2}", "override stitch: {rank: 4}"])
def test_settings_inside_of_a_list_of_defaults_are_refused_by_their_group(item, cli):
    folder_of(cli, {"mine": f"defaults: [train, {{{item}}}, _self_]"})
    group = item.removeprefix("override ").partition(":")[0]
    said = cli("train.py", "-cd", "own", "-cn", "mine").error
    assert f"own/mine.yaml: its defaults have settings for {group} in place of the name" in said


@pytest.mark.parametrize(
    ("items", "said"),
    [
        ("{override model: gpt2-mini}, {override model: bert-mini}", "model=gpt2-mini and model=bert-mini; leave one"),
        ("{override model: gpt2-mini}, {override /model: bert-mini}", "model=gpt2-mini and model=bert-mini"),
        ("{override model: gpt2-mini}, {optional model: bert-mini}", "model=gpt2-mini and model=bert-mini"),
        ("{override model@target: gpt2}, {override model@target: bert-mini}", "model@target=gpt2 and model@target=ber"),
        ("{override stitch: affine}, {override stitch: null}", "stitch=affine and stitch=None"),
    ],
)
def test_a_list_of_defaults_chooses_one_option_of_each_group(items, said, cli):
    folder_of(cli, {"mine": f"defaults: [train, {items}, _self_]"})
    assert f"own/mine.yaml: its defaults choose both {said}" in cli("train.py", "-cd", "own", "-cn", "mine").error


@pytest.mark.parametrize(
    ("name", "said"),
    [("3", "3 is not"), ("yes", "true is not"), ("1e3", "1000.0 is not"), ("[a, b]", "['a', 'b'] chooses")],
)
def test_a_name_in_a_list_of_defaults_may_need_quotes(name, said, cli):
    """YAML reads a bare 3 as a number, and Hydra does not say what is to be done about it."""
    folder_of(cli, {"mine": f"defaults: [train, {{override model: {name}}}, _self_]"})
    error = cli("train.py", "-cd", "own", "-cn", "mine").error
    assert f"own/mine.yaml: model={said}" in error
    assert name.startswith("[") or "without quotes it is read as a " in error

    option = "defaults: [schema, _self_]\nname: mine\npath: /x"
    folder_of(cli, {"mine": f"defaults: [train, {{override model: '{name}'}}, _self_]", f"model/{name}": option})
    if not name.startswith("["):
        assert "path: /x" in cli("train.py", "-cd", "own", "-cn", "mine", "--cfg", "job").stdout


def test_a_list_of_defaults_may_choose_one_option_twice_and_another_file_overrules_it(cli):
    both = "{override model: gpt2-mini}, {override model@target: bert-mini}"
    folder_of(cli, {
        "base": f"defaults: [analyze, {both}, {{override model: gpt2-mini}}, _self_]",
        "mine": "defaults: [base, {override model: gelu-3l-mini}, _self_]",
    })  # fmt: skip
    shown = cli("analyze.py", "-cd", "own", "-cn", "mine", "--cfg", "job").stdout
    assert "name: gelu-3l-mini" in shown
    assert "name: bert-mini" in shown


@pytest.mark.parametrize(
    "text", ["model: {path: /x}", "seed: 1", "model: {name: x}\ntarget: {name: y}\ndata: {name: z}"]
)
def test_a_file_without_defaults_leaves_no_folder(text, cli):
    error = folder_of(cli, {"mine": text})("train.py", "-cd", "own", "-cn", "mine").error
    assert "defaults: [train, _self_]" in error
    assert not (cli.folder / "outputs").exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1: 2", "'1' is not a setting"),
        ("model: {1: 2}", "'model.1' is not a setting"),
        ("stitch: {1.5: 2}", "'stitch.1.5' is not a setting"),
        ("trainer: {true: 2}", "'trainer.True' is not a setting"),
        ("stitch: {null: 2}", "key type 'NoneType'"),
        (f"seed: 0x{'f' * 5000}", "integer of 20,000 bits"),
        (f"seed: 1{':59' * 3000}", "is not a decimal number in YAML"),
        (f"stitch: {{steps: 0{'7' * 6000}}}", "is not a decimal number in YAML"),
        (f"model: {{device_map: {{a: [0b{'1' * 20000}]}}}}", "integer of 20,000 bits"),
        (f"model: 0x{'f' * 5000}", "integer of 20,000 bits"),
    ],
)
def test_keys_and_integers_that_no_setting_has_are_refused_in_one_line(text, said, cli):
    assert (
        said in folder_of(cli, {"mine": f"{JOB}{text}"})("train.py", "-cd", "own", "-cn", "mine", "dry_run=true").error
    )


ANALYZE = "defaults: [analyze, _self_]\n"
WRITTEN = """
model: {name: gpt2, revision: 1.10, context: 1e2}
data: {<<: {field: 1e5, split: 2.0}, split: 0x10, source: text, files: [1e3, '2', .5], context: 1_28, group: 1e7}
models: [{model: gpt2, revision: 1_0}, +5]
stimuli: {kinds: {f: [1e3, 2]}, columns: {text: 1.0e0}}
"""
ONE_LINE = {  # what a file says, and what is said of it
    "threads: 010": "010 is not a decimal number in YAML",
    "threads: 0_7": "0_7 is not a decimal number in YAML",
    "threads: 1:30": "1:30 is not a decimal number in YAML",
    "model: {context: 1:30.5}": "1:30.5 is not a decimal number in YAML",
    "seed: ???": "leaves seed to the command line, as ???",
    "data:\n  files: ???": "leaves data.files to the command line, as ???",
    "model: {name: '???'}": "leaves model.name to the command line, as ???",
    'store: "a\\0b"': "store=a b must be a path, which has no character NUL",
    'data: {cache: "a\\0b"}': "data.cache=a b must be a path, which has no character NUL",
    'model: {name: x, path: "\\0"}': "must be a path, which has no character NUL",
    'data: {source: text, files: ["a", "\\0.txt"]}': "must be a path, which has no character NUL",
    'store: "a\\nb"': "store=a b must be a path of printable characters",
    'store: "a\\e[2Jb"': "must be a path of printable characters",
    'store: "\\u2028"': "must be a path of printable characters",
    "a: b: c": "own/mine.yaml: mapping values are not allowed",
    "a: [": "own/mine.yaml: did not find expected node content",
    "a: !!float x": "own/mine.yaml: ",
    "stitch: {null: 2}": "own/mine.yaml: stitch: Incompatible key type 'NoneType'",
    "trainer: !!set {a, b}": "own/mine.yaml: trainer: Value 'set' is not a supported primitive type",
    "data: {name: stdlib, source: pydoc}": "data.source=pydoc is not the text of data=stdlib",
}


@pytest.mark.parametrize("text", every_second(ONE_LINE))
def test_a_value_that_no_setting_has_is_said_with_its_file(text, cli):
    said = folder_of(cli, {"mine": f"{ANALYZE}{text}"})("analyze.py", "-cd", "own", "-cn", "mine").error
    assert ONE_LINE[text] in said
    assert "byte string" not in said
    assert not (cli.folder / "results").exists()


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"mine": f"{ANALYZE}seed: ???\nmodel: {{name: '???'}}"}, ["seed=1", "model=gelu-3l-mini", "model.name=x"]),
        ({"mine": "defaults: [base, _self_]\nthreads: 2", "base": f"{ANALYZE}threads: ???"}, []),
        ({"mine": f"{ANALYZE}data: {{field: '010', group: ''' 1:30'''}}\nthreads: 0\n"}, ["threads=1"]),
    ],
)
def test_a_file_may_leave_a_setting_to_what_is_read_after_it(files, words, cli):
    done = folder_of(cli, files)("analyze.py", "-cd", "own", "-cn", "mine", *words, "--cfg", "job")
    assert done.status == 0, done.stderr


@pytest.mark.ci_slow
def test_what_a_file_sets_and_a_job_does_not_read_is_said(cli):
    begins = "defaults: [analyze, {override model: gelu-3l-mini}, _self_]"
    text = f"{begins}\nseed: 5\nstimuli: {{sample: 5, token: last}}\nlayers: [1]\n"
    folder_of(cli, {"mine": f"{text}threads: 1\ndata: {{sentences: 5, evaluation_tokens: 2048}}\nforce: true"})
    said = cli("analyze.py", "-cd", "own", "-cn", "mine", "dry_run=true").stderr
    assert "own/mine.yaml sets data.sentences, layers, seed, stimuli.sample, which loss does not read" in said
    said = cli("analyze.py", "-cd", "own", "-cn", "mine", "measure=rsa", "dry_run=true").stderr
    assert "own/mine.yaml sets data.evaluation_tokens, data.sentences, layers, which rsa does not read" not in said, (
        "control"
    )
    assert "stimuli.sample" not in said


def test_a_setting_that_is_a_text_is_read_as_a_file_writes_it(cli):
    folder_of(cli, {"mine": f"{ANALYZE}{WRITTEN}", "base": f"{ANALYZE}data: {{name: 1e9}}"})
    shown = cli("analyze.py", "-cd", "own", "-cn", "mine", "data.group=3.0", "--cfg", "job").stdout
    settings = yaml.safe_load(shown)
    model, data, stimuli = (settings[name] for name in ("model", "data", "stimuli"))
    assert (model["revision"], model["context"]) == ("1.10", 100)
    assert (data["field"], data["split"], data["files"]) == ("1e5", "0x10", ["1e3", "2", ".5"])
    assert data["context"] == 128
    assert settings["models"] == [{"model": "gpt2", "revision": "1_0"}, "+5"]
    assert stimuli["kinds"] == {"f": [1000.0, 2]}
    assert stimuli["columns"] == {"text": "1.0e0"}
    folder_of(cli, {"mine": "defaults: [base, {override model: mine}, _self_]\ndata: {name: 3}"})
    folder_of(cli, {"model/mine": "defaults: [schema, _self_]\nname: 1e3\nrevision: 1.50"})
    settings = yaml.safe_load(cli("analyze.py", "-cd", "own", "-cn", "mine", "--cfg", "job").stdout)
    assert (settings["model"]["name"], settings["model"]["revision"]) == ("1e3", "1.50")
    assert settings["data"]["name"] == 3, "the text of a file that another one overrides is not used"


@pytest.mark.parametrize("text", every_second(["no", "yes", "on", "OFF", "True", "TRUE", "false"]))
def test_a_truth_value_is_a_text_where_the_setting_is_one(text, cli):
    """The branch `no` of a repository, for instance, is the word that YAML reads as false."""
    folder_of(cli, {"mine": f"{ANALYZE}store: {text}\nforce: {text}\nmodel: {{name: gpt2, revision: {text}}}"})
    settings = yaml.safe_load(cli("analyze.py", "-cd", "own", "-cn", "mine", "--cfg", "job").stdout)
    assert (settings["store"], settings["model"]["revision"]) == (text, text)
    assert settings["force"] is (text in ("yes", "on", "True", "TRUE"))


OPTION = "defaults: [schema, _self_]\nname: mine\nfamily: gpt2\nhub_id: org/name\nrevision: "
CHOSEN = {  # the words of a command line, and the revisions of both models
    "model=a target.name=x": ("1.10", "1.10"),
    "model=b model@target=a": ("0x1F", "1.10"),
    "model=a target.name=x model.context=64": ("1.10", "1.10"),
    "model=a model@target=b target={context: 64}": ("1.10", "0x1F"),
    "model=a model@target=b model.revision=2": ("2", "0x1F"),
    "model=a model@target=b target={revision: 2.50}": ("1.10", "2.50"),
    "+experiment=e model=a model@target=b": ("1e5", "0x1F"),
}


def composed_with(folder, files, *words):
    """Return the configuration of a job that may choose options in a folder of the user."""
    for name, text in files.items():
        file = folder / f"{name}.yaml"
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    return compose_job("train", [f"hydra.searchpath=[file://{folder}]", *words])


@pytest.mark.parametrize("line", CHOSEN)
def test_an_option_that_is_chosen_keeps_its_texts(line, tmp_path):
    experiment = "# @package _global_\nmodel: {revision: 1e5}\n"
    files = {"model/a": f"{OPTION}1.10", "model/b": f"{OPTION}0x1F", "experiment/e": experiment}
    words = re.split(r" (?=[\w.@+]+=)", line)
    config = composed_with(tmp_path, files, *words)
    assert (config.model.revision, config.target.revision) == CHOSEN[line]


@pytest.mark.parametrize("begin", ["", "\ufeff", "\ufeff\n", "\ufeff\r\n  "])
def test_a_byte_order_mark_hides_no_header(begin, tmp_path):
    files = {"stitch/mine": f"{begin}# @package _global_\nseed: 5\n"}
    assert composed_with(tmp_path, files, "stitch=mine").seed == 5


@pytest.mark.parametrize(
    ("word", "files"),
    [
        ("data.split=train", ["1.10", "2.20"]),
        ("data.files=[3]", ["3"]),
        ("data={files: [3.0, 4]}", ["3.0", "4"]),
        ("data.files.0=3", ["3", "2.20"]),
        ("data.files.1=3.50", ["1.10", "3.50"]),
    ],
)
def test_an_override_replaces_the_texts_that_it_gives_and_no_others(word, files, tmp_path):
    option = "defaults: [schema, _self_]\nname: d\nsource: text\nfiles: [1.10, 2.20]\n"
    config = composed_with(tmp_path, {"data/d": option}, "model=gelu-3l-mini", "data=d", word)
    assert config.data.files == files


def test_a_wrong_value_of_a_chosen_option_is_said_with_its_file(tmp_path):
    files = {"model/a": f"{OPTION}1\ncontext: -4\n"}
    with pytest.raises(ConfigError, match=r"model/a\.yaml: model\.context=-4"):
        composed_with(tmp_path, files, "model=a", "target.name=x")
    with pytest.raises(ConfigError, match=r"^model\.context=-3"):
        composed_with(tmp_path, files, "model=a", "target.name=x", "model.context=-3")


@pytest.mark.ci_slow
@pytest.mark.parametrize("in_file", [False, True])
def test_the_jobs_of_a_sweep_have_texts_as_they_are_written(in_file, cli):
    params = "hydra: {sweeper: {params: {model.revision: '1e5,2.50'}}}"
    folder_of(cli, {"mine": f"{ANALYZE}{params if in_file else ''}"})
    words = ["model=gelu-3l-mini", "dry_run=true"] if in_file else ["model.revision=1e5,2.50", "model=gelu-3l-mini"]
    said = cli("analyze.py", "-cd", "own", "-cn", "mine", *words, "-m").stderr
    assert "model.revision=1e5" in said
    assert "model.revision=2.50" in said
    assert "100000" not in said


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x: " + "1:" * 100_000 + "1", "is not a decimal number in YAML"),
        ("x: !!int '" + "1:" * 100_000 + "1'", "is not a decimal number in YAML"),
        ("\n".join(f"{number * (2**61 - 1)}: 1" for number in range(5_000)), "keys that are numbers or aliases"),
        ("seed: 1\nseed: 2", "it has the key seed twice"),
        ("model: {device_map: {1: a, 1: b}}", "it has the key 1 twice"),
    ],
)
def test_what_readers_of_yaml_cannot_do_soon_or_silently_drop_is_refused(text, said, cli):
    error = folder_of(cli, {"mine": f"{ANALYZE}{text}"})("analyze.py", "-cd", "own", "-cn", "mine").error
    assert said in error
    assert "own/mine.yaml: " in error


IN_VAIN = {  # what a file says, and what is said of it
    "defaults: [_self_, analyze]\nseed: 5": "own/mine.yaml sets seed, and its defaults have a configuration after",
    "defaults: [analyze, {override model: [gelu-3l-mini, solu-3l-mini]}, _self_]": "own/mine.yaml: model=['gelu",
    f"{ANALYZE}measure: 3": "own/mine.yaml: measure=3 must be settings, by their names",
    f"{ANALYZE}measure: {{kind: {{a: 1}}}}": "own/mine.yaml: measure.kind={'a': 1} must be the name of a measure",
    f"{ANALYZE}measure: {{kind: 1e5}}": "measure.kind=100000.0 must be the name of a measure",
    f"{ANALYZE}data: [a]": "own/mine.yaml: data=['a'] must be settings",
    f"{ANALYZE}trainer: null": "own/mine.yaml: trainer=None must be settings",
    f"{ANALYZE}trainer: {{callbacks: {{a: 1}}}}": "own/mine.yaml: trainer.callbacks={'a': 1} must be a list",
    f"{ANALYZE}stimuli: {{columns: [1]}}": "own/mine.yaml: stimuli.columns=[1] must be a valid dictionary",
    f"{ANALYZE}seed: [a]": "own/mine.yaml: seed=['a'] must be a valid integer",
    f"{ANALYZE}data: {{files: 3}}": "own/mine.yaml: data.files=3 must be a valid list",
    f"{ANALYZE}model: {{nmae: 3}}": "own/mine.yaml: 'model.nmae' is not a setting",
}


@pytest.mark.parametrize("text", every_second(IN_VAIN))
def test_what_a_file_says_in_vain_is_refused_with_its_name(text, cli):
    assert IN_VAIN[text] in folder_of(cli, {"mine": text})("analyze.py", "-cd", "own", "-cn", "mine").error


@pytest.mark.parametrize(
    ("models", "said"),
    [
        pytest.param("[{name: gelu-3l-mini}, solu-3l-mini]", "names no model", marks=pytest.mark.ci_slow),
        ("[gelu-3l-mini, {name: solu-3l-mini}]", "names no model"),
        ("[]", "models=[] must be two different models or more"),
    ],
)
def test_each_setting_of_a_list_of_models_is_read(models, said, cli):
    assert said in cli("analyze.py", "measure=cka", f"models={models}", "dry_run=true").error
    allowed = "models=[{model: gelu-3l-mini, context: 64, dtype: bfloat16}, solu-3l-mini]"
    assert cli("analyze.py", "measure=cka", allowed, "dry_run=true").status == 0


def test_settings_of_listed_models_are_those_that_the_measure_of_the_list_reads(cli):
    """That of lineage compares weights, and no states of text."""
    models = "models=[{model: gelu-3l-mini, context: 16}, solu-3l-mini]"
    said = cli("analyze.py", "measure=lineage", models, "dry_run=true").error
    assert "context of gelu-3l-mini has no effect on lineage" in said
    assert cli("analyze.py", "measure=cka", models, "dry_run=true").status == 0, "control"


@pytest.mark.parametrize(("entry", "begins"), [("analyze", "train"), ("train", "analyze")])
def test_a_file_of_the_other_command_is_refused(entry, begins, cli):
    folder_of(cli, {"mine": f"defaults: [{begins}, _self_]"})
    said = cli(f"{entry}.py", "-cd", "own", "-cn", "mine", "dry_run=true").error
    assert f"begins with defaults: [{begins}]; run thinkalike {begins}" in said


@pytest.mark.parametrize("name", ["../nope", "/etc/passwd", "a/../../nope", "nope"])
def test_a_configuration_that_does_not_exist_lists_no_folder(name, cli):
    folder_of(cli, {"mine": f"defaults: [analyze, '{name}', _self_]"})
    for words in (["-cn", name], ["-cd", "own", "-cn", "mine"]):
        said = cli("analyze.py", *words).error
        assert f"no configuration {name.removeprefix('/')}" in said or "Cannot find primary config" in said
        assert "pre-commit" not in said


@pytest.mark.parametrize(
    ("words", "name"), [(["model=hello"], "hello"), (["model=gelu-3l-mini", "model.mini=false"], "gelu-3l-mini"),
                        (["model=gelu-3l-mini", "model@target=hello", "measure=cka"], "hello")],
)  # fmt: skip
def test_a_model_without_a_place_is_not_looked_for_on_the_hub(words, name, cli):
    folder_of(cli, {"model/hello": "defaults: [schema, _self_]\nname: hello"})
    said = cli("analyze.py", "-cd", "own", *words).error
    assert f"model={name} says nowhere where its weights are; give model.path or model.hub_id" in said


def test_only_functions_and_commands_compose_the_words_of_a_person():
    """What a job composes for a job inside it is no such word: it would run the code that a stranger's file names."""
    root = Path(plugins.__file__).parent
    files = root.rglob("*.py")
    users = {file.relative_to(root).as_posix() for file in files if "compose_trusted_job(" in file.read_text()}
    assert users == {"config/__init__.py", "config/compose_jobs.py"}


READ_ENVIRONMENT = {
    "a setting": {"mine": f"{JOB}store: '${{oc.env:SECRET_OF_TEST}}'"},
    "inside a text": {"mine": f"{JOB}store: 'x/${{ oc.env:SECRET_OF_TEST }}'"},
    "with a default": {"mine": f"{JOB}store: '${{oc.env:SECRET_OF_TEST,x}}'"},
    "in single quotes": {"mine": f"{JOB}store: \"${{oc.env:'SECRET_OF_TEST'}}\""},
    "in double quotes": {"mine": f"{JOB}store: '${{oc.env:\"SECRET_OF_TEST\"}}'"},
    "in quotes with spaces": {"mine": f"{JOB}store: \"${{ oc.env : 'SECRET_OF_TEST' , x}}\""},
    "after a setting": {"mine": f"{JOB}store: '${{seed}}/\\\\${{oc.env:SECRET_OF_TEST}}'"},
    "in a list": {"mine": f"{JOB}data: {{source: text, files: ['a', \"${{oc.env:'SECRET_OF_TEST'}}\"]}}"},
    "an option": {
        "mine": "defaults: [train, {override model: hub}, _self_]\nmodel: {hub_id: 'a/${oc.env:SECRET_OF_TEST}'}"
    },
    "a list of defaults": {"mine": "defaults: [train, {override model: 'a/${oc.env:SECRET_OF_TEST}'}, _self_]"},
    "a file beside it": {
        "mine": "defaults: [train, {override stitch: mine}, _self_]",
        "stitch/mine": "defaults: [linear, _self_]\nkind: ${oc.env:SECRET_OF_TEST}",
    },
    "for a job inside": {"mine": f"{JOB}logger: {{kind: '\\${{oc.env:SECRET_OF_TEST}}'}}"},
    "a key": {"mine": f"{JOB}model: {{device_map: {{'${{oc.env:SECRET_OF_TEST}}': 1}}}}"},
}


@pytest.mark.parametrize("how", READ_ENVIRONMENT)
def test_a_file_reads_no_environment_variable_by_itself(how, cli, monkeypatch):
    """It may hold a key, and a setting may go to a logger, to the hub or into a result."""
    monkeypatch.setenv("SECRET_OF_TEST", "hidden-value")
    error = folder_of(cli, READ_ENVIRONMENT[how])("train.py", "-cd", "own", "-cn", "mine", "dry_run=true").error
    assert "reads the environment variable SECRET_OF_TEST" in error
    assert "own/" in error
    assert "hidden-value" not in error


DISGUISED = {  # settings of a file by which a secret might be read; and words of the command line
    "decoded": "store: '${oc.decode:${oc.env:SECRET_OF_TEST}}'",
    "put together and decoded": "store: \"${oc.decode:'${now:$}{oc.e${now:nv}:SECRET_OF_TEST}'}\"",
    "the name of a resolver is computed": "logger: {kind: oc.env}\nstore: '${${logger.kind}:SECRET_OF_TEST}'",
    "half of the name of a resolver is computed": "logger: {kind: env}\nstore: '${oc.${logger.kind}:SECRET_OF_TEST}'",
    "the variable is computed": "logger: {kind: SECRET_OF_TEST}\nstore: '${oc.env:${logger.kind}}'",
    "the variable is computed inside of quotes": "logger: {kind: OF_TEST}\nstore: \"${oc.env:'SECRET_${logger.kind}'}\"",
    "as a default": "store: '${oc.env:NOPE,${oc.env:SECRET_OF_TEST}}'",
    "as the key of a setting": "store: '${model[${oc.env:SECRET_OF_TEST}]}'",
    "in a format of dates": "store: '${now:${oc.env:SECRET_OF_TEST}}'",
    "selected": "store: '${oc.select:nope,${oc.env:SECRET_OF_TEST}}'",
    "created": "store: \"${oc.create:'{a: 1}'}\"",
    "put together from settings": "logger: {project: '{oc.env:SECRET_OF_TEST}'}\nstore: 'a$${logger.project}'",
    "put together from a date": "store: 'a${now:$}{oc.env:SECRET_OF_TEST}'",
    "with backslashes": "store: 'a\\\\\\${oc.env:SECRET_OF_TEST}'",
}


@pytest.mark.parametrize("how", every_second(DISGUISED))
@pytest.mark.parametrize("words", [["--cfg", "job", "--resolve"], ["dry_run=true"]])
def test_no_form_of_a_text_in_a_file_reads_the_environment(how, words, cli, monkeypatch):
    monkeypatch.setenv("SECRET_OF_TEST", "hidden-value")
    run = folder_of(cli, {"mine": f"{JOB}{DISGUISED[how]}"})("train.py", "-cd", "own", "-cn", "mine", *words)
    assert "hidden-value" not in run.stdout + run.stderr
    assert "Traceback" not in run.stderr
    written = [path for path in cli.folder.rglob("*") if "hidden-value" in path.name]
    assert not written


def test_a_file_reads_what_the_command_line_names(cli, monkeypatch):
    monkeypatch.setenv("SEED_OF_TEST", "7")
    folder_of(cli, {"mine": f"{JOB}threads: '${{oc.env:SEED_OF_TEST}}'"})
    words = ["-cd", "own", "-cn", "mine", "seed=${oc.env:SEED_OF_TEST}", "--cfg", "job", "--resolve"]
    settings = yaml.safe_load(cli("train.py", *words, is_literal=True).stdout)
    assert (int(settings["seed"]), int(settings["threads"])) == (7, 7)


def test_a_job_inside_a_job_reads_no_environment_variable():
    """A file may put the word together from parts, none of which reads a variable."""
    for word in (
        "seed=${oc.env:HOME}",
        "seed=${oc.env:'HOME'}",
        "store='${oc.env:\\'HOME\\'}'",
        'store="x/${ oc.env : HOME }"',
        "stitch.lr_multiples=[1,'${oc.env:HOME}']",
        "model.device_map={a:'${oc.env:HOME}'}",
        "model='${oc.env:HOME}'",
        "store=$\\{oc.env:HOME\\}",
    ):
        with pytest.raises(ConfigError, match="no environment variable, such as HOME"):
            compose_inner_job("train", [word])
    for word in (
        "store='${hydra:runtime.cwd}'",
        "store='${oc.decode:x}'",
        "store='${oc.${seed}:HOME}'",
        "model='${oc.decode:${oc.env:HOME}}'",
    ):
        with pytest.raises(ConfigError, match="is not read"):
            compose_inner_job("train", [word])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("no reference", []),
        ("${seed}", [("", "seed")]),
        ("a${ model.name }b${.c}${..d.e}", [("", "model.name"), ("", ".c"), ("", "..d.e")]),
        ("${[model][name]}${model[name]}${.[a].b}", [("", "model.name"), ("", "model.name"), ("", "..a.b")]),
        (r"\${a}\\${b}", [("", "b")]),
        ("${oc.env:'A B'}${oc.env:A,x}${oc.env:\"A\"}", [("oc.env", "A B"), ("oc.env", "A"), ("oc.env", "A")]),
        ("${now:%Y-%m-%d}/${now:%H}", [("now", "%Y-%m-%d"), ("now", "%H")]),
    ],
)
def test_references_are_those_that_omegaconf_reads(text, expected):
    assert [(reference.resolver, reference.name) for reference in references_in(text)] == expected


def letters(settings):
    return len(OmegaConf.to_container(OmegaConf.create(settings), resolve=True)["end"])


DOUBLING = {  # how a0 refers to the setting before it, twice
    "by name": ("${a%d}${a%d}", {}),
    "in brackets": ("${[a%d]}${[a%d]}", {}),
    "relative": ("${.a%d}${.a%d}", {}),
    "through another setting": ("${alias.a%d}${alias.a%d}", {"alias": "${inner}"}),
    "through two": ("${first.a%d}${first.a%d}", {"first": "${second}", "second": "${inner}"}),
    "beside a name with a dot": ("${b.a%d}${b.a%d}", {"b.a7": "x", "b": "${inner}"}),
}


@pytest.mark.parametrize("how", DOUBLING)
@pytest.mark.parametrize("count", [5, 60])
def test_no_form_of_references_doubles_a_text_without_end(how, count):
    form, more = DOUBLING[how]
    doubled = {"a0": "x" * 10}
    for number in range(count):
        doubled[f"a{number + 1}"] = form % (number, number)
    if "inner" in str(more):
        settings = {**more, "inner": doubled, "end": f"${{inner.a{count}}}"}
    else:
        settings = {**doubled, "end": f"${{a{count}}}"}
    if count == 5:
        check_references(settings, references_in)
        assert letters(settings) == 10 * 2**5, "control: these references double a text"
        return
    with pytest.raises(ConfigError, match="stands for more than 1,000,000 values"):
        check_references(settings, references_in)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"a": "${a}"}, "^a stands for itself"),
        ({"a": "${b}", "b": "x${c}", "c": "${a}"}, "^a stands for itself"),
        ({"a": {"b": "${a}"}}, "^a stands for itself"),
        ({"a": "${a.b}"}, "^a stands for itself"),
        ({"a": "${b.x}", "b": "${a.x}"}, "stands for itself"),
        ({"a": "${b}"}, "^a: .* names b, which is not a setting"),
        ({"a": {"b": "${.c}", "d": 1}}, "^a.b: .* names a.c, which is not a setting; did you mean .a.d"),
        ({"seed": 1, "a": ["${sede}"]}, "^a.0: .* did you mean 'seed'"),
        ({"a": "${...b}"}, "^a: .* more dots"),
        ({"a": "${b"}, "^a: .* cannot be read"),
        ({"a": "${b.${c}}", "c": "d"}, "^a: .* is not read"),
        ({"a": "${" * 1_000}, "^a: "),
        ({"a": "${" * 200 + "b" + "}" * 200}, "^a: .* has too many .* inside one another"),
    ],
)
def test_a_reference_to_nothing_or_to_itself_is_said_with_its_key(settings, message):
    with pytest.raises(ConfigError, match=message):
        check_references(settings, references_in)


NAMES_FILE = {  # files; words; the file that the message begins with, and what it says
    "a setting that is not there": (
        {"mine": f"{JOB}data: {{files: '${{nope}}'}}"},
        [],
        "mine",
        "data.files: ${...} names nope",
    ),
    "relative": (
        {"mine": f"{JOB}model: {{path: '${{.nmae}}'}}"},
        [],
        "mine",
        "names model.nmae, which is not a setting; did you mean 'model.name'",
    ),
    "too many dots": ({"mine": f"{JOB}store: '${{..seed}}'"}, [], "mine", "store: ${..seed} has more dots"),
    "itself": ({"mine": f"{JOB}store: '${{store}}'"}, [], "mine", "store stands for itself"),
    "several values": (
        {"mine": "defaults: [train, {stitch: low_rank}]"},
        ["seed=1"],
        "mine",
        "Multiple values for stitch",
    ),
    "includes itself": ({"mine": "defaults: [mine]"}, ["seed=1"], "mine", "includes itself"),
    "in a circle": ({"mine": "defaults: [b]", "b": "defaults: [mine]"}, [], "mine", "includes itself"),
    "an option that is not there": (
        {"mine": "defaults: [train, {override stitch: nope}]"},
        [],
        "mine",
        "stitch=nope is not known",
    ),
    "inside an option": (
        {"stitch/mine": "defaults: [train]"},
        ["stitch=mine"],
        "stitch/mine",
        "stitch=train is not known",
    ),
    "into Hydra's settings": (
        {"mine": "defaults: [train, {stitch@hydra: linear}, _self_]"},
        [],
        "mine",
        "stitch/linear has no settings of Hydra's",
    ),
    "into a job of Hydra's": (
        {"mine": "defaults: [train, {stitch@hydra.job: linear}, _self_]"},
        [],
        "mine",
        "stitch/linear has no settings of Hydra's",
    ),
    "a header of Hydra's": (
        {"mine": f"# @package hydra\n{JOB}"},
        [],
        "mine",
        "train_schema has no settings of Hydra's",
    ),
    "no callbacks": (
        {"mine": "defaults: [train, {override hydra/callbacks: x}]"},
        [],
        "mine",
        "hydra/callbacks=x is not known; there is none",
    ),
    "no defaults, and an override": ({"mine": "seed: 1"}, ["store=x"], "mine", "begins with defaults: [train, _self_]"),
    "no defaults, and an addition": (
        {"mine": "seed: 1"},
        ["+store=x"],
        "mine",
        "begins with defaults: [train, _self_]",
    ),
    "no defaults, and a group": ({"mine": "seed: 1"}, ["model=x"], "mine", "begins with defaults: [train, _self_]"),
    "no defaults, and a second model": (
        {"mine": "model: {name: x}"},
        ["model@target=x"],
        "mine",
        "begins with defaults: [train, _self_]",
    ),
    "no defaults, and a group of Hydra's": (
        {"mine": "seed: 1"},
        ["hydra/callbacks=x"],
        "mine",
        "begins with defaults: [train, _self_]",
    ),
    "a header, and an override": (
        {"mine": f"# @package foo\n{JOB}"},
        ["store=x"],
        "mine",
        "begins with defaults: [train, _self_]",
    ),
    "a header with a dot": (
        {"mine": f"# @package stitch.\n{JOB}"},
        ["seed=1"],
        "mine",
        "begins with defaults: [train, _self_]",
    ),
}


@pytest.mark.parametrize("what", every_second(NAMES_FILE))
def test_an_error_of_composing_names_its_file(what, cli):
    files, words, file, message = NAMES_FILE[what]
    if "mine" in files:
        words = ["-cn", "mine", *words]
    error = folder_of(cli, files)("train.py", "-cd", "own", *words, "dry_run=true").error
    assert f"own/{file}.yaml" in error
    assert message in error


OF_A_LINE = ["stitch=nope", "sede=1", "+stitch=linear", "stitch.steps=x", "seed=${nope}", "hydra/callbacks=x"]


@pytest.mark.parametrize("word", every_second(OF_A_LINE))
def test_an_error_of_an_override_names_no_file(word, cli):
    folder_of(cli, {"mine": f"{JOB}seed: 2", "stitch/other": "defaults: [linear, _self_]"})
    assert "own/mine.yaml" not in cli("train.py", "-cd", "own", "-cn", "mine", word, "dry_run=true").error


def test_a_circle_of_references_ends_no_message(cli):
    """The names that a message suggests were looked up through ${...}."""
    folder_of(cli, {"stitch/mine": "# @package stitch.\ndefaults: [linear]\na: ${stitch}\n"})
    assert "Traceback" not in cli("train.py", "-cd", "own", "stitch=mine", "sede=1").error


@pytest.mark.filterwarnings("error:.*_self_")
@pytest.mark.parametrize("more", ["", ", {override model: gpt2-mini}"])
def test_a_file_comes_after_its_defaults_without_a_warning_of_hydras(more, cli):
    folder_of(cli, {"mine": f"defaults: [train{more}]\nseed: 5\nstore: null"})
    assert "store=null" in cli("train.py", "-cd", "own", "-cn", "mine").error, "it is read, and last"
    assert "seed: 5" in cli("train.py", "-cd", "own", "-cn", "mine", "--cfg", "job").stdout


@pytest.mark.parametrize(
    ("word", "part"), [("model", "model"), pytest.param("model@target", "target", marks=pytest.mark.ci_slow)]
)
def test_an_option_without_the_schema_of_its_group_is_named(word, part, cli):
    folder_of(cli, {"model/mine": "name: gpt2-mini\nmini: true"})
    line = cli("train.py", "-cd", "own", f"{word}=mine", "dry_run=true").error
    assert f"own/model/mine.yaml: {part}.family=None must be a valid string; begin the file with" in line
    folder_of(cli, {"model/mine": "defaults: [schema, _self_]\nname: gpt2-mini\nmini: true"})
    line = cli("train.py", "-cd", "own", f"{word}=mine", "store=null").error
    assert "family" not in line, "control"
