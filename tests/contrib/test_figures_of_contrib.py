"""Every figure of contrib passes what a reviewer looks for."""

from __future__ import annotations

import itertools
import re

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgb

from conftest import with_slow
from planted_figures import (
    FEATURES,
    NOWHERE,
    RANDOM,
    blocks,
    check_figure,
    matrix,
    similarity_to_last,
    with_ends,
)
from thinkalike import figures
from thinkalike.contrib.figures import agreement, court, features, populations, saes, subjects, transfer
from thinkalike.contrib.figures import stitching as stitching_of_papers
from thinkalike.contrib.figures import trajectories as trajectories_of_seeds

pytestmark = pytest.mark.drawn

MEASURES = ["cka", "mutual_knn", "jaccard", "distance_correlation", "procrustes", "soft_matching", "token_rsa"]
MEASURES += ["second_order_cosine", "r2", "svcca"]


@pytest.fixture(autouse=True)
def _closed():
    yield
    plt.close("all")


def similarity_above_planes():
    models = [f"{family}-mini{seed}" for family in ("bert", "gpt2", "mamba") for seed in ("", "-s1")]
    tables = {
        "weighted τ of profiles": blocks(dict.fromkeys(models, 6), -0.4),
        "Spearman's ρ of distances": blocks(dict.fromkeys(models, 6)),
    }

    def plane(axes, title):
        layers = [(model, layer) for model in models for layer in range(6)]
        points = pd.DataFrame(layers, columns=["model", "layer"])
        angle = 2 * np.pi * np.arange(len(layers)) / len(layers)
        features.draw_plane(axes, points.assign(x=np.cos(angle), y=np.sin(angle), stress=0.2))

    figures.similarity(tables, NOWHERE, below=plane, about="650 stimuli")


def settling():
    onsets = [(f"seed {seed}", feature, 64 * (1 + seed % 2)) for seed in range(5) for feature in FEATURES]
    runs = {f"seed {seed}": similarity_to_last() for seed in range(5)}
    table = pd.DataFrame(onsets, columns=["run", "feature", "onset"])
    trajectories_of_seeds.draw_settling(runs, table, NOWHERE)


def agreement_of_measures():
    pairs = [(a, b) for k, a in enumerate(MEASURES) for b in MEASURES[k + 1 :]]
    table = pd.DataFrame(pairs, columns=["measure", "other"]).assign(rho=RANDOM.uniform(0.1, 1, len(pairs)))
    agreement.draw_agreement(table, MEASURES, NOWHERE, "6 models, 182 layer pairs")


def ranks():
    models = ["gelu-3l-mini", "gelu-4l-mini", "solu-3l-mini", "neox-4l-mini", "neox-5l-mini", "gpt2-mini"]
    pairs = [(a, b) for k, a in enumerate(models) for b in models[k + 1 :]]
    table = pd.concat([matrix(*pair, 3, 5) for pair in pairs])
    agreement.draw_ranks(table.assign(**dict.fromkeys(MEASURES, table["value"])), MEASURES, NOWHERE)


def court_of_measures():
    kinds = ["same", "near", "distorted", "answers", "part", "scaled", "wrong tokens", "superset", "mixture", "token"]
    kinds += ["n-gram", "position", "bag", "delay", "leak", "untrained", "shortcut", "dose", "layer", "real"]
    rows = pd.DataFrame({"kind": np.repeat(kinds, 6)})
    for judge in ("penalty", "R²", "residual R²"):
        rows[judge] = RANDOM.uniform(0, 1, len(rows))
    court.draw_court(rows, ["penalty", "R²", "residual R²"], NOWHERE, "120 sources in 2 courts")


def doses():
    shares = np.linspace(0, 1, 6)
    courts = [f"gelu-3l-mini, layer {layer}, seed 0" for layer in (0, 1)]
    curves = [pd.DataFrame({"court": name, "own_share": shares, "value": shares}) for name in courts]
    court.draw_doses(dict.fromkeys(["penalty", "KL", "R²", "residual R²"], pd.concat(curves)), NOWHERE)


