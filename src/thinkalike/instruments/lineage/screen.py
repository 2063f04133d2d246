"""What the screen says of the lineage of two models."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd

from thinkalike.errors import listed
from thinkalike.instruments.lineage.comparison import ALPHA, EMBEDDING_LAYER
from thinkalike.instruments.lineage.family import groups_of_related_models
from thinkalike.instruments.lineage.merges import merges_in_words
from thinkalike.measures.lineage import LEAST_P, too_few_to_test
from thinkalike.screen import MOST_ROWS, Table, number_text, show_table, show_text, text_column
from thinkalike.store import Result

# The largest share of a block's units that agreed in what they read and write between two models
# of independent training, after their streams were aligned: SmolLM2-135M and Gemma 3 270M. Bundled
# models of other seeds reach 3 %.
LARGEST_SHARE_OF_INDEPENDENT = 0.12

# A copy whose units were only reordered keeps nearly all such units, and a tuned one most of them.
LEAST_SHARE_OF_REORDERED_COPY = 0.25

CERTAIN_P = 0.9995  # three decimals show a larger p as 1

MEANING = (
    "A unit of a block is in place if the unit of the other block whose weights are most similar "
    "has the same position. More units in place than by chance mean a common history: one block "
    "was made from the other, or both began with the same initial weights. A copy whose units "
    "were reordered has none in place."
)


@dataclass
class BlockRun:
    """Successive blocks of the target whose origins are successive blocks of the source.

    Blocks without an origin that follow each other are a run, too.

    Attributes:
        rows: The rows of the blocks in the table of origins.
        shift: The number of an origin less that of its block; None: they have no origin.
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
        if self.numbers[0] == self.numbers[-1]:
            return f"block {self.target}"
        return f"blocks {self.target}"

    @property
    def source(self) -> str:
        """The source blocks that these blocks come from, in words, such as "3 to 5".

        It is "none" if they come from none, and "not tested" if they have too few units.
        """
        if not self.is_tested:
            return "not tested"
        has_origin = self.shift is not None
        if not has_origin:
            return "none"
        return range_of_blocks([int(row["source_layer"]) for row in self.rows])

    @property
    def units(self) -> str:
        """The units in place, such as "255 of 256", in the block with their smallest share."""
        smallest = min(self.rows, key=lambda row: float(row["in_place"] / max(row["units"], 1)))
        return units_in_place_in_words(smallest)

    @property
    def has_all_in_place(self) -> bool:
        """Whether all units of all these blocks are in place."""
        return all(row["in_place"] == row["units"] for row in self.rows)

    @property
    def p(self) -> float:
        """The largest p-value of these blocks; the smallest if they come from no source block.

        So it is the weakest evidence that each of these blocks comes from a block of the source,
        or the strongest evidence among blocks that come from none.
        """
        values = [float(row["p_corrected"]) for row in self.rows]
        has_origin = self.shift is not None
        if has_origin:
            return max(values)
        return min(values)

    @property
    def similar_share(self) -> float:
        """The largest share of units with similar weights in a block; NaN if not counted."""
        shares = [float(row["similar_units"]) for row in self.rows]
        return max((share for share in shares if not math.isnan(share)), default=math.nan)


def range_of_blocks(numbers: list[int]) -> str:
    """Return the range of consecutive numbers, in ascending order: "3" or "3 to 5"."""
    if numbers[0] == numbers[-1]:
        return f"{numbers[0]}"
    return f"{numbers[0]} to {numbers[-1]}"


def p_in_words(p: float) -> str:
    """Return a p-value in words: "p = 0.034", "p = 2e-07", "p = 1", or "p < 1e-300".

    "p = 1" stands for values of at least `CERTAIN_P`, and the last for values up to `LEAST_P`.
    """
    if p <= LEAST_P:
        return f"p < {LEAST_P:.0e}"
    if p < 0.001:
        return f"p = {p:.0e}"
    if p >= CERTAIN_P:
        return "p = 1"
    return f"p = {p:.3f}"


