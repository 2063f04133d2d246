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
    target_module (the merge), source and source_layer (a parent), equal_sources (other models with
    an equal block, of which each may be the parent; their names with commas), weight (of the
    parent) and explained: 1 - m / n, with m the squared distance of the block's weights from the
    weighted mean and n that from the nearest model. It is NaN where the block is an unchanged
    block of one parent. A block of several experts has rows for each expert.

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
        candidates_by_block = candidates_by_model[target.name]
        copies = _copies_of(target, candidates_by_block)
        parents_of_blocks = []
        # `Units` say where the weights of one block (or of one of its experts) are in the model.
        for block in target.units:
            candidates = []
            for model, candidate in candidates_by_block.get(block, []):
                if model.name not in copies:
                    candidates.append((model, candidate))
            parents_of_blocks.append(_parents_of_block(target, block, candidates, merges))
        if _have_several_parents(parents_of_blocks):
            for parents_of_block in parents_of_blocks:
                rows += [parent.row(target.name) for parent in parents_of_block]
    return rows


def _copies_of(
    target: UnitModel, candidates_by_block: Mapping[Units, Sequence[Candidate]]
) -> set[str]:
    """Return the names of models of which all blocks equal those of a model.

    They tell nothing of its parents: each may be the copy of the other.

    Args:
        target: The model.
        candidates_by_block: For each of its blocks, the blocks of other models with its history.
    """
    copies: set[str] | None = None
    for block in target.units:
        weights = _vector_of_weights(target, block)
        equal_models = set()
        for model, candidate in candidates_by_block.get(block, []):
            may_be_copy = copies is None or model.name in copies
            if may_be_copy and torch.equal(_vector_of_weights(model, candidate), weights):
                equal_models.add(model.name)
        copies = equal_models
        if not copies:
            break
    return copies or set()


class Parent(NamedTuple):
    """A parent of a block, or several models with an equal block, of which each may be it."""

    block: Units
    """The block that comes from it."""

    candidates: Sequence[Candidate]
    """The parent, then models with an equal block; each with that block."""

    weight: float
    """Its weight, from 0 to 1."""

    explained: float
    """How much nearer the block is to the weighted mean than to any single model."""

    @property
    def names(self) -> list[str]:
        """The names of the models of which each may be the parent."""
        return [model.name for model, _ in self.candidates]

    def row(self, target: str) -> dict[str, object]:
        """Return the row of the table of merges, see `table_of_merges`."""
        name, *names_of_equals = self.names
        _, source_block = self.candidates[0]
        return {
            "target": target,
            "target_layer": self.block.block,
            "target_module": module_name(self.block),
            "source": name,
            "source_layer": source_block.block,
            "equal_sources": ", ".join(names_of_equals),
            "weight": self.weight,
            "explained": self.explained,
        }


def _have_several_parents(parents_of_blocks: Sequence[Sequence[Parent]]) -> bool:
    """Return whether a model is a merge: it has a weighted mean, or is a stack of several models.

    Args:
        parents_of_blocks: The parents of each block. There are none for a block that is neither a
            weighted mean nor unchanged.
    """
    if any(len(parents) > 1 for parents in parents_of_blocks):
        return True
    if not all(parents_of_blocks):  # a block comes from elsewhere
        return False
    return _is_stack([parent.names for (parent,) in parents_of_blocks])


def _is_stack(models_by_block: Sequence[Sequence[str]]) -> bool:
    """Return whether the blocks of a model are those of several others, each of one part of it.

    Models that were tuned in a few blocks each share the other ones with their origin and with
    each other. Such an origin is no stack: the parts that it shares with two of them overlap.

    Args:
        models_by_block: For each block, the names of the models that have it.
    """
    parts: dict[str, set[int]] = {}  # the numbers of the blocks that each model has
    for number, names in enumerate(models_by_block):
        for name in names:
            parts.setdefault(name, set()).add(number)
    # Copies have the same part. What has less than another model tells nothing of its own.
    largest_parts: list[set[int]] = []
    for part in parts.values():
        is_within_another = any(part < other for other in parts.values())
        if not is_within_another and part not in largest_parts:
            largest_parts.append(part)
    total_length = sum(len(part) for part in largest_parts)
    return len(largest_parts) > 1 and total_length == len(models_by_block)


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
) -> list[Parent]:
    """Return the parents of a block, with their weights.

    Parents are the candidates of which the block is a weighted mean, or the one that it equals.
    The list is empty if the block is neither.

    `explained` says how much nearer to the block the weighted mean is than the nearest candidate:
    1 - (squared distance from the mean) / (squared distance from this candidate). It is NaN if the
    block equals a candidate, as this distance is 0 then.

    Args:
        target: The model of the block.
        block: The block, as where the weights of its hidden units are.
        candidates: Blocks of other models with a common history, each with its model.
        merges: The names of models that are known to be merges.
    """
    groups, weights_of_groups = _equal_blocks_together(candidates, merges)
    if not groups:
        return []
    fit = fit_merge(_vector_of_weights(target, block), torch.stack(weights_of_groups))
    equals_candidate = math.isnan(fit.explained)
    if not (fit.is_merge or equals_candidate):
        return []
    parents = []
    for group, weight in zip(groups, fit.weights.tolist(), strict=True):
        if weight >= LEAST_WEIGHT:
            parents.append(Parent(block, group, weight, fit.explained))
    return parents


