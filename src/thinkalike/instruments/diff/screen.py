"""What a diff says on one screen: six answers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

import pandas as pd

from thinkalike.instruments.diff.null_screen import beside_null
from thinkalike.instruments.diff.ranges import ranges_in_words
from thinkalike.instruments.diff.taught_screen import lines_of_what_was_taught
from thinkalike.instruments.diff.weights_screen import weights_in_words
from thinkalike.screen import number_of_documents, span
from thinkalike.store import Result

SHARE_NAMED = 0.9
"""The modules that are named hold this share of what enters at all modules."""

MOST_SHARES = 3
"""At most so many shares of KL are named."""

MOST_RANGES = 5
"""At most so many ranges of layers are named."""

MOST_NAMED = 6
"""At most so many settings, tokens or words are named."""

APART = 3
"""A module is told apart that is more than so many times as far from forks as modules typically
are: recipes of training differ, too."""

FALSE_DISCOVERIES = 0.05
"""The rate of false discoveries among what is told apart."""

VERDICTS = {0: "equivalent", 1: "not equivalent", 3: "undecided"}
"""The verdicts by exit status."""

Numbers: TypeAlias = Mapping[str, float]
"""The headline numbers of a result."""


def lines(result: Result) -> Iterator[str]:
    """Yield the lines of the screen, each of which may wrap."""
    numbers = result.scalars
    tables = result.tables
    settings = result.config["measure"]
    yield f"Did it change? {_change_in_words(numbers)}"
    if len(tables.get("settings", ())):
        yield f"Which settings? {_settings_in_words(tables['settings'])}"
    if "weights" in tables:
        yield f"Which weights? {weights_in_words(tables['weights'])}"
    if numbers["tokens"]:
        yield from _lines_of_text(result)
    yield f"Equivalent? {_verdict_in_words(numbers, settings['margin'])}"


def _lines_of_text(result: Result) -> Iterator[str]:
    """Yield the lines about what both models make of text."""
    numbers = result.scalars
    tables = result.tables
    null = result.config["measure"]["null"]
    if "null_p" in numbers:
        yield f"More than by chance? {beside_null(numbers, null)}"
    if numbers["parts"]:
        yield f"Where? {_modules_in_words(result.table, numbers.get('part_p'))}"
    if len(tables.get("outputs", ())):
        yield f"Through which outputs? {_outputs_in_words(tables['outputs'])}"
    yield f"On what? {_tokens_in_words(tables.get('tokens'), tables.get('contexts'), null)}"
    if "words" in tables:
        yield f"On which words? {_words_in_words(tables['words'], numbers)}"
    if numbers["parts"]:
        yield f"In which directions? {_directions_in_words(tables.get('directions'))}"
    yield from lines_of_what_was_taught(tables, numbers)


def _value_with_interval(numbers: Numbers | pd.Series, name: str, spec: str) -> str:
    """Return a number with its interval, if it has one."""
    low = numbers.get(f"{name}_low", math.nan)
    high = numbers.get(f"{name}_high", math.nan)
    return span(numbers[name], low, high, spec)


def _change_in_words(numbers: Numbers) -> str:
    """Return how far the predictions moved."""
    if not numbers["tokens"]:
        return "No. All weights, settings and tokenizers are equal."
    documents = number_of_documents(numbers)
    if not numbers["kl"]:
        what = "Settings"
        if numbers["parts"]:
            what = f"Weights of {numbers['parts']:.0f} modules"
        return f"{what} differ, and no prediction over {documents}."
    return (
        f"KL(base ‖ changed) {_value_with_interval(numbers, 'kl', '.4g')} nats per token (reverse "
        f"{numbers['reverse_kl']:.4g}); the most likely next token flips at "
        f"{_value_with_interval(numbers, 'flips', '.2%')}; loss {numbers['loss_base']:.3f} → "
        f"{numbers['loss_changed']:.3f}, {_value_with_interval(numbers, 'loss_change', '+.4f')}; "
        f"{numbers['tokens']:,.0f} tokens of {documents}."
    )


def _settings_in_words(table: pd.DataFrame) -> str:
    """Return what differs besides the weights."""
    named = table.head(MOST_NAMED)
    settings = [f"{row.setting} {row.base} → {row.changed}" for row in named.itertuples()]
    in_words = ", ".join(settings)
    if len(table) > MOST_NAMED:
        in_words += f" and {len(table) - MOST_NAMED} more"
    return f"{in_words}."


def _modules_in_words(table: pd.DataFrame, p: float | None) -> str:
    """Return where the change of states enters, and which modules hold the greatest shares of KL.

    Args:
        table: The modules.
        p: The p-value of the module that is farthest from forks; None: there are no forks.
    """
    changed = table[table["weights"] != 0]
    sentences = [_entry_in_words(changed, len(table))]
    shares = changed["share"].dropna().sort_values(ascending=False, kind="stable")
    if shares.empty:
        sentences.append("No prediction differs.")
    else:
        modules = []
        for index in shares.index[:MOST_SHARES]:
            row = changed.loc[index]
            modules.append(f"{_named([row])} {_value_with_interval(row, 'share', '.2f')}")
        sentences.append(f"Shares of KL: {', '.join(modules)}.")
    if p is not None:
        sentences.append(_farthest_in_words(changed, p))
    return " ".join(sentences)


def _entry_in_words(changed: pd.DataFrame, modules: int) -> str:
    """Return how many modules changed, and at which of them the change of states enters.

    Args:
        changed: The modules whose weights differ.
        modules: How many modules there are.
    """
    count = f"Weights differ in {len(changed)} of {modules} modules"
    entering = changed["entering"].dropna().sort_values(ascending=False, kind="stable")
    entered_before = entering.cumsum() - entering
    holds_most = entered_before < SHARE_NAMED * entering.sum()
    indices = entering.index[holds_most]
    if not len(indices):
        return f"{count}."
    named = _named([changed.loc[index] for index in sorted(indices)])
    ranges = 1 + named.count(",") + named.count(" and ")
    if ranges <= MOST_RANGES:
        return f"The change of states enters at {named}. {count}."
    most = _named([changed.loc[indices[0]]])
    return f"{count}; the change of states enters at {len(indices)} of them, most at {most}."


def _farthest_in_words(changed: pd.DataFrame, p: float) -> str:
    """Return whether a module moved farther than in forks and than the remaining modules did."""
    compared = changed[changed["beyond"].notna()].sort_values("beyond")
    farthest = compared.iloc[-1]
    module = "No module"
    if p <= FALSE_DISCOVERIES and farthest["beyond"] >= APART:
        module = _named([farthest])
    return (
        f"{module} moved farther than in forks and than the remaining modules did (p = {p:.2g} "
        f"over {len(compared)})."
    )


def _named(rows: Sequence[pd.Series]) -> str:
    """Return modules in words: "embedding and MLP 10 to 14, 17"."""
    layers_by_component: dict[str, list[int]] = {}
    for row in rows:
        layers_by_component.setdefault(str(row["component"]), []).append(int(row["layer"]))
    names = []
    for component, layers in layers_by_component.items():
        is_only_one = component.endswith("embedding")
        if is_only_one:
            names.append(component)
        else:
            names.append(f"{component} {', '.join(ranges_in_words(layers))}")
    return " and ".join(names)


def _outputs_in_words(table: pd.DataFrame) -> str:
    """Return the outputs of attention and MLPs, and the heads, with the greatest shares of KL."""
    is_head = table["output"] == "z"
    heads = ""
    if is_head.any():
        heads = f"; of single heads {_shares_of_outputs(table[is_head])}"
    return (
        "The exchange of one output between the models moves this share of KL: "
        f"{_shares_of_outputs(table[~is_head])}{heads}. An output also carries what changed "
        "before it."
    )


def _shares_of_outputs(rows: pd.DataFrame) -> str:
    """Return the first outputs of a table with their shares of KL."""
    names = {"attn_out": "attention", "mlp_out": "MLP"}
    outputs = []
    for _, row in rows.head(MOST_SHARES).iterrows():
        if row["output"] == "z":
            output = f"head {row['layer']}.{row['head']:.0f}"
        else:
            output = f"{names[row['output']]} {row['layer']}"
        outputs.append(f"{output} {_value_with_interval(row, 'share', '.2f')}")
    return ", ".join(outputs)


def _tokens_in_words(tokens: pd.DataFrame | None, contexts: pd.DataFrame | None, null: str) -> str:
    """Return after which tokens predictions changed, and where they changed most.

    Args:
        tokens: The tokens that occur often; None: there are none, or no null.
        contexts: The places where predictions changed most; None: no prediction differs.
        null: The setting `measure.null`.
    """
    if contexts is None:
        return "On nothing: no prediction differs."
    sentences = []
    if tokens is not None:
        sentences.append(_more_than_at_random(tokens, null))
        sentences.append(_more_than_elsewhere(tokens))
    most = contexts.iloc[0]
    sentences.append(
        f"Most (KL {most['kl']:.3g}) after {most['context']}: {most['before']} → {most['after']}."
    )
    return " ".join(sentences)


def _more_than_at_random(tokens: pd.DataFrame, null: str) -> str:
    """Return after how many tokens predictions changed more than by the changes of the null."""
    beyond = tokens[tokens["q_random"] <= FALSE_DISCOVERIES]
    tested = f"of {len(tokens)} tokens that occur at least {tokens['count'].min()} times"
    by_null = "when as large a change is at random places"
    if null == "continued_training":
        by_null = "in the forks"
    if beyond.empty:
        return f"After none {tested} do predictions move more than {by_null}."
    times = (beyond["kl"] / beyond["null"]).median()
    return (
        f"After {len(beyond)} {tested}, predictions move more than {by_null}: in the median of "
        f"these, KL is {times:.2g} times as large."
    )


def _more_than_elsewhere(tokens: pd.DataFrame) -> str:
    """Return the tokens that stand out against the remaining ones."""
    standing_out = tokens[tokens["q"] <= FALSE_DISCOVERIES]
    if standing_out.empty:
        return "No token stands out against the rest."
    named = standing_out.head(MOST_NAMED)
    in_words = ", ".join(f"{row.token} x {row.factor:.1f}" for row in named.itertuples())
    if len(standing_out) > MOST_NAMED:
        in_words += f", and {len(standing_out) - MOST_NAMED} more"
    return f"Against the rest stand out {in_words}."


def _words_in_words(table: pd.DataFrame, numbers: Numbers) -> str:
    """Return the words whose contrast changed beyond the null's and that of other words."""
    contrast = (
        f"The contrast of {len(table)} words is {numbers['contrast_base']:.2f} nats and changes "
        f"by {numbers['contrast_change']:+.3f} on average"
    )
    if "q" not in table:
        return f"{contrast}; there is no null."
    beyond = table[table["q"] <= FALSE_DISCOVERIES]
    words = []
    for row in beyond.head(MOST_NAMED).itertuples():
        words.append(f"{row.word} {row.change:+.2f} (t = {row.t:.1f})")
    listed = ""
    if words:
        listed = f": {', '.join(words)}"
    return f"{contrast}; beyond other words and the null at {len(beyond)}{listed}."


