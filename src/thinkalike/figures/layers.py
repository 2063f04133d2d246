"""Figures of layers: matrices of measures, the effect of a change, and profiles of features."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd
from matplotlib.colors import Normalize
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.transforms import ScaledTranslation

from thinkalike.figures.style import (
    COLUMN,
    PAGE,
    POINTS_PER_INCH,
    SMALL,
    VALUE_WIDTH,
    canvas,
    check_axes,
    colour_of,
    colour_range,
    colours_of,
    finite_or_nan,
    heatmap,
    highest_of,
    in_lines,
    leave_out,
    line,
    save,
    show_missing,
    shown_figures,
    ticks,
    width_of,
    write_title,
    write_values,
)
from thinkalike.matrices import check_matrix, matrix_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage
    from numpy.typing import ArrayLike

MARKERS = "osD^vP*X"
SHORT_NAME = 6  # letters of the name of a layer
MOST_BESIDE_EMBEDDING = 7  # ticks at an axis that may begin with the embedding
MOST_TICKS = 6  # at an axis of a panel that shares its row

# inches
BESIDE_MATRIX = 1.25  # the names of layers and the colours on both sides of a matrix
BESIDE_PANEL = 0.6  # the names of layers of a panel that shares its row
ABOVE_AND_BELOW = 1.0  # the names of layers and a title
COLOURBAR_HEIGHT = 0.5
TALLEST_MATRIX = 4.0
SHORTEST_MATRIX = 0.7
SHORTEST_COMPONENTS = 1.3
LEAST_SPREAD = 1e-3  # of the values of a layer, from which on one of them has a frame
ROW_HEIGHT = 0.15  # of a layer in a figure of components

NAME_DISTANCE = 10  # points between the right end of a line and its name
LABEL_DISTANCE = 0.075  # of the height of the ruler's axis, between the names of two lines
HALF_LINE = 0.3  # from a single layer pair to either end of the line of a calibration point
HEADROOM = 1.08  # the end of an axis, of the greatest value
COPY_COLOUR = "0.6"
CONTROL_COLOUR = "0.2"


def layer_heatmaps(
    table: pd.DataFrame,
    folder: Path,
    file: str,
    label: str,
    scale: tuple[float, float] = (0.0, 1.0),
    about: str = "",
) -> None:
    """Draw the layer pairs of every pair of models in a table, with one scale of colours.

    Args:
        table: A row for each layer pair, with source, target, source_layer, target_layer, value.
        folder: Where the figure is written.
        file: Its name there.
        label: The name and unit of the values.
        scale: The range of the measure.
        about: How much was compared, which is written below the names of the models.
    """
    pairs = list(table[["source", "target"]].drop_duplicates().itertuples(index=False, name=None))
    models = list(dict.fromkeys([name for pair in pairs for name in pair]))
    matrices = []
    for source, target in pairs:
        rows = table[(table["source"] == source) & (table["target"] == target)]
        matrices.append(_matrix(rows))
    norm = Normalize(*colour_range(table["value"].to_numpy(float), scale))

    across = _panels_across(len(pairs))
    width = PAGE if across > 2 else COLUMN
    if across == 1:
        inches = width - BESIDE_MATRIX
    else:
        inches = width / across - BESIDE_PANEL
    # Either all panels have numbers in their cells or none has.
    cell_width = inches / max(max(cells.shape) for cells in matrices)
    height, heights = _heights(matrices, across, inches)
    with canvas(width, height, len(heights), across, squeeze=False, height_ratios=heights) as (
        figure,
        panels,
    ):
        leave_out(panels.flat[len(pairs) :])
        for axes, cells, (source, target) in zip(panels.flat, matrices, pairs, strict=False):
            image = _draw_matrix(axes, cells, norm, source, target, inches, cell_width)
        used = panels.flat[: len(pairs)]
        _add_colorbar(figure, used, image, label, is_below=across > 1)
        write_title(figure, panels[0, 0], _title(label, models), about)
        save(figure, folder, file)


def _panels_across(n_panels: int) -> int:
    """Return how many panels are in a row: two in a column of a paper, three on a page."""
    if n_panels <= 4:
        return min(n_panels, 2)
    return 3


def _heights(
    matrices: list[pd.DataFrame], across: int, inches: float
) -> tuple[float, list[float]]:
    """Return the height of a figure of matrices in inches, and that of each row.

    Args:
        matrices: The panels, row by row.
        across: How many are in a row.
        inches: The width of the widest matrix.
    """
    heights = []
    for first in range(0, len(matrices), across):
        tallest = max(len(cells) / cells.shape[1] for cells in matrices[first : first + across])
        height = min(max(inches * tallest, SHORTEST_MATRIX), TALLEST_MATRIX)
        heights.append(height + BESIDE_PANEL)
    below = COLOURBAR_HEIGHT if across > 1 else 0.0
    return sum(heights) + below + 0.4, heights


def _title(label: str, models: list[str]) -> str:
    """Return a measure with the models that it compares; many are on the axes alone."""
    if len(models) > 2:
        return f"{label} of {len(models)} models"
    return f"{label}: {' and '.join(models)}"


def _matrix(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the values of layer pairs as a matrix, with layers in the order of the table."""
    cells = matrix_of(rows, index="source_layer", columns="target_layer", values="value")
    return cells.loc[rows["source_layer"].unique(), rows["target_layer"].unique()]


