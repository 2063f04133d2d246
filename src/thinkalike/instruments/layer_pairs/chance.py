"""The null of a measure of layer pairs: its settings, and what tables and screens say of it."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch

from thinkalike.config import ranged
from thinkalike.errors import ConfigError, one_of
from thinkalike.instruments.layer_pairs.frame import LayerPairs
from thinkalike.instruments.layer_pairs.settings import LayerPairsConfig
from thinkalike.measures import FEW_DOCUMENTS, CalibratedEstimate, Chance
from thinkalike.screen import show_text
from thinkalike.store import Result

log = logging.getLogger(__name__)


@dataclass
class WithNull(LayerPairsConfig):
    """The settings of a measure of layer pairs that has a null."""

    null: bool = False  # beside each value what permuted documents give, the calibrated value and p
    permutations: int = ranged(99, least=1, most=10**6)  # of each batch; p is at least 1 / (permutations + 1)
    permute: str = "document"  # what null moves: document (of stimuli: the group, such as a sentence) | token

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("measure.permute", self.permute, ("document", "token"))
        if self.given != "none" and self.kind not in ("", "cka", "mknn"):
            raise ConfigError(
                f"measure={self.kind} compares all rows: leave measure.given={self.given} out, or take cka"
            )


class WithChance(LayerPairs):
    """A measure of layer pairs that can be set beside permuted documents."""

    def columns(self, estimates: Any) -> dict[str, torch.Tensor]:
        if (chance := _chance(estimates)) is None:
            return {}
        calibrated = zip(("calibrated", "calibrated_low", "calibrated_high"), chance.calibrated, strict=True)
        return {"null": chance.null.value, **dict(calibrated), "p": chance.p, "p_of_largest": chance.p_of_largest}

    def scalars(self, estimates: Any) -> dict[str, float]:
        if (chance := _chance(estimates)) is None:
            return {}
        least = float(chance.p_of_largest.min())
        return {"largest_calibrated": chance.largest, "largest_p": least, "documents": float(chance.documents)}

    def warn(self, estimates: Any, rows: pd.DataFrame, columns: pd.DataFrame, level: str) -> None:
        chance = _chance(estimates)
        if chance is not None and chance.documents < FEW_DOCUMENTS:
            log.warning(
                "warning: batches hold %d different documents at least, which have few orders, so that p is large; "
                "raise measure.tokens_per_batch",
                chance.documents,
            )

    def show(self, result: Result) -> None:
        super().show(result)
        if "largest_p" in result.scalars:
            calibrated, p = (result.scalars[name] for name in ("largest_calibrated", "largest_p"))
            chance = f"{calibrated:+.4f} above chance (of 1), p = {p:.3g} among all layer pairs"
            show_text(f"closest layers: {chance}", indent=2)


def _chance(estimates: Any) -> Chance | None:
    """Return what permutations say of estimates, if they were asked for."""
    return estimates.chance if isinstance(estimates, CalibratedEstimate) else None
