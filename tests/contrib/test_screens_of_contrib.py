"""What jobs of contrib print fits the screen, and what they take is said before they start."""

import numpy as np
import pandas as pd
import pytest

from planted_screens import NAMES, check_dry_run, check_it_fits, check_its_form, explained
from stores import layer_pairs, made
from thinkalike.config import SUBJECTS, instrument, measure_entry
from thinkalike.contrib.court.judges import JUDGES
from thinkalike.contrib.papers import paper_experiment
from thinkalike.store import Result


def recorded() -> Result:
    ends = {"low": 0.1, "high": 0.5, "both_low": 0.05, "both_high": 0.55, "p": 0.01}
    models = pd.DataFrame({"recorded": "V1", "model": NAMES, "layers": "3, 4", "value": 0.3, **ends})
    pairs = pd.DataFrame({"recorded": "V1", "model": NAMES[0], "other": [NAMES[1]], "difference": 0.1, **ends})
    ceilings = pd.DataFrame({"recorded": "V1", "lower": [0.4, 0.5, 0.6], "upper": [0.6, 0.7, 0.8]})
    provenance = {"subjects": ["a", "b", "c"], "stimuli": {"count": 24, "source": "words.csv"}}
    config = {"measure": {"comparator": "cosine_cov", "distance": "crossnobis"}}
    tables = {"models": models, "comparisons": pairs, "ceilings": ceilings}
    return made(layer_pairs(*NAMES, 2, 2), {}, provenance, config=config, **tables)


def population() -> Result:
    groups = ["generalizing"] * 3 + ["heuristic"] * 3
    table = pd.DataFrame({"source": [f"m{n}" for n in range(6)], "group_of_source": groups})
    chance = np.random.default_rng(0)
    predicted = chance.integers(0, 2, (6, 6, 4, 30))
    arrays = {"predicted": predicted, "correct": predicted == 1, "cka": chance.random((6, 6, 3))}
    return made(table, arrays=arrays)


def agreeing() -> Result:
    pairs = pd.DataFrame(
        {"measure": ["soft_matching"] * 3, "other": ["cka", "mutual_knn", "r2"], "rho": [0.9, 0.5, 0.1]}
    )
    pairs = pairs.assign(low=0.0, high=1.0, least=-0.5, least_source=NAMES[0], least_target=NAMES[1])
    apart = pd.DataFrame({"source": NAMES[:1], "target": NAMES[1:], "source_layer": 3, "target_layer": 10})
    apart = apart.assign(measure="soft_matching", other="second_order_cosine", rank=0.1, other_rank=0.9)
    scalars = {"models": 3.0, "layer_pairs": 48.0, "mean_agreement": 0.5}
    return made(layer_pairs(*NAMES, 2, 2), scalars, agreement=pairs, disagreements=apart)


def concluded() -> Result:
    claim = "a stitch from an early layer of SoLU into a late layer of GeLU costs less than the reverse"
    where = "0.042 [0.035, 0.048] nats per token at layer 3, -0.005 [-0.010, 0.001] at layer 10"
    claims = pd.DataFrame({"claim": [claim], "verdict": "not testable here", "numbers": where, "units": "58 documents"})
    table = pd.DataFrame({"model": NAMES, "d_model": [128, 2**20], "Tense": ["past", np.nan]})
    return made(table, config={"experiment": "brown2023/table1", "scale": "paper"}, claims=claims)


def judged() -> Result:
    rows = {"target": NAMES[1], "layer": 1, "source": ["rotated and rescaled", "noise that knows the next token"]}
    return made(pd.DataFrame(rows | {"kind": "decoy"} | {judge.name: 0.5 for judge in JUDGES}))


PRINTS = {
    "mlem of subjects": lambda: instrument(SUBJECTS["mlem"]).show(explained(True)),
    "rsa of subjects": lambda: instrument(SUBJECTS["rsa"]).show(recorded()),
    "population": lambda: instrument(measure_entry("population")).show(population()),
    "atlas": lambda: instrument(measure_entry("atlas")).show(agreeing()),
    "court": lambda: instrument(measure_entry("court")).show(judged()),
    "claims": lambda: paper_experiment("brown2023/table1").show(concluded()),
}


@pytest.mark.parametrize("name", PRINTS)
def test_what_is_printed_fits_and_no_word_is_broken(name, monkeypatch, capsys):
    check_it_fits(PRINTS[name], monkeypatch, capsys)


SCREENS = [name for name in PRINTS if name != "claims"]


@pytest.mark.parametrize("name", SCREENS)
def test_a_screen_is_at_most_eight_columns_and_80_by_30(name, monkeypatch, capsys, caplog):
    check_its_form(PRINTS[name], monkeypatch, capsys, caplog)


@pytest.mark.ci_slow
@pytest.mark.parametrize("script", ["train.py", "analyze.py"])
def test_help_lists_the_options_and_settings_of_contrib(script, cli):
    shown = cli(script, "--help").stdout
    assert "What contrib adds:" in shown
    assert {"experiment/brown2023:", "feather-bert", "population:"} <= set(shown.replace(",", " ").split())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "words", "seen"),
    [
        ("analyze.py", ("measure=population", "population=feather-berts", "pairs=mnli"), "stitches"),
        ("analyze.py", ("measure=probes", "model=gpt2-mini", "model@target=gpt2-mini-s1"), "untrained target"),
        ("analyze.py", ("experiment=brown2023/figure3",), "4 of 4 jobs to do"),
    ],
)
def test_a_dry_run_prints_tables_and_writes_nothing(cli, tmp_path, script, words, seen):
    check_dry_run(cli, tmp_path, script, words, seen)