def _directions_in_words(table: pd.DataFrame | None) -> str:
    """Return the first principal direction of the change of states."""
    if table is None:
        return (
            "Not computed: the states do not differ inside the blocks, or the text is a single "
            "document."
        )
    first = table.iloc[0]
    site = f"layer {first['layer']}"
    if first["layer"] < 0:
        site = "the embedding"
    return (
        f"After {site} one direction holds {first['share']:.0%} of the change (cosine between "
        f"halves of documents {first['stability']:.2f}); it raises {first['raises']} and lowers "
        f"{first['lowers']}."
    )


def _verdict_in_words(numbers: Numbers, margins: Mapping[str, float | None]) -> str:
    """Return the verdict for each margin, and what follows changed tokens that the text lacks."""
    if "exit_status" not in numbers:
        verdict = "No margin is given; measure.margin.kl=0.01 tests whether KL is below .01."
    elif not numbers["tokens"]:
        verdict = "Equivalent: the models are equal."
    else:
        tests = []
        for name, margin in margins.items():
            if margin is not None:
                verdict_of_margin = VERDICTS[int(numbers[f"exit_status_{name}"])]
                tests.append(f"{name} {verdict_of_margin} (margin {margin:g})")
        overall = VERDICTS[int(numbers["exit_status"])].capitalize()
        verdict = f"{overall} by two one-sided tests at 2.5 %: {', '.join(tests)}."
    if not numbers.get("tokens_unread"):
        return verdict
    return (
        f"{verdict} The text lacks {numbers['tokens_unread']:,.0f} of the "
        f"{numbers['tokens_changed']:,.0f} tokens whose embedding differs; after such tokens, put "
        f"into it, KL is {_value_with_interval(numbers, 'unread_kl', '.3g')}."
    )
