"""The functions of the package give the tables of contrib's commands, and say what is a command alone."""

import numpy as np
import pytest

import thinkalike
from conftest import with_ci_slow
from function_calls import FRAME, PAIR, SETTINGS, _own_cache, check_table_of_command, files  # noqa: F401 (fixtures)
from thinkalike.config import part_named
from thinkalike.errors import ConfigError

SMALL = {
    "steering": {"layers": [[1, 1]], "seed": 1},
    "probes": {"layers": [[1, 1]], "stimuli.features": ["Number"]},
}


@pytest.mark.parametrize("kind", with_ci_slow(SMALL, "steering"))
def test_a_function_gives_the_table_of_its_command(kind, files, cli, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setitem(SETTINGS, kind, SMALL[kind])  # which the tests of the core share
    check_table_of_command(kind, files, cli, tmp_path)


def test_a_measure_of_many_models_is_a_command_alone():
    with pytest.raises(ConfigError, match=r"^measure=atlas is of more than two models: use pyth"):
        thinkalike.compare(PAIR[0], measure="atlas")


def test_options_refer_to_settings():
    assert part_named("model", "feather-bert", {"index": 3}).hub_id.endswith("_3")


@pytest.mark.ci_slow
def test_arrays_of_subjects_stand_beside_models():
    people = [np.random.default_rng(seed).normal(size=(len(FRAME), 5)) for seed in range(3)]
    models = thinkalike.rsa([*people, "gpt2-mini", "mamba-mini"], stimuli=FRAME).tables["models"]["model"]
    assert set(models) == {"gpt2-mini", "mamba-mini"}
