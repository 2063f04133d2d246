"""CKA within and between models: figures 3, 4, 5, 9, 10 and table 1 of Brown et al. 2023.

What the paper reads off its heatmaps is stated here as a statistic of their cells, with a
jackknife interval over documents; all jobs of an experiment see the same batches. Blocks of a
model with L layers are: early, its first L/8 (at least one; the paper's pythia-6.9b has 3 of
32); last, its final layer; middle, from L/4 to L - L/4.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike.config import ModelConfig
from thinkalike.contrib.papers.claims import (
    Bound,
    Claim,
    bonferroni_note,
    exact_claim,
    judged_claim,
    level_of_each,
)
from thinkalike.contrib.papers.experiment import Case, Conclusion, Experiment, InnerJob
from thinkalike.figures.layers import layer_heatmaps
from thinkalike.measures.estimates import Estimate, jackknife
from thinkalike.models.access import reached
from thinkalike.models.checkpoints import located, named_folder
from thinkalike.models.loading_errors import explaining_loading_errors
from thinkalike.store import Result

Statistic = Callable[[Sequence[Tensor]], Tensor]
"""Of the cells of some results, each (..., l, m)."""
Names = tuple[str, str]
"""Of a source and a target."""

NO_DIRECTION = 0.01  # of CKA: a smaller difference does not count

# Labels of blocks of layers.
EARLY_BLOCK = 0
MIDDLE_BLOCK = 1
LAST_BLOCK = 2


def jackknifed(statistic: Statistic, results: Sequence[Result], level: float = 0.95) -> Estimate:
    """Return a statistic of some results with its jackknife interval over documents.

    All results are about the same text, so that their parts of the documents are the same.

    Args:
        statistic: Takes the matrices of the results, (l, m) or (parts, l, m) each.
        results: The results.
        level: The probability with which the interval covers.
    """
    cells = [torch.from_numpy(result.arrays["value"]) for result in results]
    cells_without = [torch.from_numpy(result.arrays["without"]) for result in results]
    return jackknife(statistic(cells), statistic(cells_without), level=level)


def early(n_layers: int) -> slice:
    """Return the early layers: the first eighth, at least one."""
    return slice(0, max(n_layers // 8, 1))


def middle(n_layers: int) -> slice:
    """Return the middle layers: all but the first and the last quarter."""
    return slice(n_layers // 4, n_layers - n_layers // 4)


def off_diagonal(cells: Float[Tensor, "*b l l"]) -> Float[Tensor, "*b"]:
    """Return the mean CKA of two different layers of a model."""
    n_layers = cells.shape[-1]
    is_different = ~torch.eye(n_layers, dtype=torch.bool)
    return cells[..., is_different].mean(-1)


def block_structure(cells: Float[Tensor, "*b l l"]) -> Float[Tensor, "*b"]:
    """Return the mean CKA of two different layers of one block, minus that across blocks.

    The blocks are the early layers, the last layer, and all others.
    """
    n_layers = cells.shape[-1]
    block = torch.full((n_layers,), MIDDLE_BLOCK)
    block[early(n_layers)] = EARLY_BLOCK
    block[-1] = LAST_BLOCK
    is_one_block = block[:, None] == block
    is_different = ~torch.eye(n_layers, dtype=torch.bool)
    within = cells[..., is_one_block & is_different].mean(-1)
    across = cells[..., ~is_one_block].mean(-1)
    return within - across


def one_sidedness(cells: Float[Tensor, "*b l m"]) -> Float[Tensor, "*b"]:
    """Return the mean over i < j of CKA(source i, target j) - CKA(source j, target i).

    Both models have as many layers.
    """
    upper_rows, upper_columns = torch.triu_indices(cells.shape[-2], cells.shape[-1], 1)
    return (cells - cells.mT)[..., upper_rows, upper_columns].mean(-1)


# ---- The jobs.


def _jobs_between(case: Case) -> list[InnerJob]:
    """Return the jobs of all pairs of two models."""
    return _jobs(case, list(itertools.combinations(case.names, 2)))


def _jobs_within(case: Case) -> list[InnerJob]:
    """Return the jobs of each model with itself."""
    return _jobs(case, [(name, name) for name in case.names])


def _jobs_with_largest(case: Case) -> list[InnerJob]:
    """Return the jobs of each model with the last one, which is the largest."""
    return _jobs(case, [(name, case.names[-1]) for name in case.names])


def _jobs(case: Case, pairs: Sequence[Names]) -> list[InnerJob]:
    """Return the job of each pair of a source and a target, labelled by both names."""
    return [
        InnerJob(f"{source}, {target}", (case.models[source], case.models[target]))
        for source, target in pairs
    ]


def _result(case: Case, names: Names) -> Result:
    """Return the result of the job of a source and a target."""
    return case.results[", ".join(names)]


# ---- Claims.


def _units(result: Result) -> str:
    """Say what intervals of a result are over."""
    return f"{len(result.arrays['without'])} parts of the documents"


def _greater(
    claim: str, statistic: Statistic, case: Case, pairs: Sequence[Names], words: str
) -> Claim:
    """Return the claim that a statistic of some pairs of models is above 0.

    Args:
        claim: The claim in words.
        statistic: Takes the matrices of these pairs, in their order.
        case: The experiment with its results.
        pairs: The names of the source and the target of each pair.
        words: What the number is, in words.
    """
    results = [_result(case, names) for names in pairs]
    value = jackknifed(statistic, results)
    numbers = f"{words}: {value:+.4f}"
    return judged_claim(claim, [(Bound("above"), value)], numbers, _units(results[0]))


def _listed_pairs(pairs: Sequence[Names]) -> str:
    """Return the names of pairs of models as words."""
    return " and ".join(f"({source}, {target})" for source, target in pairs)


def _odd_one_out(
    claim: str, case: Case, pairs_without: Sequence[Names], pairs_with: Sequence[Names]
) -> Claim:
    """Return the claim that middle layers are more similar without the odd model than with it.

    Args:
        claim: The claim in words.
        case: The experiment with its results.
        pairs_without: Pairs of models without the odd one.
        pairs_with: Pairs with it.
    """

    def difference(cells: Sequence[Tensor]) -> Tensor:
        means = []
        for of_pair in cells:
            source_layers, target_layers = of_pair.shape[-2:]
            middle_cells = of_pair[..., middle(source_layers), middle(target_layers)]
            means.append(middle_cells.mean((-2, -1)))
        mean_without = torch.stack(means[: len(pairs_without)]).mean(0)
        mean_with = torch.stack(means[len(pairs_without) :]).mean(0)
        return mean_without - mean_with

    words = (
        f"mean CKA of middle layers of {_listed_pairs(pairs_without)} minus that of "
        f"{_listed_pairs(pairs_with)}"
    )
    return _greater(claim, difference, case, [*pairs_without, *pairs_with], words)


def _early(case: Case, pairs: Sequence[Names]) -> Claim:
    """Return the claim that early layers of two models are more similar than layers in general."""

    def excess(cells: Sequence[Tensor]) -> Tensor:
        excesses = []
        for of_pair in cells:
            source_layers, target_layers = of_pair.shape[-2:]
            early_cells = of_pair[..., early(source_layers), early(target_layers)]
            excesses.append(early_cells.mean((-2, -1)) - of_pair.mean((-2, -1)))
        return torch.stack(excesses).mean(0)

    claim = "early layers are alike across sizes, more than layers are in general"
    words = f"mean CKA of early layers minus that of all, {_listed_pairs(pairs)}"
    return _greater(claim, excess, case, pairs, words)


def _blocks(case: Case, name: str) -> Claim:
    """Return the claim that the layers of a model form blocks."""

    def structure(cells: Sequence[Tensor]) -> Tensor:
        return block_structure(cells[0])

    words = "mean CKA of two layers of one block minus that of two blocks"
    claim = f"{name} has blocks: early, middle, last"
    return _greater(claim, structure, case, [(name, name)], words)


def _grows(case: Case) -> Claim:
    """Return the claim that each larger model has more similar layers than the one before."""

    def increase(cells: Sequence[Tensor]) -> Tensor:
        smaller, larger = cells
        return off_diagonal(larger) - off_diagonal(smaller)

    steps = list(itertools.pairwise(case.names))
    level = level_of_each(len(steps))
    results = {name: _result(case, (name, name)) for name in case.names}
    increases = []
    listed_steps = []
    for smaller, larger in steps:
        step = jackknifed(increase, [results[smaller], results[larger]], level)
        increases.append(step)
        listed_steps.append(f"{larger} minus {smaller} {step:+.4f}")
    return judged_claim(
        "the likeness of a model's layers grows with scale",
        [(Bound("above"), step) for step in increases],
        f"mean CKA of two different layers: {'; '.join(listed_steps)}"
        f"{bonferroni_note(len(steps))}",
        _units(results[case.names[0]]),
    )


def _tilt(case: Case) -> Claim:
    """Return the claim that CKA between SoLU and GeLU is the same in both directions."""

    def one_direction(cells: Sequence[Tensor]) -> Tensor:
        return one_sidedness(cells[0])

    solu, gelu = case.names
    result = _result(case, (solu, gelu))
    tilt = jackknifed(one_direction, [result])
    return judged_claim(
        "CKA between SoLU and GeLU shows no direction",
        [(Bound("within", NO_DIRECTION), tilt)],
        f"an earlier layer of {solu} with a later one of {gelu}, minus the reverse: {tilt:+.4f}",
        _units(result),
    )


# ---- Figures.


def _conclusion(case: Case, claims: Sequence[Claim], drawn: Sequence[Names]) -> Conclusion:
    """Return the table of all pairs of models, with heatmaps of those that are drawn.

    Args:
        case: The experiment with its results.
        claims: What is claimed.
        drawn: The names of the source and the target of each heatmap.
    """
    table = pd.concat([result.details for result in case.results.values()], ignore_index=True)
    table = table.drop_duplicates(["source", "target", "source_layer", "target_layer"])
    tables = []
    for source, target in drawn:
        tables.append(table[(table["source"] == source) & (table["target"] == target)])
    draw = partial(layer_heatmaps, pd.concat(tables), file="cka", label="CKA")
    return Conclusion(table, claims, draw)


def _figure3(case: Case) -> Conclusion:
    """Each Pythia model against the largest; the third is the odd one."""
    pairs = [(name, case.names[-1]) for name in case.names]
    smallest, smaller, odd, itself = pairs
    claim = f"{odd[0]} is less like {odd[1]} in the middle layers than the others are"
    claims = [
        _odd_one_out(claim, case, [smallest, smaller], [odd]),
        _early(case, [smallest, smaller, odd]),
        _blocks(case, itself[0]),
    ]
    if case.scale == "mini":
        # What the paper could not do: 5l and 5l-odd differ in nothing but the head dimension.
        controlled = "controlled: a smaller head dimension alone makes it so"
        claims.append(_odd_one_out(controlled, case, [smaller], [odd]))
    return _conclusion(case, claims, pairs)


def _figure9(case: Case) -> Conclusion:
    """All pairs of three Pythia models, one of them trained differently."""
    odd = case.names[2]
    pairs = list(itertools.combinations(case.names, 2))
    pairs_with = [pair for pair in pairs if odd in pair]
    pairs_without = [pair for pair in pairs if odd not in pair]
    claim = f"{odd} is less like the others than they are alike in the middle layers"
    claims = [_odd_one_out(claim, case, pairs_without, pairs_with), _early(case, pairs)]
    return _conclusion(case, claims, list(itertools.combinations_with_replacement(case.names, 2)))


def _figure10(case: Case) -> Conclusion:
    """Within each of some models of increasing size."""
    claims = [_grows(case), *(_blocks(case, name) for name in case.names[1:])]
    return _conclusion(case, claims, [(name, name) for name in case.names])


def _figure_of_activations(case: Case) -> Conclusion:
    """Within and between SoLU and GeLU of one depth."""
    solu, gelu = case.names
    return _conclusion(case, [_tilt(case)], [(gelu, gelu), (solu, solu), (solu, gelu)])


def _head_dimensions(config: ModelConfig) -> dict[str, int]:
    """Return the sizes of a Hugging Face model by its configuration alone, without its weights.

    They are its layers, its width, its heads, the dimensions of a head, and how many of these
    rotary embeddings turn: 0 if the configuration says nothing of these.
    """
    from transformers import AutoConfig

    with explaining_loading_errors(config), reached(config) as (place, commit):
        revision = None if named_folder(config) else commit
        shape = AutoConfig.from_pretrained(**located(place), revision=revision)
    d_head = shape.hidden_size // shape.num_attention_heads
    rope_parameters = getattr(shape, "rope_parameters", None) or {}
    return {
        "layers": shape.num_hidden_layers,
        "d_model": shape.hidden_size,
        "heads": shape.num_attention_heads,
        "d_head": d_head,
        "rotary": int(d_head * rope_parameters.get("partial_rotary_factor", 0)),
    }


def _table1(case: Case) -> Conclusion:
    """The sizes of Pythia models; one has smaller heads than its neighbours."""
    rows = [{"model": name, **_head_dimensions(model)} for name, model in case.models.items()]
    table = pd.DataFrame(rows)
    name = "neox-5l-odd-mini" if case.scale == "mini" else "pythia-2.8b-deduped"
    row = table.index[table["model"] == name][0]
    about_its_size = table[row - 2 :]  # from the second smaller model on
    odd = table.loc[row]
    others = about_its_size[about_its_size["model"] != name]
    has_smaller_heads = (odd["d_head"] < others["d_head"]).all()
    has_smaller_rotary = (odd["rotary"] < others["rotary"]).all()
    claim = exact_claim(
        f"{name} has smaller heads and rotary dimensions than models of about its size",
        bool(has_smaller_heads and has_smaller_rotary),
        f"head dimension {odd['d_head']} against {sorted(others['d_head'])}, rotary "
        f"{odd['rotary']} against {sorted(others['rotary'])}",
        f"{len(about_its_size)} models",
    )
    return Conclusion(table, [claim])


def _pythia(*sizes: str) -> list[str]:
    """Return the names of deduplicated Pythia models of these sizes."""
    return [f"pythia-{size}-deduped" for size in sizes]


def _activations(depth: int) -> dict[str, list[str]]:
    """Return the names of the SoLU and the GeLU model of a depth, by scale."""
    return {
        "paper": [f"solu-{depth}l", f"gelu-{depth}l"],
        "mini": [f"solu-{depth}l-mini", f"gelu-{depth}l-mini"],
    }


# The odd one among the paper's models is pythia-2.8b; among the minis it is neox-5l-odd-mini.
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

EXPERIMENTS = [
    Experiment("brown2023/figure3", _figure3, FIGURE_3, _jobs_with_largest, "cka"),
    Experiment("brown2023/figure4", _figure_of_activations, _activations(3), _jobs_between, "cka"),
    Experiment("brown2023/figure5", _figure_of_activations, _activations(4), _jobs_between, "cka"),
    Experiment("brown2023/figure9", _figure9, FIGURE_9, _jobs_between, "cka"),
    Experiment("brown2023/figure10", _figure10, FIGURE_10, _jobs_within, "cka", takes=(2,)),
    Experiment("brown2023/table1", _table1, TABLE_1, tabulates=True),
]
