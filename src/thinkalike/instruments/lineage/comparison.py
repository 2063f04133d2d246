"""The comparison of two models' hidden units: which blocks have units in common positions?"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import pandas as pd
from jaxtyping import Float
from torch import Tensor

from thinkalike.errors import ModelError
from thinkalike.measures.lineage import (
    Matching,
    UnitTest,
    agreeing_units,
    compare_heads,
    compare_units,
    match_units,
    sample_of,
    stream_map,
    too_few_to_test,
)
from thinkalike.models.heads import Heads
from thinkalike.models.units import UnitModel, Units
from thinkalike.processes import counted

# Embeddings are compared on at most so many of the tokens that both vocabularies have.
MOST_TOKENS = 8192

# p-values of coordinates below this mean that both models have one residual stream.
ONE_STREAM = 1e-3

# p-values of blocks below this, after correction, mean that a block has its origin in another.
ALPHA = 0.01

# How two streams were brought together.
Basis = Literal["shared", "aligned", "as stored"]

# Why the embeddings of two models cannot align their streams.
NOT_IN_STREAM = "an embedding has another width than its stream"
TOO_FEW_TOKENS = "the vocabularies share too few tokens"

# What the layer of an embedding is called in tables.
EMBEDDING_LAYER = -1
EMBEDDING = "embedding"


@dataclass
class Streams:
    """How the residual streams of two models are compared.

    Attributes:
        basis: "shared": their coordinates are in place; "aligned": a map was fitted on the
            embeddings of shared tokens; "as stored": embeddings cannot tell.
        tokens: The number of tokens that both vocabularies have, at most `MOST_TOKENS`.
        coordinates: The test of the coordinates of the embeddings; None for "as stored".
        to_target: The map from the source's stream to the target's; None for the identity.
        reason: Why embeddings cannot tell, for "as stored"; else "".
    """

    basis: Basis
    tokens: int
    coordinates: UnitTest | None
    to_target: Float[Tensor, "d e"] | None
    reason: str = ""

    def in_target_stream(self, vectors: Float[Tensor, "*u d"]) -> Float[Tensor, "*u e"]:
        """Return vectors of the source's residual stream in the coordinates of the target's.

        They are unchanged unless the streams were aligned by a linear map.
        """
        if self.to_target is None:
            return vectors
        return vectors @ self.to_target


def comparable_streams(source: UnitModel, target: UnitModel) -> Streams:
    """Return how to compare the residual streams of two models, without using any hidden unit.

    The embeddings of the tokens that both vocabularies have decide. If their coordinates agree in
    position beyond chance, the streams are "shared". Otherwise a map between these embeddings
    makes them "aligned". Where embeddings cannot tell, streams of equal width are compared "as
    stored": the width of an embedding may differ from that of the stream, as in ALBERT, or there
    are no more common tokens than coordinates.

    Raises:
        ModelError: The streams have different widths, and embeddings cannot align them.
    """
    shared_tokens = _shared_tokens(source, target)
    source_width = source.units[0].width
    target_width = target.units[0].width
    are_in_stream = (
        source.embedding_width == source_width and target.embedding_width == target_width
    )
    n_coordinates = max(source.embedding_width, target.embedding_width)
    are_enough_tokens = len(shared_tokens) > n_coordinates

    if not (are_in_stream and are_enough_tokens):
        reason = TOO_FEW_TOKENS if are_in_stream else NOT_IN_STREAM
        if source_width != target_width:
            raise ModelError(
                f"{source.name} and {target.name} have streams of widths {source_width} and "
                f"{target_width}, which their embeddings cannot align, as {reason} "
                f"({len(shared_tokens)} tokens are shared)"
            )
        return Streams("as stored", len(shared_tokens), None, None, reason)

    # (t, d) and (t, e)
    source_rows = source.embedding([source.tokens[token] for token in shared_tokens])
    target_rows = target.embedding([target.tokens[token] for token in shared_tokens])
    source_coordinates = (source_rows - source_rows.mean(0)).T
    target_coordinates = (target_rows - target_rows.mean(0)).T
    coordinates = compare_units(source_coordinates, target_coordinates)
    if source_width == target_width and coordinates.p < ONE_STREAM:
        return Streams("shared", len(shared_tokens), coordinates, None)
    return Streams(
        "aligned", len(shared_tokens), coordinates, stream_map(source_rows, target_rows)
    )


def _shared_tokens(source: UnitModel, target: UnitModel) -> list[str]:
    """Return at most `MOST_TOKENS` tokens that both vocabularies have, evenly spaced.

    They are in the order of the source's token ids.
    """
    shared = sorted(source.tokens.keys() & target.tokens.keys(), key=source.tokens.__getitem__)
    if len(shared) <= MOST_TOKENS:
        return shared
    evenly_spaced = [index * len(shared) // MOST_TOKENS for index in range(MOST_TOKENS)]
    return [shared[index] for index in evenly_spaced]


@dataclass
class PairOfBlocks:
    """Two blocks that were compared.

    Attributes:
        source: The units of the source's block.
        target: The units of the target's block.
        test: The test of units in place.
        match_by_input: The matching of sampled units by their input weights (what they read).
        similar_share: The share of the sampled units that match one and the same unit by their
            input and by their output weights, in any order; None where they were not counted, or
            are too few to mean anything.
    """

    source: Units
    target: Units
    test: UnitTest
    match_by_input: Matching
    similar_share: float | None = None


@dataclass
class PairOfHeads:
    """The attention heads of two blocks that were compared.

    Attributes:
        source: The heads of the source's block.
        target: The heads of the target's block.
        test: The test of heads in place.
    """

    source: Heads
    target: Heads
    test: UnitTest


@dataclass
class Comparison:
    """Two models whose blocks were compared.

    Attributes:
        source: The first model.
        target: The second model.
        streams: How their residual streams are compared.
        pairs: Each block of the source with each block of the target.
        tests: The number of pairs of blocks for which p-values are corrected.
        heads: The attention of each block of the source with that of each block of the target;
            none if the models have too few heads, or their number is not known.
        n_head_tests: The number of pairs of blocks for which p-values of heads are corrected.
    """

    source: UnitModel
    target: UnitModel
    streams: Streams
    pairs: list[PairOfBlocks]
    tests: int
    heads: list[PairOfHeads]
    n_head_tests: int

    def corrected_p(self, pair: PairOfBlocks) -> float:
        """Return the p-value of two blocks, corrected for the number of pairs of blocks."""
        return pair.test.corrected_p(self.tests)

    def has_too_few_units(self, pair: PairOfBlocks) -> bool:
        """Return whether two blocks have too few units for a corrected p-value below `ALPHA`."""
        return too_few_to_test(pair.test.compared, self.tests, ALPHA)


def compare_models(
    source: UnitModel,
    target: UnitModel,
    tests: int,
    similar_units: bool = True,
    n_head_tests: int = 1,
) -> Comparison:
    """Compare each block of one model with each block of another, by their hidden units.

    Units of two blocks are matched by their input weights (what they read from the residual
    stream), and a test asks whether matched units are at the same position in both blocks.
    Attention heads are compared as well, if the models have enough of them for a test. Only the
    weights of two blocks are in memory at a time.

    Args:
        source: The first model.
        target: The second model.
        tests: The number of pairs of blocks for which p-values of hidden units are corrected.
        similar_units: Whether units with similar weights are counted for blocks of the target that
            come from no block of the source.
        n_head_tests: The number of pairs of blocks for which p-values of heads are corrected.
    """
    # Maps what the source reads into the residual stream of the target, if they differ.
    streams = comparable_streams(source, target)
    pairs = []
    for target_units in counted(target.units, "block"):
        target_vectors = target.reading(target_units)  # the input weights of each unit
        for source_units in source.units:
            source_vectors = streams.in_target_stream(source.reading(source_units))
            sampled = sample_of(source_units.units)  # indices of units
            match_by_input = match_units(source_vectors, target_vectors, sampled)
            test = compare_units(source_vectors, target_vectors, match_by_input)
            pairs.append(PairOfBlocks(source_units, target_units, test, match_by_input))
    heads = []
    if not are_heads_too_few(source, target, n_head_tests):
        heads = _compare_attention(source, target, streams)
    comparison = Comparison(source, target, streams, pairs, tests, heads, n_head_tests)
    if similar_units:
        _add_similar_shares(comparison)
    return comparison


def are_heads_too_few(source: UnitModel, target: UnitModel, tests: int) -> bool:
    """Return whether two models have too few attention heads for a significant test.

    They are too few if no p-value can be below `ALPHA` after correction. The answer is also True
    if the number of heads is not known.

    Args:
        source, target: The models.
        tests: The number of pairs of blocks for which p-values are corrected.
    """
    if not source.heads or not target.heads:
        return True
    # `model.heads` has an entry for each block, of which the first gives the number of heads.
    fewest = min(source.heads[0].heads, target.heads[0].heads)
    return too_few_to_test(fewest, tests, ALPHA)


def _compare_attention(
    source: UnitModel, target: UnitModel, streams: Streams
) -> list[PairOfHeads]:
    """Compare the attention heads of each source block with those of each target block.

    Heads are compared by their output weights, which write to the residual stream.

    Args:
        source, target: The models.
        streams: How vectors of the source's residual stream are brought into the target's.
    """
    pairs = []
    for target_heads in target.heads:
        target_vectors = target.heads_writing(target_heads)
        for source_heads in source.heads:
            source_vectors = streams.in_target_stream(source.heads_writing(source_heads))
            test = compare_heads(source_vectors, target_vectors)
            pairs.append(PairOfHeads(source_heads, target_heads, test))
    return pairs


def _add_similar_shares(comparison: Comparison) -> None:
    """Set `similar_share` of the pairs whose target block has no origin in the source.

    A target block has an origin if its units are at the positions of similar units of a source
    block, by a test. A block without an origin may still be a copy with reordered units.
    `similar_share` is the share of units whose best match by input weights is also their best
    match by output weights. Blocks with too few units for a test are left out.

    Args:
        comparison: The comparison, whose pairs are changed.
    """
    source, target = comparison.source, comparison.target
    targets_with_origin = {
        pair.target for pair in comparison.pairs if comparison.corrected_p(pair) < ALPHA
    }
    for target_units in target.units:
        if target_units in targets_with_origin:
            continue
        target_vectors = target.writing(target_units)  # the output weights of each unit
        for pair in comparison.pairs:
            if pair.target == target_units and not comparison.has_too_few_units(pair):
                source_vectors = comparison.streams.in_target_stream(source.writing(pair.source))
                sampled = sample_of(pair.source.units)  # indices of units
                match_by_output = match_units(source_vectors, target_vectors, sampled)
                n_agreeing = agreeing_units(pair.match_by_input, match_by_output)
                pair.similar_share = n_agreeing / min(len(sampled), target_units.units)


def table_of_pairs(comparison: Comparison) -> pd.DataFrame:
    """Return the table of all pairs of blocks of two models, with the test of their units.

    The units of a block are the neurons of its MLP. Their p-values are corrected for the number of
    pairs. If the coordinates of the embeddings were compared, which is a single test, the first
    row is about them.
    """
    rows: list[dict[str, object]] = []
    names = {"source": comparison.source.name, "target": comparison.target.name}
    coordinates = comparison.streams.coordinates
    if coordinates is not None:
        rows.append({
            **names,
            "source_layer": EMBEDDING_LAYER,
            "target_layer": EMBEDDING_LAYER,
            "source_module": EMBEDDING,
            "target_module": EMBEDDING,
            **_columns_of_test(coordinates, coordinates.p, similar_share=None),
        })  # fmt: skip
    for pair in comparison.pairs:
        rows.append({
            **names,
            "source_layer": pair.source.block,
            "target_layer": pair.target.block,
            "source_module": module_name(pair.source),
            "target_module": module_name(pair.target),
            **_columns_of_test(pair.test, comparison.corrected_p(pair), pair.similar_share),
        })  # fmt: skip
    return pd.DataFrame(rows)


def table_of_heads(comparison: Comparison) -> pd.DataFrame:
    """Return the table of all pairs of blocks of two models, with the test of their heads.

    The table is empty if the models have too few attention heads for a test.
    """
    rows: list[dict[str, object]] = []
    for pair in comparison.heads:
        rows.append({
            "source": comparison.source.name,
            "target": comparison.target.name,
            "source_layer": pair.source.block,
            "target_layer": pair.target.block,
            "source_module": pair.source.module,
            "target_module": pair.target.module,
            "test": pair.test.by,
            "heads": pair.test.compared,
            "matched": pair.test.matched,
            "in_place": pair.test.in_place,
            "p": pair.test.p,
            "p_corrected": pair.test.corrected_p(comparison.n_head_tests),
        })  # fmt: skip
    return pd.DataFrame(rows)


def module_name(units: Units) -> str:
    """Return the module of a block that units are in, such as "mlp" or "mlp.3" for expert 3.

    It is called "mlp" if the weights of the units are in the block itself, and in no module of it.
    """
    module = units.module or "mlp"
    if units.expert is None:
        return module
    return f"{module}.{units.expert}"


def _columns_of_test(
    test: UnitTest, p_corrected: float, similar_share: float | None
) -> dict[str, object]:
    """Return the columns of a table row about the test of two blocks.

    Args:
        test: The test whether matched units are at the same position in both blocks.
        p_corrected: The p-value of the test, corrected for the number of pairs of blocks.
        similar_share: The share of units with similar weights in the other block, at any position;
            None: it was not counted, and the cell is NaN.
    """
    return {
        "test": test.by,
        "units": test.compared,
        "matched": test.matched,
        "in_place": test.in_place,
        "p": test.p,
        "p_corrected": p_corrected,
        "similar_units": math.nan if similar_share is None else similar_share,
    }


def table_of_origins(comparison: Comparison) -> pd.DataFrame:
    """Return the table of the target's blocks, with the block of the source each comes from.

    Units are the hidden units of a block. The p-value is that of a test whether units of both
    blocks that match by their weights are at the same position in both (or in the same order, if
    the blocks have different numbers of units). The block of the source is that with the smallest
    p-value; `_rank_of_evidence` chooses between equal ones. If this p-value is not below `ALPHA`
    after correction, the target's block has no origin: `source_layer` is NaN and `source_module`
    is "".

    Such a block may still be a copy with reordered units. So its cell `similar_units` is the
    largest share of units, over all blocks of the source, that match at any position. The cell is
    NaN if no share was counted, as for blocks with an origin, which do not need it, or with too
    few units.

    A block with several groups of units, such as experts, has a row for each group.
    """
    rows: list[dict[str, object]] = []
    for target in comparison.target.units:
        candidates = [pair for pair in comparison.pairs if pair.target == target]
        best = min(candidates, key=_rank_of_evidence)
        corrected_p = comparison.corrected_p(best)
        has_origin = corrected_p < ALPHA
        similar_shares = [
            pair.similar_share for pair in candidates if pair.similar_share is not None
        ]
        largest_similar_share = max(similar_shares, default=None)  # None: none was counted
        rows.append({
            "source": comparison.source.name,
            "target": comparison.target.name,
            "target_layer": target.block,
            "target_module": module_name(target),
            "source_layer": best.source.block if has_origin else math.nan,
            "source_module": module_name(best.source) if has_origin else "",
            **_columns_of_test(best.test, corrected_p, largest_similar_share),
        })  # fmt: skip
    return pd.DataFrame(rows)


def _rank_of_evidence(pair: PairOfBlocks) -> tuple[float, int, int]:
    """Return a key that sorts pairs of blocks by evidence of a common history, strongest first.

    Pairs are sorted by the log of the p-value. Among equal ones, more units in place come first,
    and then the smaller distance in depth.
    """
    return pair.test.log_p, -pair.test.in_place, abs(pair.source.block - pair.target.block)