def correlation():
    values = RANDOM.uniform(-0.5, 0.5, (8, 8))
    values = (values + values.T) / 2
    np.fill_diagonal(values, 1)
    features.draw_correlation(pd.DataFrame(values, index=FEATURES, columns=FEATURES), NOWHERE, n_words=650)


def contrasts():
    levels = ["Auxiliary", "Det", "Noun", "Pronoun", "Verb", "Wh-word"] * 20
    words = pd.DataFrame(RANDOM.normal(size=(120, 2)), columns=["x", "y"]).assign(level=levels, stress=0.36)
    importance = pd.DataFrame({"feature": FEATURES, "x": 0.02 * np.arange(8), "y": 0.02 * np.arange(8)[::-1]})
    importance.loc[:1, ["x", "y"]] = 0.0
    names = ("bert-mini-s1 layer 0", "mamba-mini-s1 layer 4")
    both = [
        features.Contrast(title, names, importance, (words, words), "PoS")
        for title in ("most similar, τ = +0.96", "least similar, τ = -0.76")
    ]
    features.draw_contrasts(both, NOWHERE, n_words=1431)


def groups():
    pairs = ["generalizing into generalizing", "generalizing into heuristic", "heuristic into heuristic"]
    panels = {}
    for title, column in {"identity stitches": "accuracy_penalty", "flipped": "flips", "CKA": "value"}.items():
        for suffix in ("", ", null"):
            table = pd.DataFrame([(pair, place) for pair in pairs for place in range(-1, 6)], columns=["pair", "place"])
            table = with_ends(table.assign(mean=0.1 * table["place"], column=column), "mean")
            panels[title + suffix] = table.assign(axis="last layer of the source")
    populations.draw_groups_by_depth(panels, NOWHERE, "12 models in groups of 6 and 6")


def distances():
    groups_of = ["G"] * 6 + ["H"] * 6
    cells = matrix("", "", 12, 12)
    table = pd.DataFrame({"source": cells["source_layer"], "target": cells["target_layer"], "value": cells["value"]})
    table["group_of_source"] = [groups_of[model] for model in table["source"]]
    sides = zip(table["source"], table["target"], strict=True)
    table["pair"] = [" and ".join(sorted([groups_of[a], groups_of[b]])) for a, b in sides]
    populations.draw_distances(table, NOWHERE)


def autoencoders():
    rows: list[tuple[object, ...]] = []
    for pair in ("gpt2-mini:2 → gpt2-mini-s1:2", "neox-5l-mini:2 → neox-6l-mini:2", "neox-3l-mini:1 → neox-6l-mini:2"):
        for start in saes.STARTS:
            rows += [(pair, start, 1.0, k % 2, 2**k, 1e9 * 2**k, k / 10) for k in range(8)]
    columns = ["transfer", "start", "rate", "seed", "tokens", "flops", "explained_variance"]
    saes.draw_sae_curves(pd.DataFrame(rows, columns=columns), NOWHERE)


def recorded_subjects():
    rows = [(f"region {n}", model, layer) for n in (1, 2) for model in ("gpt2", "bert") for layer in range(12)]
    table = pd.DataFrame(rows, columns=["recorded", "model", "layer"])
    table = with_ends(table.assign(value=0.01 * table["layer"]), "value")
    ceilings = pd.DataFrame({"recorded": ["region 1", "region 2"], "lower": 0.1, "upper": 0.2})
    subjects.draw_subject_scores(table, ceilings, NOWHERE, "spearman", n_subjects=3)


