"""The check of a paper's claims."""

import numpy as np
import pandas as pd
import pytest
import torch
from thinkalike.reproduce import stitching
from thinkalike.reproduce.claims import Claim
from thinkalike.reproduce.stitching import Direction

from conftest import composed
from thinkalike import open_result, reproduce
from thinkalike.errors import ConfigError, StoreError


def direction(folder, source, target, penalties, tokens=None, group="3 layers"):
    """A finished stitching job with these penalties in nats per token, alike in all of 40 documents but for noise."""
    place = folder / f"{source}-{target}"
    place.mkdir()
    tokens = np.full(40, 1000.0) if tokens is None else tokens
    noise = np.random.default_rng(0).normal(0, 0.01, (len(penalties), 40))
    own = np.full(40, 3.0) * tokens
    stitch = own + (np.array(penalties)[:, None] + noise) * tokens
    np.savez(place / "arrays.npz", stitch=stitch, target=own, tokens=tokens)
    layers = range(len(penalties))
    columns = {"source": source, "target": target, "source_layer": layers, "target_layer": layers}
    pd.DataFrame({**columns, "penalty": penalties}).to_csv(place / "table.csv", index=False)
    return Direction(group, source, target, place)


def claims(folder, solu_gelu, gelu_solu, solu_solu, gelu_gelu):
    found = {
        ("solu-3l", "gelu-3l"): solu_gelu, ("gelu-3l", "solu-3l"): gelu_solu,
        ("solu-3l", "solu-3l"): solu_solu, ("gelu-3l", "gelu-3l"): gelu_gelu,
    }  # fmt: skip
    made = {key: direction(folder, *key, values) for key, values in found.items()}
    return stitching._claims("3 layers", made)


def test_claims_that_are_planted_hold(tmp_path):
    verdicts = claims(tmp_path, [0.4, 0.3], [0.2, 0.1], [0.0, 0.0], [0.05, 0.04])
    assert [claim.verdict for claim in verdicts] == ["holds"] * 3
    assert "+0.200 [" in verdicts[0].numbers


def test_claims_that_fail_at_one_layer_do_not_hold(tmp_path):
    verdicts = claims(tmp_path, [0.4, 0.05], [0.2, 0.1], [0.15, 0.0], [0.05, 0.14])
    assert [claim.holds for claim in verdicts] == [False, False, False]


def test_a_difference_within_its_interval_does_not_hold(tmp_path):
    more, less = direction(tmp_path, "a", "b", [0.1001]), direction(tmp_path, "b", "a", [0.1])
    noisy = open_result(less.folder).arrays
    noise = np.random.default_rng(1).normal(0, 10, (1, 40))
    np.savez(less.folder / "arrays.npz", **{**noisy, "stitch": noisy["stitch"] + noise})
    assert stitching._greater("", more, less).holds is False


def test_directions_on_other_documents_are_not_compared(tmp_path):
    more = direction(tmp_path, "a", "b", [0.1])
    less = direction(tmp_path, "b", "a", [0.1], tokens=np.full(40, 900.0))
    with pytest.raises(StoreError, match="report on different documents"):
        stitching._greater("", more, less)


def test_verdicts_have_three_words():
    assert [Claim("", holds, "").verdict for holds in (True, False, None)] == [
        "holds",
        "does not hold",
        "not testable here",
    ]


def test_an_unknown_experiment_names_the_nearest():
    config = composed("model=gelu-3l-mini", door="analyze")
    config.experiment = "brown2023/figure77"
    with pytest.raises(ConfigError, match="did you mean 'brown2023/figure"):
        reproduce.reproduce(config)


@pytest.mark.parametrize("name", ["brown2023/figure2", "brown2023/figure3", "salle2024/figure2", "salle2024/figure3"])
def test_an_experiment_with_a_measure_of_another_kind_is_refused(name):
    config = composed(f"experiment={name}", "measure=loss", door="analyze")
    with pytest.raises(ConfigError, match=f"experiment={name} is about measure=[a-z]+, not measure=loss"):
        reproduce.reproduce(config)


@pytest.mark.parametrize("scale", ["paper", "mini"])
def test_the_jobs_of_figure_1_compose_at_both_scales(scale, monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(stitching.jobs, "stitch", lambda config: asked.append(config) or tmp_path)
    config = composed("experiment=brown2023/figure1", f"scale={scale}", "recipe=paper", door="analyze")
    directions = stitching.stitches_of_figure_1(config)
    names = {(each.source, each.target) for each in directions}
    assert len(names) == len(directions) == {"paper": 8, "mini": 12}[scale]
    assert all(job.stitch.norm == "pre" and job.data.same_split and job.stitch.controls for job in asked)
    assert {job.data.name for job in asked} == {{"paper": "c4-code", "mini": "stdlib"}[scale]}
    assert asked[0].stitch.steps == {"paper": 2000, "mini": 200}[scale]


def test_a_job_composed_inside_a_job_leaves_hydra_as_it_was():
    from hydra.core.global_hydra import GlobalHydra

    from thinkalike.config import compose_job

    before = GlobalHydra.instance().hydra
    assert compose_job("train", ["model=gpt2"]).model.hub_id == "openai-community/gpt2"
    assert GlobalHydra.instance().hydra is before
    assert torch.get_default_dtype() == torch.float32
