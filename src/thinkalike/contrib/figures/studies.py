"""The figures of contrib: papers, populations, transfer, trajectories, courts, the atlas and several subjects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.colors import Normalize

from thinkalike.figures.layers import band
from thinkalike.figures.style import COLOURS, canvas, colour_of, layer_name, line, save, ticks, write_values
from thinkalike.figures.trajectories import label_steps, step_position

LABELS = {"accuracy_penalty": "accuracy penalty", "flips": "share of flipped predictions", "value": "CKA"}
ACROSS = 3  # panels
MARGIN = 0.05  # of the height of a panel, above and below its values


def correlation(table: pd.DataFrame, folder: Path) -> None:
    """Draw the correlations of all features with all: a table with named rows and columns."""
    side = 0.55 * len(table) + 1.2
    with canvas(side + 0.8, side) as (figure, axes):
        image = _correlations(axes, table, rotation=45, ha="right")
        figure.colorbar(image, ax=axes, label="correlation of differences over pairs", shrink=0.8)
        save(figure, folder, "correlation")


def _correlations(axes: Any, cells: pd.DataFrame, **style: Any) -> Any:
    """Draw numbers from -1 to 1 as a matrix with named rows and columns; the style is that of the columns' names."""
    image = axes.imshow(cells.to_numpy(), cmap="RdBu_r", norm=Normalize(-1, 1))
    write_values(axes, cells.to_numpy(), image)
    axes.set_xticks(range(len(cells)), cells.columns, **style)
    axes.set_yticks(range(len(cells)), cells.columns)
    axes.spines[:].set_visible(False)
    return image


def plane(axes: Any, points: pd.DataFrame) -> None:
    """Draw the layers of each model as a line through their points x, y, whose fit has a `stress`."""
    for number, (model, rows) in enumerate(points.groupby("model", sort=False)):
        axes.plot(rows["x"], rows["y"], "o-", color=colour_of(number), label=str(model), alpha=0.7)
        for row in rows.itertuples():
            name = (layer_name(row.layer), (row.x, row.y))
            axes.annotate(*name, fontsize=6, xytext=(3, 3), textcoords="offset points")
    axes.set_title(f"layers by their likeness, stress {points['stress'].iloc[0]:.2f}")
    axes.legend(fontsize=7, ncols=3, loc="upper center", bbox_to_anchor=(0.5, 0.0))
    axes.set_aspect("equal", adjustable="datalim")
    axes.set(xticks=[], yticks=[])


class Contrast(NamedTuple):
    """Two layers side by side."""

    title: str
    names: tuple[str, str]
    importance: pd.DataFrame  # feature, x, y: importance in either layer
    words: tuple[pd.DataFrame, pd.DataFrame]  # x, y, level, stress: the words of either layer in a plane
    feature: str  # that colours them


def scatter(contrasts: list[Contrast], folder: Path) -> None:
    """Draw for each contrast the importance of all features in one layer against the other, and the words of both."""
    with canvas(9.6, 3.2 * len(contrasts), len(contrasts), 3, squeeze=False) as (figure, panels):
        for (left, middle, right), contrast in zip(panels, contrasts, strict=True):
            for axes, name, words in zip((left, right), contrast.names, contrast.words, strict=True):
                for number, (level, rows) in enumerate(words.groupby("level", sort=True)):
                    axes.scatter(rows["x"], rows["y"], s=5, color=colour_of(number), label=str(level), linewidths=0)
                title = f"{name}, by {contrast.feature}\nstress {words['stress'].iloc[0]:.2f}"
                axes.set_title(title, fontsize=8)
                axes.set_aspect("equal", adjustable="datalim")
                axes.set(xticks=[], yticks=[])
            left.legend(fontsize=6, markerscale=2)
            table, (first, second) = contrast.importance, contrast.names
            values, colours = table[["x", "y"]].to_numpy(), [colour_of(number) for number in range(len(table))]
            middle.scatter(table["x"], table["y"], color=colours, s=18, zorder=3)
            for row in table[values.max(axis=1) > 0.04 * values.max()].itertuples():  # the others lie together at 0
                middle.annotate(row.feature, (row.x, row.y), fontsize=6, xytext=(3, 2), textcoords="offset points")
            ends = [min(values.min(), 0), 1.1 * values.max()]
            middle.plot(ends, ends, color="0.6", linewidth=0.8, zorder=0)
            middle.set(xlabel=f"importance in {first}", ylabel=f"importance in {second}", title=contrast.title)
        save(figure, folder, "contrasts")


