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
    bonferroni_level,
    bonferroni_note,
    judged_claim,
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
    """Return four stitching directions: from a SoLU and a GeLU model into each of the two.

    Args:
        depth: The number of layers of the models.
        ending: The end of the models' names, such as "-mini".
    """
    names = {activation: f"{activation}-{depth}l{ending}" for activation in ("solu", "gelu")}
    directions = []
    for source, source_name in names.items():
        for target, target_name in names.items():
            direction = FigureDirection(
                group=f"{depth} layers",
                activations=(source, target),
                source=source_name,
                target=target_name,
            )
            directions.append(direction)
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
    """Return the names of all sources and targets, each once, in the order of the directions."""
    names: list[str] = []
    for direction in directions:
        for name in (direction.source, direction.target):
            if name not in names:
                names.append(name)
    return names


MODELS = {scale: _models_of_directions(directions) for scale, directions in DIRECTIONS.items()}


def _stitching_jobs(experiment: ExperimentRun) -> list[InnerJob]:
    """Return one stitching job for each source and target that the figures compare.

    With the paper's recipe, stitches are affine maps. At mini scale, `MINI_ARGUMENTS` make the
    evaluation shorter.
    """
    # The floor is the loss of a target that is stitched into itself. It is not computed as a part
    # of these jobs, since `DIRECTIONS` has each model stitched into itself as a separate job.
    arguments = ["stitch.floor=false"]
    if experiment.config.recipe == "paper":
        arguments.append("stitch=affine")
    if experiment.scale == "mini":
        arguments += MINI_ARGUMENTS
    return [
        InnerJob(
            label=direction.label,
            models=(direction.source, direction.target),
            arguments=tuple(arguments),
            entry_point="train",
        )
        for direction in DIRECTIONS[experiment.scale]
    ]


def _joined_penalty_tables(
    experiment: ExperimentRun, directions: Sequence[FigureDirection]
) -> pd.DataFrame:
    """Return one table with the penalties of stitching jobs, one job for each direction.

    A penalty is by how much a stitch raises the target's loss. The column `group` says which jobs
    are compared with each other, such as "3 layers".
    """
    tables = []
    for direction in directions:
        table = experiment.results[direction.label].tables["table"]
        tables.append(table.assign(group=direction.group))
    return pd.concat(tables, ignore_index=True)


def _rows_of_same_layers(result: Result) -> pd.DataFrame:
    """Return the rows of a stitching result whose source and target layer have the same number.

    They keep their index, which is that of the result's arrays.
    """
    table = result.details
    return table[table["source_layer"] == table["target_layer"]]


class PenaltyDifferences(NamedTuple):
    """Differences of penalties, and what their intervals are over.

    Attributes:
        differences: The difference of each pair of results at each layer, in nats per token.
        token_counts: The number of tokens of each document.
    """

    differences: Estimate
    token_counts: Float[Tensor, " documents"]


def penalty_differences(
    pairs: Sequence[tuple[Result, Result]], simultaneous: bool = True
) -> PenaltyDifferences:
    """Return the penalty of the first result minus that of the second, for each pair and layer.

    The penalty of a stitch is its loss minus the target's own loss on the same tokens, in nats per
    token. Stitches are between layers of the same number. The differences have the shape (pairs,
    layers), with bootstrap intervals over documents.

    Args:
        pairs: Pairs of results of stitching jobs. All models share a tokenizer, and all jobs are
            evaluated on the same documents.
        simultaneous: Whether the intervals hold for all differences together.

    Raises:
        StoreError: Two results are evaluated on different documents.
    """
    all_results = [result for pair in pairs for result in pair]
    _check_same_documents(all_results)
    token_counts = torch.from_numpy(all_results[0].arrays["tokens"]).double()
    differences_by_document = []
    for minuend, subtrahend in pairs:
        difference = _document_penalties(minuend) - _document_penalties(subtrahend)
        differences_by_document.append(difference)
    stacked = torch.from_numpy(np.stack(differences_by_document))  # (pairs, layers, documents)
    # Σ differences / Σ tokens over documents, which the bootstrap resamples.
    differences = bootstrap_interval(stacked, token_counts, together=simultaneous)
    return PenaltyDifferences(differences, token_counts)


