"""The numbers that sum up a result of each kind, from what its table and arrays hold."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from thinkalike.config import MEASURES, SUBJECTS, TASKS
from thinkalike.contrib.papers import experiment_named
from thinkalike.instruments import instrument
from thinkalike.measures import bootstrap_interval, fold_interval
from thinkalike.store import Headline, Result, first_scalar


def planted(scalars: dict[str, float], provenance: dict, **read) -> Result:
    """Return a result of which everything was read already."""
    result = Result(Path("nowhere"))
    vars(result).update(read, _record={"scalars": scalars, "provenance": provenance})
    return result


def of(kind: str, table: pd.DataFrame, scalars=None, **more) -> dict[str, Headline]:
    """Return by name the headline numbers of a planted result of a kind."""
    provenance = more.pop("provenance", {})
    result = planted(scalars or {}, provenance, table=table, **{"tables": {}, **more})
    modules = SUBJECTS if "subjects" in provenance else {**TASKS, **MEASURES}
    found = instrument(modules[kind]).headlines(result)
    return {each.name: each for each in found}


def cells(source: str, target: str, values: list[list[float]]) -> pd.DataFrame:
    """Return the rows of a matrix of layers; every interval is of width .2."""
    rows = [
        {"source": source, "target": target, "source_layer": i, "target_layer": j, "value": value}
        for i, row in enumerate(values)
        for j, value in enumerate(row)
    ]
    table = pd.DataFrame(rows)
    return table.assign(low=table["value"] - 0.1, high=table["value"] + 0.1)


def test_stitching_headlines_are_the_mean_and_worst_penalty():
    random = np.random.default_rng(0)
    tokens, target = np.full(30, 100.0), random.normal(300, 10, 30)
    stitch = target + random.normal([[20.0], [50.0]], 5, (2, 30))
    own = bootstrap_interval(torch.from_numpy((stitch - target).mean(0)), torch.from_numpy(tokens))
    table = pd.DataFrame({"penalty": [0.2, 0.5], "penalty_low": [0.1, 0.4], "penalty_high": [0.3, 0.6]})
    table = table.assign(source_layer=[0, 1], target_layer=[0, 2])
    arrays = {"stitch": stitch, "target": target, "tokens": tokens}
    found = of("stitch", table, {"mean_penalty": 0.35}, arrays=arrays)
    assert found["mean_penalty"] == pytest.approx((*("mean_penalty", 0.35), float(own.low), float(own.high), None, ""))
    assert found["worst_penalty"] == ("worst_penalty", 0.5, 0.4, 0.6, None, "1→2")
    both_ways = of("stitch", pd.concat([table, table], ignore_index=True), {"mean_penalty": 0.35}, arrays=arrays)
    assert both_ways["mean_penalty"] == ("mean_penalty", 0.35, None, None, None, ""), "two sets of documents"
    seeds = of("stitch", table, {"mean_penalty": 0.35}, arrays=arrays | {"seed_1": stitch + 10.0})["mean_penalty"]
    assert seeds.high - seeds.low > 2 * float(own.high - own.low), "seeds that differ"


@pytest.mark.parametrize("kind", ["cka", "mutual_knn", "r2"])
def test_pair_headlines_are_the_mean_and_least_of_equal_depths(kind):
    across = cells("a", "b", [[0.9, 0.5, 0.2], [0.1, 0.95, 0.4]])  # depths: 0 with 0, and 1 with 2
    table = pd.concat([across, cells("a", "a", [[1.0, 0.99], [0.99, 1.0]])], ignore_index=True)
    found = of(kind, table)
    assert found[f"mean_{kind}"].value == pytest.approx((0.9 + 0.4) / 2)
    assert found[f"least_{kind}"][1:4] == pytest.approx((0.4, 0.3, 0.5))
    assert str(found[f"least_{kind}"]) == f"least {kind.replace('_', ' ')} 0.4 [0.3, 0.5] at layer 1 with 2"


def test_a_model_beside_itself_says_nothing_by_its_diagonal():
    found = of("cka", cells("a", "a", [[1.0, 0.3], [0.5, 1.0]]))
    assert found["mean_cka"].value == pytest.approx(0.4)
    assert (found["least_cka"].value, found["least_cka"].at) == (0.3, "layer 0 with 1")
    assert list(of("cka", cells("a", "a", [[1.0]]), {"batches": 64.0})) == ["batches"], "one layer has no pair"


def test_mlem_and_rsa_have_their_means_and_their_best():
    by_fold = np.array([[0.1, 0.2, 0.3], [0.5, 0.6, 0.7]])  # layers, folds
    scores = pd.DataFrame({"score": [0.2, 0.6], "low": [0.0, 0.5], "high": [0.4, 0.7]})
    found = of("mlem", pd.DataFrame(), tables={"scores": scores}, arrays={"scores": by_fold})
    mean = fold_interval(torch.tensor([0.3, 0.4, 0.5], dtype=torch.float64))
    assert found["mean_score"][1:4] == pytest.approx(tuple(map(float, mean)))
    assert found["best_score"][1:4] == (0.6, 0.5, 0.7)
    found = of("rsa", cells("a", "a", [[1.0, 0.3], [0.3, 1.0]]), {"stimuli": 8.0, "mean_similarity": 0.3})
    assert found["mean_similarity"].value == 0.3
    assert found["greatest_similarity"][1:4] == pytest.approx((0.3, 0.2, 0.4)), "of different layers"
    two = [cells("a", "a", [[1.0, 0.3], [0.3, 1.0]]), cells("a", "b", [[0.1, 0.2], [0.0, 0.1]])]
    found = of("rsa", pd.concat(two, ignore_index=True), {"stimuli": 8.0, "mean_similarity": 0.3})
    assert found["greatest_similarity"].value == 0.2, "of two models, where there are two"
    assert list(of("rsa", cells("a", "a", [[1.0]]), {"stimuli": 8.0})) == ["stimuli"]


def test_rsa_of_subjects_has_its_best_layer_below_the_ceiling():
    provenance, scalars = {"subjects": ["s1", "s2", "s3"]}, {"subjects": 3.0, "ceiling": 0.5, "best": 0.4}
    table = pd.DataFrame({"value": [0.1, 0.4], "low": [0.0, 0.3], "high": [0.2, 0.5]})
    found = of("rsa", table, scalars, provenance=provenance, tables={"models": table})
    assert found["best"][1:4] == (0.4, 0.3, 0.5)
    assert found["ceiling"].value == 0.5
    wide = table.assign(both_low=[-0.1, 0.2], both_high=[0.3, 0.6])
    assert of("rsa", wide, scalars, provenance=provenance, tables={"models": table})["best"][1:4] == (0.4, 0.2, 0.6)
    assert list(of("rsa", table, scalars, provenance=provenance)) == ["ceiling"], "no model was asked for"


def test_a_populations_headline_is_its_flips_at_the_worst_cut():
    groups = ["g", "g", "g", "h", "h", "h"]
    table = pd.DataFrame({"source": list("abcdef"), "group_of_source": groups})
    predicted = np.zeros((6, 6, 2, 10), dtype=int)
    predicted[:3, 3:, 1, :4] = predicted[3:, :3, 1, :4] = 1  # at the second cut, 4 of 10 between groups
    predicted[0, 1, 0, :1] = 1
    found = of("population", table, arrays={"predicted": predicted})
    assert found["flips_between_groups"].value == pytest.approx(0.4)
    assert found["flips_within_groups"].value == 0.0


def test_an_experiment_says_how_many_of_its_claims_hold():
    experiment = experiment_named("brown2023/figure1")
    (found,) = experiment.headlines(planted({"claims": 5.0, "claims_that_hold": 3.0}, {}))
    assert (found.name, found.value, found.of) == ("claims_that_hold", 3.0, 5)
    assert str(found) == "claims that hold 3 of 5"


def test_a_headline_is_written_with_its_interval_if_it_has_one():
    whole = Headline.with_ends("mean_penalty", 0.20481, 0.18379, 0.23290)
    assert str(whole) == "mean penalty 0.2048 [0.1838, 0.2329]"
    assert whole.numbers == {"mean_penalty": 0.20481, "mean_penalty_low": 0.18379, "mean_penalty_high": 0.23290}
    alone = Headline.with_ends("mean_penalty", 0.2, np.nan, np.inf)
    assert (alone.low, alone.high, str(alone), alone.numbers) == (None, None, "mean penalty 0.2", {"mean_penalty": 0.2})
    assert first_scalar({"b": 1.0, "b_low": 0.5, "b_high": 1.5, "a": 2.0}) == [("b", 1.0, 0.5, 1.5, None, "")]