def components(
    cells: pd.DataFrame,
    folder: Path,
    file: str,
    label: str,
    scale: tuple[float, float] = (0.0, 1.0),
    about: str = "",
    layers_of: str = "both models",
    frames_greatest: bool | None = None,
) -> None:
    """Draw a measure at each component of each layer.

    Args:
        cells: The values, a row for each layer and a column for each component.
        folder, file: Where the figure is saved.
        label: What the measure is called.
        scale: The range of the measure.
        about: Which models were compared, and how much of them.
        layers_of: Whose layers and components the rows and columns are.
        frames_greatest: Whether the greatest value of each layer has a frame, or the least; None:
            none has. Layers whose values are all the same have none.
    """
    rows, columns = cells.shape
    matrix_height = min(max(ROW_HEIGHT * rows, SHORTEST_COMPONENTS), TALLEST_MATRIX)
    height = matrix_height + ABOVE_AND_BELOW
    norm = Normalize(*colour_range(cells.to_numpy(float), scale))
    with canvas(COLUMN, height) as (figure, axes):
        inches = COLUMN - BESIDE_MATRIX
        image = _draw_matrix(axes, cells, norm, layers_of, "", inches, inches / columns)
        if frames_greatest is not None:
            _frame_extremes(axes, cells.to_numpy(float), frames_greatest)
        ticks(
            axes.xaxis,
            list(cells.columns),
            columns,
            rotation=45,
            ha="right",
            rotation_mode="anchor",
        )
        axes.set(aspect="auto", xlabel="component", ylabel=f"layer of {layers_of}")
        _add_colorbar(figure, axes, image, in_lines(label, matrix_height))
        write_title(figure, axes, about)
        save(figure, folder, file)


def _frame_extremes(axes: Axes, values: np.ndarray, greatest: bool) -> None:
    """Draw a frame around the greatest, or the least, value of each row.

    Args:
        values: A row for each layer.
        greatest: Whether the greatest values have frames.
    """
    for row, of_row in enumerate(values):
        if np.isnan(of_row).all() or np.nanmax(of_row) - np.nanmin(of_row) < LEAST_SPREAD:
            continue
        column = int(np.nanargmax(of_row) if greatest else np.nanargmin(of_row))
        for colour, width in (("white", 2.0), ("black", 0.8)):
            frame = Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False)
            frame.set(edgecolor=colour, linewidth=width)
            axes.add_patch(frame)


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
    inches = COLUMN - BESIDE_MATRIX
    with contextlib.ExitStack() as style:
        if ax is None:
            style.enter_context(shown_figures())
            height = inches * min(rows / columns, 1.5) + ABOVE_AND_BELOW
            _, ax = style.enter_context(canvas(COLUMN, height))
        assert ax is not None
        norm = Normalize(*colour_range(cells.to_numpy(float), scale))
        image = _draw_matrix(ax, cells, norm, "source", "target", inches)
        figure: Figure = ax.figure  # type: ignore[assignment]
        _add_colorbar(figure, ax, image, label)
    return figure, ax