def units_in_place_in_words(row: pd.Series) -> str:
    """Return how many units are in place, such as "255 of 256"."""
    return f"{row['in_place']:,} of {row['units']:,}"


def in_place_or_in_order(row: pd.Series) -> str:
    """Return "in place", or "in order" for blocks with different numbers of units.

    Args:
        row: The row of a test, which says whether it was of positions or of their order.
    """
    if row["test"] == "order":
        return "in order"
    return "in place"


def runs_of_blocks(origins: pd.DataFrame) -> list[BlockRun]:
    """Return the blocks of the target in runs: successive blocks with successive origins.

    The origin of a block is the block of the source that it comes from. Successive blocks that
    have no origin, or that were not tested, are a run as well.

    Args:
        origins: A row for each block of the target, in order. `source_layer` is the number of its
            origin, or NaN. `is_tested` is False for a block with too few units for a test; if
            there is no such column, all blocks count as tested.
    """
    runs: list[BlockRun] = []
    for _, row in origins.iterrows():
        shift = None  # the number of the origin less that of the block; None: there is no origin
        if not math.isnan(row["source_layer"]):
            shift = int(row["source_layer"] - row["target_layer"])
        is_tested = bool(row.get("is_tested", True))
        continues_run = runs and (runs[-1].shift, runs[-1].is_tested) == (shift, is_tested)
        if continues_run:
            runs[-1].rows.append(row)
        else:
            runs.append(BlockRun([row], shift, is_tested))
    return runs


def with_tested(origins: pd.DataFrame, pairs: pd.DataFrame) -> pd.DataFrame:
    """Return the table of origins with a further column `is_tested`.

    The column says whether a block has enough units (neurons of its MLP) for a p-value below
    `ALPHA` after correction: among few units, even the best match happens by chance.

    Args:
        origins: A row for each block of the target, with the best block of the source.
        pairs: A row for each pair of blocks; p-values are corrected for their number.
    """
    # The number of units that are compared depends on the block of the source.
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
    """Print which blocks of the target come from which blocks of the source.

    Successive blocks with successive origins are one run. A table follows if there are several
    runs, and then an explanation.

    Args:
        result: A result of two models.
    """
    runs = runs_of_blocks(with_tested(result.tables["origins"], pairs_of_blocks(result)))
    table = result.details
    source = str(table["source"].iloc[0])
    target = str(table["target"].iloc[0])
    for sentence in sentences_of_lineage(result, runs, source, target):
        show_text(sentence)
    if len(runs) > 1:
        show_table_of_runs(runs[:MOST_ROWS], source, target)
    show_text(MEANING)


def show_table_of_runs(runs: list[BlockRun], source: str, target: str) -> None:
    """Print a table with a row for each run of successive blocks with successive origins.

    Args:
        runs: The runs.
        source, target: The names of the models.
    """
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


def sentences_of_lineage(
    result: Result, runs: list[BlockRun], source: str, target: str
) -> Iterator[str]:
    """Yield sentences about the origins of blocks and attention heads, and about the streams.

    Args:
        result: A result of two models.
        runs: The blocks of the target. Successive blocks whose origins (the blocks that they come
            from) are successive, too, are one run, and so are successive blocks without an origin.
        source, target: The names of the models.
    """
    without_origin = []
    for run in runs:
        if not run.is_tested:
            yield too_few_units_in_words(result, run, target)
        elif run.shift is None:  # the blocks have no origin
            without_origin.append(run)
        else:
            origin = origin_in_words(run, source)
            evidence = f"{in_place_or_in_order(run.rows[0])}, {p_in_words(run.p)}"
            if len(run.rows) == 1:
                evidence = f"{run.units} units {evidence}"
            elif run.has_all_in_place:
                evidence = f"of each, all units {evidence}"
            else:
                evidence = f"of each, at least {run.units} units {evidence}"
            yield f"{run.blocks.capitalize()} of {target} {origin}: {evidence}."
    if without_origin:
        yield no_origin_in_words(result, without_origin, source, target, len(runs))
        yield from similarity_in_words(without_origin)
    yield from heads_in_words(result, source, target)
    yield streams_in_words(result, source, target)


