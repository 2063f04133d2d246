"""What φ is reported beside: where it began, what it cannot be worse than, and what it has to beat."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from thinkalike.evaluation import BigramMeans, Maps, Reader
from thinkalike.instruments.stitching.fitting import Fitted
from thinkalike.instruments.stitching.setting import Setting
from thinkalike.measures import Stitch
from thinkalike.models import randomised


def never_trained(setting: Setting) -> Setting | None:
    """Return the setting of the control `random_source`: a source of the same build that was never trained."""
    if not setting.config.controls:
        return None
    return setting.reading(randomised(setting.source, setting.seed))


def reported(setting: Setting, fits: Fitted, untrained: Setting | None, again: Mapping[str, Maps]) -> dict[str, Tensor]:
    """Return sums by document of φ and of all that stands beside it, see `document_sums`.

    Args:
        again: the φs of further seeds, by their names.
    """
    config = setting.config
    maps: dict[str, Maps] = {"stitch": fits.maps, **again}
    if setting.equal_widths:
        maps["identity"] = setting.identity()
    if config.trained and config.init != "identity":
        maps["start"] = setting.starts
    if fits.late:
        maps["late"] = fits.late
    maps |= {f"rate_{rate:g}": phis for rate, phis in fits.rates.items()}
    if config.controls:
        maps |= _controls(setting, fits.maps)
    sums = setting.sums(maps, _readers(setting, fits, untrained))
    return sums | {"floor": sums["stitch"]} if fits.is_own_floor else sums


def _readers(setting: Setting, fits: Fitted, untrained: Setting | None) -> dict[str, Reader]:
    """Return maps of other states: the target's own, mean states of tokens, and an untrained source's."""
    readers: dict[str, Reader] = {}
    if fits.floor and not fits.is_own_floor:
        readers["floor"] = Reader(setting.target, fits.floor, "target")
    width, pairs = setting.target.d_model, setting.layer_pairs
    as_they_are = [Stitch("identity", width, width)] * len(pairs)
    depths = sorted({depth for _, depth in pairs})
    texts = (rows.layout.target_tokens(rows.tokens) for rows in (setting.corpus.fit, setting.corpus.report))
    bigrams = BigramMeans(setting.target, depths, *texts)
    readers["token_mean"] = Reader(bigrams.tokens, as_they_are, "target")
    readers["bigram_mean"] = Reader(bigrams, as_they_are, "target")
    if untrained:
        maps = fits.untrained or untrained.closed_forms("least_squares")
        readers["random_source"] = Reader(untrained.source, maps, "source")
    return readers


def _controls(setting: Setting, phis: Maps) -> dict[str, Maps]:
    """Return closed forms, a mere shift, and φ on the states of other tokens."""
    kinds = ["least_squares", *(["procrustes", "bias"] if setting.equal_widths else [])]
    maps: dict[str, Maps] = {kind: setting.closed_forms(kind) for kind in kinds}
    maps["shuffled"] = [_Shuffled(phi, setting.seed) for phi in phis]
    return maps


class _Shuffled:
    """φ on the states of other tokens of the batch: what is left when the source says nothing of the token."""

    def __init__(self, phi: Any, seed: int):
        self.phi, self.seed = phi, seed

    def __call__(self, state: Tensor) -> Tensor:
        mapped = self.phi(state)
        rows = mapped.flatten(0, 1)
        order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(self.seed))
        return rows[order.to(rows.device)].view_as(mapped)