def _draw_matrix(
    axes: Axes,
    cells: pd.DataFrame,
    norm: Normalize,
    source: str,
    target: str,
    inches: float,
    cell_width: float | None = None,
) -> AxesImage:
    """Draw a matrix of layers, with its values if they can be read.

    Args:
        inches: The width of the axes.
        cell_width: Of one cell in inches; by default cells are squares.
    """
    image = heatmap(axes, cells, norm, "magma", MOST_TICKS)
    if cell_width is None:
        cell_width = inches / max(cells.shape)
    if cell_width >= VALUE_WIDTH:
        write_values(axes, np.ma.asarray(image.get_array()), image)
    axes.set_xlabel(in_lines(f"layer of {target}", inches))
    axes.set_ylabel(in_lines(f"layer of {source}", inches))
    return image


def _add_colorbar(
    figure: Figure,
    panels: Axes | np.ndarray,
    image: AxesImage,
    label: str,
    is_below: bool = False,
) -> None:
    """Add the scale of colours beside panels, or below them."""
    place: dict[str, object] = {"shrink": 0.8, "aspect": 25}
    if is_below:
        place = {"location": "bottom", "shrink": 0.7, "aspect": 35}
    figure.colorbar(image, ax=panels, label=label, **place)  # type: ignore[arg-type]


def similarity(
    matrices: Mapping[str, pd.DataFrame],
    folder: Path,
    below: Callable[[Axes, str], None] | None = None,
    about: str = "",
) -> None:
    """Draw the similarity of all layers of all models, a panel per measure of it.

    Args:
        matrices: Tables of layer pairs, by the name of the measure.
        folder: Where the figure is written.
        below: Draws further axes under each panel, given the name of the measure.
        about: How much was compared.
    """
    rows = 1
    width = width_of(len(matrices))
    height = 2.9
    if below:
        rows = 2
        height = 6.6
    with canvas(width, height, rows, len(matrices), squeeze=False) as (figure, panels):
        for column, (title, table) in enumerate(matrices.items()):
            axes = panels[0][column]
            image = _draw_blocks(axes, table)
            _add_colorbar(figure, axes, image, title, is_below=len(matrices) > 1)
            if below:
                below(panels[1][column], title)
        first = next(iter(matrices.values()))
        models = list(first["source"].unique())
        named = _title("Similarity of layers", models)
        write_title(figure, panels[0][0], named, about)
        engine = figure.get_layout_engine()
        if engine:  # a user's figure may have none
            # The names of models reach further than the engine knows.
            engine.set(w_pad=0.08)  # type: ignore[call-arg]
        save(figure, folder, "similarity")


def _draw_blocks(axes: Axes, table: pd.DataFrame) -> AxesImage:
    """Draw the matrix of all layers of all models, with lines between the models.

    Colours are from the least to the greatest value; where there are negative values, white is 0.
    """
    layers = table[["source", "source_layer"]].drop_duplicates()
    layer_names = list(layers["source_layer"])
    values = table["value"].to_numpy(float).reshape(len(layers), len(layers))
    cells = pd.DataFrame(values, index=layer_names, columns=layer_names)
    norm, colours = colours_of(values, (-1.0, 1.0))
    image = heatmap(axes, cells, norm, colours)
    if (COLUMN - BESIDE_MATRIX) / len(layers) >= VALUE_WIDTH:
        write_values(axes, np.ma.asarray(image.get_array()), image)

    layer_counts = layers.groupby("source", sort=False).size()
    ends = layer_counts.cumsum()
    highest = len(layers) - 0.5
    for edge in ends[:-1] - 0.5:  # between the cells of two models
        # Below the diagonal there is nothing.
        axes.plot([-0.5, edge], [edge, edge], color="0.5", linewidth=0.8)
        axes.plot([edge, edge], [edge, highest], color="0.5", linewidth=0.8)
    axes.set(xlim=(-0.5, highest), ylim=(-0.5, highest))

    middles = ends - layer_counts / 2 - 0.5
    for axis in (axes.xaxis, axes.yaxis):
        ticks(axis, layer_names, 12, fontsize=6)
        model_names = [str(name) for name in layer_counts.index]
        axis.set_ticks(middles, model_names, minor=True, fontsize=SMALL)

    # The names of models stand beyond those of the layers.
    pad = 14
    if max(len(str(name)) for name in layer_names) > SHORT_NAME:
        pad = 36
    axes.tick_params(which="minor", length=0, pad=pad)
    axes.tick_params(which="minor", axis="x", labelrotation=30)
    for name in axes.get_xticklabels(minor=True):
        name.set(ha="right", rotation_mode="anchor")
    axes.set(xlabel="layer, by model", ylabel="layer, by model")
    return image


