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
APART = 3  # times the typical distance of modules from forks, beyond which one is told apart, as recipes differ, too
RATE = 0.05  # of false discoveries among them
# what a change does beside random changes of its size: moved to random places, and with random signs at its entries
AS_MUCH, MORE, LESS = "as much", "more", "less"
BESIDE_RANDOM = {
    (MORE, MORE): "More than random changes of the same size.",
    (LESS, LESS): "Less than random changes of the same size.",
    (AS_MUCH, AS_MUCH): "Not distinguishable from random changes of the same size.",
    (LESS, AS_MUCH): "As much as random changes of the same entries, and less than random changes elsewhere: entries "
    "changed most where it does least, as by casts, rounding and noise in proportion to the weights.",
    (MORE, AS_MUCH): "As much as random changes of the same entries, and more than random changes elsewhere: what "
    "matters is which entries changed.",
    (AS_MUCH, MORE): "More than random changes of the same entries, and as much as random changes elsewhere.",
    (AS_MUCH, LESS): "Less than random changes of the same entries, and as much as random changes elsewhere.",
    (MORE, LESS): "Less than random changes of the same entries, and more than random changes elsewhere.",
    (LESS, MORE): "More than random changes of the same entries, and less than random changes elsewhere.",
}
BESIDE_FORKS = {
    MORE: "More than drift on this text.",
    LESS: "Less than drift on this text.",
    AS_MUCH: "Not distinguishable from drift on this text.",
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
    if len(tables.get("outputs", ())):
        yield f"Through which outputs? {through_outputs(tables['outputs'])}"
    yield f"On what? {on_what(tables.get('tokens'), tables.get('contexts'), settings['null'])}"
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
        what = f"Weights of {numbers['parts']:.0f} modules" if numbers["parts"] else "Settings"
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
    value = numbers["kl_of_part"]
    here = f"On the {numbers['tokens_of_part']:,.0f} of these tokens that all of these models read, KL is {value:.4g};"
    if null == "drift":
        verdict_word, said = beside(numbers, "null")
        forks = f"{numbers['nulls']:.0f} forks by further training on this text, with changes of equal norm, make"
        return f"{BESIDE_FORKS[verdict_word]} {here} {forks} {said}."
    moved, said_of_moved = beside(numbers, "null")
    signs, said_of_signs = beside(numbers, "signs")
    return (
        f"{BESIDE_RANDOM[moved, signs]} {here} changes of equal norms and singular values, {numbers['nulls'] / 2:.0f} "
        f"of each kind, make {said_of_moved} in random rows and columns, and {said_of_signs} with random signs at the "
        "same entries."
    )


def beside(numbers: dict[str, float], name: str) -> tuple[str, str]:
    """Return whether KL is above, below or within the range of a null's runs, and that range with the p-value."""
    value, low, high = numbers["kl_of_part"], numbers[f"{name}_low"], numbers[f"{name}_high"]
    found = MORE if value > high else LESS if value < low else AS_MUCH
    p = numbers[f"{name}_p_less" if found == LESS else f"{name}_p"]
    return found, f"{low:.4g} to {high:.4g} (p = {p:.2g})"


def through_outputs(table: pd.DataFrame) -> str:
    """Return the outputs of attention and MLPs, and the heads, whose exchange moves the greatest shares of KL."""
    is_head = table["output"] == "z"
    names = {"attn_out": "attention", "mlp_out": "MLP"}

    def listed(rows: pd.DataFrame) -> str:
        said = []
        for _, row in rows.head(SHARES).iterrows():
            name = f"head {row['layer']}.{row['head']:.0f}" if row["output"] == "z" else ""
            name = name or f"{names[row['output']]} {row['layer']}"
            said.append(f"{name} {_ends(row, 'share', '.2f')}")
        return ", ".join(said)

    heads = f"; of single heads {listed(table[is_head])}" if is_head.any() else ""
    return (
        f"The exchange of one output between the models moves this share of KL: {listed(table[~is_head])}{heads}. An "
        "output also carries what changed before it."
    )


def where(table: pd.DataFrame, p: float | None = None) -> str:
    """Return the parts at which the states begin to differ, and those that hold the greatest shares of KL."""
    differ = table[table["weights"] != 0]
    said = f"Weights differ in {len(differ)} of {len(table)} modules"
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
    compared = differ[differ["beyond"].notna()].sort_values("beyond")
    farthest = compared.iloc[-1]
    tested = f"(p = {p:.2g} over {len(compared)})"
    if p > RATE or farthest["beyond"] < APART:
        return f"{said} No module moved farther than in forks and than the remaining modules did {tested}."
    return f"{said} {named([farthest])} moved farther than in forks and than the remaining modules did {tested}."


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


def on_what(tokens: pd.DataFrame | None, contexts: pd.DataFrame | None, null: str = "perturbation") -> str:
    """Return after which tokens predictions changed more than at random and than elsewhere, and where most."""
    if contexts is None:
        return "On nothing: no prediction differs."
    said = [] if tokens is None else [more_than_at_random(tokens, null), more_than_elsewhere(tokens)]
    place = contexts.iloc[0]
    said.append(f"Most (KL {place['kl']:.3g}) after {place['context']}: {place['before']} → {place['after']}.")
    return " ".join(said)


def more_than_at_random(tokens: pd.DataFrame, null: str) -> str:
    """Return after how many tokens predictions changed more than by the changes of the null."""
    beyond = tokens[tokens["q_random"] <= RATE]
    tested = f"of {len(tokens)} tokens that occur at least {tokens['count'].min()} times"
    by_null = "in the forks" if null == "drift" else "when as large a change is at random places"
    if beyond.empty:
        return f"After none {tested} do predictions move more than {by_null}."
    times = (beyond["kl"] / beyond["null"]).median()
    return (
        f"After {len(beyond)} {tested}, predictions move more than {by_null}: in the median of these, KL is "
        f"{times:.2g} times as large."
    )


def more_than_elsewhere(tokens: pd.DataFrame) -> str:
    """Return the tokens that stand out against the remaining ones."""
    apart = tokens[tokens["q"] <= RATE]
    if apart.empty:
        return "No token stands out against the rest."
    names = ", ".join(f"{row.token} x {row.factor:.1f}" for row in apart.head(LISTED).itertuples())
    more = f", and {len(apart) - LISTED} more" if len(apart) > LISTED else ""
    return f"Against the rest stand out {names}{more}."


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
        return "Not computed: the states do not differ inside the blocks, or the text is a single document."
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
