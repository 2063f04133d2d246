"""What the screen says of the lineage of two models."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd

from thinkalike.errors import listed
from thinkalike.instruments.lineage.comparison import ALPHA, EMBEDDING_LAYER
from thinkalike.instruments.lineage.family import groups_of
from thinkalike.instruments.lineage.merges import merges_in_words
from thinkalike.measures.lineage import LEAST_P, too_few_to_test
from thinkalike.screen import MOST_ROWS, Table, number_text, show_table, show_text, text_column
from thinkalike.store import Result

# The largest share of a block's units that agreed in what they read and write between two models
# of independent training, after their streams were aligned: SmolLM2-135M and Gemma 3 270M. Bundled
# models of other seeds reach 3 %.
SIMILARITY_OF_INDEPENDENT = 0.12

# A copy whose units were only reordered keeps nearly all such units, and a tuned one most of them.
REORDERED = 0.25

CERTAIN_P = 0.9995  # three decimals show a larger p as 1

MEANING = (
    "A unit of a block is in place if the unit of the other block whose weights are most similar "
    "has the same position. More units in place than by chance mean a common history: one block "
    "was made from the other, or both began with the same initial weights. A copy whose units "
    "were reordered has none in place."
)


@dataclass
class Run:
    """Blocks of the target, one after the other, whose origins follow each other likewise.

    Attributes:
        rows: Their rows of the table of origins.
        shift: The number of the origin less that of the block; None: they have no origin.
        is_tested: Whether they have enough units that an origin could be found.
    """

    rows: list[pd.Series]
    shift: int | None
    is_tested: bool = True

    @property
    def numbers(self) -> list[int]:
        """The numbers of the target's blocks."""
        return [int(row["target_layer"]) for row in self.rows]

    @property
    def target(self) -> str:
        """The numbers of the target's blocks in words."""
        return range_of_blocks(self.numbers)

    @property
    def blocks(self) -> str:
        """The target's blocks in words: "block 3" or "blocks 3 to 5"."""
        if " to " in self.target:
            return f"blocks {self.target}"
        return f"block {self.target}"

    @property
    def source(self) -> str:
        """The blocks of the source in words; "none" if they have no origin."""
        if not self.is_tested:
            return "not tested"
        if self.shift is None:
            return "none"
        return range_of_blocks([int(row["source_layer"]) for row in self.rows])

    @property
    def units(self) -> str:
        """How many units are in place in the block with the smallest share of them."""
        least = min(self.rows, key=lambda row: float(row["in_place"] / max(row["units"], 1)))
        return counts_in_words(least)

    @property
    def p(self) -> float:
        """The p-value of the block with the strongest evidence; of origins, with the weakest."""
        values = [float(row["p_corrected"]) for row in self.rows]
        if self.shift is None:
            return min(values)
        return max(values)

    @property
    def alike(self) -> float:
        """The largest share of units that agree; NaN if they were not counted."""
        shares = [float(row["similar_units"]) for row in self.rows]
        return max((share for share in shares if not math.isnan(share)), default=math.nan)


def range_of_blocks(numbers: list[int]) -> str:
    """Return ascending numbers in words: "3" or "3 to 5"."""
    if numbers[0] == numbers[-1]:
        return f"{numbers[0]}"
    return f"{numbers[0]} to {numbers[-1]}"


def p_in_words(p: float) -> str:
    """Return a p-value, such as "p = 0.034" or "p < 1e-300"."""
    if p <= LEAST_P:
        return f"p < {LEAST_P:.0e}"
    if p < 0.001:
        return f"p = {p:.0e}"
    if p >= CERTAIN_P:
        return "p = 1"
    return f"p = {p:.3f}"


def counts_in_words(row: pd.Series) -> str:
    """Return how many units are in place, such as "255 of 256"."""
    return f"{row['in_place']:,} of {row['units']:,}"


def where(row: pd.Series) -> str:
    """Return what is common to units that are in place."""
    if row["test"] == "order":
        return "in order"
    return "in place"


def runs_of(origins: pd.DataFrame) -> list[Run]:
    """Return the blocks of the target in runs with origins that follow each other.

    Args:
        origins: The best source of each block, perhaps with `is_tested`, as `with_tested` adds it.
    """
    runs: list[Run] = []
    for _, row in origins.iterrows():
        shift = None
        if not math.isnan(row["source_layer"]):
            shift = int(row["source_layer"] - row["target_layer"])
        is_tested = bool(row.get("is_tested", True))
        if runs and (runs[-1].shift, runs[-1].is_tested) == (shift, is_tested):
            runs[-1].rows.append(row)
        else:
            runs.append(Run([row], shift, is_tested))
    return runs


