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
    compare_units,
    match_units,
    sample_of,
    stream_map,
)
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

# What the layer of an embedding is called in tables.
EMBEDDING_LAYER = -1
EMBEDDING = "embedding"


@dataclass
class Streams:
    """How the residual streams of two models are compared.

    Attributes:
        basis: "shared": their coordinates are in place; "aligned": a map was fitted on the
            embeddings of shared tokens; "as stored": too few tokens are shared to know.
        tokens: The number of shared tokens that were compared.
        coordinates: The test of the coordinates of the embeddings, or None without shared tokens.
        to_target: The map from the source's stream to the target's; None for the identity.
    """

    basis: Basis
    tokens: int
    coordinates: UnitTest | None
    to_target: Float[Tensor, "d e"] | None

    def moved(self, vectors: Float[Tensor, "u d"]) -> Float[Tensor, "u e"]:
        """Return vectors of the source's stream in the target's."""
        if self.to_target is None:
            return vectors
        return vectors @ self.to_target


def common_streams(source: UnitModel, target: UnitModel) -> Streams:
    """Bring two residual streams together without looking at any hidden unit.

    Raises:
        ModelError: The widths differ and the vocabularies have too few tokens in common.
    """
    shared_tokens = _shared_tokens(source, target)
    source_width = source.units[0].width
    target_width = target.units[0].width
    reads_embeddings = (
        source.embedding_width == source_width and target.embedding_width == target_width
    )
    enough = len(shared_tokens) > max(source.embedding_width, target.embedding_width)

    if not (reads_embeddings and enough):
        if source_width != target_width:
            raise ModelError(
                f"{source.name} and {target.name} have streams of widths {source_width} and "
                f"{target_width}, and share {len(shared_tokens)} tokens, which are too few to "
                "align them by their embeddings"
            )
        return Streams("as stored", len(shared_tokens), None, None)

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
        alike: How many sampled units match by what they read and by what they write; None where
            that was not counted.
    """

    source: Units
    target: Units
    test: UnitTest
    reading: Matching
    alike: int | None = None


def compare_blocks(source: UnitModel, target: UnitModel, streams: Streams) -> list[PairOfBlocks]:
    """Compare each block of a model with each of another one, two in memory at a time."""
    pairs = []
    for target_units in counted(target.units, "block"):
        target_vectors = target.reading(target_units)
        for source_units in source.units:
            source_vectors = streams.moved(source.reading(source_units))
            reading = match_units(source_vectors, target_vectors, sample_of(source_units.units))
            test = compare_units(source_vectors, target_vectors, reading)
            pairs.append(PairOfBlocks(source_units, target_units, test, reading))
    return pairs


def count_alike(
    pairs: list[PairOfBlocks], source: UnitModel, target: UnitModel, streams: Streams
) -> None:
    """Count the units that agree in reading and writing, for blocks without an origin."""
    with_origin = {pair.target for pair in pairs if pair.test.corrected_p(len(pairs)) < ALPHA}
    for target_units in target.units:
        if target_units in with_origin:
            continue
        target_vectors = target.writing(target_units)
        for pair in pairs:
            if pair.target == target_units:
                source_vectors = streams.moved(source.writing(pair.source))
                sampled = sample_of(pair.source.units)
                writing = match_units(source_vectors, target_vectors, sampled)
                pair.alike = agreeing_units(pair.reading, writing)


def table_of_pairs(
    pairs: list[PairOfBlocks], source: UnitModel, target: UnitModel, streams: Streams
) -> pd.DataFrame:
    """Return a row for each pair of blocks, after one for the embeddings."""
    rows: list[dict[str, object]] = []
    names = {"source": source.name, "target": target.name}
    if streams.coordinates is not None:
        p = streams.coordinates.p
        rows.append({
            **names,
            "source_layer": EMBEDDING_LAYER,
            "target_layer": EMBEDDING_LAYER,
            "source_part": EMBEDDING,
            "target_part": EMBEDDING,
            **_numbers(streams.coordinates, p, None),
        })  # fmt: skip
    for pair in pairs:
        p = pair.test.corrected_p(len(pairs))
        rows.append({
            **names,
            "source_layer": pair.source.block,
            "target_layer": pair.target.block,
            "source_part": _part_name(pair.source),
            "target_part": _part_name(pair.target),
            **_numbers(pair.test, p, pair.alike),
        })  # fmt: skip
    return pd.DataFrame(rows)


def _part_name(units: Units) -> str:
    """Return the part of a block that units are in."""
    part = units.part or "mlp"
    if units.expert is None:
        return part
    return f"{part}.{units.expert}"


def _numbers(test: UnitTest, p_corrected: float, alike: int | None) -> dict[str, float]:
    return {
        "units": float(test.compared),
        "matched": float(test.matched),
        "in_place": float(test.kept),
        "p": test.p,
        "p_corrected": p_corrected,
        "alike": math.nan if alike is None else float(alike),
    }


def table_of_origins(pairs: list[PairOfBlocks]) -> pd.DataFrame:
    """Return, for each part of the target's blocks, the source's part with the smallest p-value.

    Without a corrected p-value below `ALPHA`, `source_layer` and `source_part` are blank.
    """
    rows: list[dict[str, object]] = []
    for target in dict.fromkeys(pair.target for pair in pairs):
        candidates = [pair for pair in pairs if pair.target == target]
        best = min(candidates, key=_strength)
        p = best.test.corrected_p(len(pairs))
        has_origin = p < ALPHA
        alike = [pair.alike for pair in candidates if pair.alike is not None]
        rows.append({
            "target_layer": target.block,
            "target_part": _part_name(target),
            "source_layer": float(best.source.block) if has_origin else math.nan,
            "source_part": _part_name(best.source) if has_origin else "",
            "units": float(best.test.compared),
            "in_place": float(best.test.kept),
            "p_corrected": p,
            "alike": float(max(alike)) if alike else math.nan,
        })  # fmt: skip
    return pd.DataFrame(rows)


def _strength(pair: PairOfBlocks) -> tuple[float, int, int]:
    """Return what is smaller for stronger evidence, and then for blocks of nearer depth."""
    return pair.test.log_p, -pair.test.kept, abs(pair.source.block - pair.target.block)
