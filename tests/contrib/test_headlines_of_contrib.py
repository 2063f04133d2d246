"""The numbers that summarise results of contrib."""

import numpy as np
import pandas as pd
import pytest

from planted_headlines import TABLE, check_lacking_result_is_one_line, of
from stores import made
from thinkalike.contrib.papers import paper_experiment


def test_rsa_of_subjects_has_its_best_layer_below_the_ceiling():
    provenance, scalars = {"subjects": ["s1", "s2", "s3"]}, {"subjects": 3.0, "ceiling": 0.5, "best": 0.4}
    table = pd.DataFrame({"value": [0.1, 0.4], "low": [0.0, 0.3], "high": [0.2, 0.5]})
    found = of("rsa", table, scalars, provenance, models=table)
    assert found["best"][1:4] == (0.4, 0.3, 0.5)
    assert found["ceiling"].value == 0.5
    wide = table.assign(both_low=[-0.1, 0.2], both_high=[0.3, 0.6])
    assert of("rsa", wide, scalars, provenance, models=table)["best"][1:4] == (0.4, 0.2, 0.6)
    assert list(of("rsa", table, scalars, provenance)) == ["ceiling"], "no model was asked for"


def test_a_populations_headline_is_its_flips_at_the_worst_cut():
    groups = ["g", "g", "g", "h", "h", "h"]
    table = pd.DataFrame({"source": list("abcdef"), "group_of_source": groups})
    predicted = np.zeros((6, 6, 2, 10), dtype=int)
    predicted[:3, 3:, 1, :4] = predicted[3:, :3, 1, :4] = 1  # at the second cut, 4 of 10 between groups
    predicted[0, 1, 0, :1] = 1
    arrays = {"predicted": predicted, "correct": predicted == 0, "cka": np.ones((6, 6, 1))}
    found = of("population", table, arrays=arrays)
    assert found["flips_between_groups"].value == pytest.approx(0.4)
    assert found["flips_within_groups"].value == 0.0


def test_an_experiment_says_how_many_of_its_claims_hold():
    experiment = paper_experiment("brown2023/figure1")
    (found,) = experiment.headlines(made(TABLE, {"claims": 5.0, "claims_that_hold": 3.0}))
    assert (found.name, found.value, found.of) == ("claims_that_hold", 3.0, 5)
    assert str(found) == "claims that hold 3 of 5"


@pytest.mark.parametrize("kind", ["population", "sae"])
def test_a_result_that_lacks_what_its_kind_shows_is_one_line(kind, tmp_path):
    check_lacking_result_is_one_line(kind, tmp_path)