def probes():
    conditions = ["native in source", "native in target", "source to target", "target to source", "refitted"]
    conditions += ["random map", "identity", "untrained target", "source to untrained", "shuffled labels"]
    rows = [(split, name, one) for split in ("sentence", "word") for name in FEATURES for one in conditions]
    table = pd.DataFrame(rows, columns=["split", "feature", "condition"])
    table = with_ends(table.assign(accuracy=RANDOM.uniform(0.2, 0.9, len(rows)), chance=0.5), "accuracy")
    table = table.assign(source="gpt2-mini", target="gpt2-mini-s1", source_layer=2, target_layer=2, sentences=400)
    transfer.draw_probes(table, NOWHERE)


def steering():
    conditions = ["native", "carried", "carried, native norm", "carried, negated", "random"]
    cases = [("word", 1.0), ("word", 2.0), ("later", 1.0), ("later", 2.0)]
    rows = [(*case, one, layer) for case in cases for one in conditions for layer in range(6)]
    table = pd.DataFrame(rows, columns=["position", "strength", "condition", "source_layer"])
    table = table.assign(target_layer=table["source_layer"], source="gpt2-mini", target="gpt2-mini-s1", effect=1.0)
    table = table.assign(share=0.1 * table["source_layer"])
    table = table.assign(low=table["share"] - 0.05, high=table["share"] + 0.05)
    about = "400 pairs of the large grammar, number; bars: 95 % intervals over 40 words"
    transfer.draw_steering(table, NOWHERE, about)


def directions():
    rows = []
    for group in ("3 layers", "4 layers", "3 layers, other seed"):
        for source in ("gelu-3l-mini", "solu-3l-mini-s1"):
            for target in ("gelu-3l-mini", "solu-3l-mini-s1"):
                rows += [(group, source, target, layer, 0.2 * layer) for layer in range(4)]
    table = pd.DataFrame(rows, columns=["group", "source", "target", "source_layer", "penalty"])
    stitching_of_papers.draw_directions(
        with_ends(table, "penalty"), NOWHERE, "58 documents (effective sample size 47.7)"
    )


def learning_curves():
    labels = [f"{a}-mini → {b}-mini" for a in ("gelu-3l", "solu-3l") for b in ("gelu-3l", "solu-3l")]
    curves = {("3 layers", label): RANDOM.uniform(0, 1, (180, 3)) for label in labels}
    curves |= {("4 layers", label.replace("3l", "4l")): RANDOM.uniform(0, 1, (180, 4)) for label in labels}
    stitching_of_papers.draw_learning_curves(curves, NOWHERE, loss="kl")


DRAWING = [
    similarity_above_planes, settling, agreement_of_measures, ranks, court_of_measures, doses, correlation, contrasts,
    groups, distances, autoencoders, recorded_subjects, probes, steering, directions, learning_curves,
]  # fmt: skip


@pytest.mark.parametrize(
    "draw", with_slow(DRAWING, ranks, groups, similarity_above_planes, directions), ids=lambda draw: draw.__name__
)
def test_a_figure_of_contrib_passes_a_reviewer(draw, request):
    check_figure(draw, request.config.getoption("--figures"))


def test_matrix_of_distances_has_the_same_numbers_at_both_axes():
    with figures.shown_figures() as shown:
        distances()
    ((_, (matrix_axes, _)),) = shown.values()
    across = [tick.get_text() for tick in matrix_axes.get_xticklabels()]
    upwards = [tick.get_text() for tick in matrix_axes.get_yticklabels()]
    assert across == upwards != []


def test_a_kind_of_pair_has_one_colour_and_no_two_have_the_same():
    rows = [(pair, place, 0.1 * place) for pair in ("G into G", "G into H", "H into H") for place in range(3)]
    table = pd.DataFrame(rows, columns=["pair", "place", "mean"]).assign(column="flips", axis="layer")
    table = with_ends(table, "mean")
    null = table.replace({"G into G": "H into H", "G into H": "H into H2", "H into H": "H2 into H2"})
    with figures.shown_figures() as shown:
        populations.draw_groups_by_depth({"groups": table, "null": null}, NOWHERE, "6 models in groups of 3 and 3")
    ((figure, _),) = shown.values()
    drawn = set()
    for axes in figure.axes:
        handles, labels = axes.get_legend_handles_labels()
        drawn |= {(label, handle.lines[0].get_color()) for handle, label in zip(handles, labels, strict=True)}
    assert len(drawn) == len({label for label, _ in drawn}) == len({colour for _, colour in drawn}) == 5


