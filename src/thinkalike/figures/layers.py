"""Figures of layers: matrices of measures, the effect of a change, and profiles of features."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.colors import Normalize, PowerNorm

from thinkalike.figures.style import (
    canvas,
    check_axes,
    colour_of,
    heatmap,
    line,
    save,
    shown,
    ticks,
    write_values,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage
    from numpy.typing import ArrayLike

BELOW = "#4a90d9"  # the colour of values below the scale
MARKERS = "osD^vP*X"
MOST_WRITTEN = 36  # cells whose values are written
MOST_WRITTEN_SIMILARITIES = 64
LABEL_DISTANCE = 0.04  # of the height of the ruler's scale, between the names of two rungs
SHORT_NAME = 6  # letters of the name of a layer


def layer_heatmaps(
    table: pd.DataFrame,
    folder: Path,
    file: str,
    label: str,
    scale: tuple[float, float] = (0.0, 1.0),
    across: int = 3,
    about: str = "",
) -> None:
    """Draw the layer pairs of every pair of models in a table, on one scale.

    Args:
        label: of the colours.
        scale: the ends of the colours; values below are blue.
        across: how many panels are in a row.
        about: a title that says what the numbers are about.
    """
    pairs = list(table[["source", "target"]].drop_duplicates().itertuples(index=False, name=None))
    height = -(-len(pairs) // across)
    width = min(len(pairs), across)
    with canvas(2.3 * width + 0.9, 2.5 * height, height, width, squeeze=False) as (figure, panels):
        for axes in panels.flat[len(pairs) :]:
            axes.set_axis_off()
        for axes, (source, target) in zip(panels.flat, pairs, strict=False):
            rows = table[(table["source"] == source) & (table["target"] == target)]
            image = _draw_matrix(axes, _matrix(rows), scale, source, target)
        _add_colorbar(figure, panels, image, label, scale[0], table["value"].min())
        figure.suptitle(about, fontsize=8)
        save(figure, folder, file)


def _matrix(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the values of layer pairs as a matrix, with layers in the order of the table."""
    cells = rows.pivot(index="source_layer", columns="target_layer", values="value")
    return cells.loc[rows["source_layer"].unique(), rows["target_layer"].unique()]


def components(
    cells: pd.DataFrame,
    folder: Path,
    file: str,
    label: str,
    scale: tuple[float, float] = (0.0, 1.0),
    about: str = "",
) -> None:
    """Draw a measure at each component of each layer; `about` says what the numbers are about."""
    rows, columns = cells.shape
    width = max(0.3 * columns + 2, 4.4)
    height = max(0.15 * rows + 1.5, 2.8)
    with canvas(width, height) as (figure, axes):
        image = _draw_matrix(axes, cells, scale, "both models", "")
        ticks(
            axes.xaxis,
            list(cells.columns),
            columns,
            fontsize=7,
            rotation=45,
            ha="right",
            rotation_mode="anchor",
        )
        axes.set(aspect="auto", xlabel="component")
        _add_colorbar(figure, axes, image, label, scale[0], float(np.nanmin(cells.to_numpy())))
        axes.set_title(about, fontsize=8)
        save(figure, folder, file)


def layer_pairs(
    values: ArrayLike,
    label: str,
    scale: tuple[float, float] = (0.0, 1.0),
    ax: Axes | None = None,
) -> tuple[Figure, Axes]:
    """Draw a matrix of all layer pairs, rows the source's, into axes or a new figure.

    Returns the figure and its axes.
    """
    check_axes(ax)
    cells = pd.DataFrame(np.asarray(values))
    rows, columns = cells.shape
    with contextlib.ExitStack() as style:
        if ax is None:
            style.enter_context(shown())
            _, ax = style.enter_context(canvas(0.3 * columns + 2.5, 0.3 * rows + 2))
        assert ax is not None
        image = _draw_matrix(ax, cells, scale, "source", "target")
        figure: Figure = ax.figure  # type: ignore[assignment]
        _add_colorbar(figure, ax, image, label, scale[0], cells.to_numpy().min())
    return figure, ax


