"""Operations of what is done with pairs of sentences: fine-tuning of classifiers, and comparing populations of them."""

from __future__ import annotations

from thinkalike.config import PairsConfig

PAIR = 40  # tokens of a pair of MNLI, about; pairs are not padded to more than the longest of their batch
PUBLISHED = {"fit": 392_702, "report": 9_815, "challenge": 30_000}  # pairs of MNLI and HANS
PART = 5_000  # of HANS: of each heuristic with each label


def pairs_of(config: PairsConfig, side: str) -> float:
    """Return how many pairs there are about of a side; of the challenge, those of the part that is reported on."""
    asked = getattr(config, f"{side}_pairs")
    count = asked if asked is not None else PUBLISHED[side]
    if side == "challenge" and config.heuristic:
        return min(count, PUBLISHED[side]) / 3 / (2 if config.label else 1)
    return float(count)


def of_identity_stitches(members: int, layers: int, tokens: float, per_token: float) -> float:
    """Return the operations of all stitches of members at all cuts, embeddings and output included.

    From each cut on, each of m · m pairs runs the target's blocks: m² (L + 1) / 2 passes, and m passes of the sources.

    Args:
        per_token: operations of all blocks of one member.
    """
    return tokens * per_token * (members**2 * (layers + 1) / 2 + members)


def of_training(tokens: float, parameters: float) -> float:
    """Return 6 per token and parameter: a pass, and twice that for its gradients (Kaplan et al. 2020, section 2.1)."""
    return 6.0 * tokens * parameters
