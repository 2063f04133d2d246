"""The parents of merges: which models of a family are means of others, block by block?"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike.errors import listed
from thinkalike.instruments.lineage.comparison import ALPHA, Comparison, module_name
from thinkalike.measures.merges import LEAST_WEIGHT, fit_merge
from thinkalike.models.units import UnitModel, Units
from thinkalike.screen import number_text, range_text

Candidate = tuple[UnitModel, Units]
"""A block that may be a parent, with its model."""


def table_of_merges(comparisons: Sequence[Comparison]) -> pd.DataFrame:
    """Return a row for each block of each merged model, and each of the block's parents.

    A model is a merge if a block is a weighted mean of blocks of several models, or if its blocks
    are unchanged blocks of different models. The columns are target, target_layer and
    target_module (the merge), source and source_layer (a parent), weight (of the parent) and
    explained: 1 - m / n, with m the squared distance of the block's weights from the weighted mean
    and n that from the nearest parent. It is NaN where the block is an unchanged block of one
    parent. A block of several experts has rows for each expert.

    Args:
        comparisons: The comparisons of every two models.
    """
    models: dict[str, UnitModel] = {}
    for comparison in comparisons:
        models[comparison.source.name] = comparison.source
        models[comparison.target.name] = comparison.target

    if len(models) < 3:  # a merge has two parents
        return pd.DataFrame()

    candidates_by_model = {
        model.name: _shared_blocks_by_block(model, comparisons) for model in models.values()
    }
    rows = _rows_of_merges(models, candidates_by_model, merges=())
    if not rows:
        return pd.DataFrame()

    # A merge may have unchanged blocks of its parents, so that such a block is that of two models
    # of the family. The parent is the one that is no merge, which is known by now.
    merges = {str(row["target"]) for row in rows}
    return pd.DataFrame(_rows_of_merges(models, candidates_by_model, merges))


def _rows_of_merges(
    models: Mapping[str, UnitModel],
    candidates_by_model: Mapping[str, Mapping[Units, Sequence[Candidate]]],
    merges: Collection[str],
) -> list[dict[str, object]]:
    """Return the rows of `table_of_merges`.

    Args:
        models: The models by name.
        candidates_by_model: For each model and each of its blocks, the blocks of other models that
            share its history.
        merges: The names of models that are known to be merges.
    """
    rows: list[dict[str, object]] = []
    for target in models.values():
        rows_of_target = []
        # `Units` say where the weights of one block (or of one of its experts) are in the model.
        for block in target.units:
            candidates = candidates_by_model[target.name].get(block, [])
            rows_of_target += _parents_of_block(target, block, candidates, merges)
        if len({row["source"] for row in rows_of_target}) > 1:
            rows += rows_of_target
    return rows


def _shared_blocks_by_block(
    target: UnitModel, comparisons: Sequence[Comparison]
) -> dict[Units, list[Candidate]]:
    """Return for each block of a model the blocks of other models that share its history.

    A block is an MLP, or one expert of it; `Units` say where its weights are.

    A test of hidden units shows the common history. Of each other model, only the block with the
    strongest evidence is returned. Models that do not share the residual stream are left out, as
    they cannot have been averaged with this model. So are blocks of a different shape.

    Args:
        target: The model.
        comparisons: The comparisons of every two models.
    """
    origins: dict[Units, list[Candidate]] = {}
    for comparison in comparisons:
        is_target = comparison.target is target
        is_source = comparison.source is target
        if not (is_target or is_source) or comparison.streams.basis != "shared":
            continue
        other_model = comparison.source if is_target else comparison.target
        strongest: dict[Units, tuple[float, int, Units]] = {}
        for pair in comparison.pairs:
            if comparison.corrected_p(pair) >= ALPHA:
                continue
            block = pair.target if is_target else pair.source
            other_block = pair.source if is_target else pair.target
            # The strongest evidence has the smallest p-value, and then the most similar depth.
            evidence = (pair.test.log_p, abs(block.block - other_block.block), other_block)
            strongest[block] = min(evidence, strongest.get(block, evidence))
        for block, (_, _, other_block) in strongest.items():
            is_same_shape = (block.units, block.width) == (other_block.units, other_block.width)
            if is_same_shape:
                origins.setdefault(block, []).append((other_model, other_block))
    return origins


def _parents_of_block(
    target: UnitModel, block: Units, candidates: Sequence[Candidate], merges: Collection[str]
) -> list[dict[str, object]]:
    """Return a table row for each parent of a block, with its weight.

    Parents are the candidates of which the block is a weighted mean, or the one that it equals.
    The list is empty if the block is neither, or if it equals several candidates.

    `explained` says how much nearer to the block the weighted mean is than the nearest candidate:
    1 - (squared distance from the mean) / (squared distance from this candidate). It is NaN if the
    block equals a candidate, as this distance is 0 then.

    Args:
        target: The model of the block.
        block: The block, as where the weights of its hidden units are.
        candidates: Blocks of other models with a common history, each with its model.
        merges: The names of models that are known to be merges.
    """
    weights_of_candidates = [_vector_of_weights(*candidate) for candidate in candidates]
    parents = _indices_without_copies_in_merges(candidates, weights_of_candidates, merges)
    candidates = [candidates[index] for index in parents]
    weights_of_candidates = [weights_of_candidates[index] for index in parents]
    if not candidates:
        return []
    fit = fit_merge(_vector_of_weights(target, block), torch.stack(weights_of_candidates))
    # `fit_merge` returns NaN for `explained` if the block equals at least one candidate. All equal
    # candidates then have the same weight, so a weight of 1 means that only one is equal. If there
    # are several, nothing tells which of them is the parent.
    equals_candidate = math.isnan(fit.explained) and float(fit.weights.max()) == 1
    if not (fit.is_merge or equals_candidate):
        return []
    rows: list[dict[str, object]] = []
    for (parent, parent_block), weight in zip(candidates, fit.weights.tolist(), strict=True):
        if weight >= LEAST_WEIGHT:
            rows.append({
                "target": target.name,
                "target_layer": block.block,
                "target_module": module_name(block),
                "source": parent.name,
                "source_layer": parent_block.block,
                "weight": weight,
                "explained": fit.explained,
            })  # fmt: skip
    return rows


def _indices_without_copies_in_merges(
    candidates: Sequence[Candidate],
    weights: Sequence[Float[Tensor, " n"]],
    merges: Collection[str],
) -> list[int]:
    """Return the indices of candidates, without blocks of merges that are those of other models.

    Args:
        candidates: Blocks with their models.
        weights: The weights of each block.
        merges: The names of models that are known to be merges.
    """
    of_merges = [model.name in merges for model, _ in candidates]
    weights_of_others = []
    for weights_of_block, is_of_merge in zip(weights, of_merges, strict=True):
        if not is_of_merge:
            weights_of_others.append(weights_of_block)

    indices = []
    for index, is_of_merge in enumerate(of_merges):
        # Only blocks of merges are compared, as that reads all of their weights.
        is_copy = is_of_merge and any(
            torch.equal(weights[index], other) for other in weights_of_others
        )
        if not is_copy:
            indices.append(index)
    return indices


def _vector_of_weights(model: UnitModel, block: Units) -> Float[Tensor, " n"]:
    """Return the input and output weights of a block's hidden units as one vector."""
    return torch.cat([model.reading(block).flatten(), model.writing(block).flatten()])