DRAWING_INTERVALS = [groups, recorded_subjects, probes, steering, directions]


@pytest.mark.parametrize("draw", DRAWING_INTERVALS, ids=lambda draw: draw.__name__)
def test_a_caption_says_over_how_many_what_intervals_are(draw):
    with figures.shown_figures() as shown:
        draw()
    ((figure, _),) = shown.values()
    assert re.search(r"(bars|bands): 95 % intervals over \d+ [a-z]", figure.get_suptitle())


def test_numbers_in_dots_can_be_read():
    """A white 5 on amber had a contrast of 2.2; the least for letters of this size is 4.5."""
    with figures.shown_figures() as shown:
        settling()
    ((_, (_, onsets)),) = shown.values()
    (written,) = {text.get_color() for text in onsets.texts}
    dots = {dot.get_color() for dot in onsets.lines}
    assert all(contrast(written, dot) >= 4.5 for dot in dots)
    assert contrast("white", "#e69f00") < 2.3, "control"


def contrast(first: str, second: str) -> float:
    """Return the contrast of two colours, from 1 to 21, as the guidelines of the web define it."""
    luminances = []
    for colour in (first, second):
        channels = np.array(to_rgb(colour))
        linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
        luminances.append(linear @ [0.2126, 0.7152, 0.0722] + 0.05)
    return float(max(luminances) / min(luminances))


def test_a_step_is_at_the_same_place_in_both_panels_of_settling():
    with figures.shown_figures() as shown:
        settling()
    ((_, (curves_axes, onsets_axes)),) = shown.values()
    assert curves_axes.get_xlim() == onsets_axes.get_xlim()


def test_names_of_features_cover_no_point():
    words = pd.DataFrame({"x": [0.0, 1.0], "y": [0.0, 1.0], "level": ["Noun", "Verb"], "stress": 0.36})
    points = [(0.027, 0.0), (0.048, 0.008), (0.096, 0.018), (0.134, 0.130), (0.03, 0.05), (0.03, 0.06)]
    importance = pd.DataFrame(points, columns=["x", "y"])
    importance.insert(0, "feature", ["Gender", "Tense", "Word position", "PoS", "Person", "Number"])
    contrast = features.Contrast("most similar", ("bert", "mamba"), importance, (words, words), "PoS")
    with figures.shown_figures() as shown:
        features.draw_contrasts([contrast], NOWHERE, n_words=1500)
    ((figure, (_, middle, _)),) = shown.values()
    figure.draw_without_rendering()
    names = [name.get_window_extent() for name in middle.texts if name.get_text() in set(importance["feature"])]
    assert len(names) == len(points)
    for x, y in middle.transData.transform(points):
        assert not any(name.contains(x, y) for name in names)
    assert not any(one.overlaps(other) for one, other in itertools.combinations(names, 2))


def lines_of(axes):
    """Return the lines of a panel that have a label, from the widest; their points are equally many."""
    lines = [line for line in axes.get_lines() if not line.get_label().startswith("_")]
    lines += [container.lines[0] for container in axes.containers]
    return sorted(lines, key=lambda line: -line.get_linewidth())