def with_tested(origins: pd.DataFrame, pairs: pd.DataFrame) -> pd.DataFrame:
    """Return the best source of each block, and whether its units are enough for a test.

    Args:
        origins: The best source of each block.
        pairs: The rows of all pairs of blocks.
    """
    most_units = pairs.groupby(["target_layer", "target_module"])["units"].max()
    is_tested = []
    for _, row in origins.iterrows():
        units = int(most_units[row["target_layer"], row["target_module"]])
        is_tested.append(not too_few_to_test(units, len(pairs), ALPHA))
    return origins.assign(is_tested=is_tested)


def pairs_of_blocks(result: Result) -> pd.DataFrame:
    """Return the rows of the table that are not of the embeddings."""
    return result.details[result.details["target_layer"] != EMBEDDING_LAYER]


def block_pairs_in_words(pairs: int) -> str:
    """Return how many pairs of blocks there are, such as "900 pairs of blocks"."""
    return f"{pairs:,} pair{'s' * (pairs != 1)} of blocks"


def show_lineage(result: Result) -> None:
    """Print which blocks of the target come from which blocks of the source."""
    runs = runs_of(with_tested(result.tables["origins"], pairs_of_blocks(result)))
    table = result.details
    source = str(table["source"].iloc[0])
    target = str(table["target"].iloc[0])
    for sentence in sentences(result, runs, source, target):
        show_text(sentence)
    if len(runs) > 1:
        show_runs(runs[:MOST_ROWS], source, target)
    show_text(MEANING)


def show_runs(runs: list[Run], source: str, target: str) -> None:
    """Print a row for each run of blocks."""
    columns = [
        text_column(f"blocks of {target}", [run.target for run in runs]),
        text_column(f"blocks of {source}", [run.source for run in runs]),
        text_column("units in place, of each block at least", [run.units for run in runs]),
        text_column(
            "p, corrected",
            [p_in_words(run.p).removeprefix("p ").removeprefix("= ") for run in runs],
        ),
    ]
    show_table(Table(f"Blocks of {target}, and of {source} with a common history", columns))


def sentences(result: Result, runs: list[Run], source: str, target: str) -> Iterator[str]:
    """Yield what the tests say, in sentences."""
    without_origin = []
    for run in runs:
        if not run.is_tested:
            yield too_few_units_in_words(result, run, target)
        elif run.shift is None:
            without_origin.append(run)
        else:
            origin = origin_in_words(run, source)
            evidence = f"{run.units} units {where(run.rows[0])}, {p_in_words(run.p)}"
            if len(run.rows) > 1:
                evidence = f"of each, at least {evidence}"
            yield f"{run.blocks.capitalize()} of {target} {origin}: {evidence}."
    if without_origin:
        yield no_origin_in_words(result, without_origin, source, target, len(runs))
        yield from similarity_in_words(without_origin)
    yield from heads_in_words(result, source, target)
    yield streams_in_words(result, source, target)


def no_origin_in_words(
    result: Result, runs: list[Run], source: str, target: str, all_runs: int
) -> str:
    """Return which blocks have no origin, and the lowest p-value among them."""
    pairs = block_pairs_in_words(len(pairs_of_blocks(result)))
    which = f"No block of {target} is"
    if len(runs) < all_runs:
        blocks = [number for run in runs for number in run.numbers]
        if len(blocks) == 1:
            which = f"Block {blocks[0]} of {target} is not"
        else:
            which = f"Blocks {listed([run.target for run in runs])} of {target} are not"
    least = p_in_words(min(run.p for run in runs))
    return (
        f"{which} shown to come from a block of {source}: no more units are in place than by "
        f"chance (lowest {least}, corrected for {pairs})."
    )


def too_few_units_in_words(result: Result, run: Run, target: str) -> str:
    """Return that blocks have too few units to be tested."""
    units = max(int(row["units"]) for row in run.rows)
    verb = "is" if len(run.rows) == 1 else "are"
    have = "unit has" if units == 1 else "units have"
    return (
        f"{run.blocks.capitalize()} of {target} {verb} not tested: {units} {have} "
        f"{orders_in_words(units)}, too few for p < {ALPHA:g} over "
        f"{block_pairs_in_words(len(pairs_of_blocks(result)))}."
    )


def origin_in_words(run: Run, source: str) -> str:
    """Return where the blocks of a run come from, as the end of a sentence."""
    is_one = " to " not in run.target
    if run.shift == 0:
        return f"is that of {source}" if is_one else f"are those of {source}"
    return (
        f"is block {run.source} of {source}" if is_one else f"are blocks {run.source} of {source}"
    )


def similarity_in_words(runs: list[Run]) -> Iterator[str]:
    """Yield how many units agree where no units are in place."""
    counted = [run for run in runs if not math.isnan(run.alike)]
    if not counted:
        return
    most = max(counted, key=lambda run: run.alike)
    row = max(most.rows, key=lambda row: float(row["similar_units"]))
    share = number_text(row["similar_units"], ".0%")
    sentence = (
        f"Similarity: in any order, {share} of the units of block {row['target_layer']} match a "
        f"unit of one block of {row['source']} in both their input and their output weights. "
        f"Between independently trained models, up to "
        f"{number_text(SIMILARITY_OF_INDEPENDENT, '.0%')} do; of a reordered copy, most do."
    )
    if row["similar_units"] > REORDERED:
        sentence += " It may be a copy with reordered units, which no test here can prove."
    yield sentence