def _draw_matrix(
    axes: Axes, cells: pd.DataFrame, scale: tuple[float, float], source: str, target: str
) -> AxesImage:
    """Draw a matrix of layers, with its values if it is small."""
    colours = matplotlib.colormaps["magma"].with_extremes(under=BELOW)
    image = heatmap(axes, cells, Normalize(*scale), colours)
    if cells.size <= MOST_WRITTEN:
        write_values(axes, cells.to_numpy(), image)
    axes.set(xlabel=f"{target}, layer", ylabel=f"{source}, layer")
    return image


def _add_colorbar(
    figure: Figure,
    panels: Axes | np.ndarray,
    image: AxesImage,
    label: str,
    lowest: float,
    least: float,
) -> None:
    """Add the scale of colours beside panels.

    Args:
        lowest: the lower end of the scale.
        least: the least of all values; the scale shows whether it is below its end.
    """
    extend = "neither"
    if least < lowest:
        extend = "min"
    figure.colorbar(
        image,
        ax=panels,  # type: ignore[arg-type]
        label=label,
        extend=extend,
        shrink=0.8,
        aspect=30,
    )


def similarity(
    matrices: Mapping[str, pd.DataFrame],
    folder: Path,
    below: Callable[[Axes, str], None] | None = None,
    about: str = "",
) -> None:
    """Draw the similarity of all layers of all models, a panel per measure of it.

    Args:
        matrices: tables of layer pairs, by the name of the measure.
        below: draws further axes under each panel, given the name of the measure.
        about: a title that says what the numbers are about.
    """
    rows = 1
    height = 4.2
    if below:
        rows = 2
        height = 8.0
    with canvas(4.8 * len(matrices), height, rows, len(matrices), squeeze=False) as (
        figure,
        panels,
    ):
        for column, (title, table) in enumerate(matrices.items()):
            axes = panels[0][column]
            image = _draw_blocks(axes, table)
            axes.set_title(title)
            figure.colorbar(image, ax=axes, shrink=0.75)
            if below:
                below(panels[1][column], title)
        figure.suptitle(about, fontsize=8)
        engine = figure.get_layout_engine()
        if engine:  # a user's figure may have none
            # The names of models reach further than the engine knows.
            engine.set(w_pad=0.15)  # type: ignore[call-arg]
        save(figure, folder, "similarity")


def _draw_blocks(axes: Axes, table: pd.DataFrame) -> AxesImage:
    """Draw the matrix of all layers of all models, with lines between the models."""
    layers = table[["source", "source_layer"]].drop_duplicates()
    layer_names = list(layers["source_layer"])
    values = table["value"].to_numpy().reshape(len(layers), len(layers))
    image = axes.imshow(values, origin="lower", cmap="RdBu_r", norm=Normalize(-1, 1))
    if values.size <= MOST_WRITTEN_SIMILARITIES:
        write_values(axes, values, image)

    layer_counts = layers.groupby("source", sort=False).size()
    ends = layer_counts.cumsum()
    for end in ends[:-1]:
        axes.axhline(end - 0.5, color="black", linewidth=1)
        axes.axvline(end - 0.5, color="black", linewidth=1)

    model_font = 8
    if len(layer_counts) > 3:
        model_font = 6
    middles = ends - layer_counts / 2 - 0.5
    for axis in (axes.xaxis, axes.yaxis):
        ticks(axis, layer_names, 16, fontsize=6)
        model_names = [str(name) for name in layer_counts.index]
        axis.set_ticks(middles, model_names, minor=True, fontsize=model_font)

    # The names of models stand beyond those of the layers.
    pad = 16
    if max(len(str(name)) for name in layer_names) > SHORT_NAME:
        pad = 40
    axes.tick_params(which="minor", length=0, pad=pad)
    axes.tick_params(which="minor", axis="x", labelrotation=30)
    for name in axes.get_xticklabels(minor=True):
        name.set(ha="right", rotation_mode="anchor")
    axes.spines[:].set_visible(False)
    return image


