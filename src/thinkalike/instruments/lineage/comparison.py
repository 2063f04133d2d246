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

    def moved(self, vectors: Float[Tensor, "*u d"]) -> Float[Tensor, "*u e"]:
        """Return vectors of the source's stream in the target's."""
        if self.to_target is None:
            return vectors
        return vectors @ self.to_target


def common_streams(source: UnitModel, target: UnitModel) -> Streams:
    """Bring two residual streams together without looking at any hidden unit.

    They are "shared" where the coordinates of the embeddings of common tokens are in place, and
    else "aligned" by a map between these embeddings. Where embeddings cannot tell, streams of one
    width are compared "as stored": an embedding may have another width than the stream, as
    ALBERT's has, or there are fewer common tokens than coordinates.

    Raises:
        ModelError: The streams have different widths, and embeddings cannot align them.
    """
    shared_tokens = _shared_tokens(source, target)
    source_width = source.units[0].width
    target_width = target.units[0].width
    are_in_stream = (
        source.embedding_width == source_width and target.embedding_width == target_width
    )
    enough = len(shared_tokens) > max(source.embedding_width, target.embedding_width)

    if not (are_in_stream and enough):
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
    """Return at most `MOST_TOKENS` tokens that both have, evenly spaced."""
    shared = sorted(source.tokens.keys() & target.tokens.keys(), key=source.tokens.__getitem__)
    if len(shared) <= MOST_TOKENS:
        return shared
    return [shared[number * len(shared) // MOST_TOKENS] for number in range(MOST_TOKENS)]


@dataclass
class PairOfBlocks:
    """Two blocks that were compared.

    Attributes:
        source: The units of the source's block.
        target: The units of the target's block.
        test: The test of units in place.
        reading: The matching of sampled units by what they read.
        alike: The share of the sampled units that match by what they read and by what they write;
            None where they were not counted, or are too few to mean anything.
    """

    source: Units
    target: Units
    test: UnitTest
    reading: Matching
    alike: float | None = None


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
        tests_of_heads: The number of pairs for which the p-values of heads are corrected.
    """

    source: UnitModel
    target: UnitModel
    streams: Streams
    pairs: list[PairOfBlocks]
    tests: int
    heads: list[PairOfHeads]
    tests_of_heads: int

    def p(self, pair: PairOfBlocks) -> float:
        """Return the corrected p-value of two blocks."""
        return pair.test.corrected_p(self.tests)

    def has_too_few_units(self, pair: PairOfBlocks) -> bool:
        """Return whether two blocks have too few units for a corrected p-value below `ALPHA`."""
        return too_few_to_test(pair.test.compared, self.tests, ALPHA)


def compare_models(
    source: UnitModel,
    target: UnitModel,
    tests: int,
    likeness: bool = True,
    tests_of_heads: int = 1,
) -> Comparison:
    """Compare each block of a model with each of another one, two in memory at a time.

    Args:
        source: The first model.
        target: The second model.
        tests: The number of pairs of blocks for which p-values are corrected.
        likeness: Whether units that agree are counted where a block has no origin.
        tests_of_heads: The number of pairs for which the p-values of heads are corrected.
    """
    streams = common_streams(source, target)
    pairs = []
    for target_units in counted(target.units, "block"):
        target_vectors = target.reading(target_units)
        for source_units in source.units:
            source_vectors = streams.moved(source.reading(source_units))
            reading = match_units(source_vectors, target_vectors, sample_of(source_units.units))
            test = compare_units(source_vectors, target_vectors, reading)
            pairs.append(PairOfBlocks(source_units, target_units, test, reading))
    heads = []
    if not has_too_few_heads(source, target, tests_of_heads):
        heads = _compare_attention(source, target, streams)
    comparison = Comparison(source, target, streams, pairs, tests, heads, tests_of_heads)
    if likeness:
        _count_alike(comparison)
    return comparison


def has_too_few_heads(source: UnitModel, target: UnitModel, tests: int) -> bool:
    """Return whether no order of the heads of two models could have a p-value below `ALPHA`."""
    if not source.heads or not target.heads:
        return True
    fewest = min(source.heads[0].heads, target.heads[0].heads)
    return too_few_to_test(fewest, tests, ALPHA)


def _compare_attention(
    source: UnitModel, target: UnitModel, streams: Streams
) -> list[PairOfHeads]:
    """Compare the attention heads of each block with those of each of the other model."""
    pairs = []
    for target_heads in target.heads:
        target_vectors = target.heads_writing(target_heads)
        for source_heads in source.heads:
            source_vectors = streams.moved(source.heads_writing(source_heads))
            test = compare_heads(source_vectors, target_vectors)
            pairs.append(PairOfHeads(source_heads, target_heads, test))
    return pairs


def _count_alike(comparison: Comparison) -> None:
    """Count the units that agree in reading and writing, for blocks without an origin."""
    source, target = comparison.source, comparison.target
    with_origin = {pair.target for pair in comparison.pairs if comparison.p(pair) < ALPHA}
    for target_units in target.units:
        if target_units in with_origin:
            continue
        target_vectors = target.writing(target_units)
        for pair in comparison.pairs:
            if pair.target == target_units and not comparison.has_too_few_units(pair):
                source_vectors = comparison.streams.moved(source.writing(pair.source))
                sampled = sample_of(pair.source.units)
                writing = match_units(source_vectors, target_vectors, sampled)
                agreeing = agreeing_units(pair.reading, writing)
                pair.alike = agreeing / min(len(sampled), target_units.units)


def table_of_pairs(comparison: Comparison) -> pd.DataFrame:
    """Return a row for each pair of blocks, after one for the embeddings."""
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
            **_numbers(coordinates, coordinates.p, None),
        })  # fmt: skip
    for pair in comparison.pairs:
        rows.append({
            **names,
            "source_layer": pair.source.block,
            "target_layer": pair.target.block,
            "source_module": _part_name(pair.source),
            "target_module": _part_name(pair.target),
            **_numbers(pair.test, comparison.p(pair), pair.alike),
        })  # fmt: skip
    return pd.DataFrame(rows)


def table_of_heads(comparison: Comparison) -> pd.DataFrame:
    """Return a row for each pair of blocks whose attention heads were compared."""
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
            "p_corrected": pair.test.corrected_p(comparison.tests_of_heads),
        })  # fmt: skip
    return pd.DataFrame(rows)


def _part_name(units: Units) -> str:
    """Return the part of a block that units are in."""
    module = units.module or "mlp"
    if units.expert is None:
        return module
    return f"{module}.{units.expert}"


def _numbers(test: UnitTest, p_corrected: float, alike: float | None) -> dict[str, object]:
    return {
        "test": test.by,
        "units": test.compared,
        "matched": test.matched,
        "in_place": test.in_place,
        "p": test.p,
        "p_corrected": p_corrected,
        "similar_units": math.nan if alike is None else alike,
    }


def table_of_origins(comparison: Comparison) -> pd.DataFrame:
    """Return, for each part of the target's blocks, the source's part with the smallest p-value.

    Without a corrected p-value below `ALPHA`, `source_layer` and `source_module` are blank.
    """
    rows: list[dict[str, object]] = []
    for target in comparison.target.units:
        candidates = [pair for pair in comparison.pairs if pair.target == target]
        best = min(candidates, key=_strength)
        has_origin = comparison.p(best) < ALPHA
        alike = [pair.alike for pair in candidates if pair.alike is not None]
        rows.append({
            "source": comparison.source.name,
            "target": comparison.target.name,
            "target_layer": target.block,
            "target_module": _part_name(target),
            "source_layer": best.source.block if has_origin else math.nan,
            "source_module": _part_name(best.source) if has_origin else "",
            **_numbers(best.test, comparison.p(best), max(alike, default=None)),
        })  # fmt: skip
    return pd.DataFrame(rows)


def _strength(pair: PairOfBlocks) -> tuple[float, int, int]:
    """Return what is smaller for stronger evidence, and then for blocks of nearer depth."""
    return pair.test.log_p, -pair.test.in_place, abs(pair.source.block - pair.target.block)
