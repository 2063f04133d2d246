"""measure=atlas: all pairs of models by all measures, each model once for each input, and how far measures agree."""

import itertools

import numpy as np
import pandas as pd
import pytest
from scipy.stats import spearmanr

import tiny
from conftest import composed, every_second, results_in
from one_pass import list_of, results
from thinkalike.contrib.atlas.agreement import (
    agreement_table,
    correlations_by_model_pair,
    disagreements,
    mean_agreement,
    mean_over_models,
)
from thinkalike.contrib.atlas.inner_jobs import PAIR_COLUMNS as PLACE
from thinkalike.instruments import asked_for, jobs_by_pass

DEPTH = tiny.ARCHITECTURE["n_layers"]
SIX = [f"m{number}" for number in range(6)]


@pytest.fixture(scope="module")
def six(tmp_path_factory):
    """A folder of six tiny minis, of two depths of blocks and other weights each."""
    root = tmp_path_factory.mktemp("six")
    for number, name in enumerate(SIX):
        tiny.write_mini(root / name, seed=number)
    return root


@pytest.fixture
def words(text_files, tmp_path):
    """The command line of a small atlas, models and store apart."""
    small = ["measure=atlas", "measure.batches=4", "measure.tokens_per_batch=256", "model.context=32"]
    data = [
        "data=text",
        f"data.files=[{text_files}/*.txt]",
        "data.evaluation_share=0.5",
        f"data.cache={tmp_path}/cache",
    ]
    return [*small, *data, "logger=none"]


@pytest.mark.slow
def test_six_models_run_once_per_batch_for_four_measures(cli, words, six, forwards, tmp_path):
    kinds = ("cka", "mutual_knn", "r2", "jsd")
    words = [*words, f"measure.measures=[{','.join(kinds)}]", "measure.words=2048", "measure.unit=token"]
    words += [list_of(six, SIX), f"store={tmp_path}/store"]
    (result,) = results(cli("analyze.py", *words))
    assert len(forwards) == len(set(forwards)), "no model reads a batch twice"
    assert len({module for module, *_ in forwards}) == 6
    assert len(forwards) == 6 * (12 + 4 + 4), "r2 reads 12 batches to fit on and 4 to judge, the others 4 of their own"
    assert [len(results_in(tmp_path / "store", kind)) for kind in kinds] == [15] * 4
    assert list(result.details) == [*PLACE, "cka", "mutual_knn", "r2", "r2_back", "jsd"]
    assert len(result.details) == result.scalars["layer_pairs"] == 15 * DEPTH**2
    assert result.details["jsd"].notna().sum() == 15, "predictions are those of the last layers"
    assert [again.folder for again in results(cli("analyze.py", *words))] == [result.folder]
    assert len(forwards) == 6 * 20, "what is there is not computed again"


@pytest.mark.slow
@pytest.mark.drawn
def test_an_atlas_part_has_the_bits_of_its_measure_alone(cli, words, six, tmp_path):
    listed = list_of(six, SIX[:3])
    done = cli("analyze.py", *words, "measure.measures=[cka,procrustes]", listed, f"store={tmp_path}/atlas")
    (result,) = results(done)
    for measure in ("cka", "procrustes"):
        alone = [f"measure={measure}", *words[1:], listed, f"store={tmp_path}/alone"]
        for one in results(cli("analyze.py", *alone)):
            (part,) = [each for each in results_in(tmp_path / "atlas", measure) if each.key == one.key]
            assert part.fingerprint() == one.fingerprint()
            first = one.details.iloc[0]
            cells, across = (
                table[(table["source"] == first["source"]) & (table["target"] == first["target"])]
                for table in (result.details, one.details)
            )
            assert cells[measure].tolist() == across["value"].tolist()
    drawn = {path.name for path in (result.folder / "figures").iterdir()}
    assert drawn == {f"{name}.{kind}" for name in ("agreement", "ranks") for kind in ("png", "svg")}
    assert "Agreement of 2 measures, 3 models" in done.stdout
    assert result.headlines[0].name == "mean_agreement"


@pytest.mark.ci_slow
def test_a_dry_run_names_the_jobs_of_an_atlas_and_does_none(cli, words, six, tmp_path):
    words = [*words, "measure.measures=[cka,procrustes]", list_of(six, SIX[:3]), f"store={tmp_path}/none"]
    done = cli("analyze.py", *words, "dry_run=true")
    assert done.status == 0, done.stderr
    assert "7 of 7 jobs to do" in done.stdout, "two measures of three pairs, and the atlas"
    assert not (tmp_path / "none").exists()