def no_origin_in_words(
    result: Result, runs: list[BlockRun], source: str, target: str, n_all_runs: int
) -> str:
    """Return in a sentence which blocks of the target have no origin, with the lowest p-value.

    Args:
        result: A result of two models.
        runs: The blocks without an origin (a block of the source that they come from). A run is
            some successive blocks.
        source, target: The names of the models.
        n_all_runs: How many runs there are, including those that have an origin.
    """
    pairs = block_pairs_in_words(len(pairs_of_blocks(result)))
    which = f"No block of {target} is"
    if len(runs) < n_all_runs:
        blocks = [number for run in runs for number in run.numbers]
        if len(blocks) == 1:
            which = f"Block {blocks[0]} of {target} is not"
        else:
            which = f"Blocks {listed([run.target for run in runs])} of {target} are not"
    lowest_p = p_in_words(min(run.p for run in runs))
    return (
        f"{which} shown to come from a block of {source}: no more units are in place than by "
        f"chance (lowest {lowest_p}, corrected for {pairs})."
    )


def too_few_units_in_words(result: Result, run: BlockRun, target: str) -> str:
    """Return in a sentence that blocks have too few units to be tested.

    Args:
        result: A result of two models.
        run: Successive blocks of the target that are not tested.
        target: The name of the target.
    """
    units = max(int(row["units"]) for row in run.rows)
    verb = "is" if len(run.rows) == 1 else "are"
    have = "unit has" if units == 1 else "units have"
    return (
        f"{run.blocks.capitalize()} of {target} {verb} not tested: {units} {have} "
        f"{number_of_orders_in_words(units)}, too few for p < {ALPHA:g} over "
        f"{block_pairs_in_words(len(pairs_of_blocks(result)))}."
    )


def origin_in_words(run: BlockRun, source: str) -> str:
    """Return where blocks of the target come from, such as "are blocks 3 to 5 of a".

    Args:
        run: Successive blocks that come from successive blocks of the source.
        source: The name of the source.
    """
    is_one = len(run.numbers) == 1
    if run.shift == 0:  # the blocks of the source have the same numbers
        return f"is that of {source}" if is_one else f"are those of {source}"
    return (
        f"is block {run.source} of {source}" if is_one else f"are blocks {run.source} of {source}"
    )


def similarity_in_words(runs: list[BlockRun]) -> Iterator[str]:
    """Yield a sentence about units of similar weights in blocks that no test found to be copied.

    Such a block may be a copy whose units were reordered. The sentence is about the block with the
    largest share of units that are similar to a unit of the other model's block, at any position.
    If that share is large, a second sentence says that the block may be such a copy. Nothing is
    yielded if similar units were not counted.

    Args:
        runs: The blocks without an origin (a block of the other model that they come from). A run
            is some successive blocks.
    """
    counted = [run for run in runs if not math.isnan(run.similar_share)]
    if not counted:
        return
    run_of_largest = max(counted, key=lambda run: run.similar_share)
    row = max(run_of_largest.rows, key=lambda row: float(row["similar_units"]))
    share = number_text(row["similar_units"], ".0%")
    sentence = (
        f"Similarity: in any order, {share} of the units of block {row['target_layer']} match a "
        f"unit of one block of {row['source']} in both their input and their output weights. "
        f"Between independently trained models, up to "
        f"{number_text(LARGEST_SHARE_OF_INDEPENDENT, '.0%')} do; of a reordered copy, most do."
    )
    if row["similar_units"] > LEAST_SHARE_OF_REORDERED_COPY:
        sentence += " It may be a copy with reordered units, which no test here can prove."
    yield sentence