def heads_in_words(result: Result, source: str, target: str) -> Iterator[str]:
    """Yield which blocks have the attention heads of the source, or why heads are not tested."""
    streams = result.tables["streams"].iloc[0]
    heads = int(streams.get("heads", 0))
    if heads == 0:
        return
    pairs = block_pairs_in_words(int(streams["pairs_of_heads"]))
    if "heads" not in result.tables:
        yield (
            f"Attention heads are not tested: {heads} heads (or groups that share keys) have "
            f"{orders_in_words(heads)}, too few for p < {ALPHA:g} over {pairs}."
        )
        return

    origins = origins_of_attention(result.tables["heads"])
    runs = runs_of(origins)
    for run in runs:
        if run.shift is not None:
            origin = f"{run.blocks} of {target} {origin_in_words(run, source)}"
            evidence = f"{run.units} heads {where(run.rows[0])}, {p_in_words(run.p)}"
            yield f"Attention: {origin}: {evidence}."
    if all(run.shift is None for run in runs):
        least = p_in_words(float(origins["p_corrected"].min())).removeprefix("p = ")
        yield (
            f"Attention: no block of {target} has heads in the positions of those of a block of "
            f"{source}: the lowest p-value is {least}, corrected for {pairs}."
        )


def orders_in_words(count: int) -> str:
    """Return how many orders some things have, such as "6 orders"."""
    orders = math.factorial(count)
    return f"{orders:,} order{'s' * (orders != 1)}"


def origins_of_attention(heads: pd.DataFrame) -> pd.DataFrame:
    """Return, for the attention of each target block, the best source, as `table_of_origins` does.

    Args:
        heads: The table of all pairs of blocks whose heads were compared.
    """
    of_target = heads.groupby(["target_layer", "target_module"], sort=False)
    best = heads.loc[of_target["p"].idxmin()].rename(columns={"heads": "units"})
    best["source_layer"] = best["source_layer"].where(best["p_corrected"] < ALPHA)
    return best


def streams_in_words(result: Result, source: str, target: str) -> str:
    """Return whether both models share a residual stream."""
    streams = result.tables["streams"].iloc[0]
    tokens = f"{streams['tokens']:,} tokens"
    if streams["basis"] == "as stored":
        return (
            f"Weights are compared as they are stored, as {streams['reason']} ({tokens} are "
            "shared)."
        )
    row = result.details[result.details["target_layer"] == EMBEDDING_LAYER].iloc[0]
    coordinates = f"{counts_in_words(row)} coordinates {where(row)}"
    evidence = f"{coordinates}, {p_in_words(row['p'])}"
    if streams["basis"] == "shared":
        return (
            f"The embeddings of {target} and {source} share a residual stream: {evidence}. Each "
            "coordinate of the stream means the same in both, as both began with the same "
            "embedding, or one was made from the other."
        )
    return (
        f"The embeddings share no residual stream ({evidence}), so the streams were aligned by "
        f"{tokens} that both vocabularies have."
    )


def show_family(result: Result) -> None:
    """Print which models share blocks, and which share a residual stream."""
    relations = result.tables["relations"]
    names = list(dict.fromkeys([*relations["source"], *relations["target"]]))
    pairs = block_pairs_in_words(int(result.scalars["pairs_of_blocks"]))
    for related, what in (("shared_blocks", "Blocks"), ("same_stream", "A residual stream")):
        groups = groups_of(relations, names, related)
        groups_in_words = [", ".join(group) for group in groups]
        if groups:
            verb = "are" if related == "shared_blocks" else "is"
            show_text(f"{what} {verb} shared by: {'; '.join(groups_in_words)}.")
        else:
            show_text(f"{what}: shared by no two of {len(names)} models.")

    if "merges" in result.tables:
        for sentence in merges_in_words(result.tables["merges"]):
            show_text(sentence)

    related_rows = relations[(relations["shared_blocks"] > 0) | relations["same_stream"]]
    if len(related_rows):
        rows = related_rows.sort_values("units_in_place", ascending=False)[:MOST_ROWS]
        shared = zip(rows["shared_blocks"], rows["blocks"], strict=True)
        columns = [
            text_column("model", rows["source"]),
            text_column("model", rows["target"]),
            text_column("shared blocks", [f"{count} of {blocks}" for count, blocks in shared]),
            text_column(
                "units in place", [number_text(share, ".0%") for share in rows["units_in_place"]]
            ),
            text_column("p, corrected", rows["lowest_p_corrected"].map(p_in_words)),
            text_column("same stream", rows["same_stream"].map({True: "yes", False: "no"})),
        ]
        show_table(Table(f"Models of a common history, corrected for {pairs}", columns, keys=2))
    show_text(MEANING)