def changes(shares: pd.DataFrame, layers: pd.DataFrame, folder: Path, about: str = "") -> None:
    """Draw what a change did: the share of KL of each part of a model, and the distance of states.

    Colours are by the square root of the share, from 0 to 1; a share below 0 is blue.

    Args:
        shares: one row per component and layer.
        layers: the relative distance of states by layer, with its interval.
        about: a title that says which models.
    """
    cells = shares.pivot_table(
        index="component", columns="layer", values="mean_effect", sort=False, dropna=False
    )
    colours = matplotlib.colormaps["magma_r"].with_extremes(under=BELOW, bad="0.9")
    scale = PowerNorm(0.5, 0, 1)
    with canvas(7.2, 2.9, 1, 2) as (figure, (left, right)):
        image = left.imshow(cells.to_numpy(), aspect="auto", cmap=colours, norm=scale)
        left.set_yticks(range(len(cells)), cells.index, fontsize=7)
        ticks(left.xaxis, cells.columns, fontsize=7)
        left.set(xlabel="layer", title="share of KL(base ‖ changed)")
        marked_shares = [0, 0.01, 0.1, 0.25, 0.5, 1]
        figure.colorbar(image, ax=left, ticks=marked_shares, format="%g", extend="min")

        ends = ("distance_low", "distance_high")
        line(right, layers, "distance", ends, "distance", colour_of(0), "o-")
        ticks(right.xaxis, layers["layer"], fontsize=7)
        right.set(xlabel="layer", title="distance of states (accumulates)", ylim=(0, None))
        figure.suptitle(about, fontsize=8)
        save(figure, folder, "diff")


