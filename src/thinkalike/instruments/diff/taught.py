"""What a change taught: the tokens that it raises and lowers, and text that exaggerates it.

A narrow tuning shows on text that has nothing to do with it (Minder et al. 2025): the tokens of
its topic become more likely everywhere, and a model that exaggerates the difference,

    log q + α (log q - log p),

with p of the base and q of the changed model, writes about the topic after beginnings that do not
mention it. Both are compared with random changes of the same size, which say what any change does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import deepcopy

import pandas as pd
import torch
from jaxtyping import Bool, Float
from scipy.stats import mannwhitneyu
from torch import Tensor

from thinkalike.data.packing import separators
from thinkalike.evaluation.amplified_text import AmplifiedText, amplified_text
from thinkalike.evaluation.changes import BatchStates, log_probabilities
from thinkalike.instruments.diff.null import NullModels
from thinkalike.instruments.diff.observations import Observations
from thinkalike.instruments.diff.tables import LEVEL, written_token
from thinkalike.measures.amplified import ShiftSum, shift_tests
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.variants import variant

BEGINNINGS = ("", "The", "In", "She said that", "I", "It was")
"""The neutral beginnings; "" is the beginning of a document."""

FACTORS = (1.0, 3.0, 10.0)
"""The factors by which the difference is amplified. With 0 a narrow tuning rarely shows, and with
a large factor text falls apart into single words."""

FACTOR_SHOWN = 3.0
"""The factor whose text is judged, and shown on the screen."""

STEPS = 16
"""So many tokens follow each beginning."""

MEAN_LENGTH_OF_BEGINNING = 2
"""About how many tokens a beginning has, for forecasts."""

TOKENS_LISTED = 25
"""At most so many tokens that rise are listed, and as many that fall."""

FEWEST_PROBABILITY = 1e-5
"""A token is listed if one of the models gives it at least this probability on average. The
log-probabilities of tokens that neither model expects move far for no reason."""


def tokens_of_amplified_text() -> int:
    """Return about how many tokens models read to write all amplified text.

    Each step reads the whole text again. For every factor, text is written twice: by the changed
    model and the base together, and by a random change and the base together. The base alone
    writes one more text after each beginning.
    """
    tokens_per_text = sum(MEAN_LENGTH_OF_BEGINNING + step for step in range(STEPS))
    texts = len(BEGINNINGS) * len(FACTORS)
    readers = 4  # base and changed model for one text; base and random change for another
    return tokens_per_text * (readers * texts + len(BEGINNINGS))


def add_what_was_taught(
    observed: Observations, batches: Sequence[BatchStates], models: NullModels | None
) -> None:
    """Add to the observations what the change taught the model, as tables and headline numbers.

    The table `continuations` has texts that exaggerate the change: each token is chosen by the
    logits of the changed model plus a multiple of their difference from the base's. The null of
    the tests is models with random changes of the same size. If there are such models, the table
    `taught` has the tokens that become more or less likely than in them.

    Args:
        observed: The observations of the base, of the changed model, and of the models with random
            changes. Its fields `taught_tables` and `taught_numbers` are set.
        batches: The first rows of text, with the states of both models.
        models: Opens the models with random changes; None: there are none, and so no test.
    """
    tables = {"continuations": _table_of_continuations(observed, models)}
    numbers: dict[str, float] = {}
    if models is not None:
        table, token_numbers = _table_of_taught_tokens(observed, batches)
        tables["taught"] = table
        numbers |= token_numbers
        numbers |= numbers_of_continuations(tables["continuations"])
    observed.taught_tables = tables
    observed.taught_numbers = numbers


def _table_of_taught_tokens(
    observed: Observations, batches: Sequence[BatchStates]
) -> tuple[pd.DataFrame, dict[str, float]]:
    """Return the tokens that rise and fall most beyond the null, and how many do.

    The null is models with random changes of the same size. `shift` is the mean change of the
    log-probability in nats, `beyond` how far it is beyond that of the median token and of the
    null, and `rises_at` the share of predictions at which it rises.
    Of the tokens that are beyond the null, at a false discovery rate of `LEVEL`, those come first
    that rise most, then those that fall most.
    """
    shift = ShiftSum(observed.base.vocabulary)
    before = torch.zeros(observed.base.vocabulary)  # mean probabilities
    after = torch.zeros(observed.base.vocabulary)
    for batch in batches:
        base_logs = batch.base_log_probabilities
        changed_logs = log_probabilities(observed.changed, batch.changed[-1]).to(base_logs.device)
        shift.add(base_logs, changed_logs)
        before += base_logs.exp().sum(0).cpu()
        after += changed_logs.exp().sum(0).cpu()
    before /= shift.count
    after /= shift.count

    null = observed.null
    mean_shift = shift.mean().double()
    tests = shift_tests(mean_shift, [null.shifts_of_kind(kind) for kind in null.kinds])
    is_beyond = tests.q <= LEVEL
    is_plausible = torch.maximum(before, after) >= FEWEST_PROBABILITY
    raised = is_beyond & (tests.beyond > 0) & (mean_shift > 0)
    lowered = is_beyond & (tests.beyond < 0) & (mean_shift < 0)
    listed = [
        *_ids_of_greatest(tests.beyond, raised & is_plausible),
        *_ids_of_greatest(-tests.beyond, lowered & is_plausible),
    ]
    columns = {
        "shift": mean_shift,
        "beyond": tests.beyond,
        "rises_at": shift.share().double(),
        "before": before.double(),
        "after": after.double(),
        "p": tests.p,
        "q": tests.q,
    }
    table = pd.DataFrame({name: values[listed].numpy() for name, values in columns.items()})
    table.insert(0, "token", [written_token(observed.base, token) for token in listed])
    numbers = {
        "vocabulary": float(len(is_beyond)),
        "tokens_raised": float(raised.sum()),
        "tokens_lowered": float(lowered.sum()),
    }
    return table, numbers


def _ids_of_greatest(values: Float[Tensor, " v"], is_chosen: Bool[Tensor, " v"]) -> list[int]:
    """Return the ids of the chosen tokens with the `TOKENS_LISTED` greatest values, in order.

    There are fewer ids if fewer tokens are chosen.

    Args:
        values: The value of each token of the vocabulary.
        is_chosen: Which tokens may be returned.
    """
    count = min(TOKENS_LISTED, int(is_chosen.sum()))
    return values.where(is_chosen, -math.inf).topk(count).indices.tolist()


def _table_of_continuations(observed: Observations, models: NullModels | None) -> pd.DataFrame:
    """Return the texts that amplified differences write: a row for each factor and beginning.

    `text` is written by the difference between the changed model q and the base p, `random` by
    that between a random change of the same size and the base, and `base` is the base's most
    likely text. `lead` is the mean of log q - log p over the tokens of `text`, and `lead_random`
    the same for `random`.

    Args:
        observed: Has the base and the changed model.
        models: Opens models with random changes; None: the job has no null, and `random` is "" and
            `lead_random` NaN.
    """
    base = observed.base
    by_change = _continuations_of_factors(base, observed.changed, FACTORS)
    by_base = _continuations_of_factors(base, base, [0.0])  # no difference is added
    by_random_change = None
    if models is not None:
        by_random_change = _continuations_of_factors(base, _random_model(base, models), FACTORS)
    rows = []
    for factor_index, factor in enumerate(FACTORS):
        for beginning_index, beginning in enumerate(BEGINNINGS):
            index = factor_index * len(BEGINNINGS) + beginning_index  # all beginnings per factor
            row = {
                "factor": factor,
                "beginning": repr(beginning),
                "text": _decoded_continuation(base, by_change, index),
                "lead": float(by_change.mean_log_ratio[index]),
                "base": _decoded_continuation(base, by_base, beginning_index),
                "random": "",
                "lead_random": math.nan,
            }
            if by_random_change is not None:
                row["random"] = _decoded_continuation(base, by_random_change, index)
                row["lead_random"] = float(by_random_change.mean_log_ratio[index])
            rows.append(row)
    return pd.DataFrame(rows)


def _continuations_of_factors(
    base: FrozenModel, changed: FrozenModel, factors: Sequence[float]
) -> AmplifiedText:
    """Return the text that an amplified difference writes after each beginning, for each factor.

    The rows are all beginnings with the first factor, then all with the second, and so on. Texts
    are shorter than `STEPS` tokens if the model's context is.

    Args:
        base: The base.
        changed: The changed model; the base itself gives its most likely text.
        factors: The factors by which the difference is amplified.
    """
    beginnings = [_tokens_of_beginning(base, text) for text in BEGINNINGS]
    longest = max(len(tokens) for tokens in beginnings)
    steps = max(min(STEPS, base.context - longest), 1)
    rows = []
    factor_of_row = []
    for factor in factors:
        rows += beginnings
        factor_of_row += [factor] * len(beginnings)
    return amplified_text(base, changed, rows, factor_of_row, steps)


def _tokens_of_beginning(model: FrozenModel, text: str) -> list[int]:
    """Return the tokens of a short text that a model is to continue, at least one.

    BOS comes first if the model reads it before all text. If there is no token at all, as for an
    empty text without BOS, the token that separates documents is returned.
    """
    end_of_document, start_of_row = separators(model.tokenizer, model.bos_each_row)
    tokens: list[int] = model.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    if start_of_row is not None:
        tokens = [start_of_row, *tokens]
    if not tokens:
        tokens = [end_of_document]
    return tokens


def _random_model(base: FrozenModel, models: NullModels) -> FrozenModel:
    """Return a model with random changes that can be read beside the base.

    It is the first of the first kind of random changes.

    Random changes are made in the weights of the base itself and are undone when the context
    closes. A copy of the changed base is returned then.
    """
    open_model = next(iter(models.open_by_kind.values()))
    with open_model(0) as model:  # 0 is the seed
        if model is not base:
            return model
        # `is_proved`: a copy of the base need not be checked as a model is at load.
        return variant(base, deepcopy(base.module), f"{base.name} (random)", is_proved=True)


def _decoded_continuation(model: FrozenModel, text: AmplifiedText, row: int) -> str:
    """Return the continuation in a row as text, in quotes."""
    return repr(model.tokenizer.decode(text.tokens[row].tolist()))


def numbers_of_continuations(table: pd.DataFrame) -> dict[str, float]:
    """Return the mean leads of the change and of a random change, and a p-value.

    A lead is the mean of log q - log p over the tokens of a text that is written by the amplified
    difference of q and p, at the factor `FACTOR_SHOWN`. The p-value is of a one-sided rank test
    (Mann & Whitney 1947) over beginnings. As the texts of one model depend on each other, it is a
    rule and no exact test.

    Args:
        table: A row for each factor and beginning, with both leads.
    """
    shown = table[table["factor"] == FACTOR_SHOWN]
    test = mannwhitneyu(shown["lead"], shown["lead_random"], alternative="greater")
    return {
        "lead": float(shown["lead"].mean()),
        "lead_random": float(shown["lead_random"].mean()),
        "lead_p": float(test.pvalue),
    }