def _equal_blocks_together(
    candidates: Sequence[Candidate], merges: Collection[str]
) -> tuple[list[list[Candidate]], list[Float[Tensor, " n"]]]:
    """Return blocks in groups of equal ones, and the weights of each group.

    A block of a merge that equals a block of other models comes from these, and is left out.

    Args:
        candidates: Blocks with their models.
        merges: The names of models that are known to be merges.
    """
    groups: list[list[Candidate]] = []
    weights_of_groups: list[Float[Tensor, " n"]] = []
    # Models that are no merges come first, so that they begin the groups.
    for candidate in sorted(candidates, key=lambda candidate: candidate[0].name in merges):
        weights = _vector_of_weights(*candidate)
        for group, weights_of_group in zip(groups, weights_of_groups, strict=True):
            if torch.equal(weights, weights_of_group):
                is_first_a_merge = group[0][0].name in merges
                if is_first_a_merge or candidate[0].name not in merges:
                    group.append(candidate)
                break
        else:
            groups.append([candidate])
            weights_of_groups.append(weights)
    return groups, weights_of_groups


def _vector_of_weights(model: UnitModel, block: Units) -> Float[Tensor, " n"]:
    """Return the input and output weights of a block's hidden units as one vector."""
    return torch.cat([model.reading(block).flatten(), model.writing(block).flatten()])


class BlocksOfSameParents(NamedTuple):
    """Successive blocks of a merged model that have the same parents."""

    parents: tuple[str, ...]
    """The parents, as words name them; of all experts, if these have different ones."""

    has_experts_apart: bool
    """Whether the experts of each of the blocks have different parents."""

    layers: list[int]
    """The numbers of the blocks."""

    rows: list[pd.DataFrame]
    """For each block its rows in the table of merges, one for each parent of each expert. They
    have a column more, `parent`, as words name it."""

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
        if rows_of_target["explained"].isna().all():  # all blocks are unchanged blocks of others
            parents = listed([str(name) for name in rows_of_target["source"].unique()])
            clauses.append(f"or {parents} were tuned from {target}, each in its other blocks")
        yield f"{target} is a merge: {'; '.join(clauses)}."


def _block_of_rows(layer: int, rows_of_block: pd.DataFrame) -> BlocksOfSameParents:
    """Return a single block, with its parents.

    Args:
        layer: The number of the block.
        rows_of_block: Its rows in the table of merges. A block of several experts has rows for
            each of them.
    """
    rows_of_block = rows_of_block.assign(parent=_parent_names(rows_of_block))
    rows_by_module = rows_of_block.groupby("target_module", sort=False)
    parents_of_modules = {tuple(rows["parent"]) for _, rows in rows_by_module}
    parents = tuple(rows_of_block["parent"].unique())
    return BlocksOfSameParents(parents, len(parents_of_modules) > 1, [layer], [rows_of_block])


def _parent_names(rows: pd.DataFrame) -> list[str]:
    """Return the names of parents: "a", or "a (or b)" if the blocks of a and b are equal.

    Args:
        rows: Rows of the table of merges. Earlier versions name no equal models.
    """
    if "equal_sources" not in rows:
        return list(rows["source"])
    names = []
    for source, equal_sources in zip(rows["source"], rows["equal_sources"], strict=True):
        name = source
        # Empty text is NaN if it was read from a file.
        if isinstance(equal_sources, str) and equal_sources:
            name += f" (or {equal_sources})"
        names.append(name)
    return names


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
    weights_by_parent = rows_of_blocks.groupby("parent")["weight"]
    lowest, highest = weights_by_parent.min(), weights_by_parent.max()
    terms = []
    for parent in run.parents:
        terms.append(f"{range_text(lowest[parent], highest[parent], '.2f')} {parent}")
    explained = number_text(rows_of_blocks["explained"].min(), ".1%")
    return (
        f"{blocks} {verb} {' + '.join(terms)} (explains at least {explained} of the squared "
        "distance from the nearest model)"
    )
