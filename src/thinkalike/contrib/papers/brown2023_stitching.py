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
    Bound,
    Claim,
    bonferroni_note,
    judged_claim,
    level_of_each,
    untestable_claim,
)
from thinkalike.contrib.papers.experiment import Case, Conclusion, Experiment, InnerJob
from thinkalike.errors import StoreError
from thinkalike.evaluation.columns import document_counts
from thinkalike.measures.bootstrap import bootstrap_interval
from thinkalike.measures.estimates import Estimate, interval_around, student_t
from thinkalike.screen import number_of_documents
from thinkalike.store import Result

MINI_WORDS = ("data.evaluation_tokens=131072",)  # 12 jobs within half an hour
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


def _all_directions(depth: int, ending: str = "") -> list[FigureDirection]:
    """Return the four directions between and within the SoLU and the GeLU model of a depth."""
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
    "paper": [*_all_directions(3), *_all_directions(4)],
    "mini": [*_all_directions(3, "-mini"), *_all_directions(4, "-mini"), *OTHER_SEED],
}


def _models_of_directions(directions: Sequence[FigureDirection]) -> list[str]:
    """Return the names of all models of some directions, each once, in order."""
    names: dict[str, None] = {}
    for direction in directions:
        names |= dict.fromkeys((direction.source, direction.target))
    return list(names)


MODELS = {scale: _models_of_directions(directions) for scale, directions in DIRECTIONS.items()}


def _stitches(case: Case) -> list[InnerJob]:
    """Return the stitching job of each direction of a scale."""
    words = ["stitch.floor=false"]  # the floor is that of the directions of a model into itself
    if case.config.recipe == "paper":
        words.append("stitch=affine")
    if case.scale == "mini":
        words += MINI_WORDS
    return [
        InnerJob(direction.label, (direction.source, direction.target), tuple(words), "train")
        for direction in DIRECTIONS[case.scale]
    ]


def _penalties(case: Case, directions: Sequence[FigureDirection]) -> pd.DataFrame:
    """Return the tables of some directions as one, with a column `group`."""
    tables = []
    for direction in directions:
        tables.append(case.results[direction.label].tables["table"].assign(group=direction.group))
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
    """Return the first penalty minus the second at every layer of each pair of results, (p, l).

    The models share a tokenizer.

    Args:
        pairs: Results of stitching jobs that report on the same documents.
        together: Whether the intervals hold for all differences together.

    Raises:
        StoreError: Two results report on different documents.
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
    """Return the penalty of each document at each layer, summed over its tokens."""
    rows = _rows_of_same_layers(result).index
    return result.arrays["stitch"][rows] - result.arrays["target"]


def asymmetry_by_layer(forward: Result, back: Result) -> pd.DataFrame:
    """Return the penalty of one direction minus that of the reverse at each layer, in nats."""
    columns = ["source", "target", "source_layer"]
    table = _rows_of_same_layers(forward)[columns].rename(columns={"source_layer": "layer"})
    differences = penalty_differences([(forward, back)], together=False).differences
    value, low, high = differences[0]
    return table.assign(asymmetry=value.numpy(), low=low.numpy(), high=high.numpy())


def _figure1(case: Case) -> Conclusion:
    """Penalties of all directions between SoLU and GeLU; for minis also between seeds."""
    directions = DIRECTIONS[case.scale]
    claims = []
    for group in dict.fromkeys(direction.group for direction in directions):
        claims += _claims(case, group)

    by_ends = {(direction.source, direction.target): direction for direction in directions}
    asymmetry_tables = []
    for forward in directions:
        back = by_ends.get((forward.target, forward.source))
        if forward.activations[0] == "solu" and back is not None and back is not forward:
            of_pair = asymmetry_by_layer(case.results[forward.label], case.results[back.label])
            asymmetry_tables.append(of_pair.assign(group=forward.group))
    table = _penalties(case, directions)
    draw = partial(draw_directions, table)
    return Conclusion(table, claims, draw, {"asymmetry": pd.concat(asymmetry_tables)})


def _claims(case: Case, group: str) -> list[Claim]:
    """Return what section 3 says of SoLU and GeLU, checked on one group of directions."""
    by_activations = {
        direction.activations: direction
        for direction in DIRECTIONS[case.scale]
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
        cheapest = _costs_more(case, costs_least, pairs)
    return [
        _costs_more(
            case,
            f"{group}: SoLU into GeLU costs more than GeLU into SoLU at every layer",
            [(into_gelu, into_solu)],
        ),
        cheapest,
        _costs_more(
            case,
            f"{group}: SoLU into SoLU stitches better than GeLU into GeLU",
            [(within_gelu, within_solu)],
        ),
    ]


def _costs_more(
    case: Case, claim: str, pairs: Sequence[tuple[FigureDirection, FigureDirection]]
) -> Claim:
    """Return the claim that the first direction of each pair costs more at every layer.

    Args:
        case: The experiment, with its results.
        claim: What the paper says.
        pairs: Pairs of directions, of which the first should have the larger penalty.
    """
    results = [(case.results[more.label], case.results[less.label]) for more, less in pairs]
    differences, token_counts = penalty_differences(results)
    listed_pairs = []
    for row, (more, less) in enumerate(pairs):
        n_layers = differences.value.shape[1]
        by_layer = ", ".join(f"{differences[row][layer]:+.3f}" for layer in range(n_layers))
        listed_pairs.append(f"{more.label} minus {less.label} by layer: {by_layer}")
    numbers = f"{'; '.join(listed_pairs)}; intervals hold for all together (max-t)"
    units = number_of_documents(document_counts(token_counts))
    return judged_claim(claim, [(Bound("above"), differences)], numbers, units)


def _figure6(case: Case) -> Conclusion:
    """Learning curves of all stitches."""
    directions = [item for item in DIRECTIONS[case.scale] if item not in OTHER_SEED]
    curves = {item: case.results[item.label].arrays["curve"] for item in directions}
    between_models = {
        direction: curve
        for direction, curve in curves.items()
        if direction.source != direction.target
    }
    by_panel = {(direction.group, direction.label): curve for direction, curve in curves.items()}
    draw = partial(draw_learning_curves, by_panel)
    return Conclusion(_penalties(case, directions), [_learn(between_models)], draw)


def _learn(curves: Mapping[FigureDirection, Float[np.ndarray, "steps layers"]]) -> Claim:
    """Return the claim that the losses of all stitches fall, by Welch's interval over steps."""
    losses = [torch.from_numpy(curve).double() for curve in curves.values()]
    first = torch.cat([curve[:FIRST_STEPS] for curve in losses], -1)
    last = torch.cat([curve[-LAST_STEPS:] for curve in losses], -1)
    squared_error = first.var(0) / len(first) + last.var(0) / len(last)
    error = squared_error.sqrt().nan_to_num(torch.inf)
    freedom = max(min(len(first), len(last)) - 1, 1)
    count = error.numel()
    t = student_t(level_of_each(count), freedom)
    change = interval_around(last.mean(0) - first.mean(0), t * error)
    largest = change[int(change.value.argmax())]
    return judged_claim(
        "every stitch between two models learns",
        [(Bound("below"), change)],
        f"largest change of the loss {largest:+.3f} nats{bonferroni_note(count)}",
        f"{len(first)} first and {len(last)} last steps",
    )


EXPERIMENTS = [
    Experiment("brown2023/figure1", _figure1, MODELS, _stitches),
    Experiment("brown2023/figure6", _figure6, MODELS, _stitches),
]
