"""What a diff says on one screen: six answers."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from thinkalike.screen import number_of_documents, span
from thinkalike.store import Result

MOST = 0.9  # of what enters at all parts together, which the parts that are named hold
SHARES = 3  # of KL
RUNS = 5  # of layers that follow each other, at most, that are named
LISTED = 6  # tokens
GROUPS, TENSORS = 4, 3  # of operations, and of names of tensors for each
FAR = 3  # times the median of all layers
RATE = 0.05  # of false discoveries among them
NULL = {  # in words, and what the changes of the null are
    "drift": ("drift on its own text", "forks by further training on it, with changes of equal norm"),
    "perturbation": (
        "a random change of the same size",
        "random changes of the same weights, of equal norms and singular values",
    ),
}
TRIED = (  # of tensors whose change no operation gives
    " Noise and other changes are none of: zeros, a mask, a swap, a permutation, a cast, a scaling, a rounding, low "
    "rank. A mixture is tried with a model that measure.other= names."
)
VERDICTS = {0: "equivalent", 1: "not equivalent", 3: "undecided"}


def lines(result: Result) -> Iterator[str]:
    """Yield the lines of the screen, each of which may wrap."""
    numbers, tables, settings = result.scalars, result.tables, result.config["measure"]
    yield f"Did it change? {changed(numbers)}"
    if len(tables.get("settings", ())):
        yield f"Which settings? {settings_in_words(tables['settings'])}"
    if "weights" in tables:
        yield f"Which weights? {weights_in_words(tables['weights'])}"
    if not numbers["tokens"]:
        yield f"Equivalent? {verdict(numbers, settings['margin'])}"
        return
    if "null_p" in numbers:
        yield f"More than by chance? {beside_null(numbers, settings['null'])}"
    if numbers["parts"]:
        yield f"Where? {where(result.table, numbers.get('part_p'))}"
    yield f"On what? {on_what(tables.get('tokens'), tables.get('contexts'))}"
    if "words" in tables:
        yield f"On which words? {on_which_words(tables['words'], numbers)}"
    if numbers["parts"]:
        yield f"In which directions? {in_directions(tables.get('directions'))}"
    yield f"Equivalent? {verdict(numbers, settings['margin'])}"


def _ends(numbers: Any, name: str, spec: str) -> str:
    low, high = (numbers.get(f"{name}_{end}", math.nan) for end in ("low", "high"))
    return span(numbers[name], low, high, spec)


def changed(numbers: dict[str, float]) -> str:
    """Return how far the predictions moved."""
    if not numbers["tokens"]:
        return "No. All weights, settings and tokenizers are equal."
    if not numbers["kl"]:
        what = f"Weights of {numbers['parts']:.0f} parts" if numbers["parts"] else "Settings"
        return f"{what} differ, and no prediction over {number_of_documents(numbers)}."
    return (
        f"KL(base ‖ changed) {_ends(numbers, 'kl', '.4g')} nats per token (reverse {numbers['reverse_kl']:.4g}); the "
        f"most likely next token flips at {_ends(numbers, 'flips', '.2%')}; loss {numbers['loss_base']:.3f} → "
        f"{numbers['loss_changed']:.3f}, {_ends(numbers, 'loss_change', '+.4f')}; {numbers['tokens']:,.0f} tokens of "
        f"{number_of_documents(numbers)}."
    )


def settings_in_words(table: pd.DataFrame) -> str:
    """Return what differs beside the weights."""
    rows = list(table.itertuples())
    said = ", ".join(f"{row.setting} {row.base} → {row.changed}" for row in rows[:LISTED])
    return f"{said}{f' and {len(rows) - LISTED} more' if len(rows) > LISTED else ''}."


def weights_in_words(table: pd.DataFrame) -> str:
    """Return what was done to weights, those to which the same was done together, the most widespread first."""
    groups: dict[str, list[Any]] = {}
    for row in table.itertuples():
        groups.setdefault(operation_in_words(row), []).append(row)
    order = sorted(groups, key=lambda said: -len(groups[said]))
    said = [f"{tensors_in_words(groups[each])} {each}" for each in order[:GROUPS]]
    rest = sum(len(groups[each]) for each in order[GROUPS:])
    more = f"; {rest} more in weights.csv" if rest else ""
    unnamed = table["operation"].isin(["noise", "changed"]).any()
    return f"{'; '.join(said)}{more}.{TRIED if unnamed else ''}"


def operation_in_words(row: Any) -> str:
    """Return what was done to one tensor, without its name and size."""
    places = row.places if isinstance(row.places, str) else ""
    words = {
        "low rank": f"changed by a matrix of rank {row.amount:.0f}", "rounded": f"rounded to {row.amount:.0f} bits",
        "scaled": f"scaled by {row.amount:.4g}", "masked": f"about {round(row.amount, 1):.0%} zeroed",
        "cast": f"rounded to {row.amount:.0f}-bit floats", "scaled by row": "scaled row by row",
        "scaled by column": "scaled column by column", "noise": "changed by noise",
        "linear mixture": f"mixed in linearly, {row.amount:.4g} of it", "weighted sum": f"added {row.amount:.4g} times",
        "spherical mixture": f"mixed in spherically, {row.amount:.4g} of it",
    }  # fmt: skip
    return f"({places} {words.get(row.operation, row.operation)})".replace("( ", "(")


def tensors_in_words(rows: Sequence[Any]) -> str:
    """Return the names of tensors, those of several blocks together, and how far noise and other changes moved them."""
    by_name: dict[str, list[int]] = {}
    for row in rows:
        by_name.setdefault(re.sub(r"^.*?\.(\d+)\.", "*.", row.tensor), []).append(row.layer)
    names = [
        f"{name[2:]} of block{'s' * (len(layers) > 1)} {', '.join(runs(sorted(layers)))}" if name[0] == "*" else name
        for name, layers in by_name.items()
    ]
    said = ", ".join(names[:TENSORS]) + (f" and {len(names) - TENSORS} more names" if len(names) > TENSORS else "")
    if rows[0].operation not in ("noise", "changed"):
        return said
    spreads = pd.DataFrame({"layer": [row.layer for row in rows], "spread": [row.spread for row in rows]})
    by_layer = spreads.groupby("layer")["spread"].median().dropna()
    if by_layer.empty:
        return said
    middle = by_layer.median()
    far = by_layer[by_layer > FAR * middle].sort_values(ascending=False)
    most = "".join(f"; block {layer} {value:.2g}, {value / middle:.1f} times that" for layer, value in far[:2].items())
    return f"{said}, by {middle:.2g} of the spread{' in the median block' * (len(by_layer) > 1)}{most}"


def beside_null(numbers: dict[str, float], null: str) -> str:
    """Return whether the change is more than that of the null, of its size."""
    kind, same = NULL[null]
    value, low, high = numbers["kl_of_part"], numbers["null_low"], numbers["null_high"]
    p = numbers["null_p_less" if value < low else "null_p"]
    said = "More than" if value > high else "Less than" if value < low else "Not distinguishable from"
    beside = f"{low:.4g} to {high:.4g} by {numbers['nulls']:.0f} {same}"
    return f"{said} {kind}: KL {value:.4g} beside {beside}; p = {p:.2g}."


def where(table: pd.DataFrame, p: float | None = None) -> str:
    """Return the parts at which the states begin to differ, and those that hold the greatest shares of KL."""
    differ = table[table["weights"] != 0]
    said = f"Weights differ in {len(differ)} of {len(table)} parts"
    entering = differ["entering"].dropna().sort_values(ascending=False, kind="stable")
    most = entering.index[(entering.cumsum() - entering) < MOST * entering.sum()]
    found = named([row for _, row in differ.loc[sorted(most)].iterrows()])
    if len(most) and found.count(",") + found.count(" and ") < RUNS:
        said = f"The change of states enters at {found}. {said}"
    elif len(most):
        said = f"{said}; the change of states enters at {len(most)} of them, most at {named([differ.loc[most[0]]])}"
    shares = differ["share"].dropna().sort_values(ascending=False, kind="stable")
    parts = ", ".join(
        f"{named([row])} {_ends(row, 'share', '.2f')}" for _, row in differ.loc[shares.index[:SHARES]].iterrows()
    )
    said = f"{said}. Shares of KL: {parts}." if parts else f"{said}. No prediction differs."
    if p is None:
        return said
    farthest = named([differ.sort_values("beyond").iloc[-1]])
    return f"{said} Weights moved most beyond those of forks in {farthest}, p = {p:.2g} over all parts."


def named(rows: Sequence[Any]) -> str:
    """Return parts in words, layers that follow each other together: "embedding and MLP 10 to 14, 17"."""
    by_component: dict[str, list[int]] = {}
    for row in rows:
        by_component.setdefault(str(row["component"]), []).append(int(row["layer"]))
    found = []
    for component, layers in by_component.items():
        is_one = component.endswith("embedding")
        found.append(component if is_one else f"{component} {', '.join(runs(layers))}")
    return " and ".join(found)


def runs(numbers: Sequence[int]) -> Iterator[str]:
    """Yield numbers in ascending order, those that follow each other together: 3 to 5, 8."""
    start = numbers[0]
    for number, following in zip(numbers, [*numbers[1:], None], strict=True):
        if following != number + 1:
            yield f"{start}" if start == number else f"{start} to {number}"
            start = following or 0


def on_what(tokens: pd.DataFrame | None, contexts: pd.DataFrame | None) -> str:
    """Return the tokens at which the change is greater than the null's, and the place where it is greatest."""
    if contexts is None:
        return "On nothing: no prediction differs."
    said = ""
    if tokens is not None:
        said = f"After no token more than by random changes, of {len(tokens)} tokens tested."
    if tokens is not None and len(beyond := tokens[tokens["q"] <= RATE]):
        names = ", ".join(f"{row.token} x {row.factor:.1f}" for row in beyond.head(LISTED).itertuples())
        said = f"After {len(beyond)} of {len(tokens)} tokens more than elsewhere and than by random changes: {names}."
    place = contexts.iloc[0]
    most = f"Most (KL {place['kl']:.3g}) after {place['context']}: {place['before']} → {place['after']}."
    return f"{said} {most}".lstrip()


