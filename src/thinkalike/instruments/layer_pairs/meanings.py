"""What a value of each measure of layer pairs is, in a sentence under its map."""

from __future__ import annotations

from collections.abc import Mapping

MEANINGS: Mapping[str, str] = {
    "mutual_knn": (
        "A value is the share of a row's {neighbours} nearest neighbours by cosine that are its "
        "neighbours in the other layer, too."
    ),
    "jaccard": (
        "A value is the share of the rows that are among the {neighbours} nearest neighbours by "
        "cosine in both layers, of those that are among them in either."
    ),
    "second_order_cosine": (
        "A value is the cosine of two lists: how similar a row is in either layer to its "
        "{neighbours} nearest neighbours in both."
    ),
    "procrustes": (
        "A value is an angle in radians: 0 for states that are equal after a rotation and "
        "scaling, and at most π/2 = 1.571."
    ),
    "svcca": (
        "A value is the mean canonical correlation of the principal components that hold the "
        "share {kept} of the variance of each layer."
    ),
    "soft_matching": (
        "A value is the mean correlation of units, each matched with units of the other layer."
    ),
    "distance_correlation": (
        "A value estimates the squared distance correlation of two layers: 0 if their states are "
        "independent, 1 if their distances are proportional."
    ),
    "token_rsa": "A value is Spearman's ρ of the distances of all pairs of rows in two layers.",
    "jsd": (
        "It compares the next-token distributions, and is 0 where they are equal, and at most "
        "ln 2 = 0.693."
    ),
    "disagreement": (
        "A value is the share of the tokens after which the most likely token differs."
    ),
}
"""By the kind of the measure. Braces hold the name of a setting of the measure."""


def meaning_of_kind(kind: str, settings: Mapping[str, object]) -> str:
    """Return in a sentence what a value of a measure is; "" for a measure of the user's.

    Args:
        kind: What the command line calls the measure.
        settings: The values of the measure's parameters.
    """
    return MEANINGS.get(kind, "").format_map(settings)