class BlocksOfSameParents(NamedTuple):
    """Successive blocks of a merged model that have the same parents."""

    parents: tuple[str, ...]
    """The names of the parents; of all experts, if these have different ones."""

    has_experts_apart: bool
    """Whether the experts of each of the blocks have different parents."""

    layers: list[int]
    """The numbers of the blocks."""

    rows: list[pd.DataFrame]
    """For each block its rows in the table of merges, one for each parent of each expert."""

    def is_continued_by(self, following: BlocksOfSameParents) -> bool:
        """Return whether other blocks have the same parents, and are next to the last of these."""
        return (
            self.parents == following.parents
            and self.has_experts_apart == following.has_experts_apart
            and following.layers[0] == self.layers[-1] + 1
        )


def merges_in_words(merges: pd.DataFrame) -> Iterator[str]:
    """Yield a sentence for each merged model, which names its parents with their weights.

    Successive blocks with the same parents are named together.

    Args:
        merges: A row for each block of each merged model, and each of the block's parents. Blocks
            that are no merge have no rows.
    """
    for target, rows_of_target in merges.groupby("target", sort=False):
        runs: list[BlocksOfSameParents] = []
        for layer, rows_of_block in rows_of_target.groupby("target_layer", sort=False):
            block = _block_of_rows(int(str(layer)), rows_of_block)
            if runs and runs[-1].is_continued_by(block):
                runs[-1].layers.extend(block.layers)
                runs[-1].rows.extend(block.rows)
            else:
                runs.append(block)
        clauses = [_parents_of_run_in_words(run) for run in runs]
        yield f"{target} is a merge: {'; '.join(clauses)}."


def _block_of_rows(layer: int, rows_of_block: pd.DataFrame) -> BlocksOfSameParents:
    """Return a single block, with its parents.

    Args:
        layer: The number of the block.
        rows_of_block: Its rows in the table of merges. A block of several experts has rows for
            each of them.
    """
    rows_by_module = rows_of_block.groupby("target_module", sort=False)
    parents_of_modules = {tuple(rows["source"]) for _, rows in rows_by_module}
    parents = tuple(rows_of_block["source"].unique())
    return BlocksOfSameParents(parents, len(parents_of_modules) > 1, [layer], [rows_of_block])


def _parents_of_run_in_words(run: BlocksOfSameParents) -> str:
    """Return in words the weighted mean of models that some successive blocks are.

    Such as "blocks 0 to 5 are 0.50 a + 0.50 b (explains ...)", or "0.10 to 0.90 a + ..." if the
    weights of blocks or experts differ. Blocks with a single parent are unchanged blocks of it. Of
    experts with different parents, all parents are named.
    """
    first, last = run.layers[0], run.layers[-1]
    blocks = f"block {first}"
    verb = "is"
    if last != first:
        blocks = f"blocks {first} to {last}"
        verb = "are"
    if run.has_experts_apart:
        parents = listed(run.parents)
        return f"the experts of {blocks} have different parents among {parents} (merges.csv)"
    if len(run.parents) == 1:
        return f"{blocks} {verb} from {run.parents[0]}, unchanged"
    rows_of_blocks = pd.concat(run.rows)
    weights_by_parent = rows_of_blocks.groupby("source")["weight"]
    lowest, highest = weights_by_parent.min(), weights_by_parent.max()
    terms = []
    for parent in run.parents:
        terms.append(f"{range_text(lowest[parent], highest[parent], '.2f')} {parent}")
    explained = number_text(rows_of_blocks["explained"].min(), ".1%")
    return (
        f"{blocks} {verb} {' + '.join(terms)} (explains at least {explained} of the squared "
        "distance from the nearest parent)"
    )