def profiles(
    table: pd.DataFrame, scores: pd.DataFrame, folder: Path, across: int = 3, about: str = ""
) -> None:
    """Draw the importance of each feature against layer, a panel per model, above held-out scores.

    Scores have their split-half references beside them, where they are known. Layers of equal
    relative depth stand below each other; `about` says what the numbers are about.
    """
    models = list(dict.fromkeys(table["model"]))
    features = list(dict.fromkeys(table["feature"]))
    rows = -(-len(models) // across)
    columns = min(len(models), across)
    heights = (3, 1) * rows
    with canvas(
        3.0 * columns + 1.4, 4.2 * rows, 2 * rows, columns, squeeze=False, height_ratios=heights
    ) as (figure, panels):
        panel_pairs = []  # the panel of importances, and that of scores below it
        for row, column in np.ndindex(rows, columns):
            panel_pairs.append((panels[2 * row, column], panels[2 * row + 1, column]))
        for upper, lower in panel_pairs[len(models) :]:
            upper.set_axis_off()
            lower.set_axis_off()

        first_upper, first_lower = panel_pairs[0]
        for (upper, lower), model in zip(panel_pairs, models, strict=False):
            if upper is not first_upper:
                upper.sharey(first_upper)
                lower.sharey(first_lower)
            importances = table[table["model"] == model]
            held_out = scores[scores["model"] == model]
            _draw_importances(upper, importances, features)
            _draw_scores(lower, held_out)
            upper.tick_params(labelbottom=False)
            upper.set_title(model)
            for axes in (upper, lower):
                ticks(axes.xaxis, list(held_out["layer"]))

        for row in range(rows):
            panels[2 * row, 0].set_ylabel("feature importance [drop of ρ]")
            panels[2 * row + 1, 0].set_ylabel("held-out ρ")
        curves = {}
        for axes in panel_pairs[0]:
            for handle, name in zip(*axes.get_legend_handles_labels(), strict=True):
                curves[name] = handle
        figure.legend(list(curves.values()), list(curves), loc="outside right upper", fontsize=8)
        figure.suptitle(about, fontsize=8)
        save(figure, folder, "profiles")


def _draw_importances(axes: Axes, importances: pd.DataFrame, features: list[str]) -> None:
    for number, feature in enumerate(features):
        rows = importances[importances["feature"] == feature]
        marker = MARKERS[number % len(MARKERS)]
        band(axes, rows, "importance", feature, color=colour_of(number), marker=marker)
    axes.axhline(0, color="0.6", linewidth=0.8, zorder=0)


def _draw_scores(axes: Axes, scores: pd.DataFrame) -> None:
    band(axes, scores, "score", "held-out ρ", color="0.3", marker="o")
    if "split_half_reference" in scores:
        axes.plot(
            range(len(scores)),
            scores["split_half_reference"],
            linewidth=1,
            color="0.3",
            linestyle="--",
            label="its split-half reference",
        )
    axes.set_xlabel("layer")


def band(axes: Axes, rows: pd.DataFrame, column: str, label: str, **style: Any) -> None:
    """Draw a column against the rows, with the band from `low` to `high`."""
    positions = range(len(rows))
    axes.plot(positions, rows[column], label=label, markersize=3.5, linewidth=1.2, **style)
    colour = style["color"]
    axes.fill_between(positions, rows["low"], rows["high"], color=colour, alpha=0.15, linewidth=0)


def ruler(
    table: pd.DataFrame, rungs: pd.DataFrame, documents: float, folder: Path, label: str
) -> None:
    """Draw the values of layer pairs beside the rungs of the ruler, a panel for each model.

    Args:
        table: the layer pairs, with intervals over documents.
        rungs: the value of each rung of each layer.
        documents: over how many documents the intervals are.
        label: of the vertical axis.
    """
    # the models that have a reading, and on which side of the layer pairs they are
    side_of_model = {}
    for side in ("target", "source"):
        if table[f"{side}_equivalent_bits"].notna().any():
            side_of_model[table[side].iloc[0]] = side
    model_names = dict.fromkeys([table["source"].iloc[0], table["target"].iloc[0]])
    models = [model for model in model_names if model in side_of_model]
    pair_names = []
    for source_layer, target_layer in zip(
        table["source_layer"], table["target_layer"], strict=True
    ):
        pair_names.append(f"{source_layer} → {target_layer}")

    width = 3.6 * len(models) + 0.6
    with canvas(width, 3.4, 1, len(models), squeeze=False, sharey=True) as (figure, panels):
        for axes, model in zip(panels[0], models, strict=True):
            of_model = rungs[rungs["model"] == model]
            rung_cells = of_model.pivot(index="layer", columns="calibration_point", values="value")
            layers = table[f"{side_of_model[model]}_layer"]
            _draw_rungs(axes, rung_cells.loc[layers])
            line(axes, table, "value", ("low", "high"), "both models", colour_of(0), "o-")
            lowest = min(-0.02, table["low"].min())
            axes.set(title=f"beside copies of {model}", ylim=(lowest, 1.02))
            axes.set_xlabel(f"layers; intervals over {documents:.0f} documents")
            ticks(axes.xaxis, pair_names, 6)
        panels[0][0].set_ylabel(label)
        panels[0][0].legend(loc="upper right")
        save(figure, folder, "ruler")


def _draw_rungs(axes: Axes, rungs: pd.DataFrame) -> None:
    """Draw a line for each rung, from the lowest to the highest; their names do not overlap.

    Args:
        rungs: rows are layer pairs, and columns rungs.
    """
    last = len(rungs) - 1
    label_height = -1.0
    for name in rungs.iloc[-1].sort_values().index:
        values = rungs[name]
        if name == "untrained":
            axes.plot(values.to_numpy(), linewidth=1, color="0.2", linestyle=":")
        else:
            axes.plot(values.to_numpy(), linewidth=1, color="0.6")
        label_height = max(float(values.iloc[-1]), label_height + LABEL_DISTANCE)
        axes.annotate(
            str(name),
            (last, label_height),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=7,
        )


def shifts(table: pd.DataFrame, folder: Path, about: str = "") -> None:
    """Draw the relative distance of two models' states against the layer.

    `about` says what the numbers are about.
    """
    first = table.iloc[0]
    with canvas(5.2, 2.9) as (figure, axes):
        line(axes, table, "value", ("low", "high"), "distance", colour_of(0), "o-")
        ticks(axes.xaxis, list(table["source_layer"]), 15, fontsize=7)
        axes.set(xlabel="layer", ylabel="relative distance of states", ylim=(0, None))
        axes.set_title(f"{first.source} → {first.target}\n{about}", fontsize=8)
        save(figure, folder, "distance")
