"""Stitching and CKA of SoLU, GeLU and Pythia models: Brown et al. 2023 but for its classifiers (figures 2, 7 and 8).

What the paper reads off its heatmaps is stated here as a statistic of their cells, with a jackknife interval over
documents; all jobs of an experiment see the same batches. Blocks of a model with L layers: early, its first L/8 (at
least one; the paper's pythia-6.9b has 3 of 32); last, its final layer; middle, from L/4 to L - L/4.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from thinkalike.config import ModelConfig
from thinkalike.contrib import figures
from thinkalike.contrib.papers.claims import Bound, Claim, counted, judged, level_of_each, together, untestable
from thinkalike.contrib.papers.experiment import Case, Conclusion, Experiment, Part
from thinkalike.errors import StoreError
from thinkalike.evaluation.columns import document_counts
from thinkalike.measures.bootstrap import bootstrap_interval
from thinkalike.measures.estimates import Estimate, interval_around, jackknife, student_t
from thinkalike.models.access import reached
from thinkalike.models.checkpoints import located, named_folder
from thinkalike.models.loading_errors import explained
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


def _stitching_parts(case: Case) -> list[Part]:
    recipe: tuple[str, ...] = ("stitch.floor=false",)  # the directions of a model into itself say it
    recipe += ("stitch=affine",) if case.config.recipe == "paper" else ()
    recipe += MINI_RECIPE if case.scale == "mini" else ()
    return [Part(each.label, (each.source, each.target), recipe, "train") for each in DIRECTIONS[case.scale]]


def _penalties(case: Case, directions: Sequence[Direction]) -> pd.DataFrame:
    tables = (case.results[each.label].table.assign(group=each.group) for each in directions)
    return pd.concat(tables, ignore_index=True)


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
    table = _penalties(case, directions)
    return Conclusion(table, claims, partial(figures.directions, table), {"asymmetry": pd.concat(asymmetry)})


def _figure6(case: Case) -> Conclusion:
    directions = [each for each in DIRECTIONS[case.scale] if each not in OTHER_SEED]
    curves = {each: case.results[each.label].arrays["curve"] for each in directions}
    claims = [_learn({each: curve for each, curve in curves.items() if each.source != each.target})]
    draw = partial(figures.learning_curves, {(each.group, each.label): curve for each, curve in curves.items()})
    return Conclusion(_penalties(case, directions), claims, draw)


def _claims(case: Case, group: str) -> list[Claim]:
    """Return what section 3 says of SoLU and GeLU, checked on one group of directions."""
    by_activation = {each.activations: each for each in DIRECTIONS[case.scale] if each.group == group}
    to_gelu, to_solu = by_activation["solu", "gelu"], by_activation["gelu", "solu"]
    selves = [by_activation["solu", "solu"], by_activation["gelu", "gelu"]]
    same = f"{group}: stitching into the same activation costs least"
    if any(own.source == own.target for own in selves):
        least = untestable(same, STARTS_THERE)
    else:
        least = _costs_more(case, same, [(cross, own) for cross in (to_gelu, to_solu) for own in selves])
    costs = f"{group}: SoLU into GeLU costs more than GeLU into SoLU at every layer"
    better = f"{group}: SoLU into SoLU stitches better than GeLU into GeLU"
    return [_costs_more(case, costs, [(to_gelu, to_solu)]), least, _costs_more(case, better, [(selves[1], selves[0])])]


def _costs_more(case: Case, claim: str, pairs: Sequence[tuple[Direction, Direction]]) -> Claim:
    results = [(case.results[more.label], case.results[less.label]) for more, less in pairs]
    differences, counts = penalty_differences(results)
    numbers = "; ".join(
        f"{more.label} minus {less.label} by layer: "
        + ", ".join(f"{differences[row][layer]:+.3f}" for layer in range(differences.value.shape[1]))
        for row, (more, less) in enumerate(pairs)
    )
    units = number_of_documents(document_counts(counts))
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


# CKA within and between models: figures 3, 4, 5, 9, 10 and table 1.

Statistic = Callable[[Sequence[Tensor]], Tensor]  # of the cells of some results, each (..., l, m)
Names = tuple[str, str]  # of source and target
LEVEL = 0.01  # of CKA: a smaller rise or fall does not count


def jackknifed(statistic: Statistic, results: Sequence[Result], level: float = 0.95) -> Estimate:
    """Return the statistic with its jackknife interval over documents; all results are of the same text."""
    whole, without = ([torch.from_numpy(each.arrays[name]) for each in results] for name in ("value", "without"))
    return jackknife(statistic(whole), statistic(without), level=level)


def early(layers: int) -> slice:
    return slice(0, max(layers // 8, 1))


def middle(layers: int) -> slice:
    return slice(layers // 4, layers - layers // 4)


def off_diagonal(cells: Tensor) -> Tensor:
    """Return the mean CKA of two different layers of a model."""
    layers = cells.shape[-1]
    return cells[..., ~torch.eye(layers, dtype=torch.bool)].mean(-1)


def block_structure(cells: Tensor) -> Tensor:
    """Return the mean CKA of two different layers of one block (early, last, between), minus that across blocks."""
    layers = cells.shape[-1]
    block = torch.ones(layers, dtype=torch.long)
    block[early(layers)], block[-1] = 0, 2
    alike, different = block[:, None] == block, ~torch.eye(layers, dtype=torch.bool)
    return cells[..., alike & different].mean(-1) - cells[..., ~alike].mean(-1)


def one_sidedness(cells: Tensor) -> Tensor:
    """Return the mean over i < j of CKA(source layer i, target layer j) - CKA(source layer j, target layer i)."""
    upper = torch.triu_indices(cells.shape[-2], cells.shape[-1], 1)
    return (cells - cells.mT)[..., upper[0], upper[1]].mean(-1)


def _cka_parts(case: Case, pairs: str) -> list[Part]:
    names = case.names
    chosen = list(itertools.combinations(names, 2))
    if pairs != "between":
        chosen = [(name, names[-1] if pairs == "with the largest" else name) for name in names]
    return [Part(f"{a}, {b}", (case.models[a], case.models[b])) for a, b in chosen]


def _result(case: Case, names: Names) -> Result:
    return case.results[", ".join(names)]


def _judged(claim: str, bound: Bound, steps: Sequence[Estimate], words: str, result: Result) -> Claim:
    units = f"{len(result.arrays['without'])} parts of the documents"
    return judged(claim, [(bound, step) for step in steps], words, units)


def _greater(claim: str, statistic: Statistic, case: Case, pairs: Sequence[Names], words: str) -> Claim:
    results = [_result(case, names) for names in pairs]
    difference = jackknifed(statistic, results)
    return _judged(claim, Bound("above"), [difference], f"{words}: {difference:+.4f}", results[0])


def _labels(pairs: Sequence[Names]) -> str:
    return " and ".join(f"({source}, {target})" for source, target in pairs)


def _odd_one_out(claim: str, case: Case, others: Sequence[Names], odd: Sequence[Names]) -> Claim:
    """Compare the middle layers of pairs of models without the odd one with those of pairs with it."""

    def difference(cells: Sequence[Tensor]) -> Tensor:
        means = [each[..., middle(each.shape[-2]), middle(each.shape[-1])].mean((-2, -1)) for each in cells]
        return torch.stack(means[: len(others)]).mean(0) - torch.stack(means[len(others) :]).mean(0)

    words = f"mean CKA of middle layers of {_labels(others)} minus that of {_labels(odd)}"
    return _greater(claim, difference, case, [*others, *odd], words)


def _early(case: Case, pairs: Sequence[Names]) -> Claim:
    def likeness(cells: Sequence[Tensor]) -> Tensor:
        firsts = [each[..., early(each.shape[-2]), early(each.shape[-1])].mean((-2, -1)) for each in cells]
        return torch.stack([first - each.mean((-2, -1)) for first, each in zip(firsts, cells, strict=True)]).mean(0)

    claim = "early layers are alike across sizes, more than layers are in general"
    return _greater(claim, likeness, case, pairs, f"mean CKA of early layers minus that of all, {_labels(pairs)}")


def _blocks(case: Case, name: str) -> Claim:
    words = "mean CKA of two layers of one block minus that of two blocks"
    claim = f"{name} has blocks: early, middle, last"
    return _greater(claim, lambda cells: block_structure(cells[0]), case, [(name, name)], words)


def _concluded(case: Case, claims: Sequence[Claim], drawn: Sequence[Names]) -> Conclusion:
    table = pd.concat([result.table for result in case.results.values()], ignore_index=True)
    table = table.drop_duplicates(["source", "target", "source_layer", "target_layer"])
    parts = [table[(table["source"] == source) & (table["target"] == target)] for source, target in drawn]
    across = 2 if len(drawn) == 4 else 3
    draw = partial(figures.layer_heatmaps, pd.concat(parts), file="cka", label="CKA", across=across)
    return Conclusion(table, claims, draw)


def _figure3(case: Case) -> Conclusion:
    """Each Pythia model against the largest."""
    pairs = [(name, case.names[-1]) for name in case.names]
    odd, itself, others = pairs[2], pairs[3], pairs[:2]
    claims = [
        _odd_one_out(f"{odd[0]} is less like {odd[1]} in the middle layers than the others are", case, others, [odd]),
        _early(case, pairs[:3]),
        _blocks(case, itself[0]),
    ]
    if case.scale == "mini":  # which the paper could not do: 5l and 5l-odd differ in head dimension alone
        controlled = "controlled: a smaller head dimension alone makes it so"
        claims.append(_odd_one_out(controlled, case, others[1:], [odd]))
    return _concluded(case, claims, pairs)


def _figure9(case: Case) -> Conclusion:
    """All pairs of three Pythia models, one of them trained differently."""
    names = case.names
    pairs = list(itertools.combinations(names, 2))
    odd, others = ([pair for pair in pairs if (names[2] in pair) == side] for side in (True, False))
    claim = f"{names[2]} is less like the others than they are alike in the middle layers"
    claims = [_odd_one_out(claim, case, others, odd), _early(case, pairs)]
    return _concluded(case, claims, list(itertools.combinations_with_replacement(names, 2)))


def _figure10(case: Case) -> Conclusion:
    """Within each of some models that grow."""
    claims = [_grows(case), *(_blocks(case, name) for name in case.names[1:])]
    return _concluded(case, claims, [(name, name) for name in case.names])


def _grows(case: Case) -> Claim:
    pairs, selves = list(itertools.pairwise(case.names)), {name: _result(case, (name, name)) for name in case.names}
    level = level_of_each(len(pairs))
    steps = [
        jackknifed(lambda cells: off_diagonal(cells[1]) - off_diagonal(cells[0]), [selves[a], selves[b]], level)
        for a, b in pairs
    ]
    numbers = "; ".join(f"{b} minus {a} {step:+.4f}" for (a, b), step in zip(pairs, steps, strict=True))
    words = f"mean CKA of two different layers: {numbers}{together(len(pairs))}"
    claim = "the likeness of a model's layers grows with scale"
    return _judged(claim, Bound("above"), steps, words, selves[case.names[0]])


def _figure_of_activations(case: Case) -> Conclusion:
    """Within and between SoLU and GeLU of one depth."""
    solu, gelu = case.names
    return _concluded(case, [_tilt(case)], [(gelu, gelu), (solu, solu), (solu, gelu)])


def _tilt(case: Case) -> Claim:
    solu, gelu = case.names
    result = _result(case, (solu, gelu))
    tilt = jackknifed(lambda cells: one_sidedness(cells[0]), [result])
    words = f"an earlier layer of {solu} with a later one of {gelu}, minus the reverse: {tilt:+.4f}"
    return _judged("CKA between SoLU and GeLU shows no direction", Bound("within", LEVEL), [tilt], words, result)


def _head_dimensions(config: ModelConfig) -> dict[str, int]:
    """Return the sizes of a Hugging Face model by its configuration alone: layers, d_model, heads, d_head, rotary."""
    from transformers import AutoConfig

    with explained(config), reached(config) as (place, commit):
        shape = AutoConfig.from_pretrained(**located(place), revision=None if named_folder(config) else commit)
    d_head = shape.hidden_size // shape.num_attention_heads
    rotary = int(d_head * (getattr(shape, "rope_parameters", None) or {}).get("partial_rotary_factor", 0))
    sizes = {"layers": shape.num_hidden_layers, "d_model": shape.hidden_size, "heads": shape.num_attention_heads}
    return {**sizes, "d_head": d_head, "rotary": rotary}


def _table1(case: Case) -> Conclusion:
    table = pd.DataFrame([{"model": name, **_head_dimensions(model)} for name, model in case.models.items()])
    name = "neox-5l-odd-mini" if case.scale == "mini" else "pythia-2.8b-deduped"
    large = table[table.index[table["model"] == name][0] - 2 :]
    odd, others = large[large["model"] == name].iloc[0], large[large["model"] != name]
    claim = counted(
        f"{name} has smaller heads and rotary dimensions than models of about its size",
        bool((odd["d_head"] < others["d_head"]).all() and (odd["rotary"] < others["rotary"]).all()),
        f"head dimension {odd['d_head']} against {sorted(others['d_head'])}, rotary {odd['rotary']} against "
        f"{sorted(others['rotary'])}",
        f"{len(large)} models",
    )
    return Conclusion(table, [claim])


def _pythia(*sizes: str) -> list[str]:
    return [f"pythia-{size}-deduped" for size in sizes]


def _activations(depth: int) -> dict[str, list[str]]:
    return {"paper": [f"solu-{depth}l", f"gelu-{depth}l"], "mini": [f"solu-{depth}l-mini", f"gelu-{depth}l-mini"]}


# the odd one among the paper's models is pythia-2.8b, among the minis that stand for them neox-5l-odd-mini
FIGURE_3 = {
    "paper": _pythia("1b", "1.4b", "2.8b", "6.9b"),
    "mini": ["neox-4l-mini", "neox-5l-mini", "neox-5l-odd-mini", "neox-6l-mini"],
}
FIGURE_9 = {scale: names[:3] for scale, names in FIGURE_3.items()}
FIGURE_10 = {
    "paper": _pythia("70m", "160m", "410m", "1b"),
    "mini": ["neox-3l-mini", "neox-4l-mini", "neox-5l-mini", "neox-6l-mini"],
}
TABLE_1 = {
    "paper": _pythia("70m", "160m", "410m", "1b", "1.4b", "2.8b", "6.9b", "12b"),
    "mini": ["neox-3l-mini", "neox-4l-mini", "neox-5l-mini", "neox-5l-odd-mini", "neox-6l-mini"],
}

_between = partial(_cka_parts, pairs="between")
EXPERIMENTS = [
    Experiment("brown2023/figure3", _figure3, FIGURE_3, partial(_cka_parts, pairs="with the largest"), "cka"),
    Experiment("brown2023/figure4", _figure_of_activations, _activations(3), _between, "cka"),
    Experiment("brown2023/figure5", _figure_of_activations, _activations(4), _between, "cka"),
    Experiment("brown2023/figure9", _figure9, FIGURE_9, _between, "cka"),
    Experiment("brown2023/figure10", _figure10, FIGURE_10, partial(_cka_parts, pairs="within"), "cka", takes=(2,)),
    Experiment("brown2023/table1", _table1, TABLE_1, tabulates=True),
    Experiment("brown2023/figure1", _figure1, MODELS, _stitching_parts),
    Experiment("brown2023/figure6", _figure6, MODELS, _stitching_parts),
]