def on_which_words(table: pd.DataFrame, numbers: dict[str, float]) -> str:
    """Return the words whose contrast changed beyond the null's and that of other words."""
    before, change = (numbers[f"contrast_{name}"] for name in ("base", "change"))
    said = f"The contrast of {len(table)} words is {before:.2f} nats and changes by {change:+.3f} on average"
    if "q" not in table:
        return f"{said}; there is no null."
    beyond = table[table["q"] <= RATE]
    names = ", ".join(f"{row.word} {row.change:+.2f} (t = {row.t:.1f})" for row in beyond.head(LISTED).itertuples())
    return f"{said}; beyond other words and the null at {len(beyond)}{f': {names}' if names else ''}."


def in_directions(table: pd.DataFrame | None) -> str:
    """Return the first principal direction of the change of states."""
    if table is None:
        return "There are no states that differ, or too few documents."
    first = table.iloc[0]
    where = "the embedding" if first["layer"] < 0 else f"layer {first['layer']}"
    return (
        f"After {where} one direction holds {first['share']:.0%} of the change (cosine between halves "
        f"of documents {first['stability']:.2f}); it raises {first['raises']} and lowers {first['lowers']}."
    )


def verdict(numbers: dict[str, float], margins: dict[str, float | None]) -> str:
    """Return the verdict for each margin, and what follows changed tokens that the text does not hold."""
    if "exit_status" not in numbers:
        said = "No margin is given; measure.margin.kl=0.01 tests whether KL is below .01."
    elif not numbers["tokens"]:
        said = "Equivalent: the models are equal."
    else:
        found = [f"{name} {VERDICTS[int(numbers[f'exit_status_{name}'])]} (margin {margin:g})"
                 for name, margin in margins.items() if margin is not None]  # fmt: skip
        whole = VERDICTS[int(numbers["exit_status"])].capitalize()
        said = f"{whole} by two one-sided tests at 2.5 %: {', '.join(found)}."
    if not numbers.get("tokens_unread"):
        return said
    return (
        f"{said} The text lacks {numbers['tokens_unread']:,.0f} of the {numbers['tokens_changed']:,.0f} tokens whose "
        f"embedding differs; after such tokens, put into it, KL is {_ends(numbers, 'unread_kl', '.3g')}."
    )