def _check_same_documents(results: Sequence[Result]) -> None:
    """Raise `StoreError` if results are evaluated on different documents, judged by their lengths.

    The documents themselves are not stored, but the number of tokens of each is.
    """
    first = results[0]
    for result in results:
        if not np.array_equal(result.arrays["tokens"], first.arrays["tokens"]):
            raise StoreError(
                f"{first.folder} and {result.folder} report on different documents; "
                "force=true computes them anew"
            )


def _document_penalties(result: Result) -> Float[np.ndarray, "l documents"]:
    """Return the loss of stitches minus the target's, summed over the tokens of each document.

    A stitch maps states of a source layer to a target layer, where the target continues. Only the
    l stitches between layers of the same number are returned.
    """
    stitch_indices = _rows_of_same_layers(result).index
    return result.arrays["stitch"][stitch_indices] - result.arrays["target"]


def asymmetry_by_layer(forward: Result, back: Result) -> pd.DataFrame:
    """Return the penalty of stitches in one direction minus that in the reverse, at each layer.

    The penalty is the loss minus the target's own, in nats per token. Only stitches between layers
    of the same number are used. The table has the columns source, target, layer and asymmetry;
    `low` and `high` are the ends of the interval of each layer by itself.

    Args:
        forward: The result of stitches from a first model to a second one.
        back: The result of stitches from the second model to the first one.
    """
    columns = ["source", "target", "source_layer"]
    table = _rows_of_same_layers(forward)[columns].rename(columns={"source_layer": "layer"})
    differences = penalty_differences([(forward, back)], simultaneous=False).differences
    asymmetry, low, high = differences[0]  # of the only pair; each has one number per layer
    return table.assign(asymmetry=asymmetry.numpy(), low=low.numpy(), high=high.numpy())


def _conclude_figure1(experiment: ExperimentRun) -> Conclusion:
    """Judge the claims of figure 1 of Brown et al. 2023: stitches between SoLU and GeLU models.

    The models differ in their activation function. The claims are judged for each group of
    stitches, such as those of models of 3 layers. The table has the penalty of each stitch: its
    loss minus the target's own. A further table has the asymmetries: the penalty in one direction
    minus that in the reverse.
    """
    directions = DIRECTIONS[experiment.scale]
    groups = dict.fromkeys(direction.group for direction in directions)  # each once, in order
    claims = []
    for group in groups:
        claims += _claims_about_activations(experiment, group)
    table = _joined_penalty_tables(experiment, directions)
    further_tables = {"asymmetry": _asymmetry_table(experiment, directions)}
    any_result = experiment.results[directions[0].label]  # all report on the same documents
    draw = partial(draw_directions, table, units=number_of_documents(any_result.scalars))
    return Conclusion(table, claims, draw, tables=further_tables)


def _asymmetry_table(
    experiment: ExperimentRun, directions: Sequence[FigureDirection]
) -> pd.DataFrame:
    """Return the asymmetry at each layer: the penalty from a SoLU model minus that back to it.

    SoLU is the activation function of the model. There are rows for each stitching direction from
    a SoLU model to a different model, if the reverse direction is among the directions as well.
    """
    by_models = {(direction.source, direction.target): direction for direction in directions}
    tables = []
    for forward in directions:
        source_activation, _ = forward.activations
        back = by_models.get((forward.target, forward.source))
        # From a model into itself, a direction is its own reverse.
        if source_activation == "solu" and back is not None and back is not forward:
            forward_result = experiment.results[forward.label]
            back_result = experiment.results[back.label]
            table = asymmetry_by_layer(forward_result, back_result)
            tables.append(table.assign(group=forward.group))
    return pd.concat(tables)