def directions(table: pd.DataFrame, folder: Path) -> None:
    """Draw the penalty against layer with its interval, one panel per group of models, one line per direction."""
    groups = list(dict.fromkeys(table["group"]))
    with canvas(3.1 * len(groups), 3.3, 1, len(groups), sharey=True, squeeze=False) as (figure, panels):
        for axes, group in zip(panels[0], groups, strict=True):
            inside = table[table["group"] == group]
            for number, ((source, target), rows) in enumerate(inside.groupby(["source", "target"], sort=True)):
                label = f"{source} → {target}"
                colour, style = COLOURS[number % len(COLOURS)], ("o-", "s--")[number // len(COLOURS)]
                line(axes, rows.reset_index(), "penalty", ("penalty_low", "penalty_high"), label, colour, style)
            axes.axhline(0, color="0.6", linewidth=0.8, zorder=0)
            axes.set_xticks(range(inside["source_layer"].nunique()))
            axes.set(xlabel="layer of the stitch", title=group)
            axes.legend(fontsize=7)
        panels[0][0].set_ylabel("penalty [nats per token]")
        save(figure, folder, "penalties")


def learning_curves(curves: dict[tuple[str, str], Any], folder: Path) -> None:
    """Draw losses (steps, layers) by group and direction against step, running means of ten, a panel per layer."""
    groups = list(dict.fromkeys(group for group, _ in curves))
    layers = max(curve.shape[1] for curve in curves.values())
    with canvas(2.3 * layers, 2.3 * len(groups), len(groups), layers, sharey=True, squeeze=False) as (figure, panels):
        for row, group in zip(panels, groups, strict=True):
            inside = {label: curve for (name, label), curve in curves.items() if name == group}
            for layer, axes in enumerate(row):
                if layer >= next(iter(inside.values())).shape[1]:
                    axes.set_axis_off()
                    continue
                for number, (label, curve) in enumerate(sorted(inside.items())):
                    smooth = pd.Series(curve[:, layer]).rolling(10, min_periods=1).mean()
                    axes.plot(smooth, color=COLOURS[number % len(COLOURS)], label=label, linewidth=1)
                axes.set_title(f"{group}, layer {layer}", fontsize=8)
                axes.set_xlabel("step")
            row[0].set_ylabel("loss [nats per token]")
            row[0].legend(fontsize=6)
        save(figure, folder, "learning_curves")


# Populations of classifiers (Brown et al. 2023, figures 2, 7 and 8).


def groups_by_depth(tables: Mapping[str, pd.DataFrame], folder: Path) -> None:
    """Draw means over pairs of models by kind of pair, against depth, with intervals over models.

    Panels of one quantity have one scale, so that a null looks as small as it is. Each table, by title, has pair,
    place, mean, low and high, and column, what it is.
    """
    columns = min(len(tables), ACROSS if len(tables) % ACROSS == 0 else 2)
    rows = -(-len(tables) // columns)
    values = pd.concat(list(tables.values())).set_index("column")[["mean", "low", "high"]]
    ends = values.replace([np.inf, -np.inf], np.nan)  # an interval may be open
    with canvas(4.1 * columns, 3.3 * rows, rows, columns, squeeze=False) as (figure, panels):
        for axes in panels.flat[len(tables) :]:
            axes.set_axis_off()
        for axes, (title, table) in zip(panels.flat, tables.items(), strict=False):
            for number, (pair, points) in enumerate(table.groupby("pair", sort=False)):
                line(axes, points, "mean", ("low", "high"), str(pair), COLOURS[number % len(COLOURS)], "o-")
            places = sorted(table["place"].unique())
            ticks(axes.xaxis, places, len(places))
            axes.set_xlabel(str(table["axis"].iloc[0]))
            quantity = str(table["column"].iloc[0])
            low, high = np.nanmin(ends.loc[quantity]), np.nanmax(ends.loc[quantity])
            margin = MARGIN * (high - low or 1)
            axes.set_ylim(low - margin, high + margin)
            axes.set(ylabel=LABELS[quantity], title=title)
            axes.legend(fontsize=7)
        save(figure, folder, "groups")


def distances(table: pd.DataFrame, folder: Path) -> None:
    """Draw the distances of all pairs of models: a matrix in the order of the groups, and the kinds of pairs."""
    names = list(dict.fromkeys(table["source"]))
    cells = table.pivot(index="source", columns="target", values="value").loc[names, names]
    with canvas(8.4, 3.6, 1, 2) as (figure, (left, right)):
        image = left.imshow(cells.to_numpy(), origin="lower", cmap="viridis")
        groups = table.drop_duplicates("source")["group_of_source"].tolist()
        for edge in (place - 0.5 for place in range(1, len(groups)) if groups[place] != groups[place - 1]):
            left.axhline(edge, color="white", linewidth=1)
            left.axvline(edge, color="white", linewidth=1)
        order = f"model: {', then '.join(dict.fromkeys(groups))}"
        left.set(xlabel=order, ylabel=order)
        figure.colorbar(image, ax=left, label="distance (equation 2)", shrink=0.85)
        kinds = {str(pair): rows["value"] for pair, rows in table[table["source"] < table["target"]].groupby("pair")}
        right.boxplot(list(kinds.values()), widths=0.5, showfliers=False, medianprops={"color": "0.2"})
        shift = np.random.default_rng(0)
        for place, values in enumerate(kinds.values(), 1):
            across = place + shift.uniform(-0.15, 0.15, len(values))
            right.plot(across, values, "o", color=COLOURS[(place - 1) % len(COLOURS)], markersize=2.5, alpha=0.6)
        right.set_xticks(range(1, len(kinds) + 1), [name.replace(" and ", "\nand ") for name in kinds])
        right.set_ylabel("distance (equation 2)")
        save(figure, folder, "distances")


# Probes, steering vectors and sparse autoencoders that are carried from one model to another.

MARKS = "osD^vP*Xph"
WIDTH = 0.7  # of a feature, which its conditions share


def carried_probes(table: pd.DataFrame, folder: Path, name: str = "probes") -> None:
    """Draw the balanced accuracy of each condition by feature with its interval, a panel per split and layer pair."""
    pairs = list(table.groupby(["source_layer", "target_layer"], sort=False))
    splits, features = (list(dict.fromkeys(table[part])) for part in ("split", "feature"))
    size = (max(1.1 * len(features), 4) * len(pairs) + 1.6, 2.8 * len(splits))
    with canvas(*size, len(splits), len(pairs), squeeze=False, sharey=True) as (figure, panels):
        for (row, column), axes in np.ndenumerate(panels):
            (layer, depth), rows = pairs[column]
            _conditions(axes, rows[rows["split"] == splits[row]], features)
            axes.set_title(f"layer {layer} → {depth}, held-out {splits[row]}s")
            if not column:
                axes.set_ylabel("balanced accuracy")
        lines = panels[0, 0].get_legend_handles_labels()
        figure.legend(*lines, loc="outside right upper", fontsize=7)
        first = table.iloc[0]
        figure.suptitle(f"probes of {first['source']} in {first['target']}", fontsize=10)
        save(figure, folder, name)


def _conditions(axes: Any, table: pd.DataFrame, features: list[str]) -> None:
    conditions = list(dict.fromkeys(table["condition"]))
    for number, condition in enumerate(conditions):
        rows = table[table["condition"] == condition].set_index("feature").reindex(features)
        places = np.arange(len(features)) + WIDTH * ((number + 0.5) / len(conditions) - 0.5)
        style = {"fmt": MARKS[number % len(MARKS)], "color": colour_of(number), "markersize": 4, "capsize": 2}
        axes.errorbar(places, rows["accuracy"], yerr=_bars(rows, "accuracy"), label=condition, **style)
    chance = table.drop_duplicates("feature").set_index("feature")["chance"].reindex(features)
    for place, value in enumerate(chance):
        axes.hlines(value, place - WIDTH / 2, place + WIDTH / 2, color="0.6", linestyles="--", linewidth=1)
    axes.set_xticks(range(len(features)), features, rotation=30, ha="right")
    axes.set_ylim(0, 1.03)


def steering(table: pd.DataFrame, folder: Path, name: str = "steering") -> None:
    """Draw the share of the natural effect against the layer pair, a panel per position and strength."""
    column = "share" if table["share"].notna().any() else "effect"
    kinds = list(table.groupby(["position", "strength"], sort=False))
    with canvas(3.6 * len(kinds) + 1.6, 3.0, 1, len(kinds), squeeze=False, sharey=True) as (figure, panels):
        for axes, ((position, strength), rows) in zip(panels[0], kinds, strict=True):
            for number, (condition, own) in enumerate(rows.groupby("condition", sort=False)):
                style = {"color": colour_of(number), "label": condition, "markersize": 4, "capsize": 2}
                axes.errorbar(range(len(own)), own[column], yerr=_bars(own, column), fmt=f"{MARKS[number]}-", **style)
            names = [f"{row.source_layer}→{row.target_layer}" for row in own.itertuples()]
            axes.set_xticks(range(len(names)), names)
            axes.axhline(0, color="0.6", linewidth=0.8, zorder=0)
            axes.set(xlabel="layers", title=f"{position}, strength {strength:g}")
        panels[0, 0].set_ylabel("share of the natural effect" if column == "share" else "effect [nats]")
        figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside right upper", fontsize=8)
        save(figure, folder, name)


def _bars(rows: pd.DataFrame, column: str) -> list[pd.Series]:
    """Return how far the interval reaches below and above the value."""
    low, high = (rows[f"effect_{end}" if column == "effect" else end] for end in ("low", "high"))
    return [(rows[column] - low).clip(lower=0), (high - rows[column]).clip(lower=0)]


NAMES = {"random": "random", "least_squares": "random, fitted decoder", "transferred": "transferred"}


def sae_curves(curves: pd.DataFrame, folder: Path) -> None:
    """Draw explained variance against all FLOPs, a panel per transfer: means over seeds, and single seeds.

    Each start is at its best rate, which is chosen at each look.
    """
    panels_of = list(curves.groupby("transfer", sort=False)) if "transfer" in curves else [("", curves)]
    width, height = (3.2 * len(panels_of), 3.1) if len(panels_of) > 1 else (4.4, 3.2)
    with canvas(width, height, 1, len(panels_of), squeeze=False) as (figure, panels):
        for axes, (title, inside) in zip(panels[0], panels_of, strict=True):
            for number, (start, rows) in enumerate(inside.groupby("start", sort=False)):
                best = rows.groupby(["tokens", "rate"])["explained_variance"].mean().groupby("tokens").idxmax()
                own = rows.set_index(["tokens", "rate"]).loc[list(best)].reset_index()
                middle = own.groupby("tokens")[["flops", "explained_variance"]].mean()
                colour, name = COLOURS[number % len(COLOURS)], NAMES.get(str(start), str(start))
                axes.scatter(own["flops"], own["explained_variance"], s=4, color=colour, alpha=0.4, linewidths=0)
                axes.plot(middle["flops"], middle["explained_variance"], color=colour, label=name)
            axes.set(xlabel="FLOPs, all counted", ylabel="explained variance")
            axes.set_xscale("symlog", linthresh=max(inside.loc[inside["tokens"] > 0, "flops"].min(), 1.0))
            axes.set_title(title, fontsize=8)
        panels[0][0].legend(fontsize=7)
        save(figure, folder, "explained_variance")


# Trajectories: likeness of checkpoints, curves with bands, and onsets.


def settling(runs: Mapping[str, pd.DataFrame], onsets: pd.DataFrame, folder: Path) -> None:
    """Draw likeness to the end by layer in each run, and how many runs have the onset of a feature at each step."""
    with canvas(8.5, 3.4, 1, 2) as (figure, (left, right)):
        for table in runs.values():
            steps = table["step"].unique()
            for layer, curve in table.pivot(index="step", columns="layer", values="to_last").items():
                left.plot(step_position(steps), curve, color=colour_of(int(str(layer))), linewidth=0.9)
        left.legend([f"layer {layer}" for layer in table["layer"].unique()], fontsize=7)
        features = list(dict.fromkeys(onsets["feature"]))
        for number, feature in enumerate(features):
            first = onsets[onsets["feature"] == feature].groupby("run")["onset"].min()
            for step, count in first.value_counts().items():
                right.plot(step_position(step), number, "o", color=colour_of(number), markersize=11)
                right.text(
                    step_position(step), number, count, ha="center", va="center_baseline", fontsize=8, color="white"
                )
        right.set_yticks(range(len(features)), features)
        left.set(title="CKA with the last checkpoint, each seed a line", ylim=(None, 1.02))
        right.set(title="onset in how many seeds; none: not there at the end", ylim=(-0.5, len(features) - 0.5))
        for axes in (left, right):
            label_steps(axes, steps)
        save(figure, folder, "settling")


# The atlas (how far measures agree), courts (how they rank known likeness), and several subjects.


def agreement(table: pd.DataFrame, measures: Sequence[str], folder: Path) -> None:
    """Draw a table of measure, other and rho as a matrix, the measure that agrees most with the others first."""
    both = pd.concat([table, table.rename(columns={"measure": "other", "other": "measure"})])
    cells = both.pivot(index="measure", columns="other", values="rho").loc[list(measures), list(measures)]
    cells = cells.mask(np.eye(len(measures), dtype=bool), 1.0)
    order = cells.mean().sort_values(ascending=False, kind="stable").index
    cells = cells.loc[order, order]
    size = 0.42 * len(order)
    with canvas(size + 2.6, size + 1.3) as (figure, axes):
        image = _correlations(axes, cells, rotation=90)
        figure.colorbar(image, ax=axes, label="Spearman's ρ over layer pairs", shrink=0.8, aspect=30)
        save(figure, folder, "agreement")


def ranks(table: pd.DataFrame, measures: Sequence[str], folder: Path) -> None:
    """Draw the layer pairs of every pair of models, a column, by every measure, a row: bright is close.

    The table has the rank of each layer pair by measure, from 0, the farthest, to 1.
    """
    pairs = list(table.groupby(["source", "target"], sort=False))
    with canvas(0.75 * len(pairs) + 1.8, 0.72 * len(measures) + 1.3, len(measures), len(pairs), squeeze=False) as drawn:
        figure, panels = drawn
        for row, measure in zip(panels, measures, strict=True):
            for axes, (_, inside) in zip(row, pairs, strict=True):
                cells = inside.pivot(index="source_layer", columns="target_layer", values=measure)
                image = axes.imshow(cells.to_numpy(), origin="lower", norm=Normalize(0, 1), cmap="magma", aspect="auto")
                axes.set(xticks=[], yticks=[])
                axes.spines[:].set_visible(False)
            row[0].set_ylabel(measure, rotation=0, ha="right", va="center")
        for axes, ((source, target), _) in zip(panels[-1], pairs, strict=True):
            axes.set_xlabel(f"{source}\n× {target}", rotation=90, fontsize=7)
        figure.colorbar(image, ax=panels, label="rank among the layer pairs of two models", shrink=0.5, aspect=30)
        save(figure, folder, "ranks")


COLUMNS = 4


def court(table: pd.DataFrame, judges: Sequence[str], folder: Path) -> None:
    """Draw a panel per judge: a row of points for each kind of source, a point for each source in each court."""
    kinds = list(dict.fromkeys(table["kind"]))[::-1]
    rows = -(-len(judges) // COLUMNS)
    with canvas(3.0 * COLUMNS, 2.4 * rows, rows, COLUMNS, squeeze=False, sharey=True) as (figure, panels):
        for axes, judge in zip(panels.flat, judges, strict=False):
            for place, kind in enumerate(kinds):
                values = table[table["kind"] == kind][judge].to_numpy()
                jitter = np.linspace(-0.25, 0.25, len(values)) if len(values) > 1 else np.zeros(1)
                colour = colour_of(len(kinds) - 1 - place)
                axes.plot(values, place + jitter, ".", color=colour, markersize=4, alpha=0.7)
            axes.set_title(judge)
        panels[0][0].set_yticks(range(len(kinds)), kinds)
        for axes in panels.flat[len(judges) :]:
            axes.set_axis_off()
        save(figure, folder, "court")


def doses(curves: Mapping[str, pd.DataFrame], folder: Path) -> None:
    """Draw each judge's value against the share of the target's own variance: own_share, value."""
    rows = -(-len(curves) // COLUMNS)
    with canvas(3.0 * COLUMNS, 2.2 * rows, rows, COLUMNS, squeeze=False, sharex=True) as (figure, panels):
        for axes, (judge, curve) in zip(panels.flat, curves.items(), strict=False):
            axes.plot(curve["own_share"], curve["value"], "o-", color=colour_of(0), markersize=3)
            axes.set_title(judge)
        for axes in panels[-1]:
            axes.set_xlabel("share of the target's own variance")
        for axes in panels.flat[len(curves) :]:
            axes.set_axis_off()
        save(figure, folder, "doses")


def subject_scores(table: pd.DataFrame, ceilings: pd.DataFrame, folder: Path, comparator: str) -> None:
    """Draw the mean score of each layer of each model with its interval, a panel per recorded layer.

    A grey band is the noise ceiling, from `lower` to `upper` of `ceilings`.
    """
    recorded = list(ceilings["recorded"])
    with canvas(3.4 * len(recorded) + 1.2, 3.4, 1, len(recorded), squeeze=False, sharey=True) as (figure, panels):
        for axes, name in zip(panels[0], recorded, strict=True):
            ends = ceilings[ceilings["recorded"] == name].iloc[0]
            axes.axhspan(ends["lower"], ends["upper"], color="0.85", label="noise ceiling", zorder=0)
            inside = table[table["recorded"] == name]
            for number, (model, rows) in enumerate(inside.groupby("model", sort=False)):
                band(axes, rows, "value", str(model), color=colour_of(number), marker="o")
                ticks(axes.xaxis, list(rows["layer"]))
            axes.axhline(0, color="0.6", linewidth=0.8, zorder=0)
            axes.set(title=str(name), xlabel="layer")
        panels[0, 0].set_ylabel(f"{comparator.replace('_', ' ')}, mean over subjects")
        figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside right upper", fontsize=8)
        save(figure, folder, "subjects")