def changes(
    shares: pd.DataFrame, layers: pd.DataFrame, folder: Path, names: str = "", about: str = ""
) -> None:
    """Draw what a change did: the share of KL of each module, and the distance of states by layer.

    Red is a share above 0, blue one below 0.

    Args:
        shares: One row per component and layer; its effect is NaN if it was not measured.
        layers: The relative distance of states by layer, with its interval.
        folder: Where the figure is written.
        names: Both models.
        about: How much was compared.
    """
    check_matrix(shares, index="component", columns="layer")
    cells = shares.pivot_table(
        index="component", columns="layer", values="mean_effect", sort=False, dropna=False
    )
    values = cells.to_numpy(float)
    values = np.where(np.isfinite(values), values, np.nan)
    lowest, highest = colour_range(values, (0.0, 1.0))
    largest = min(max(-lowest, highest), 1.0)
    height = ROW_HEIGHT * len(cells) + 3.1
    with canvas(COLUMN, height, 2, 1) as (figure, (upper, lower)):
        norm = Normalize(-largest, largest)
        image = upper.imshow(np.ma.masked_invalid(values), aspect="auto", cmap="RdBu_r", norm=norm)
        is_missing = np.isnan(values)
        if is_missing.any():
            show_missing(upper, is_missing, _why_missing(shares, cells, is_missing))
        upper.set_yticks(range(len(cells)), list(cells.index))
        ticks(upper.xaxis, cells.columns, MOST_BESIDE_EMBEDDING)
        upper.set(xlabel="layer", ylabel="module")
        bar = figure.colorbar(
            image,
            ax=upper,
            extend=_beyond(lowest, highest, largest),
            label="mean effect\n[share of KL]",
            aspect=12,
        )
        least = max(lowest, -largest)
        most = min(highest, largest)
        bar.ax.set_ylim(min(least, 0.0), max(most, 0.0))

        ends = ("distance_low", "distance_high")
        line(lower, layers, "distance", ends, "distance", colour_of(0), "o-")
        ticks(lower.xaxis, layers["layer"], MOST_BESIDE_EMBEDDING)
        if list(cells.columns)[: len(layers)] == list(layers["layer"]):
            lower.set_xlim(upper.get_xlim())  # a layer is at the same place in both panels
        lower.set(xlabel="layer", ylabel="relative distance\nof states")
        _begin_at_zero(lower, highest_of(layers, "distance", "distance_high"))
        write_title(figure, upper, names, about)
        save(figure, folder, "diff")


def _why_missing(shares: pd.DataFrame, cells: pd.DataFrame, is_missing: np.ndarray) -> str:
    """Return why modules have no share: a module of the model has a row, even if it has no value.

    Args:
        shares: One row per component and layer.
        cells: Their values, a row for each component and a column for each layer.
        is_missing: Which of the cells have no value.
    """
    modules = set(zip(shares["component"], shares["layer"], strict=True))
    reasons = set()
    for row, column in zip(*np.nonzero(is_missing), strict=True):
        if (cells.index[row], cells.columns[column]) in modules:
            reasons.add("not measured")
        else:
            reasons.add("no such module")
    return " or ".join(sorted(reasons, reverse=True))


def _begin_at_zero(axes: Axes, highest: float | None) -> None:
    """Let the vertical axis go from 0 to a little above the highest value, if one is known."""
    if highest is not None:
        axes.set_ylim(0, HEADROOM * highest)


def _beyond(
    lowest: float, highest: float, largest: float
) -> Literal["neither", "min", "max", "both"]:
    """Return at which ends values lie beyond a scale of colours."""
    if lowest < -largest and highest > largest:
        return "both"
    if lowest < -largest:
        return "min"
    if highest > largest:
        return "max"
    return "neither"