def _claims_about_activations(experiment: ExperimentRun, group: str) -> list[Claim]:
    """Judge the claims of section 3 of Brown et al. 2023 on one group of four directions.

    The directions are from a SoLU or GeLU model to a SoLU or GeLU model. The claim that stitches
    between models of the same activation cost least is untestable if such a source and target are
    one model.

    Args:
        experiment: The experiment with its results.
        group: The name of the group, such as "3 layers".
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
        # Each stitch between activations costs more than each stitch within one.
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

    A direction is a source that is stitched into a target. What a stitch costs is its penalty: by
    how much its loss exceeds that of the target alone. The claim holds if the first penalty minus
    the second is above 0 for each pair and layer. The intervals of these differences hold for all
    pairs and layers together (max-t).

    Args:
        experiment: The experiment, with its results.
        claim: What the paper says.
        pairs: Pairs of stitching directions; the first one should have the larger penalty.
    """
    results = []
    for more, less in pairs:
        results.append((experiment.results[more.label], experiment.results[less.label]))
    differences, token_counts = penalty_differences(results)  # (pairs, layers)
    n_layers = differences.value.shape[1]
    listed_pairs = []
    for index, (more, less) in enumerate(pairs):
        by_layer = ", ".join(f"{differences[index][layer]:+.3f}" for layer in range(n_layers))
        listed_pairs.append(f"{more.label} minus {less.label} by layer: {by_layer}")
    finding = f"{'; '.join(listed_pairs)}; intervals hold for all together (max-t)"
    units = number_of_documents(document_counts(token_counts))
    return judged_claim(claim, [(ABOVE_ZERO, differences)], finding, units)


def _conclude_figure6(experiment: ExperimentRun) -> Conclusion:
    """Judge the claim of figure 6 of Brown et al. 2023, and draw learning curves of all stitches.

    Stitches between independent seeds, which the paper does not have, are left out. Stitches of a
    model into itself start at their solution, so the claim is about stitches between two models.
    """
    directions = [
        direction for direction in DIRECTIONS[experiment.scale] if direction not in OTHER_SEED
    ]
    curves_between_models = {}
    curves_by_panel = {}
    for direction in directions:
        curve = experiment.results[direction.label].arrays["curve"]  # (steps, layers)
        curves_by_panel[direction.group, direction.label] = curve
        if direction.source != direction.target:
            curves_between_models[direction] = curve
    any_result = experiment.results[directions[0].label]  # all are trained by the same recipe
    loss = str(any_result.config["stitch"]["loss"])
    return Conclusion(
        _joined_penalty_tables(experiment, directions),
        [_claim_that_stitches_learn(curves_between_models)],
        partial(draw_learning_curves, curves_by_panel, loss=loss),
    )


def _claim_that_stitches_learn(
    curves: Mapping[FigureDirection, Float[np.ndarray, "steps layers"]],
) -> Claim:
    """Judge the claim that the training loss of every stitch falls.

    The change is the mean loss of the last steps minus that of the first steps, and must be below
    0. Its interval is over steps, and infinite if there is only one step. The intervals hold for
    all stitches together.

    Args:
        curves: The training losses of each direction, with one stitch for each layer.
    """
    losses = [torch.from_numpy(curve).double() for curve in curves.values()]
    first_losses = torch.cat([curve[:FIRST_STEPS] for curve in losses], -1)  # (steps, stitches)
    last_losses = torch.cat([curve[-LAST_STEPS:] for curve in losses], -1)
    n_first = len(first_losses)
    n_last = len(last_losses)
    variance_of_change = first_losses.var(0) / n_first + last_losses.var(0) / n_last
    standard_error = variance_of_change.sqrt().nan_to_num(torch.inf)  # NaN for a single step
    # The least that Welch's formula can give; 1 for a single step, whose interval is infinite.
    degrees_of_freedom = max(min(n_first, n_last) - 1, 1)
    n_stitches = standard_error.numel()
    t = student_t(bonferroni_level(n_stitches), degrees_of_freedom)
    change = interval_around(last_losses.mean(0) - first_losses.mean(0), t * standard_error)
    largest = change[int(change.value.argmax())]
    return judged_claim(
        "every stitch between two models learns",
        [(BELOW_ZERO, change)],
        finding=f"largest change of the loss {largest:+.3f} nats{bonferroni_note(n_stitches)}",
        units=f"{n_first} first and {n_last} last steps",
    )


EXPERIMENTS = [
    Experiment("brown2023/figure1", _conclude_figure1, MODELS, _stitching_jobs),
    Experiment("brown2023/figure6", _conclude_figure6, MODELS, _stitching_jobs),
]
