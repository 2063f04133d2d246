"""What a result of layer pairs says on the screen: a map, and where likeness is least."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pandas as pd

from thinkalike.instruments.layer_pairs.equal_depth import (
    LayerName,
    rows_across,
    rows_at_equal_depth,
)
from thinkalike.screen import number_of_documents, show_map, show_text, span
from thinkalike.store import Headline, Result


class PairValue(NamedTuple):
    """The value of a layer pair with its interval."""

    source_layer: LayerName
    target_layer: LayerName
    value: float
    low: float
    high: float

    @property
    def layers(self) -> str:
        """The layers in words, such as "layer 2 with 3"."""
        if self.source_layer == self.target_layer:
            return f"layer {self.source_layer}"
        return f"layer {self.source_layer} with {self.target_layer}"

    @property
    def interval(self) -> str:
        """The value with its interval, such as "0.912 [0.905, 0.918]"."""
        return span(self.value, self.low, self.high, ".3f")


def _least_alike(rows: pd.DataFrame, is_distance: bool) -> PairValue:
    """Return the layer pair of the least likeness, or of the greatest distance."""
    index = rows["value"].argmax() if is_distance else rows["value"].argmin()
    chosen = rows.iloc[[int(index)]][list(PairValue._fields)]
    return PairValue(*next(chosen.itertuples(index=False)))


def _sentences(compared: pd.DataFrame, is_distance: bool, is_itself: bool) -> list[str]:
    """Return where likeness is least, and where it falls most.

    Args:
        compared: The rows of layers of equal depth, or of consecutive layers of one model.
        is_distance: Whether smaller values are closer.
        is_itself: Whether a model is compared with itself.
    """
    least = _least_alike(compared, is_distance)
    if len(compared) == 1 and not isinstance(least.source_layer, int):  # such as the logits
        return [f"Between the two models it is {least.interval}."]
    if is_itself:
        return [
            f"From one layer to the next, the states change most at {least.layers}: "
            f"{least.interval}."
        ]
    sentences = [
        f"At equal depth, the models are least alike at {least.layers}: {least.interval}."
    ]
    if len(compared) > 1:
        sentences.append(_sentence_of_fall(compared, is_distance))
    return sentences


def _sentence_of_fall(compared: pd.DataFrame, is_distance: bool) -> str:
    """Return between which layers likeness falls most."""
    falls = compared["value"].diff().to_numpy()[1:]
    if not is_distance:
        falls = -falls
    most = falls.max()
    if not most > 0:
        return "Likeness never falls from one layer to the next."
    index = int(falls.argmax())
    before, after = compared["source_layer"].iloc[index : index + 2]
    return f"Likeness falls most from layer {before} to layer {after}, by {most:.3f}."


def headlines_of(kind: str, result: Result, is_distance: bool) -> Sequence[Headline]:
    """Return the least likeness at equal relative depth, and the mean over those layers.

    Where a model is compared with itself, these are the least likeness of consecutive layers, and
    the mean over different layers. For a distance the least likeness is the greatest distance.
    There is nothing to say of a single layer that is compared with itself.

    Args:
        kind: The kind of the measure, which is part of the names.
        result: The result.
        is_distance: Whether smaller values are closer.
    """
    across = rows_across(result.details)
    is_same_layer = (across["source"] == across["target"]) & (
        across["source_layer"] == across["target_layer"]
    )
    different_layers = across[~is_same_layer]
    compared = rows_at_equal_depth(across)
    if compared.empty:
        return []

    averaged = compared
    if is_same_layer.any():
        averaged = different_layers
    mean = float(averaged["value"].mean())
    least = _least_alike(compared, is_distance)
    name = f"highest_{kind}" if is_distance else f"lowest_{kind}"
    return [
        Headline.with_ends(name, least.value, least.low, least.high, at=least.layers),
        Headline(f"mean_{kind}", mean),
    ]


def rows_of(result: Result) -> str:
    """Return in words how much was compared.

    This is "64 batches of 1,024 rows, 58 documents", or "1,018 stimuli". Batches may hold fewer
    rows than `tokens_per_batch` asks for. Results of earlier versions do not know their rows.
    """
    stimuli = result.provenance.get("stimuli")
    if stimuli:
        return f"{stimuli['count']:,} stimuli"

    documents = number_of_documents(result.scalars)
    if "words" in result.scalars:
        return f"{result.scalars['words']:,.0f} words, {documents}"
    batches = result.scalars["batches"]
    if "rows" not in result.scalars:
        return f"{batches:.0f} batches, {documents}"
    rows = result.scalars["rows"] / batches
    about = "" if rows.is_integer() else "about "
    return f"{batches:.0f} batches of {about}{rows:,.0f} rows, {documents}"


def show_layer_pairs(label: str, result: Result, is_distance: bool) -> None:
    """Print a map of all layer pairs, and where likeness is least and falls most."""
    across = rows_across(result.details)
    sources = across["source_layer"].unique()
    targets = across["target_layer"].unique()
    source = across["source"].iloc[0]
    target = across["target"].iloc[0]
    is_itself = source == target
    is_map = len(sources) * len(targets) > 1

    if is_itself:
        models = f"the layers of {source}"
    elif is_map:
        models = f"{source} (rows) and {target} (columns)"
    else:
        models = f"{source} and {target}"
    units = "their groups" if "stimuli" in result.provenance else "documents"
    show_text(f"{label} of {models}, {rows_of(result)}, 95 % intervals over {units}")

    if is_map:
        values = across.pivot(index="source_layer", columns="target_layer", values="value")
        show_map(values.loc[sources, targets], is_distance)
    compared = rows_at_equal_depth(across)
    if len(compared):
        for sentence in _sentences(compared, is_distance, is_itself):
            show_text(sentence)
    _show_groups_and_null(result)


def _show_groups_and_null(result: Result) -> None:
    """Say how many rows were compared given the token, and what chance gives."""
    scalars = result.scalars
    if "rows_used" in scalars:
        show_text(
            f"{scalars['rows_used']:.0%} of the rows stood in large enough groups of one token."
        )
    if "lowest_p_corrected" in scalars:
        show_text(
            f"The closest layers are {scalars['largest_calibrated']:+.4f} above chance (of 1), "
            f"p = {scalars['lowest_p_corrected']:.3g} among all layer pairs."
        )