@pytest.mark.parametrize("draw", [directions, groups, learning_curves], ids=lambda draw: draw.__name__)
def test_lines_that_coincide_are_all_seen(draw):
    with figures.shown_figures() as shown:
        draw()
    ((figure, panels),) = shown.values()
    assert "of lines that coincide, the wider is below" in figure.get_suptitle()
    for axes in panels:
        lines = lines_of(axes)
        widths = [line.get_linewidth() for line in lines]
        assert len(lines) > 1
        assert all(wide - narrow > 0.25 for wide, narrow in itertools.pairwise(widths))
        # A narrower line lies above a wider one, and markers are hollow, so that none hides another.
        assert [line.get_zorder() for line in lines] == sorted(line.get_zorder() for line in lines)
        if draw is not learning_curves:
            assert {line.get_markerfacecolor() for line in lines} == {"none"}


def test_learning_curves_name_the_loss_that_training_minimises():
    curves = {("3 layers", "gelu → gelu"): np.zeros((20, 3))}
    for loss, words in {"kl": "KL from the target's", "cross_entropy": "next-token loss"}.items():
        with figures.shown_figures() as shown:
            stitching_of_papers.draw_learning_curves(curves, NOWHERE, loss)
        ((_, (axes, *_)),) = shown.values()
        assert words in axes.get_ylabel()


def test_whiskers_reach_to_the_farthest_pairs_and_the_caption_says_so():
    with figures.shown_figures() as shown:
        distances()
    ((figure, (_, kinds)),) = shown.values()
    assert "whiskers: range" in figure.get_suptitle()
    assert "equation 2 of Brown et al. 2023" in figure.get_suptitle()
    points = [line.get_ydata() for line in kinds.get_lines() if line.get_marker() == "o" and len(line.get_ydata())]
    assert len(points) == 3
    others = np.concatenate([line.get_ydata() for line in kinds.get_lines() if line.get_marker() != "o"])
    for values in points:
        assert {values.min(), values.max()} <= set(others)
    assert all("pairs" in label.get_text() for label in kinds.get_xticklabels())


def test_autoencoders_say_where_their_scale_is_logarithmic_and_share_the_other_one():
    with figures.shown_figures() as shown:
        autoencoders()
    ((_, panels),) = shown.values()
    for axes in panels:
        assert axes.get_xlabel() == "all FLOPs, logarithmic\nfrom 10⁹, linear below"
        assert axes.get_ylim() == panels[0].get_ylim()
        first, second, *_ = axes.get_xticks()
        assert (first, second) == (0, 1e9), "no power of ten in the linear part"


def test_features_near_zero_are_named_and_a_colour_is_a_level_of_words():
    with figures.shown_figures() as shown:
        contrasts()
    ((_, panels),) = shown.values()
    middle = panels[1]
    written = " ".join(text.get_text() for text in middle.texts).replace("\n", " ")
    assert all(name in written for name in FEATURES)
    assert "near 0: Word length" in written
    assert np.unique(middle.collections[0].get_facecolors(), axis=0).tolist() == [[0, 0, 0, 1]]


def test_layers_of_a_plane_have_markers_at_both_ends_that_the_title_names():
    points = pd.DataFrame({"model": "bert", "layer": range(6), "x": range(6), "y": 0.0, "stress": 0.1})
    with figures.canvas(3.3, 3.0) as (_, axes):
        features.draw_plane(axes, points)
    assert [line.get_marker() for line in axes.get_lines()] == ["o", "s", "^"]
    assert [line.get_xdata().tolist() for line in axes.get_lines()[1:]] == [[0], [5]]
    assert "squares: first layers, triangles: last layers" in axes.get_title()
    assert not axes.texts


@pytest.mark.parametrize(
    ("draw", "counted"),
    [
        (agreement_of_measures, "6 models, 182 layer pairs"),
        (court_of_measures, "120 sources in 2 courts"),
        (doses, "points: single courts, 2 in all; lines: their means"),
        (correlation, "650 words"),
        (contrasts, "over 1,431 words"),
        (autoencoders, "means over 2 seeds"),
        (settling, "5 training runs: seed 0, to seed 4"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_caption_says_how_much_is_drawn(draw, counted):
    with figures.shown_figures() as shown:
        draw()
    ((figure, _),) = shown.values()
    assert counted in figure.get_suptitle()
