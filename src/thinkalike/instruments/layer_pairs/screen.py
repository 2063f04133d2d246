"""What a result of layer pairs says on the screen: where models are most and least similar."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import pandas as pd

from thinkalike.instruments.layer_note import show_layer_note
from thinkalike.instruments.layer_pairs.equal_depth import (
    LayerName,
    layer_counts_of,
    rows_at_equal_depth,
    rows_between_models,
)
from thinkalike.instruments.text_name import name_of_text
from thinkalike.matrices import matrix_of
from thinkalike.measures.sample_size import FEWEST_GROUPS, FEWEST_GROUPS_IF_BIASED
from thinkalike.screen import (
    capitalised,
    number_of_documents,
    number_text,
    show_map,
    show_note,
    show_text,
    span,
)
from thinkalike.store import Headline, Result

LEVEL = 0.05
"""A pair of layers is beyond chance if its corrected p-value is at most this."""


class PairValue(NamedTuple):
    """The value of a layer pair with its interval."""

    source_layer: LayerName
    target_layer: LayerName
    value: float
    low: float
    high: float

    @classmethod
    def of(cls, row: pd.Series) -> PairValue:
        """Return the value of a row of a table."""
        return cls(*(row[name] for name in cls._fields))

    @property
    def layers(self) -> str:
        """The layers in words: "layer 2 with 3", or "layer 2" for two of the same number."""
        if self.source_layer == self.target_layer:
            return f"layer {self.source_layer}"
        return f"layer {self.source_layer} with {self.target_layer}"


def row_of_most_similar(rows: pd.DataFrame, is_distance: bool) -> pd.Series:
    """Return the row with the greatest similarity, or, for a distance, with the smallest value."""
    index = rows["value"].argmin() if is_distance else rows["value"].argmax()
    return rows.iloc[int(index)]


def row_of_least_similar(rows: pd.DataFrame, is_distance: bool) -> pd.Series:
    """Return the row with the least similarity, or, for a distance, with the greatest value."""
    return row_of_most_similar(rows, not is_distance)


def _value_and_chance_in_words(row: pd.Series) -> str:
    """Return the value of a layer pair with its interval: "0.812 [0.790, 0.834]".

    Where the row has the mean of the null distribution, ", by chance 0.103" follows.
    """
    value = span(row["value"], row["low"], row["high"], ".3f")
    null_mean = row.get("null_mean", math.nan)
    if math.isnan(null_mean):
        return value
    return f"{value}, by chance {number_text(null_mean, '.3f')}"


def _layer_pair_in_words(row: pd.Series) -> str:
    """Return the layers of a pair: "layer 2", or "layer 14 of a and layer 8 of b"."""
    source_layer = row["source_layer"]
    target_layer = row["target_layer"]
    if source_layer == target_layer:
        return f"layer {source_layer}"
    return f"layer {source_layer} of {row['source']} and layer {target_layer} of {row['target']}"


def answer(
    label: str,
    rows_of_both: pd.DataFrame,
    is_distance: bool,
    uncomputed: Sequence[str] = (),
    why_no_p: str = "",
    layer_counts: Mapping[str, int] = MappingProxyType({}),
) -> str:
    """Return in a sentence at which layers models are most similar, and at which least.

    Layers of equal relative depth are considered first, or consecutive layers where a model is
    compared with itself. Of two models, the sentence also says which of all layer pairs is most
    similar, and whether that is beyond chance, or that this was not computed.

    Args:
        label: What tables and figures call the measure.
        rows_of_both: The rows of a table of layer pairs that compare the two models.
        is_distance: Whether smaller values mean more similar.
        uncomputed: What the models were not compared with, such as "by chance", of what they
            could have been.
        why_no_p: Why a null has no p-values, such as "a batch has fewer than 8 documents".
        layer_counts: By name, how many layers a model has.

    Returns:
        The sentence; "" for a single layer that is compared with itself.
    """
    compared = rows_at_equal_depth(rows_of_both, layer_counts)
    if compared.empty:
        return ""
    most = row_of_most_similar(compared, is_distance)
    least = row_of_least_similar(compared, is_distance)
    source = most["source"]
    target = most["target"]
    if source == target:
        return _answer_of_one_model(label, most, least)
    sentence = _most_and_least_similar(label, most, least, len(compared))
    all_pairs = rows_of_both.dropna(subset="value")
    most_of_all = most
    if len(all_pairs) > len(compared):
        sentence += _most_similar_of_all(all_pairs, most, is_distance)
        most_of_all = row_of_most_similar(all_pairs, is_distance)
    else:
        verdict = beyond_next_in_words(all_pairs, is_distance)
        if verdict:
            sentence += f"; the most similar is {verdict}"
    return f"{sentence}{_beyond_chance(most_of_all, is_distance, uncomputed, why_no_p)}."


def _most_and_least_similar(label: str, most: pd.Series, least: pd.Series, pairs: int) -> str:
    """Return at which layer pairs two models are most and least similar, without a full stop.

    Args:
        label: What tables and figures call the measure.
        most, least: The rows of the most and of the least similar pair.
        pairs: How many pairs are considered.
    """
    source = most["source"]
    target = most["target"]
    of_models = f"{label} of {source} and {target}"
    if pairs == 1 and isinstance(most["source_layer"], str):  # such as the logits
        return f"{capitalised(of_models)} is {_value_and_chance_in_words(most)}"
    if pairs == 1:
        return (
            f"At {_layer_pair_in_words(most)}, {of_models} is {_value_and_chance_in_words(most)}"
        )
    value = _value_and_chance_in_words(most)
    if most["value"] == least["value"] or value == _value_and_chance_in_words(least):
        return f"At equal relative depth, {of_models} is {value} at every layer"
    return (
        f"At equal relative depth, {source} and {target} are most similar at "
        f"{_layer_pair_in_words(most)} ({label} {value}) "
        f"and least similar at {_layer_pair_in_words(least)} "
        f"({_value_and_chance_in_words(least)})"
    )


def _most_similar_of_all(
    all_pairs: pd.DataFrame, most_at_equal_depth: pd.Series, is_distance: bool
) -> str:
    """Return a clause about the most similar of all layer pairs.

    Where values have intervals, the clause also says whether this pair is beyond the next one:
    whether their intervals do not overlap.

    Args:
        all_pairs: The rows of the layer pairs of two models, more than one.
        most_at_equal_depth: The row of the most similar pair of equal relative depth.
        is_distance: Whether smaller values mean more similar.
    """
    most = row_of_most_similar(all_pairs, is_distance)
    both_layers = ["source_layer", "target_layer"]
    extreme = "lowest" if is_distance else "highest"
    clause = f"; of all {len(all_pairs)} pairs, {_layer_pair_in_words(most)}"
    verb = "has" if most["source_layer"] == most["target_layer"] else "have"
    if (most[both_layers] == most_at_equal_depth[both_layers]).all():
        clause += f" {verb} the {extreme} value"
    else:
        value = span(most["value"], most["low"], most["high"], ".3f")
        clause += f" {verb} the {extreme} value ({value})"

    verdict = beyond_next_in_words(all_pairs, is_distance)
    return f"{clause}, {verdict}" if verdict else clause


def beyond_next_in_words(
    rows: pd.DataFrame, is_distance: bool = False, number_format: str = ".3f"
) -> str:
    """Return whether the most similar layer pair is shown to be more similar than the next.

    Such as "not shown to be beyond the next, layer 3 (0.512 [0.480, 0.544]; the intervals
    overlap)". It is "" if there is one pair, or if the value of one of the two has no interval.

    Args:
        rows: A row for each layer pair, with its value and the ends of its interval.
        is_distance: Whether smaller values mean more similar.
        number_format: The format of the numbers.
    """
    if len(rows) < 2:
        return ""
    rows = rows.reset_index(drop=True)
    most = row_of_most_similar(rows, is_distance)
    following = row_of_most_similar(rows.drop(index=most.name), is_distance)
    ends = [most["low"], most["high"], following["low"], following["high"]]
    if not all(math.isfinite(end) for end in ends):
        return ""
    is_beyond = most["low"] > following["high"]
    if is_distance:
        is_beyond = most["high"] < following["low"]
    verdict = "beyond" if is_beyond else "not shown to be beyond"
    reason = "the intervals do not overlap" if is_beyond else "the intervals overlap"
    value = span(following["value"], following["low"], following["high"], number_format)
    return f"{verdict} the next, {_layer_pair_in_words(following)} ({value}; {reason})"


def _beyond_chance(
    most: pd.Series, is_distance: bool, uncomputed: Sequence[str], why_no_p: str
) -> str:
    """Return a clause that says whether the most similar pair is beyond its null distribution.

    Args:
        most: The row of the pair, with the columns of the null if that was computed.
        is_distance: Whether smaller values mean more similar.
        uncomputed: What the models were not compared with, of what they could have been.
        why_no_p: Why a null has no p-values.
    """
    p = most.get("p_corrected", math.nan)
    if not math.isnan(p):
        verdict = "beyond" if p <= LEVEL else "not beyond"
        return f"; the most similar is {verdict} chance (p = {p:.2g} among all pairs)"
    if not math.isnan(most.get("null_mean", math.nan)):
        return f"; whether that is beyond chance cannot be tested, as {why_no_p}"
    if not uncomputed:
        return ""
    comparison = "less (more similar)" if is_distance else "more"
    return f"; whether that is {comparison} than {' or '.join(uncomputed)} was not computed"


def _answer_of_one_model(label: str, most: pd.Series, least: pd.Series) -> str:
    """Return in words between which consecutive layers states change most, and least.

    Args:
        label: What tables and figures call the measure.
        most: The row of the most similar consecutive layers.
        least: The row of the least similar consecutive layers.
    """
    most_layers = f"layers {most['source_layer']} and {most['target_layer']}"
    least_layers = f"layers {least['source_layer']} and {least['target_layer']}"
    model = most["source"]
    if most_layers == least_layers:
        value = _value_and_chance_in_words(most)
        return f"{capitalised(label)} of {most_layers} of {model} is {value}."
    return (
        f"From one layer of {model} to the next, states change most between {least_layers} "
        f"({label} {_value_and_chance_in_words(least)}) and least between {most_layers} "
        f"({_value_and_chance_in_words(most)})."
    )


def _sentence_of_fall(label: str, compared: pd.DataFrame, is_distance: bool) -> str:
    """Return a sentence: between which neighbouring layer pairs similarity falls most.

    For a distance, it is where the distance rises most.

    Args:
        label: What tables and figures call the measure.
        compared: The rows of the layer pairs of equal relative depth, in order of depth.
        is_distance: Whether smaller values mean more similar.
    """
    # The change from each row to the next; `diff` has no value for the first row.
    differences = compared["value"].diff().to_numpy()[1:]
    change = "falls"
    losses_of_similarity = -differences
    if is_distance:
        change = "rises"
        losses_of_similarity = differences
    greatest_loss = losses_of_similarity.max()
    pairs = "Along the layer pairs of equal relative depth"
    if not greatest_loss > 0:
        return f"{pairs}, {label} never {change}."
    index = int(losses_of_similarity.argmax())  # from row `index` to row `index + 1`
    before, after = compared["source_layer"].iloc[index : index + 2]
    source = compared["source"].iloc[0]
    return (
        f"{pairs}, {label} {change} most between layers {before} and {after} of {source}, by "
        f"{number_text(greatest_loss, '.3f')}."
    )


def headlines_of(kind: str, result: Result, is_distance: bool) -> Sequence[Headline]:
    """Return two headline numbers: the value of the least similar layer pair, and a mean.

    For two models, both consider the layer pairs of equal relative depth. If a model is compared
    with itself, the first considers consecutive layers, and the mean is over all pairs of
    different layers. The list is empty for a single layer that is compared with itself.

    Args:
        kind: The kind of the measure, such as "cka", which is part of the names.
        result: The result.
        is_distance: Whether smaller values mean more similar; the least similar pair then has the
            highest value.
    """
    # Without the rows that compare two layers within one of two models.
    rows_of_both = rows_between_models(result.details)
    is_same_layer = (rows_of_both["source"] == rows_of_both["target"]) & (
        rows_of_both["source_layer"] == rows_of_both["target_layer"]
    )
    # For a model and itself, these are the pairs of consecutive layers.
    compared = rows_at_equal_depth(rows_of_both, layer_counts_of(result))
    if compared.empty:
        return []

    averaged = compared
    if is_same_layer.any():  # a model is compared with itself
        averaged = rows_of_both[~is_same_layer]
    mean = float(averaged["value"].mean())
    least = PairValue.of(row_of_least_similar(compared, is_distance))
    name = f"highest_{kind}" if is_distance else f"lowest_{kind}"
    return [
        Headline.with_ends(name, least.value, least.low, least.high, at=least.layers),
        Headline(f"mean_{kind}", mean),
    ]


def amount_compared_in_words(result: Result) -> str:
    """Return in words how much was compared.

    Such as "64 batches of 1,024 tokens, 58 documents", "8,000 words, 58 documents", or "1,018
    stimuli". The size of a batch is a mean, as batches may hold fewer rows than the setting
    `tokens_per_batch`. It is left out for results of earlier versions, which lack the number of
    rows.
    """
    stimuli = result.provenance.get("stimuli")
    if stimuli:
        return f"{stimuli['count']:,} stimuli"

    documents = number_of_documents(result.scalars)
    if "words" in result.scalars:
        return f"{result.scalars['words']:,.0f} words, {documents}"
    batches = result.scalars["batches"]
    batches_in_words = f"{batches:.0f} batches"
    if batches == 1:
        batches_in_words = "1 batch"
    if "rows" not in result.scalars:
        return f"{batches_in_words}, {documents}"
    rows_per_batch = result.scalars["rows"] / batches
    approximately = "" if rows_per_batch.is_integer() else "about "
    rows_in_words = f"{approximately}{rows_per_batch:,.0f} {unit_of_rows(result)}"
    return f"{batches_in_words} of {rows_in_words}, {documents}"


def unit_of_rows(result: Result) -> str:
    """Return what a row of a batch is: "tokens", "words" or "rows of text"."""
    text_facts = dict(result.provenance).get("data")
    if isinstance(text_facts, Mapping) and text_facts.get("level") == "word":
        return "words"
    measure = result.config.get("measure") or {}
    if measure.get("flatten", "token") != "token":  # a row of text is one vector
        return "rows of text"
    return "tokens"


def show_layer_pairs(
    label: str,
    result: Result,
    is_distance: bool,
    uncomputed: Sequence[str] = (),
    meaning: str = "",
) -> None:
    """Print where models are most and least similar, a map of all layer pairs, and the null.

    Where the result has equivalent bit widths, a sentence that takes the local-mixing control into
    account stands above, so that this one says that it does not.

    Args:
        label: What sentences call the measure.
        result: The result, of two models or of one with itself.
        is_distance: Whether smaller values mean more similar.
        uncomputed: What the models were not compared with, of what they could have been.
        meaning: What a value of the measure is, in a sentence; "": nothing is said.
    """
    rows_of_both = rows_between_models(result.details)
    sentence = answer(
        label, rows_of_both, is_distance, uncomputed, _why_no_p(result), layer_counts_of(result)
    )
    has_control = "equivalent_bits" in result.tables
    if sentence and has_control:
        show_text(
            f"{_on_all_rows(result)} values alone, which the control may explain: {sentence}"
        )
    elif sentence:
        show_text(sentence)

    sources = rows_of_both["source_layer"].unique()
    targets = rows_of_both["target_layer"].unique()
    source = rows_of_both["source"].iloc[0]
    target = rows_of_both["target"].iloc[0]
    is_itself = source == target
    if len(sources) * len(targets) > 1:
        models = f"{source} (rows) and {target} (columns)"
        if is_itself:
            models = f"the layers of {source}"
        show_note(f"{capitalised(label)} of {models}:")
        values = matrix_of(
            rows_of_both, index="source_layer", columns="target_layer", values="value"
        )
        show_map(values.loc[sources, targets], is_distance)
        show_layer_note(result)
    elif not sentence:
        row = rows_of_both.iloc[0]
        value = _value_and_chance_in_words(row)
        show_text(f"{capitalised(label)} of {_layer_pair_in_words(row)} with itself is {value}.")

    if meaning:
        show_note(meaning)
    compared = rows_at_equal_depth(rows_of_both, layer_counts_of(result))
    if len(compared) > 1 and not is_itself:
        show_text(_sentence_of_fall(label, compared, is_distance))
    _show_groups_and_null(label, result)
    show_what_was_read(result)


def _is_within_tokens(result: Result) -> bool:
    """Return whether only rows of the same token were compared."""
    measure = result.config.get("measure") or {}
    return bool(measure.get("conditional_on", "none") != "none")


def _why_no_p(result: Result) -> str:
    """Return why a null has no p-values; the warning of the job has the numbers of its batch."""
    if _is_within_tokens(result):
        return (
            f"the effective sample size of a batch is below {FEWEST_GROUPS_IF_BIASED}, which p "
            "within tokens needs"
        )
    if "stimuli" in result.provenance:
        return f"p needs {FEWEST_GROUPS} groups of stimuli or more"
    return f"a batch has fewer than {FEWEST_GROUPS} documents with enough rows, which p needs"


def _on_all_rows(result: Result) -> str:
    """Return "On all 65,536 tokens, by", or "By" if equivalent bit widths rest on all of them."""
    rows = result.scalars.get("rows", math.nan)
    if not rows > result.scalars.get("rows_read", math.nan):
        return "By"
    return f"On all {rows:,.0f} {unit_of_rows(result)}, by"


def show_what_was_read(result: Result) -> None:
    """Print which text was read, how much was compared, and what intervals are over, if any."""
    text = f"Computed on {amount_compared_in_words(result)}."
    if "stimuli" not in result.provenance:
        text = f"Computed on {name_of_text(result)}: {amount_compared_in_words(result)}."
    if result.details["low"].notna().any():
        units = "documents"
        if "stimuli" in result.provenance:
            # Groups of stimuli are counted as documents, and stimuli as rows.
            is_each_one_group = result.scalars.get("documents") == result.scalars.get("rows")
            units = "stimuli" if is_each_one_group else "groups of stimuli"
        text += f" 95 % intervals are over {units}."
    show_text(text)


def _show_groups_and_null(label: str, result: Result) -> None:
    """Print what share of rows was compared given the token, and the calibrated value, if known.

    Args:
        label: What sentences call the measure.
        result: The result. Only comparisons conditional on the token have the first number, and
            only those with a null distribution the second.
    """
    scalars = result.scalars
    if "rows_used" in scalars:
        unit = unit_of_rows(result)
        show_text(
            f"{100 * scalars['rows_used']:.0f} % of the {unit} occur often enough in a batch to "
            "be compared conditional on the token."
        )
    if result.details.get("null_mean", pd.Series(dtype=float)).notna().any():
        show_note(f"By chance: the mean in one batch, after {_what_was_permuted(result)}.")
    if "lowest_p_corrected" in scalars:
        drawn = "permutations"
        basis = "with equally many rows of each document"
        if _is_within_tokens(result):
            drawn = "draws of random signs of the documents"
            basis = "as a correlation of the similarities of rows"
        show_text(
            f"Calibrated for chance, {label} of the most similar of all layer pairs is "
            f"{number_text(scalars['largest_calibrated'], '.3f')} (1: a layer with itself; 0: the "
            f"mean over {drawn} of their most similar pair; "
            f"p = {scalars['lowest_p_corrected']:.2g} among all pairs), in one batch, {basis}."
        )


def _what_was_permuted(result: Result) -> str:
    """Return in words what the null distribution permutes."""
    units = "groups of stimuli" if "stimuli" in result.provenance else "documents"
    permuted = f"the {units} of one model were permuted"
    if _is_within_tokens(result):
        return f"{permuted} within each token"
    return permuted