def test_kinds_that_share_a_pass_are_together_and_others_alone():
    configs = [composed(f"measure={kind}", TWO, entry="analyze") for kind in ("cka", "rsa", "mutual_knn")]
    assert jobs_by_pass([job for config in configs for job in asked_for(config)]) == [[0, 2], [1]], "rsa reads stimuli"


REFUSED = {
    "models=": ["models=[gelu-3l-mini]"],
    "measure.measures": ["measure.measures=[cka,mlem]"],
    "two measures": ["measure.measures=[cka,jsd]"],
    "distance_correlation compares all rows": [
        "measure.measures=[cka,distance_correlation]",
        "measure.conditional_on=token",
    ],
    "measure.embed=true": ["measure.measures=[cka,mutual_knn,jsd]", "measure.embed=true"],
}
TWO = "models=[gelu-3l-mini,solu-3l-mini]"


@pytest.mark.parametrize("message", every_second(REFUSED))
def test_an_atlas_that_cannot_be_is_one_line(message, cli):
    models = [] if "models=" in message else [TWO]
    assert message in cli("analyze.py", "measure=atlas", *models, *REFUSED[message]).error


def table_of(columns, models="abcd", layers=4):
    """A table of all pairs of models, and the columns that a function of pair, layer and other layer gives."""
    rows = [
        {"source": source, "target": target, "source_layer": i, "target_layer": j, **columns(source + target, i, j)}
        for source, target in itertools.combinations(models, 2)
        for i, j in itertools.product(range(layers), repeat=2)
    ]
    return pd.DataFrame(rows)


def test_agreement_of_planted_measures_is_scipys():
    random = np.random.default_rng(0)

    def columns(*_):
        x, y = random.standard_normal(2)
        return {"same": x, "curved": np.exp(x), "distance": -(x**3), "against": -x, "other": x + y}

    table, measures = table_of(columns), dict.fromkeys(["same", "curved", "distance", "against", "other"], False)
    pairs = correlations_by_model_pair(table, measures | {"distance": True})
    found = agreement_table(pairs).set_index(["measure", "other"])
    assert found.loc[("same", "curved"), ["rho", "low", "high"]].tolist() == pytest.approx([1, 1, 1])
    assert found.loc[("same", "distance"), "rho"] == pytest.approx(1), "of a distance less is closer"
    assert found.loc[("same", "against"), "rho"] == pytest.approx(-1)
    expected = [spearmanr(each["same"], each["other"]).statistic for _, each in table.groupby(["source", "target"])]
    assert found.loc[("same", "other"), "rho"] == pytest.approx(np.mean(expected), abs=1e-12)
    assert found.loc[("same", "other"), "least"] == pytest.approx(min(expected), abs=1e-12)
    assert mean_agreement(pairs).value.item() == pytest.approx(pairs["rho"].mean(), abs=1e-12)


def pairs_of(models, rho):
    """A row for each pair of models, with the ρ that a function of both gives."""
    rows = [(a, b, rho(a, b)) for a, b in itertools.combinations(models, 2)]
    return pd.DataFrame(rows, columns=["source", "target", "rho"])


def test_the_interval_leaves_out_one_model_at_a_time_and_no_pair():
    random = np.random.default_rng(1)
    pairs = pairs_of("abcde", lambda *_: random.uniform(0, 0.2))
    without = [pairs[(pairs["source"] != name) & (pairs["target"] != name)]["rho"].mean() for name in "abcde"]
    half = 2.7764451 * np.sqrt(4 / 5 * np.sum((np.array(without) - np.mean(without)) ** 2))  # t of 4 degrees of freedom
    value, low, high = (float(end) for end in mean_over_models(pairs))
    assert (value, low, high) == pytest.approx((pairs["rho"].mean(), value - half, value + half), abs=1e-7)
    assert [float(end) for end in mean_over_models(pairs[:1])][1:] == [-np.inf, np.inf], "two models give no interval"


def test_the_largest_disagreement_is_the_planted_cell():
    def columns(pair, i, j):
        near = -abs(i - j) - 0.01 * i - 0.001 * j
        return {"one": near, "other": 100.0 if (pair, i, j) == ("bc", 0, 3) else near, "distance": -near}

    found = disagreements(table_of(columns), {"one": False, "other": False, "distance": True})
    first, names = found.iloc[0], ["measure", "other", *PLACE, "other_rank"]
    assert first[names].tolist() == ["one", "other", "b", "c", 0, 3, 1]
    assert first["difference"] == first["other_rank"] - first["rank"] == pytest.approx(14 / 15), "layers 3, 0 are last"
    assert found.set_index(["measure", "other"]).loc[("one", "distance"), "difference"] == 0
