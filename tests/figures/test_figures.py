"""Every figure passes what a reviewer looks for, on tables as large as those of real models."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from conftest import with_slow
from figure_checks import complaints
from planted_figures import (
    FEATURES,
    NOWHERE,
    RANDOM,
    STEPS,
    blocks,
    check_figure,
    matrix,
    similarity_to_last,
    with_ends,
)
from thinkalike import figures
from thinkalike.figures import layers as layers_figures
from thinkalike.figures import letters, stitching, style

pytestmark = pytest.mark.drawn

NAMES = ("smollm2-135m", "gemma3-270m")


@pytest.fixture(autouse=True)
def _closed():
    yield
    plt.close("all")


def layer_pairs(count: int = 5) -> pd.DataFrame:
    table = pd.DataFrame({"source_layer": np.arange(count) * 7, "target_layer": np.arange(count) * 4})
    return table.assign(source=NAMES[0], target=NAMES[1], value=np.linspace(0.05, 0.3, count))


def cka_of_two():
    sides = [(NAMES[0], NAMES[1], 30, 18), (NAMES[0], NAMES[0], 30, 30), (NAMES[1], NAMES[1], 18, 18)]
    table = pd.concat([matrix(*side) for side in sides])
    about = "5 batches of about 940 rows, 103 documents (as 102.8 of equal length)"
    figures.layer_heatmaps(table, NOWHERE, "cka", "CKA", about=about)


def one_small_matrix():
    figures.layer_heatmaps(matrix(*NAMES, 5, 5), NOWHERE, "r2", "residual R²", about="4,512 words, 164 documents")


def cka_of_many():
    models = {"pythia-70m-deduped": 6, "pythia-160m-deduped": 12, "gpt2": 12}
    pairs = [(first, second) for first in models for second in models if first <= second]
    table = pd.concat([matrix(*pair, *(models[name] for name in pair)) for pair in pairs])
    figures.layer_heatmaps(table, NOWHERE, "cka", "CKA", about="64 batches of 1,024 rows, 58 documents")


def components():
    names = ["attn_out", "mlp_out", *(f"head {number}" for number in range(12))]
    cells = pd.DataFrame(RANDOM.uniform(0, 1, (24, 14)), columns=names)
    cells.iloc[3, 5] = np.nan
    figures.components(cells, NOWHERE, "cka", "CKA", about=f"{' and '.join(NAMES)}\n64 batches of 1,024 rows")


def components_of_a_mini():
    cells = pd.DataFrame(RANDOM.uniform(1, 2, (6, 2)), columns=["attn_out", "mlp_out"])
    about = "1 batch of 1,024 tokens, 134 documents (effective sample size 116.4); differences accumulate"
    about = f"gpt2-mini and gpt2-mini-s1\n{about} from layer to layer"
    figures.components(cells, NOWHERE, "distance", "relative distance of states", about=about)


def matrix_in_memory():
    figures.layer_pairs(RANDOM.uniform(0, 1, (12, 12)), "CKA")


def similarity_of_two():
    table = blocks(dict.fromkeys(["gpt2-mini", "mamba-mini"], 6))
    figures.similarity({"Spearman's ρ of distances": table}, NOWHERE, about="650 stimuli")


def similarity_of_six():
    models = [f"{family}-mini{seed}" for family in ("bert", "gpt2", "mamba") for seed in ("", "-s1")]
    tables = {
        "weighted τ of profiles": blocks(dict.fromkeys(models, 6), -0.4),
        "Spearman's ρ of distances": blocks(dict.fromkeys(models, 6)),
    }
    figures.similarity(tables, NOWHERE, about="650 stimuli")


def changes():
    modules = ["embedding", "norms", "attention", "MLP"]
    rows = [(module, layer) for module in modules for layer in range(-1, 12)]
    shares = pd.DataFrame(rows, columns=["component", "layer"])
    shares["mean_effect"] = RANDOM.uniform(-0.05, 0.3, len(shares))
    shares.loc[shares["component"].eq("embedding") & shares["layer"].ge(0), "mean_effect"] = np.nan
    layers = with_ends(pd.DataFrame({"layer": range(-1, 12), "distance": np.linspace(0, 0.4, 13)}), "distance")
    figures.changes(shares, layers, NOWHERE, " → ".join(NAMES), "bars: 95 % intervals over 509 documents")


def profiles(models: int = 2):
    names = [f"mini-{number}" for number in range(models)]
    rows = [(name, layer, feature) for name in names for feature in FEATURES for layer in range(6)]
    table = pd.DataFrame(rows, columns=["model", "layer", "feature"])
    table = with_ends(table.assign(importance=RANDOM.uniform(0, 0.3, len(table))), "importance")
    scores = table.drop_duplicates(["model", "layer"])[["model", "layer"]]
    scores = scores.assign(score=RANDOM.uniform(0.2, 0.5, len(scores)), split_half_reference=0.8)
    figures.profiles(table, with_ends(scores, "score"), NOWHERE, about="650 stimuli\nbands: 95 % intervals over folds")


def profiles_of_six():
    profiles(6)


def ruler():
    table = with_ends(layer_pairs(), "value").assign(source_equivalent_bits=3.7, target_equivalent_bits=3.9)
    points = {"5 bits": 0.8, "4 bits": 0.4, "3 bits": 0.0, "local mixing": 0.03, "random initialisation": 0.01}
    rows = []
    for model, layers in zip(NAMES, (table["source_layer"], table["target_layer"]), strict=True):
        for name, value in points.items():
            rows += [(model, layer, name, value) for layer in layers]
    points = pd.DataFrame(rows, columns=["model", "layer", "calibration_point", "value"])
    figures.calibrated_layer_pairs(table, points, 144.0, NOWHERE, "residual R²")


def shifts():
    about = "2 batches of 256 rows, 65 documents (as 58.3 of equal length)\nbars: 95 % intervals over documents"
    figures.shifts(with_ends(layer_pairs(30), "value"), NOWHERE, about)


def stitches() -> pd.DataFrame:
    table = layer_pairs().assign(stitch="least_squares", penalty=0.9, identity_penalty=4.1)
    table = table.assign(token_mean_penalty=2.6, floor_penalty=0.1)
    return with_ends(table, "penalty", "identity_penalty", "token_mean_penalty", "floor_penalty")


def penalties():
    stitching.penalties(stitches(), NOWHERE, "2,032 tokens of 34 documents\nbars: 95 % intervals over documents")


def penalty_map(rows: int = 6, columns: int = 4):
    cells = pd.DataFrame(RANDOM.uniform(0.01, 5, (rows, columns)))
    stitching.penalty_map(cells, *NAMES, NOWHERE, "98,430 tokens of 58 documents")


def penalty_map_of_30():
    penalty_map(30, 18)


def family():
    names = ["gelu-3l-mini", "gelu-4l-mini", "solu-3l-mini", "gpt2-mini", "gpt2-mini-s1", "mamba-mini"]
    rows = [(a, b, 0.9 if a[1] == b[1] else 0.0, 1e-8) for k, a in enumerate(names) for b in names[k + 1 :]]
    relations = pd.DataFrame(rows, columns=["source", "target", "units_in_place", "lowest_p_corrected"])
    figures.family(relations, NOWHERE)


def trajectory():
    rows = [(step, 3, feature) for feature in FEATURES for step in STEPS]
    accuracies = pd.DataFrame(rows, columns=["step", "layer", "feature"])
    accuracies = accuracies.assign(accuracy=RANDOM.uniform(0.2, 0.9, len(rows)))
    similar = matrix("", "", len(STEPS), len(STEPS)).assign(layer=3)
    tables = {
        "similarity": similar.assign(step=STEPS[similar["source_layer"]], other_step=STEPS[similar["target_layer"]]),
        "losses": with_ends(pd.DataFrame({"step": STEPS, "loss": np.linspace(8, 3, len(STEPS))}), "loss"),
        "features": accuracies.assign(accuracy_low=accuracies["accuracy"] - 0.1, accuracy_high=0.95),
        "onsets": pd.DataFrame({"layer": 3, "feature": FEATURES, "onset": 64}),
    }
    figures.trajectory(
        similarity_to_last(), tables, NOWHERE, "gpt2-mini@step600", "bands: simultaneous 95 % intervals", n_stimuli=1431
    )


DRAWING = [
    cka_of_two, one_small_matrix, cka_of_many, components, components_of_a_mini,
    matrix_in_memory, similarity_of_two, similarity_of_six,
    changes, profiles, profiles_of_six, ruler, shifts, penalties, penalty_map, penalty_map_of_30, family, trajectory,
]  # fmt: skip


@pytest.mark.parametrize("draw", with_slow(DRAWING, profiles_of_six, similarity_of_six), ids=lambda draw: draw.__name__)
def test_a_figure_passes_a_reviewer(draw, request):
    check_figure(draw, request.config.getoption("--figures"))


UNBOUNDED = {"no interval": (-np.inf, np.inf), "no ends": (np.nan, np.nan), "an end": (0.0, np.inf)}
WITH_INTERVALS = [changes, profiles, ruler, shifts, penalties, trajectory]


@pytest.mark.parametrize("ends", with_slow(UNBOUNDED.values(), UNBOUNDED["no interval"]), ids=UNBOUNDED)
@pytest.mark.parametrize("draw", WITH_INTERVALS, ids=lambda draw: draw.__name__)
def test_a_figure_is_drawn_without_intervals(draw, ends, monkeypatch):
    bounded = with_ends
    planted = []

    def unbounded(table, *names):
        found = bounded(table, *names)
        for column in found.columns.difference(table.columns):
            found[column] = ends[column.endswith("high")]
            planted.append(column)
        return found

    monkeypatch.setitem(globals(), "with_ends", unbounded)
    check_figure(draw, None)
    assert planted, "control"


def shifts_of(value: float):
    figures.shifts(with_ends(layer_pairs().assign(value=value), "value"), NOWHERE)


def changes_of(value: float):
    shares = pd.DataFrame({"component": ["norms", "MLP"], "layer": 0, "mean_effect": value})
    figures.changes(shares, with_ends(pd.DataFrame({"layer": [0, 1], "distance": value}), "distance"), NOWHERE)


@pytest.mark.parametrize(
    ("effects", "reason"),
    [
        ({("MLP", 0): np.nan, ("MLP", 1): 0.5}, ["not measured"]),
        ({("MLP", 0): 0.2, ("MLP", 1): 0.5, ("embedding", -1): 0.1}, ["no such module"]),
        ({("MLP", 0): np.nan, ("MLP", 1): 0.5, ("embedding", -1): 0.1}, ["not measured or no such module"]),
        ({("MLP", 0): 0.2, ("MLP", 1): 0.5}, []),
    ],
)
def test_the_figure_of_a_change_says_why_a_module_has_no_share(effects, reason):
    """A module that was not exchanged is in the table without an effect; one that does not exist has no row."""
    rows = [(component, layer, effect) for (component, layer), effect in effects.items()]
    shares = pd.DataFrame(rows, columns=["component", "layer", "mean_effect"])
    layers = with_ends(pd.DataFrame({"layer": [0, 1], "distance": [0.1, 0.2]}), "distance")
    with figures.shown_figures() as shown:
        figures.changes(shares, layers, NOWHERE)
    ((figure, _),) = shown.values()
    assert [text.get_text() for legend in figure.legends for text in legend.get_texts()] == reason


def matrix_of(value: float):
    figures.layer_heatmaps(matrix(*NAMES, 3, 3).assign(value=value), NOWHERE, "r2", "residual R²")


def map_of(value: float):
    stitching.penalty_map(pd.DataFrame(np.full((3, 3), value)), *NAMES, NOWHERE)


def map_with_one(value: float):
    cells = pd.DataFrame(np.full((3, 3), 0.5))
    cells.iloc[1, 1] = value
    stitching.penalty_map(cells, *NAMES, NOWHERE)


@pytest.mark.parametrize("value", with_slow([np.nan, np.inf, -np.inf], -np.inf))
@pytest.mark.parametrize(
    "draw", [shifts_of, changes_of, matrix_of, map_of, map_with_one], ids=lambda draw: draw.__name__
)
def test_a_figure_is_drawn_without_values(draw, value):
    check_figure(lambda: draw(value), None)


def test_each_fault_of_a_figure_is_reported():
    figure = plt.figure(figsize=(style.COLUMN, 2))
    axes = figure.subplots()
    axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="x", ylabel="y")
    figure.set_layout_engine("constrained")
    assert complaints(figure) == []
    axes.text(0.5, 0.5, "one")
    axes.text(0.5, 0.5, "two")
    figure.text(0.9, 0.95, "far beyond the edge")
    axes.text(0.1, 0.1, "small", fontsize=5)
    axes.set_ylabel("")
    figure.set_figwidth(3)
    assert complaints(figure) == [
        "3.00 inches is no width of a column or a page",
        "'small' has 5 points",
        "'far beyond the edge' reaches out of the figure",
        "'one' and 'two' overlap",
        "the y axis of '' has no label",
    ]


@pytest.mark.parametrize(("reference", "named"), [(0.8, True), (np.nan, False)])
def test_the_legend_names_a_reference_that_is_drawn(reference, named):
    scores = with_ends(pd.DataFrame({"model": "a", "layer": range(3), "score": 0.5}), "score")
    axes = plt.figure().subplots()
    layers_figures._draw_scores(axes, scores.assign(split_half_reference=reference))
    labels = axes.get_legend_handles_labels()[1]
    assert ("split-half reference" in labels) == named
    assert "held-out ρ" in labels
    plt.close(axes.figure)


def test_lines_between_models_end_at_the_diagonal_of_a_symmetric_matrix():
    with figures.shown_figures() as shown:
        similarity_of_two()
    ((_, axes),) = shown.values()
    assert len(axes.lines) == 2
    for line in axes.lines:
        across, upwards = line.get_data()
        assert (np.asarray(upwards) >= np.asarray(across)).all()


@pytest.mark.parametrize("layers", [1, 3])
def test_calibration_points_are_lines_also_of_a_single_layer_pair(layers):
    """A line through one point has no length, and only its name was there."""
    axes = plt.figure().subplots()
    layers_figures._draw_calibration_points(axes, pd.DataFrame({"4 bits": [0.5] * layers, "untrained": 0.0}))
    assert len(axes.lines) == 2
    for line in axes.lines:
        positions = line.get_xdata()
        assert positions[0] < positions[-1]
        assert positions[0] <= 0 <= layers - 1 <= positions[-1]
    assert all(text.xy[0] == positions[-1] for text in axes.texts)
    plt.close(axes.figure)


def test_names_of_calibration_points_are_led_to_from_their_own_lines():
    """Three lines end near 0, where their names have no room, and stood beside the end of none."""
    axes = plt.figure().subplots()
    points = pd.DataFrame({"3 bits": [0.5, 0.0], "untrained": [0.1, 0.004], "local mixing": [0.4, 0.02]})
    layers_figures._draw_calibration_points(axes, points)
    leaders = [text for text in axes.texts if text.arrow_patch is not None]
    names = [text for text in axes.texts if text.arrow_patch is None]
    assert [leader.xyann for leader in leaders] == [name.xy for name in names]
    for leader, name in zip(leaders, names, strict=True):
        assert leader.xy == (1.0, points[name.get_text()][1])
    plt.close(axes.figure)


def test_all_panels_have_numbers_or_none_has():
    """The cells of the smaller model with itself had numbers, and those of the larger one had none."""
    sides = [("a", "b", 4, 5), ("a", "a", 4, 4), ("b", "b", 5, 5)]
    for layers, has_numbers in ((sides, False), ([(*models, 4, 4) for *models, _, _ in sides], True)):
        with figures.shown_figures() as shown:
            figures.layer_heatmaps(pd.concat([matrix(*side) for side in layers]), NOWHERE, "cka", "CKA")
        ((_, panels),) = shown.values()
        assert [bool(axes.texts) for axes in panels] == [has_numbers] * 3


def test_a_layer_is_at_the_same_place_in_both_panels_of_a_change():
    """Modules have a layer more than states: that of the last norm and the unembedding."""
    with figures.shown_figures() as shown:
        shares = pd.DataFrame({"component": "norms", "layer": range(-1, 4), "mean_effect": 0.2})
        distances = pd.DataFrame({"layer": range(-1, 3), "distance": 0.1})
        figures.changes(shares, with_ends(distances, "distance"), NOWHERE)
    ((_, (upper, lower)),) = shown.values()
    assert lower.get_xlim() == upper.get_xlim()


def test_colours_of_shares_end_at_1():
    for values, ends in (([0.96, 1.0], (0.95, 1.0)), ([0.2, 0.21], (0.2, 0.25)), ([0.1, 0.7], (0.1, 0.7))):
        assert style.colour_range(np.array(values), (0.0, 1.0)) == pytest.approx(ends)
    assert style.colour_range(np.array([1.3, 1.9]), (0.0, 1.0)) == (1.3, 1.9), "distances may be greater"


def test_p_values_of_a_family_have_a_minus_sign():
    with figures.shown_figures() as shown:
        family()
    ((_, (_, tree)),) = shown.values()
    written = [text.get_text() for text in tree.texts]
    assert written
    assert set(written) == {"p ≤ 1e−8 "}


@pytest.mark.parametrize("ends", [(-0.1, 1.0), (-1.0, 0.1), (-0.8, -0.2), (-0.5, 0.5)])
def test_a_scale_with_negative_values_is_as_long_as_the_values_and_white_is_zero(ends):
    norm, colours = style.colours_of(np.array(ends), (-1.0, 1.0))
    assert (norm.vmin, norm.vmax) == (ends[0], max(ends[1], 0.0))
    assert np.allclose(colours(norm(0.0))[:3], 0.97, atol=0.03)
    smaller = min(-norm.vmin, norm.vmax)
    if smaller > 0:  # equally far from 0 is equally strong: about the same brightness
        both = [np.mean(colours(norm(value))[:3]) for value in (-smaller, smaller)]
        assert both[0] == pytest.approx(both[1], abs=0.12)


def test_numbers_in_cells_have_a_minus_sign():
    values = np.array([[-0.25, -0.001]])
    with style.canvas(style.COLUMN, 2.0) as (_, axes):
        style.write_values(axes, values, axes.imshow(values))
    assert [text.get_text() for text in axes.texts] == ["−.25", ".00"]
    assert style.with_minus("gpt2-1 and n-gram, τ = -0.76") == "gpt2-1 and n-gram, τ = −0.76"


def test_each_curve_of_a_feature_has_its_name_at_its_end_and_the_title_has_the_number_of_stimuli():
    with figures.shown_figures() as shown:
        trajectory()
    ((_, panels),) = shown.values()
    lower = next(axes for axes in panels if "features in layer 3" in axes.get_title())
    assert "1,431 stimuli" in lower.get_title().replace("\n", " ")
    names = {text.get_text(): text for text in lower.texts}
    assert set(names) == set(FEATURES)
    for line in lower.get_lines():
        if line.get_label() in names:
            x, y = line.get_data()
            assert names[line.get_label()].xy == (x[-1], y[-1])
            assert names[line.get_label()].get_color() == line.get_color()


NO_FORMULA = r"$\frac{a$"  # which matplotlib cannot read as one


def draw_dollars(folder):
    with style.canvas(style.COLUMN, 2.0) as (figure, axes):
        axes.plot([1, 2], [1, 1000], label=NO_FORMULA)
        axes.set_yscale("log")
        axes.legend()
        style.ticks(axes.xaxis, [NO_FORMULA] * 3)
        style.write_title(figure, axes, NO_FORMULA)
        style.save(figure, folder, "dollars")


def drawn_with(name: str, tmp_path):
    """Draw models of a name, and return the text of the SVG file."""
    table = matrix(name, NAMES[1], 5, 5)
    figures.layer_heatmaps(table, tmp_path, "cka", "CKA", about="5 batches")
    with figures.shown_figures() as shown:
        figures.layer_heatmaps(table, NOWHERE, "cka", "CKA", about="5 batches")
    for figure, _ in shown.values():
        figure.canvas.draw()  # as a notebook does
    return next(tmp_path.glob("*.svg")).read_text()


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("evil\x1b[31m", r"evil\x1b[31m"),
        ("bell\x07", r"bell\x07"),
        ("two\rlines\u2028", r"two\rlines\u2028"),
        ("left\u202eright", "left\ufffdright"),
        ("modèle-ß", "modèle-ß"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_a_name_with_control_characters_is_escaped_in_figures(name, written, tmp_path):
    drawn = drawn_with(name, tmp_path)
    assert written in drawn
    assert name == written or name not in drawn


@pytest.mark.parametrize("name", ["模型", "🙂-mini", "модель-模"])
@pytest.mark.filterwarnings("error")
def test_letters_that_no_font_has_are_escaped(name, tmp_path, monkeypatch):
    own = letters.fontManager.ttflist
    monkeypatch.setattr(letters.fontManager, "ttflist", [font for font in own if font.name == "DejaVu Sans"])
    letters._family_with.cache_clear()
    ascii_or_known = "".join(
        letter if letter in "модель-mini" else letter.encode("unicode_escape").decode() for letter in name
    )
    assert ascii_or_known in drawn_with(name, tmp_path)
    letters._family_with.cache_clear()


@pytest.mark.filterwarnings("error")
def test_a_letter_is_taken_from_another_font_that_has_it(tmp_path):
    with plt.rc_context({"font.family": "cmr10", "axes.formatter.use_mathtext": True}):
        drawn = drawn_with("модель", tmp_path)
    assert "модель" in drawn, "DejaVu Sans has these letters, and cmr10 has not"


def test_a_name_with_dollars_is_no_formula(tmp_path):
    draw_dollars(tmp_path)
    svg = (tmp_path / "dollars.svg").read_text()
    assert svg.count(f">{NO_FORMULA}</text>") == 5
    assert "<!-- $\\mathdefault{10^{2}}$" in svg, "powers of ten are still drawn as formulas"


def test_a_name_with_dollars_is_no_formula_in_axes_of_the_user(tmp_path):
    figure, (first, second) = plt.subplots(1, 2)
    first.set_title("$x^2$")
    with style.shown_figures(second):
        draw_dollars(tmp_path)
    figure.savefig(tmp_path / "kept.svg")
    assert second.get_title() == NO_FORMULA
    assert first.title.get_parse_math()
    plt.close(figure)