def heads_in_words(result: Result, source: str, target: str) -> Iterator[str]:
    """Yield sentences about blocks whose attention heads have an origin in the source.

    If there are too few heads for a test, the sentence says so. Nothing is yielded if the number
    of heads is not known.

    Args:
        result: A result of two models.
        source, target: The names of the models.

    Raises:
        ValueError: The result lacks a test that its heads are enough for.
    """
    streams = result.tables["streams"].iloc[0]
    heads = int(streams.get("heads", 0))
    if heads == 0:
        return
    n_pairs = int(streams["pairs_of_heads"])
    pairs = block_pairs_in_words(n_pairs)
    if "heads" not in result.tables:
        if not too_few_to_test(heads, n_pairs, ALPHA):  # n! would take forever for a foreign n
            raise ValueError(f"no table of the {heads:,} heads, which are enough for a test")
        yield (
            f"Attention heads are not tested: {heads} heads (or groups that share keys) have "
            f"{number_of_orders_in_words(heads)}, too few for p < {ALPHA:g} over {pairs}."
        )
        return

    origins = origins_of_attention(result.tables["heads"])
    runs = runs_of_blocks(origins)
    for run in runs:
        if run.shift is not None:
            origin = f"{run.blocks} of {target} {origin_in_words(run, source)}"
            evidence = (
                f"{run.units} heads {in_place_or_in_order(run.rows[0])}, {p_in_words(run.p)}"
            )
            yield f"Attention: {origin}: {evidence}."
    if all(run.shift is None for run in runs):
        lowest_p = p_in_words(float(origins["p_corrected"].min())).removeprefix("p = ")
        yield (
            f"Attention: no block of {target} has heads in the positions of those of a block of "
            f"{source}: the lowest p-value is {lowest_p}, corrected for {pairs}."
        )


def number_of_orders_in_words(count: int) -> str:
    """Return in how many orders `count` things can be: "6 orders" for 3."""
    orders = math.factorial(count)
    plural = "s" if orders != 1 else ""
    return f"{orders:,} order{plural}"


def origins_of_attention(heads: pd.DataFrame) -> pd.DataFrame:
    """Return a row for the attention of each target block: its origin in the source.

    The origin, in the column `source_layer`, is the source block whose heads give the smallest
    p-value. It is NaN if this p-value is not significant after correction. The column `units` has
    the number of heads. It has the same name as the number of an MLP's neurons in the table of
    blocks, so that `runs_of_blocks` reads both tables alike.

    Args:
        heads: A row for each pair of blocks whose attention heads were compared, with their number
            in the column `heads`.
    """
    by_target = heads.groupby(["target_layer", "target_module"], sort=False)
    best_pairs = heads.loc[by_target["p"].idxmin()]
    origins = best_pairs.rename(columns={"heads": "units"})
    is_significant = origins["p_corrected"] < ALPHA
    origins["source_layer"] = origins["source_layer"].where(is_significant)
    return origins


def streams_in_words(result: Result, source: str, target: str) -> str:
    """Return in a sentence how the residual streams of two models were compared.

    Either the models share a stream, or their streams were aligned by the embeddings of common
    tokens, or embeddings cannot tell, and weights are compared as they are stored.

    Args:
        result: A result of two models.
        source, target: The names of the models.
    """
    streams = result.tables["streams"].iloc[0]
    tokens = f"{streams['tokens']:,} tokens"
    if streams["basis"] == "as stored":
        # Results of version 1 do not say the reason.
        reason = streams.get("reason", "embeddings cannot align them")
        return f"Weights are compared as they are stored, as {reason} ({tokens} are shared)."
    row = result.details[result.details["target_layer"] == EMBEDDING_LAYER].iloc[0]
    coordinates = f"{units_in_place_in_words(row)} coordinates {in_place_or_in_order(row)}"
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
    """Print which of several models share blocks, which share a residual stream, and merges.

    Args:
        result: A result of a list of models.
    """
    relations = result.tables["relations"]
    names = list(dict.fromkeys([*relations["source"], *relations["target"]]))
    pairs = block_pairs_in_words(int(result.scalars["pairs_of_blocks"]))
    for column, what in (("shared_blocks", "Blocks"), ("same_stream", "A residual stream")):
        groups = groups_of_related_models(relations, names, column)
        groups_in_words = [", ".join(group) for group in groups]
        if groups:
            verb = "are" if column == "shared_blocks" else "is"
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
