"""Stitches between SoLU and GeLU models: figures 1 and 6 of Brown et al. 2023."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike.contrib.figures.stitching import draw_directions, draw_learning_curves
from thinkalike.contrib.papers.claims import (
    ABOVE_ZERO,
    BELOW_ZERO,
    Claim,
    bonferroni_note,
    judged_claim,
    level_of_each,
    untestable_claim,
)
from thinkalike.contrib.papers.experiment import Conclusion, Experiment, ExperimentRun, InnerJob
from thinkalike.errors import StoreError
from thinkalike.evaluation.columns import document_counts
from thinkalike.measures.bootstrap import bootstrap_interval
from thinkalike.measures.estimates import Estimate, interval_around, student_t
from thinkalike.screen import number_of_documents
from thinkalike.store import Result

MINI_ARGUMENTS = ("data.evaluation_tokens=131072",)  # 12 jobs within half an hour
# Steps whose losses are compared: a training learns if the last ones are lower.
FIRST_STEPS = 10
LAST_STEPS = 30


class FigureDirection(NamedTuple):
    """One stitching job of a figure.

    Attributes:
        group: Names the jobs that are compared with each other.
        activations: The activation functions of the source and of the target.
        source: The name of the source.
        target: The name of the target.
    """

    group: str
    activations: tuple[str, str]
    source: str
    target: str

    @property
    def label(self) -> str:
        """What its job and its curves are called."""
        return f"{self.source} → {self.target}"


def _directions_at_depth(depth: int, ending: str = "") -> list[FigureDirection]:
    """Return the four stitching directions of a depth: a SoLU and a GeLU model into either.

    Args:
        depth: The number of layers of the models.
        ending: The end of the models' names, such as "-mini".
    """
    names = {activation: f"{activation}-{depth}l{ending}" for activation in ("solu", "gelu")}
    directions = []
    for source, source_name in names.items():
        for target, target_name in names.items():
            activations = (source, target)
            directions.append(
                FigureDirection(f"{depth} layers", activations, source_name, target_name)
            )
    return directions


# What the paper could not do: there are no independent seeds of its models.
OTHER_SEED = [
    FigureDirection("3 layers, other seed", ("solu", "gelu"), "solu-3l-mini", "gelu-3l-mini-s1"),
    FigureDirection("3 layers, other seed", ("gelu", "solu"), "gelu-3l-mini-s1", "solu-3l-mini"),
    FigureDirection("3 layers, other seed", ("solu", "solu"), "solu-3l-mini", "solu-3l-mini-s1"),
    FigureDirection("3 layers, other seed", ("gelu", "gelu"), "gelu-3l-mini", "gelu-3l-mini-s1"),
]
DIRECTIONS = {
    "paper": [*_directions_at_depth(3), *_directions_at_depth(4)],
    "mini": [*_directions_at_depth(3, "-mini"), *_directions_at_depth(4, "-mini"), *OTHER_SEED],
}


def _models_of_directions(directions: Sequence[FigureDirection]) -> list[str]:
    """Return the names of all models of some directions, each once, in order."""
    names: dict[str, None] = {}
    for direction in directions:
        names |= dict.fromkeys((direction.source, direction.target))
    return list(names)


MODELS = {scale: _models_of_directions(directions) for scale, directions in DIRECTIONS.items()}


def _stitching_jobs(experiment: ExperimentRun) -> list[InnerJob]:
    """Return one stitching job for each pair of a source and a target of the experiment."""
    # The floor, what the target loses when it is stitched into itself, is not computed here: the
    # directions of a model into itself are jobs of their own.
    arguments = ["stitch.floor=false"]
    if experiment.config.recipe == "paper":
        arguments.append("stitch=affine")
    if experiment.scale == "mini":
        arguments += MINI_ARGUMENTS
    return [
        InnerJob(direction.label, (direction.source, direction.target), tuple(arguments), "train")
        for direction in DIRECTIONS[experiment.scale]
    ]


def _joined_penalty_tables(
    experiment: ExperimentRun, directions: Sequence[FigureDirection]
) -> pd.DataFrame:
    """Return one table with the penalties of some stitching jobs, and a column `group`."""
    tables = []
    for direction in directions:
        tables.append(
            experiment.results[direction.label].tables["table"].assign(group=direction.group)
        )
    return pd.concat(tables, ignore_index=True)


def _rows_of_same_layers(result: Result) -> pd.DataFrame:
    """Return the rows of stitches between layers of the same number, with their indices."""
    return result.details[result.details["source_layer"] == result.details["target_layer"]]


class PenaltyDifferences(NamedTuple):
    """Differences of penalties, and what their intervals are over.

    Attributes:
        differences: The difference of each pair of results at each layer, in nats per token.
        token_counts: The number of tokens of each document.
    """

    differences: Estimate
    token_counts: Float[Tensor, " documents"]


def penalty_differences(
    pairs: Sequence[tuple[Result, Result]], together: bool = True
) -> PenaltyDifferences:
    """Return the penalty of the first result minus that of the second, for each pair and layer.

    The penalty of a stitch is its loss minus the target's own loss on the same tokens. Stitches
    are between layers of the same number. The differences have the shape (pairs, layers), with
    bootstrap intervals over documents.

    Args:
        pairs: Pairs of results of stitching jobs. All models share a tokenizer, and all jobs are
            evaluated on the same documents.
        together: Whether the intervals hold for all differences together.

    Raises:
        StoreError: Two results are evaluated on different documents.
    """
    first = pairs[0][0]
    for pair in pairs:
        for result in pair:
            if not np.array_equal(result.arrays["tokens"], first.arrays["tokens"]):
                raise StoreError(
                    f"{first.folder} and {result.folder} report on different documents; "
                    "force=true computes them anew"
                )
    token_counts = torch.from_numpy(first.arrays["tokens"]).double()
    per_document = []
    for minuend, subtrahend in pairs:
        per_document.append(_document_penalties(minuend) - _document_penalties(subtrahend))
    stacked = torch.from_numpy(np.stack(per_document))  # (p, l, documents)
    differences = bootstrap_interval(stacked, token_counts, together=together)
    return PenaltyDifferences(differences, token_counts)


def _document_penalties(result: Result) -> Float[np.ndarray, "l documents"]:
    """Return the stitch's loss minus the target's, summed over the tokens of each document."""
    rows = _rows_of_same_layers(result).index
    return result.arrays["stitch"][rows] - result.arrays["target"]


def asymmetry_by_layer(forward: Result, back: Result) -> pd.DataFrame:
    """Return the penalty of one direction minus that of the reverse at each layer, in nats.

    `low` and `high` are the ends of the interval of each layer by itself.
    """
    columns = ["source", "target", "source_layer"]
    table = _rows_of_same_layers(forward)[columns].rename(columns={"source_layer": "layer"})
    differences = penalty_differences([(forward, back)], together=False).differences
    value, low, high = differences[0]
    return table.assign(asymmetry=value.numpy(), low=low.numpy(), high=high.numpy())


def _conclude_figure1(experiment: ExperimentRun) -> Conclusion:
    """Judge the claims of figure 1 of Brown et al. 2023: stitches between SoLU and GeLU models.

    A further table has the asymmetry: the penalty from SoLU to GeLU minus that from GeLU to SoLU.
    """
    directions = DIRECTIONS[experiment.scale]
    claims = []
    groups = dict.fromkeys(direction.group for direction in directions)  # each once, in order
    for group in groups:
        claims += _claims_about_activations(experiment, group)

    by_models = {(direction.source, direction.target): direction for direction in directions}
    asymmetry_tables = []
    for forward in directions:
        back = by_models.get((forward.target, forward.source))
        if forward.activations[0] == "solu" and back is not None and back is not forward:
            of_pair = asymmetry_by_layer(
                experiment.results[forward.label], experiment.results[back.label]
            )
            asymmetry_tables.append(of_pair.assign(group=forward.group))
    table = _joined_penalty_tables(experiment, directions)
    draw = partial(draw_directions, table)
    return Conclusion(table, claims, draw, {"asymmetry": pd.concat(asymmetry_tables)})


def _claims_about_activations(experiment: ExperimentRun, group: str) -> list[Claim]:
    """Judge the claims of section 3 of Brown et al. 2023 on one group of four directions.

    The directions are from a SoLU or GeLU model to a SoLU or GeLU model. The claim that stitches
    between models of the same activation cost least is untestable if such a source and target are
    one model.
    """
    by_activations = {
        direction.activations: direction
        for direction in DIRECTIONS[experiment.scale]
        if direction.group == group
    }
    into_gelu = by_activations["solu", "gelu"]
    into_solu = by_activations["gelu", "solu"]
    within_solu = by_activations["solu", "solu"]
    within_gelu = by_activations["gelu", "gelu"]
    within = [within_solu, within_gelu]

    costs_least = f"{group}: stitching into the same activation costs least"
    if any(direction.source == direction.target for direction in within):
        cheapest = untestable_claim(
            costs_least,
            "a stitch of a model into itself starts at its solution; "
            "only one into an independent seed can tell",
        )
    else:
        pairs = [(across, same) for across in (into_gelu, into_solu) for same in within]
        cheapest = _claim_that_first_costs_more(experiment, costs_least, pairs)
    return [
        _claim_that_first_costs_more(
            experiment,
            f"{group}: SoLU into GeLU costs more than GeLU into SoLU at every layer",
            [(into_gelu, into_solu)],
        ),
        cheapest,
        _claim_that_first_costs_more(
            experiment,
            f"{group}: SoLU into SoLU stitches better than GeLU into GeLU",
            [(within_gelu, within_solu)],
        ),
    ]


def _claim_that_first_costs_more(
    experiment: ExperimentRun, claim: str, pairs: Sequence[tuple[FigureDirection, FigureDirection]]
) -> Claim:
    """Judge the claim that stitches cost more in one direction than in another, at every layer.

    Args:
        experiment: The experiment, with its results.
        claim: What the paper says.
        pairs: Pairs of stitching directions; the first one should have the larger penalty.
    """
    results = [
        (experiment.results[more.label], experiment.results[less.label]) for more, less in pairs
    ]
    differences, token_counts = penalty_differences(results)
    listed_pairs = []
    for row, (more, less) in enumerate(pairs):
        n_layers = differences.value.shape[1]
        by_layer = ", ".join(f"{differences[row][layer]:+.3f}" for layer in range(n_layers))
        listed_pairs.append(f"{more.label} minus {less.label} by layer: {by_layer}")
    numbers = f"{'; '.join(listed_pairs)}; intervals hold for all together (max-t)"
    units = number_of_documents(document_counts(token_counts))
    return judged_claim(claim, [(ABOVE_ZERO, differences)], numbers, units)


def _conclude_figure6(experiment: ExperimentRun) -> Conclusion:
    """Judge the claim of figure 6 of Brown et al. 2023: the learning curves of all stitches.

    Stitches between independent seeds, which the paper does not have, are left out. Stitches of a
    model into itself start at their solution, so the claim is about stitches between two models.
    """
    directions = []
    for direction in DIRECTIONS[experiment.scale]:
        if direction not in OTHER_SEED:
            directions.append(direction)
    curves = {
        direction: experiment.results[direction.label].arrays["curve"] for direction in directions
    }
    between_models = {
        direction: curve
        for direction, curve in curves.items()
        if direction.source != direction.target
    }
    by_panel = {(direction.group, direction.label): curve for direction, curve in curves.items()}
    draw = partial(draw_learning_curves, by_panel)
    return Conclusion(
        _joined_penalty_tables(experiment, directions),
        [_claim_that_stitches_learn(between_models)],
        draw,
    )


def _claim_that_stitches_learn(
    curves: Mapping[FigureDirection, Float[np.ndarray, "steps layers"]],
) -> Claim:
    """Judge the claim that the training loss of every stitch falls.

    The change is the mean loss of the last steps minus that of the first steps. Its interval is
    Welch's, over steps; the intervals hold for all stitches together.

    Args:
        curves: The training losses of each direction, with one stitch for each layer.
    """
    losses = [torch.from_numpy(curve).double() for curve in curves.values()]
    first = torch.cat([curve[:FIRST_STEPS] for curve in losses], -1)  # (steps, all stitches)
    last = torch.cat([curve[-LAST_STEPS:] for curve in losses], -1)
    squared_error = first.var(0) / len(first) + last.var(0) / len(last)
    error = squared_error.sqrt().nan_to_num(torch.inf)  # NaN if there is a single step
    degrees_of_freedom = max(min(len(first), len(last)) - 1, 1)
    n_stitches = error.numel()
    t = student_t(level_of_each(n_stitches), degrees_of_freedom)
    change = interval_around(last.mean(0) - first.mean(0), t * error)
    largest = change[int(change.value.argmax())]
    return judged_claim(
        "every stitch between two models learns",
        [(BELOW_ZERO, change)],
        f"largest change of the loss {largest:+.3f} nats{bonferroni_note(n_stitches)}",
        f"{len(first)} first and {len(last)} last steps",
    )


EXPERIMENTS = [
    Experiment("brown2023/figure1", _conclude_figure1, MODELS, _stitching_jobs),
    Experiment("brown2023/figure6", _conclude_figure6, MODELS, _stitching_jobs),
]
