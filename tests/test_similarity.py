"""similarity=true: whether states of stitched layers are similar, by the ruler's numbers of the same words."""

import numpy as np
import pandas as pd
import pytest

import tiny
from conftest import composed
from thinkalike.instruments import run_job
from thinkalike.models.load import load_model
from thinkalike.models.rounding import rounded

PREFIXED = ["low", "high", "there", "back", "beyond", "beyond_low", "beyond_high"]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A tiny model, a copy of 4 bits, a model of random weights, and one too wide for the text."""
    root = tmp_path_factory.mktemp("models")
    base = load_model(tiny.write_mini(root / "base"))
    tiny.write_mini(root / "copy", module=rounded(base, 4).module)
    tiny.write_mini(root / "other", seed=7)
    tiny.write_mini(root / "wide", d_model=4096, n_layers=4)
    return root


@pytest.fixture
def job(models, text_files):
    """Return the result of a job of the base and one of these models."""

    def run(entry, target, *words):
        pair = [f"model.path={models}/base", f"target.path={models}/{target}"]
        text = ["data=text", f"data.files=[{text_files}/*.txt]", "data.evaluation_share=0.5", f"store={models}/store"]
        return run_job(composed(*pair, *text, *words, entry=entry))

    return run


CLOSED = ("stitch=least_squares", "data.fit_tokens=4096", "data.evaluation_tokens=2048", "ruler=null")
SOME = "layers=[[1,1],[3,2]]"


def similar(job, target, *words):
    return job("train", target, *CLOSED, "similarity=true", *words)


def test_similarity_is_what_the_ruler_shares(job, capsys):
    result = similar(job, "copy", SOME)
    assert "more than a network that only mixes neighbouring words does" in " ".join(capsys.readouterr().out.split())
    details = result.tables["details"]
    shared = job("analyze", "copy", "measure=ruler", SOME).table
    assert details["similarity"].to_numpy() == pytest.approx(shared["value"].to_numpy(), abs=1e-6)
    for name in PREFIXED:
        np.testing.assert_allclose(details[f"similarity_{name}"], shared[name], atol=1e-6)
    mixing = shared[["source_mixing", "target_mixing"]].max(axis=1)
    assert details["similarity_mixing"].to_numpy() == pytest.approx(mixing.to_numpy(), abs=1e-6)
    assert not [name for name in result.table if name.startswith("similarity")], "the table has what a stitch costs"


def test_without_it_nothing_changes_and_both_directions_have_it(job):
    plain = job("train", "copy", *CLOSED, SOME)
    result = similar(job, "copy", SOME)
    assert plain.key != result.key
    pd.testing.assert_frame_equal(plain.table, result.table)
    assert not [name for name in plain.tables["details"] if name.startswith("similarity")]
    there, back = similar(job, "copy", SOME, "stitch.both=true").tables["details"].groupby("source", sort=False)
    there, back = there[1].reset_index(), back[1].reset_index()
    assert (there["similarity"] == back["similarity"]).all()
    assert (there["similarity_there"] == back["similarity_back"]).all()
    assert (there["similarity_there"] != back["similarity_there"]).all()


@pytest.mark.parametrize("site", ["resid_post", "resid_mid"])
def test_a_model_of_random_weights_is_cheap_to_stitch_and_not_similar(job, capsys, site):
    sites = [f"model.site={site}", f"target.site={site}"] if site != "resid_post" else []
    details = similar(job, "other", "layers=[[1,1]]", *sites).tables["details"]
    said = " ".join(capsys.readouterr().out.split())
    assert details["penalty"][0] < 0.5, "control: of random weights no state matters"
    assert details["similarity"][0] < 0.1
    assert "no more than a network that only mixes neighbouring words does" in said


def test_too_few_words_have_no_similarity(job, caplog):
    result = similar(job, "wide", "layers=[[1,1]]")
    assert not [name for name in result.tables["details"] if name.startswith("similarity")]
    assert "does not say whether states are similar, as R² needs about" in caplog.text
    assert "give more text" in caplog.text
    assert "measure.words" not in caplog.text
