"""Configuration files that choose jobs of contrib: they run no code of theirs, and an experiment is one of a paper."""

import pytest

from foreign_files import CALLBACKS, folder_of

TRAJECTORY = "defaults: [analyze, {override measure: trajectory}, _self_]\nmodel: {name: gelu-3l-mini}\nmeasure"


POPULATION = "defaults: [analyze, {override measure: population}, {override population: bert-mini}, _self_]\npopulation"


INSIDE = {  # settings that are the overrides of a job inside the job
    "options": f"{POPULATION}: {{options: ['pairs.fit_pairs=64', '{CALLBACKS}']}}",
    "parent_options": f"{POPULATION}: {{parent_options: ['{CALLBACKS}']}}",
    "parents": f"{POPULATION}: {{parents: {{a: ['{CALLBACKS}'], b: []}}}}",
    "train": f"{TRAJECTORY}: {{train: ['pretrain.tokens=4096', '{CALLBACKS}']}}",
    "a dictionary": f"{TRAJECTORY}: {{train: ['trainer={{callbacks: [module_of_mine.py:f]}}']}}",
    "of the environment": f"{TRAJECTORY}: {{train: ['trainer.callbacks=[${{oc.env:PLUGIN_OF_TEST}}]']}}",
}


@pytest.mark.parametrize("setting", INSIDE)
def test_the_overrides_of_a_job_inside_a_job_are_no_words_of_a_person(setting, cli, monkeypatch):
    monkeypatch.setenv("PLUGIN_OF_TEST", "module_of_mine.py:f")
    folder_of(cli, {"mine": INSIDE[setting]})
    said = "names module_of_mine.py:f, and code"
    if setting == "of the environment":
        said = "reads the environment variable PLUGIN_OF_TEST"
    assert said in cli("analyze.py", "-cd", "own", "-cn", "mine").error
    assert not (cli.folder / "run.log").exists()


@pytest.mark.ci_slow
def test_an_experiment_of_a_file_is_no_experiment_of_a_paper(cli):
    for name in ("mine", "brown2023/mine", "a/b"):
        folder_of(cli, {f"experiment/{name}": f"# @package _global_\nexperiment: {name}"})
        assert f"experiment={name} is not known" in cli("analyze.py", "-cd", "own", f"experiment={name}").error


@pytest.mark.parametrize(
    ("models", "said"),
    [
        ("[{model: gelu-3l-mini, pretrain_lr: 9}, solu-3l-mini]", "pretrain_lr of gelu-3l-mini has no effect on cka"),
        ("[gelu-3l-mini, {model: solu-3l-mini, cls_sep: true}]", "cls_sep of solu-3l-mini has no effect on cka"),
    ],
)
def test_each_setting_of_a_list_of_models_is_read(models, said, cli):
    assert said in cli("analyze.py", "measure=cka", f"models={models}", "dry_run=true").error


POPULATIONS = "defaults: [analyze, {override measure: population}, _self_]\n"


def test_the_name_of_a_population_chooses_none_either(cli):
    folder_of(cli, {"mine": f"{POPULATIONS}population: {{name: feather-berts}}"})
    said = cli("analyze.py", "-cd", "own", "-cn", "mine", "dry_run=true").error
    assert "override population: feather-berts in its defaults" in said


@pytest.mark.parametrize("name", ["population/local", "task/nli", "experiment/brown2023/figure1", "contrib_train"])
def test_a_file_with_the_name_of_one_of_contrib_is_refused(name, cli):
    folder_of(cli, {name: "seed: 3"})
    assert f"own/{name}.yaml is never read" in cli("analyze.py", "-cd", "own", "--cfg", "job").error


def test_a_number_is_no_experiment(cli):
    assert "experiment=1 is not the name of an option" in cli("analyze.py", "experiment=1").error
