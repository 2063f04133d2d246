"""How well a number tells two groups apart: the area under the ROC curve, with an interval over the members."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike.arguments import seeded
from thinkalike.measures.statistics.bootstrapping import percentile_interval
from thinkalike.measures.statistics.estimate import Estimate


def separation(
    upper: Float[Tensor, "c p"],
    lower: Float[Tensor, "c n"],
    *,
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> Estimate:
    """Return the share of pairs in which a member of the upper group has the greater value; ties count as half.

    It is the area under the ROC curve, 1/(p n) Σᵢⱼ [uᵢ > lⱼ] + ½ [uᵢ = lⱼ] (Hanley & McNeil 1982), in [0, 1], averaged
    over c repetitions of which only values of the same one are compared. ½ is what chance gives.

    Args:
        upper, lower: The value of each member of a group in each repetition.
        level: Of the percentile bootstrap interval over the members of both groups; all repetitions of a member are
            drawn together.

    Raises:
        ValueError: A group has no member, or a value is not a number.
    """
    if not (upper.numel() and lower.numel()):
        raise ValueError(f"groups of {upper.shape[1]} and {lower.shape[1]} members: each needs one")
    if upper.isnan().any() or lower.isnan().any():
        raise ValueError("a value is not a number, so it has no rank")
    above = upper[:, :, None] - lower[:, None, :]
    wins = ((above > 0).double() + 0.5 * (above == 0).double()).mean(0)
    generator = seeded(seed)
    drawn = [_shares(count, resamples, generator).to(wins.device) for count in wins.shape]
    areas = ((drawn[0] @ wins) * drawn[1]).sum(1).clamp(max=1)  # rounding
    return percentile_interval(wins.mean(), areas, level)


def _shares(count: int, resamples: int, generator: torch.Generator) -> Float[Tensor, "resamples count"]:
    """Return the share of each member in each resample."""
    drawn = torch.randint(count, (resamples, count), generator=generator)
    return torch.nn.functional.one_hot(drawn, count).sum(1).double() / count
