"""The overrides of a command line: home folders, quotes, and options of Hydra."""

from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from thinkalike.config.overrides import at_home, parse_overrides, quoted, values_of


@pytest.fixture
def home(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")


@pytest.mark.parametrize(
    ("word", "read"),
    [
        ("store=~", "/home/me"),
        ("store='~/x'", "/home/me/x"),
        ("data.files=[a.txt, ~/b/*.txt]", ["a.txt", "/home/me/b/*.txt"]),
        ("models=[{model:~/run,revision:main}]", [{"model": "/home/me/run", "revision": "main"}]),
        ("store='a~b'", "a~b"),
        ("store='x/~/y'", "x/~/y"),
    ],
)
def test_a_tilde_is_the_home_folder_where_a_path_may_begin(home, word, read):
    (override,) = parse_overrides(at_home([word]))
    value = override.value()
    assert (values_of(override)[0] if not isinstance(value, list) else value) == read


@pytest.mark.parametrize("word", ["model=./größe", "store=naïve path", "model.name=日本"])
def test_a_plain_value_needs_no_quotes(word):
    (override,) = parse_overrides(at_home([word]))
    assert values_of(override) == [word.partition("=")[2]]


@pytest.mark.parametrize("value", [None, True, 3, 1e-3, "a b", "it's", "null", "größe", ["a", 1], {"a": "b c"}, "a\\"])
def test_a_value_is_quoted_so_that_it_is_read_again(value):
    (override,) = OverridesParser.create().parse_overrides([f"key={quoted(value)}"])
    assert values_of(override)[0] == value


REFUSED = {
    "seed": "seed",
    "stitch.steps": "stitch.steps=${stitch.warmup} stitch.warmup=${stitch.steps}",
    "submitit_slum": "-m hydra/launcher=submitit_slum",
}


def test_hydras_own_record_of_a_job_is_kept_where_it_is_asked_for(door):
    refused = door("train.py", "hydra.output_subdir=.hydra", "stitch.momentum=1", "seed=3")
    assert "stitch.momentum=1 must be" in refused.error, "the record is written before the job begins"
    written = {path.name for path in (door.folder / ".hydra").iterdir()}
    assert written == {"config.yaml", "hydra.yaml", "overrides.yaml"}
    assert "seed: 3" in Path(door.folder, ".hydra", "config.yaml").read_text()
