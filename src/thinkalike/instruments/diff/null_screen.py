"""Whether a change does more than chance, in words: random changes of its size, or forks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

AS_MUCH = "as much"
MORE = "more"
LESS = "less"

VERDICTS_BESIDE_RANDOM_CHANGES = {
    (MORE, MORE): "Yes, more than matched random changes.",
    (LESS, LESS): "No, less than matched random changes.",
    (AS_MUCH, AS_MUCH): "Not distinguishable from matched random changes.",
    (LESS, AS_MUCH): (
        "As much as random changes of the same entries, and less than random changes elsewhere: "
        "entries changed most where it does least, as by casts, rounding and noise in proportion "
        "to the weights."
    ),
    (MORE, AS_MUCH): (
        "As much as random changes of the same entries, and more than random changes elsewhere: "
        "what matters is which entries changed."
    ),
    (AS_MUCH, MORE): (
        "More than random changes of the same entries, and as much as random changes elsewhere."
    ),
    (AS_MUCH, LESS): (
        "Less than random changes of the same entries, and as much as random changes elsewhere."
    ),
    (MORE, LESS): (
        "Less than random changes of the same entries, and more than random changes elsewhere."
    ),
    (LESS, MORE): (
        "More than random changes of the same entries, and less than random changes elsewhere."
    ),
}
"""What a change does beside random changes of its size: moved to random places, and with random
signs at its entries."""

VERDICTS_BESIDE_CONTINUED_TRAINING = {
    MORE: "Yes, more than the continued-training control.",
    LESS: "No, less than the continued-training control.",
    AS_MUCH: "Not distinguishable from the continued-training control.",
}


class ComparisonWithRuns(NamedTuple):
    """The KL of a change beside those of the runs of a null."""

    comparison: str
    """`MORE`, `LESS` or `AS_MUCH`."""

    runs: str
    """The range of the runs, with the p-value."""


def sentence_of_null_comparison(
    numbers: Mapping[str, float], null_continues_training: bool
) -> str:
    """Return in words whether the change does more to predictions than the null does.

    The null is random changes with the same norm, or the continued-training control: changes of
    equal norm by further training of the base.

    Args:
        numbers: The headline numbers of the result. `nulls` counts all runs of the null; of random
            changes, one half has moved entries and the other half random signs.
        null_continues_training: Whether the null is the continued-training control.
    """
    kl_of_change = (
        f"On {numbers['compared_tokens']:,.0f} of these tokens, KL of this change is "
        f"{numbers['kl_of_compared_tokens']:.4g} nats;"
    )
    compared = _kl_compared_with_runs(numbers, "null")
    if null_continues_training:
        verdict = VERDICTS_BESIDE_CONTINUED_TRAINING[compared.comparison]
        return (
            f"{verdict} {kl_of_change} {numbers['nulls']:.0f} copies of "
            f"the base that were trained further on this text, with changes of equal norm, make "
            f"{compared.runs}."
        )
    compared_with_signs = _kl_compared_with_runs(numbers, "signs")
    verdict = VERDICTS_BESIDE_RANDOM_CHANGES[compared.comparison, compared_with_signs.comparison]
    return (
        f"{verdict} {kl_of_change} that of {numbers['nulls'] / 2:.0f} random changes with the "
        f"same norm and singular values is {compared.runs} with its rows and columns in random "
        f"places, and {compared_with_signs.runs} with random signs of these."
    )


def _kl_compared_with_runs(numbers: Mapping[str, float], name: str) -> ComparisonWithRuns:
    """Return whether the change's KL is above, below or within the range of a null's runs.

    The range and a one-sided p-value come with it in words. The p-value is for a KL above the
    runs, or, if the KL is below all of them, for a KL below the runs.

    Args:
        numbers: The headline numbers of the result.
        name: How the names of the null's numbers begin: "null" or "signs".
    """
    kl = numbers["kl_of_compared_tokens"]
    low = numbers[f"{name}_low"]
    high = numbers[f"{name}_high"]
    p = numbers[f"{name}_p"]
    comparison = AS_MUCH
    if kl > high:
        comparison = MORE
    elif kl < low:
        comparison = LESS
        p = numbers[f"{name}_p_less"]
    return ComparisonWithRuns(comparison, f"{low:.4g} to {high:.4g} (p = {p:.2g})")
