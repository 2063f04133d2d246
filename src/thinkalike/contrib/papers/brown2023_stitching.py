"""Stitching between SoLU and GeLU models: figures 1 and 6 of Brown et al. 2023, and what section 3 claims."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch

from thinkalike.contrib import figures
from thinkalike.contrib.papers.claims import Bound, Claim, judged, level_of_each, together, untestable
from thinkalike.contrib.papers.experiment import Case, Conclusion, Experiment, Part
from thinkalike.errors import StoreError
from thinkalike.evaluation.language import document_numbers
from thinkalike.measures.estimates import Estimate, bootstrap_interval, interval_around, student_t
from thinkalike.screen import number_of_documents
from thinkalike.store import Result

MINI_RECIPE = ("data.report_tokens=131072",)  # 12 jobs within half an hour
FIRST, LAST = 10, 30  # steps whose losses are compared
STARTS_THERE = "a stitch of a model into itself starts at its solution; only one into an independent seed can tell"


class Direction(NamedTuple):
    """One stitching job of a figure: its group of comparable jobs, both activations, source and target."""

    group: str
    activations: tuple[str, str]
    source: str
    target: str

    @property
    def label(self) -> str:
        return f"{self.source} → {self.target}"


def _all_directions(depth: int, ending: str = "") -> list[Direction]:
    models = {activation: f"{activation}-{depth}l{ending}" for activation in ("solu", "gelu")}
    return [Direction(f"{depth} layers", (a, b), models[a], models[b]) for a in models for b in models]


# what the paper could not do: no independent seeds of its models exist
OTHER_SEED = [
    Direction("3 layers, other seed", ("solu", "gelu"), "solu-3l-mini", "gelu-3l-mini-s1"),
    Direction("3 layers, other seed", ("gelu", "solu"), "gelu-3l-mini-s1", "solu-3l-mini"),
    Direction("3 layers, other seed", ("solu", "solu"), "solu-3l-mini", "solu-3l-mini-s1"),
    Direction("3 layers, other seed", ("gelu", "gelu"), "gelu-3l-mini", "gelu-3l-mini-s1"),
]
DIRECTIONS = {
    "paper": [*_all_directions(3), *_all_directions(4)],
    "mini": [*_all_directions(3, "-mini"), *_all_directions(4, "-mini"), *OTHER_SEED],
}
MODELS = {
    scale: list(dict.fromkeys(name for each in directions for name in (each.source, each.target)))
    for scale, directions in DIRECTIONS.items()
}


def _parts(case: Case) -> list[Part]:
    recipe: tuple[str, ...] = ("stitch.floor=false",)  # the directions of a model into itself say it
    recipe += ("stitch=affine",) if case.config.recipe == "paper" else ()
    recipe += MINI_RECIPE if case.scale == "mini" else ()
    return [Part(each.label, (each.source, each.target), recipe, "train") for each in DIRECTIONS[case.scale]]


def _concluded(case: Case, directions: Sequence[Direction]) -> pd.DataFrame:
    return pd.concat(
        [case.results[each.label].table.assign(group=each.group) for each in directions], ignore_index=True
    )


def _same_layers(result: Result) -> pd.DataFrame:
    return result.table[result.table["source_layer"] == result.table["target_layer"]]


def penalty_differences(pairs: Sequence[tuple[Result, Result]], together: bool = True) -> tuple[Estimate, torch.Tensor]:
    """Return the first penalty minus the second at every layer of each pair of results, and the tokens of documents.

    Models share a tokenizer. Differences are in nats per token, (p, l); with `together` their intervals hold for all
    of them together. Results that report on different documents are a StoreError.
    """
    first = pairs[0][0]
    for each in (each for pair in pairs for each in pair):
        if not np.array_equal(each.arrays["tokens"], first.arrays["tokens"]):
            both = f"{first.folder} and {each.folder}"
            raise StoreError(f"{both} report on different documents; force=true computes them anew")
    counts = torch.from_numpy(first.arrays["tokens"]).double()
    more, less = (
        np.stack([each.arrays["stitch"][_same_layers(each).index] - each.arrays["target"] for each in side])
        for side in zip(*pairs, strict=True)
    )
    return bootstrap_interval(torch.from_numpy(more - less), counts, together=together), counts


def asymmetries(there: Result, back: Result) -> pd.DataFrame:
    """Return the penalty of one direction minus that of the other at each layer, nats per token."""
    table = _same_layers(there)[["source", "target", "source_layer"]].rename(columns={"source_layer": "layer"})
    mean, low, high = penalty_differences([(there, back)], together=False)[0][0]
    return table.assign(asymmetry=mean.numpy(), low=low.numpy(), high=high.numpy())


def _figure1(case: Case) -> Conclusion:
    """Penalties of all four directions between SoLU and GeLU; at mini scale also between other seeds."""
    directions = DIRECTIONS[case.scale]
    claims = [claim for group in dict.fromkeys(each.group for each in directions) for claim in _claims(case, group)]
    by_ends = {(each.source, each.target): each for each in directions}
    both = [(each, by_ends.get((each.target, each.source))) for each in directions if each.activations[0] == "solu"]
    asymmetry = [
        asymmetries(case.results[there.label], case.results[back.label]).assign(group=there.group)
        for there, back in both
        if back and back is not there
    ]
    table = _concluded(case, directions)
    return Conclusion(table, claims, partial(figures.directions, table), {"asymmetry": pd.concat(asymmetry)})


def _figure6(case: Case) -> Conclusion:
    directions = [each for each in DIRECTIONS[case.scale] if each not in OTHER_SEED]
    curves = {each: case.results[each.label].arrays["curve"] for each in directions}
    claims = [_learn({each: curve for each, curve in curves.items() if each.source != each.target})]
    draw = partial(figures.learning_curves, {(each.group, each.label): curve for each, curve in curves.items()})
    return Conclusion(_concluded(case, directions), claims, draw)


def _claims(case: Case, group: str) -> list[Claim]:
    """Return what section 3 says of SoLU and GeLU, checked on one group of directions."""
    by_activation = {each.activations: each for each in DIRECTIONS[case.scale] if each.group == group}
    to_gelu, to_solu = by_activation["solu", "gelu"], by_activation["gelu", "solu"]
    selves = [by_activation["solu", "solu"], by_activation["gelu", "gelu"]]
    same = f"{group}: stitching into the same activation costs least"
    if any(own.source == own.target for own in selves):
        least = untestable(same, STARTS_THERE)
    else:
        least = _greater(case, same, [(cross, own) for cross in (to_gelu, to_solu) for own in selves])
    costs = f"{group}: SoLU into GeLU costs more than GeLU into SoLU at every layer"
    better = f"{group}: SoLU into SoLU stitches better than GeLU into GeLU"
    return [_greater(case, costs, [(to_gelu, to_solu)]), least, _greater(case, better, [(selves[1], selves[0])])]


def _greater(case: Case, claim: str, pairs: Sequence[tuple[Direction, Direction]]) -> Claim:
    results = [(case.results[more.label], case.results[less.label]) for more, less in pairs]
    differences, counts = penalty_differences(results)
    numbers = "; ".join(
        f"{more.label} minus {less.label} by layer: "
        + ", ".join(f"{differences[row][layer]:+.3f}" for layer in range(differences.value.shape[1]))
        for row, (more, less) in enumerate(pairs)
    )
    units = number_of_documents(document_numbers(counts))
    return judged(claim, [(Bound("above"), differences)], f"{numbers}; intervals hold for all together (max-t)", units)


def _learn(curves: dict[Direction, np.ndarray]) -> Claim:
    """Say whether the losses of all stitches fall, from their first steps to their last ones (Welch's interval)."""
    parts = [torch.from_numpy(curve).double() for curve in curves.values()]
    first, last = (torch.cat([part[steps] for part in parts], -1) for steps in (slice(FIRST), slice(-LAST, None)))
    error = (first.var(0) / len(first) + last.var(0) / len(last)).sqrt().nan_to_num(torch.inf)
    freedom = max(min(len(first), len(last)) - 1, 1)
    count = error.numel()
    falls = interval_around(last.mean(0) - first.mean(0), student_t(level_of_each(count), freedom) * error)
    numbers = f"largest change of the loss {falls[int(falls.value.argmax())]:+.3f} nats{together(count)}"
    units = f"{len(first)} first and {len(last)} last steps"
    return judged("every stitch between two models learns", [(Bound("below"), falls)], numbers, units)


EXPERIMENTS = [
    Experiment("brown2023/figure1", _figure1, MODELS, _parts),
    Experiment("brown2023/figure6", _figure6, MODELS, _parts),
]
