"""What a change taught a model, in words: up to three lines on the screen of a diff."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pandas as pd

from thinkalike.instruments.diff.taught import FACTOR_SHOWN
from thinkalike.screen import number_text

RAISED_SHOWN = 12
"""At most this many tokens that become more likely are named."""

LOWERED_SHOWN = 6
"""At most this many tokens that become less likely are named."""

TEXTS_SHOWN = 3
"""This many generated texts are shown: those that the changed model favours most."""

LEVEL_OF_TEXT = 0.01
"""The text of a change is shown if, at this level of significance, the changed model favours it
more than a randomly changed model favours its own text."""


def lines_of_what_was_taught(
    tables: Mapping[str, pd.DataFrame], numbers: Mapping[str, float]
) -> Iterator[str]:
    """Yield the lines that say what the change taught the model.

    There are three lines:

    - the tokens that become more or less likely;
    - text that is generated from log q + α (log q - log p), with p of the base and q of the
      changed model, so that it exaggerates what the change does;
    - text that is generated in the same way from a random change of the same size, as a null.

    There are fewer lines in three cases:

    - Random changes show as much (see `is_readable`): a single line says so.
    - There is no null: one line says that nothing was tested, and one has the generated text.
    - The result has no table of generated text, because the setting `taught=true` was not chosen:
      no line.

    Args:
        tables: The tables of the result.
        numbers: Its headline numbers. If there is a null, one of them is `lead_p`. The lead of a
            text is by how many nats its tokens are more likely, on average, under the changed
            model than under the base; `lead_p` is the p-value of the test whether text of the
            change has a greater lead than text of the random change.
    """
    continuations = tables.get("continuations")
    if continuations is None:
        return
    shown = continuations[continuations["factor"] == FACTOR_SHOWN]
    has_null = "lead_p" in numbers
    if not has_null:
        yield (
            "What was it taught? There is no null distribution, so tokens are not tested, and any "
            "change may write as much."
        )
        yield _texts_in_words(shown)
        return
    if not is_readable(numbers):
        yield "What was it taught? Not readable: random changes of the same size say as much."
        return
    yield f"What was it taught? {_taught_tokens_in_words(tables['taught'], numbers)}"
    yield _texts_in_words(shown)
    yield _text_of_random_change_in_words(shown, numbers)


def is_readable(numbers: Mapping[str, float]) -> bool:
    """Return whether tokens and text show what a changed model was taught, beside its base.

    Controls are random changes of the base's weights of the same size. Two conditions must hold:

    - The probability of some token is raised or lowered by more than the random changes do.
    - Text that is generated from the amplified difference of base and changed model has a greater
      lead than text of a random change, with p of at most `LEVEL_OF_TEXT`. The lead of a text is
      by how many nats its tokens are more likely, on average, under the changed model than under
      the base.

    Args:
        numbers: The headline numbers of the result.
    """
    tokens_beyond = numbers["tokens_raised"] + numbers["tokens_lowered"]
    return tokens_beyond > 0 and numbers["lead_p"] <= LEVEL_OF_TEXT


def _taught_tokens_in_words(table: pd.DataFrame, numbers: Mapping[str, float]) -> str:
    """Return in words the tokens that rise most, and those that fall most, beyond the null.

    Args:
        table: A row for each token that is listed, with the shift of its log-probability.
        numbers: The headline numbers of the result, which count all such tokens.
    """
    rises = table["shift"] > 0
    raised = _clause_of_most_changed(table.loc[rises, "token"].head(RAISED_SHOWN))
    lowered = _clause_of_most_changed(table.loc[~rises, "token"].head(LOWERED_SHOWN))
    return (
        f"Beyond random changes of the same size, {numbers['tokens_raised']:,.0f} tokens become "
        f"more likely on this text{raised}; {numbers['tokens_lowered']:,.0f} become less "
        f"likely{lowered}."
    )


def _clause_of_most_changed(tokens: pd.Series) -> str:
    """Return ", most of all" and the tokens, or "" if there are none."""
    if tokens.empty:
        return ""
    return f", most of all {', '.join(tokens)}"


def _texts_in_words(shown: pd.DataFrame) -> str:
    """Return in words the texts of the amplified difference with the greatest lead.

    Args:
        shown: The continuations at one factor of amplification, a row for each beginning. `lead`
            is how many nats likelier the tokens of a text are, on average, under the changed model
            than under the base.
    """
    greatest_lead = shown.sort_values("lead", ascending=False, kind="stable").head(TEXTS_SHOWN)
    texts = [f"{row.beginning} → {row.text}" for row in greatest_lead.itertuples()]
    return f"The difference, amplified {FACTOR_SHOWN:g} times, writes: {'; '.join(texts)}."


def _text_of_random_change_in_words(shown: pd.DataFrame, numbers: Mapping[str, float]) -> str:
    """Return in words how the text compares with that of a random change of the same size.

    Args:
        shown: The continuations at one factor of amplification, a row for each beginning.
        numbers: The headline numbers of the result, with the mean leads.
    """
    first = shown.sort_values("lead", ascending=False, kind="stable").iloc[0]
    lead = number_text(numbers["lead"], ".2g")
    lead_random = number_text(numbers["lead_random"], ".2g")
    return (
        f"Each token of such text is on average {lead} nats more likely under the changed model "
        f"than under the base; with a random change of the same size, {lead_random}, and it "
        f"writes {first['beginning']} → {first['random']}."
    )