def profiles(table: pd.DataFrame, scores: pd.DataFrame, folder: Path, about: str = "") -> None:
    """Draw the importance of each feature against layer, a panel per model, above held-out scores.

    Scores have their split-half references beside them, where they are known. Layers of equal
    relative depth stand below each other; `about` says how much was compared.
    """
    models = list(dict.fromkeys(table["model"]))
    features = list(dict.fromkeys(table["feature"]))
    across = _panels_across(len(models))
    rows = -(-len(models) // across)
    width = PAGE if across > 2 else COLUMN
    heights = (2, 1) * rows
    legend_height = 0.14 * -(-(len(features) + 2) // 3)
    height = 2.8 * rows + legend_height + 0.3
    with canvas(width, height, 2 * rows, across, squeeze=False, height_ratios=heights) as (
        figure,
        panels,
    ):
        panel_pairs = []  # the panel of importances, and that of scores below it
        for row, column in np.ndindex(rows, across):
            panel_pairs.append((panels[2 * row, column], panels[2 * row + 1, column]))
        for upper, lower in panel_pairs[len(models) :]:
            leave_out([upper, lower])

        first_upper, first_lower = panel_pairs[0]
        for number, (model, (upper, lower)) in enumerate(zip(models, panel_pairs, strict=False)):
            if number > 0:
                upper.sharey(first_upper)
                lower.sharey(first_lower)
            is_first_of_row = number % across == 0
            importances = table[table["model"] == model]
            held_out = scores[scores["model"] == model]
            _draw_importances(upper, importances, features)
            _draw_scores(lower, held_out)
            upper.tick_params(labelbottom=False, labelleft=is_first_of_row)
            lower.tick_params(labelleft=is_first_of_row)
            upper.set_title(model)
            for axes in (upper, lower):
                ticks(axes.xaxis, list(held_out["layer"]), MOST_TICKS)

        for row in range(rows):
            panels[2 * row, 0].set_ylabel("importance [drop of ρ]")
            panels[2 * row + 1, 0].set_ylabel("held-out ρ")
        curves = {}
        for axes in panel_pairs[0]:
            for handle, name in zip(*axes.get_legend_handles_labels(), strict=True):
                curves[name] = handle
        figure.legend(list(curves.values()), list(curves), loc="outside lower center", ncols=3)
        write_title(figure, first_upper, _title("Feature importance", models), about)
        save(figure, folder, "profiles")


def _draw_importances(axes: Axes, importances: pd.DataFrame, features: list[str]) -> None:
    for number, feature in enumerate(features):
        rows = importances[importances["feature"] == feature]
        marker = MARKERS[number % len(MARKERS)]
        draw_band(axes, rows, "importance", feature, color=colour_of(number), marker=marker)
    axes.axhline(0, color="0.6", linewidth=0.8, zorder=0)


def _draw_scores(axes: Axes, scores: pd.DataFrame) -> None:
    draw_band(axes, scores, "score", "held-out ρ", color="0.3", marker="o")
    reference = scores.get("split_half_reference")
    if reference is not None and reference.notna().any():
        axes.plot(
            range(len(scores)),
            reference,
            linewidth=1,
            color="0.3",
            linestyle="--",
            label="split-half reference",
        )
    axes.set_xlabel("layer")


def draw_band(axes: Axes, rows: pd.DataFrame, column: str, label: str, **style: Any) -> None:
    """Draw a column against the rows, with the band from `low` to `high`."""
    positions = range(len(rows))
    values = finite_or_nan(rows[column])
    axes.plot(positions, values, label=label, markersize=3, linewidth=1.0, **style)
    low = finite_or_nan(rows["low"])
    high = finite_or_nan(rows["high"])
    axes.fill_between(positions, low, high, color=style["color"], alpha=0.15, linewidth=0)


def calibrated_layer_pairs(
    table: pd.DataFrame,
    points: pd.DataFrame,
    documents: float,
    folder: Path,
    label: str,
) -> None:
    """Draw the values of layer pairs beside the calibration points, a panel for each model.

    Args:
        table: The layer pairs, with intervals over documents.
        points: The value of each calibration point of each layer.
        documents: Over how many documents the intervals are.
        folder: Where the figure is written.
        label: The name of the measure, at the vertical axis.
    """
    # the models that have a reading, and on which side of the layer pairs they are
    side_of_model = {}
    for side in ("target", "source"):
        if table[f"{side}_equivalent_bits"].notna().any():
            side_of_model[table[side].iloc[0]] = side
    source = table["source"].iloc[0]
    target = table["target"].iloc[0]
    model_names = dict.fromkeys([source, target])
    models = [model for model in model_names if model in side_of_model]
    pair_names = pairs_in_words(table)

    height = 1.9 * len(models) + 1.1
    with canvas(COLUMN, height, len(models), 1, squeeze=False) as (figure, panels):
        for axes, model in zip(panels[:, 0], models, strict=True):
            of_model = points[points["model"] == model]
            point_cells = matrix_of(
                of_model, index="layer", columns="calibration_point", values="value"
            )
            layers = table[f"{side_of_model[model]}_layer"]
            both = f"{source} and {target}"
            line(axes, table, "value", ("low", "high"), both, colour_of(0), "o-")
            axes.autoscale(tight=False)
            _draw_calibration_points(axes, point_cells.loc[layers])
            axes.set(title=f"beside changed copies of {model}", ylabel=label)
            ticks(axes.xaxis, pair_names, MOST_TICKS)
        panels[-1, 0].set_xlabel(in_lines(f"layer of {source} → layer of {target}", COLUMN - 0.6))
        handles = [
            *panels[0, 0].get_legend_handles_labels()[0],
            Line2D([], [], color=COPY_COLOUR, label="a model and its copy, rounded to n bits"),
            Line2D([], [], color=CONTROL_COLOUR, linestyle=":", label="a model and a control"),
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=1)
        intervals = f"bars: 95 % intervals over {documents:.0f} documents"
        write_title(figure, panels[0, 0], _title(label, list(model_names)), intervals)
        save(figure, folder, "ruler")


def pairs_in_words(table: pd.DataFrame) -> list[str]:
    """Return the layer pairs of a table as an axis calls them, such as 7→4."""
    names = []
    for source, target in zip(table["source_layer"], table["target_layer"], strict=True):
        names.append(f"{source}→{target}")
    return names


def _draw_calibration_points(axes: Axes, points: pd.DataFrame) -> None:
    """Draw a line for each calibration point, and lead from its right end to its name.

    For a single layer pair it is a short line around it.

    Args:
        points: Rows are layer pairs, and columns calibration points.
    """
    ends = points.iloc[-1].sort_values()
    positions = np.arange(len(points), dtype=float)
    if len(points) == 1:
        positions = np.array([-HALF_LINE, HALF_LINE])
    for name in ends.index:
        values = np.broadcast_to(points[name].to_numpy(), positions.shape)
        if str(name).endswith(" bits"):
            axes.plot(positions, values, linewidth=1, color=COPY_COLOUR, zorder=1)
        else:
            axes.plot(
                positions, values, linewidth=1, color=CONTROL_COLOUR, linestyle=":", zorder=1
            )

    bottom, top = axes.get_ylim()
    distance = LABEL_DISTANCE * (top - bottom)
    heights = spread_apart(ends.to_numpy(float), distance, top)
    inches = NAME_DISTANCE / POINTS_PER_INCH
    beside_line = axes.transData + ScaledTranslation(inches, 0, axes.figure.dpi_scale_trans)
    leader = {
        "arrowstyle": "-",
        "color": COPY_COLOUR,
        "linewidth": 0.5,
        "shrinkA": 0,
        "shrinkB": 0,
    }
    for name, height in zip(ends.index, heights, strict=True):
        end = (positions[-1], ends[name])
        beside = (positions[-1], height)
        axes.annotate("", end, beside, textcoords=beside_line, arrowprops=leader)
        axes.annotate(
            str(name),
            beside,
            xytext=(NAME_DISTANCE + 1, 0),
            textcoords="offset points",
            va="center",
            fontsize=SMALL,
        )


def spread_apart(heights: np.ndarray, distance: float, highest: float) -> np.ndarray:
    """Move ascending heights so that each two are a distance apart.

    >>> spread_apart(np.array([0.0, 0.25, 1.0]), 0.5, 1.0)
    array([0. , 0.5, 1. ])
    """
    moved = heights.copy()
    for number in range(1, len(moved)):
        moved[number] = max(moved[number], moved[number - 1] + distance)
    if len(moved) and moved[-1] > highest:
        moved[-1] = highest
        for number in range(len(moved) - 2, -1, -1):
            moved[number] = min(moved[number], moved[number + 1] - distance)
    return moved


def shifts(table: pd.DataFrame, folder: Path, about: str = "") -> None:
    """Draw the relative distance of two models' states against the layer.

    `about` says how much was compared.
    """
    first = table.iloc[0]
    with canvas(COLUMN, 2.3) as (figure, axes):
        line(axes, table, "value", ("low", "high"), "distance", colour_of(0), "o-")
        ticks(axes.xaxis, list(table["source_layer"]), 12)
        axes.set(xlabel="layer", ylabel="relative distance of states")
        _begin_at_zero(axes, highest_of(table, "value", "high"))
        write_title(figure, axes, f"{first.source} → {first.target}", about)
        save(figure, folder, "distance")
