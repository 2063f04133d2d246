"""The report of a stitching job: what φ and its controls lose on held-out text, by document."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike.evaluation.stitched_losses import (
    Control,
    StateMaps,
    document_sums,
    largest_report_batch,
    target_losses,
)
from thinkalike.evaluation.token_means import TokenMeans
from thinkalike.instruments.stitching.closed_forms import ClosedForms
from thinkalike.instruments.stitching.fitting import (
    FLOOR,
    RANDOM_SOURCE,
    FittedStitches,
    identity_maps,
)
from thinkalike.instruments.stitching.setting import StitchSetting
from thinkalike.measures.bit_readings import next_bits
from thinkalike.memory import free_cached_memory
from thinkalike.models.rounding import can_be_rounded, rounded_copy
from thinkalike.processes import doing

log = logging.getLogger(__name__)

DocumentTotals = dict[str, Tensor]
"""Sums over the tokens of each document, by name; see `document_sums`."""

LEAST_COST = 1e-6
"""A copy costs at least so many nats per token, so that what costs nothing is above all copies."""


@dataclass(frozen=True)
class ShuffledMap:
    """φ on the states of other tokens of the batch.

    Attributes:
        phi: The map φ.
        seed: The seed of the order of the tokens.
    """

    phi: Callable[[Tensor], Tensor]
    seed: int

    def __call__(self, states: Float[Tensor, "b t d"]) -> Float[Tensor, "b t e"]:
        """Return φ of the states, with all b t tokens in a random order, the same each time."""
        mapped = self.phi(states)
        rows = mapped.flatten(0, 1)
        generator = torch.Generator().manual_seed(self.seed)
        order = torch.randperm(len(rows), generator=generator)
        return rows[order.to(rows.device)].view_as(mapped)


def reported(
    forms: ClosedForms,
    fits: FittedStitches,
    untrained: ClosedForms | None,
    further_seeds: Mapping[str, StateMaps],
    means: TokenMeans,
) -> DocumentTotals:
    """Return the sums by document of φ and its controls, see `document_sums`.

    Args:
        forms: The closed forms of the setting.
        fits: The φ of every layer pair, and what was trained beside them.
        untrained: The closed forms of a source that was never trained, if the job has controls.
        further_seeds: The φ of further seeds, by name.
        means: The target's mean states of tokens.
    """
    setting = forms.setting
    target = setting.target
    floor = fits.beside.get(FLOOR)
    # Where a model is stitched to itself, layer by layer, its φ are the floor.
    maps_are_floor = floor == fits.maps

    maps = _maps_of_source(forms, fits, further_seeds)
    controls: dict[str, Control] = {}
    if floor and not maps_are_floor:
        controls[FLOOR] = Control(target, floor, "target")
    controls |= _controls(forms, fits, untrained, means)

    free_cached_memory(target.device)
    rows = setting.corpus.report
    batch = largest_report_batch(
        setting.source,
        target,
        setting.layer_pairs,
        rows,
        setting.budget,
        has_controls=True,
    )
    sums = document_sums(
        setting.source,
        target,
        setting.layer_pairs,
        maps,
        rows,
        *batch,
        controls=controls,
    )
    if maps_are_floor:
        sums[FLOOR] = sums["stitch"]
    return sums


def _maps_of_source(
    forms: ClosedForms, fits: FittedStitches, further_seeds: Mapping[str, StateMaps]
) -> dict[str, StateMaps]:
    """Return all maps of the source's states, by name: φ, its variants, and closed forms.

    Args:
        forms: The closed forms of the source's states.
        fits: The trained stitches.
        further_seeds: Stitches that were trained with further seeds, by name.
    """
    setting = forms.setting
    maps: dict[str, StateMaps] = {"stitch": fits.maps, **further_seeds}
    if setting.equal_widths:
        maps["identity"] = identity_maps(setting.source, setting.layer_pairs)
    if fits.half:
        maps["half"] = fits.half
    for name, maps_of_rate in fits.beside.items():
        if name.startswith("lr_x"):
            maps[name] = maps_of_rate
    if setting.config.controls:
        maps["least_squares"] = forms.maps("least_squares")
        if setting.equal_widths:
            maps["procrustes"] = forms.maps("procrustes")
            maps["bias"] = forms.maps("bias")
        maps["shuffled"] = [ShuffledMap(phi, setting.seed) for phi in fits.maps]
    return maps


def _controls(
    forms: ClosedForms, fits: FittedStitches, untrained: ClosedForms | None, means: TokenMeans
) -> dict[str, Control]:
    """Return the maps of the states of other models than the source, by name.

    Args:
        forms: The closed forms of the source's states, with their setting.
        fits: The trained stitches, of which some may read an untrained source.
        untrained: The closed forms of an untrained source's states, if there is one.
        means: The target's mean states of each bigram, and of each token.
    """
    setting = forms.setting
    unchanged = identity_maps(setting.target, setting.layer_pairs)
    controls = {"token_mean": Control(means.tokens, unchanged, "target")}
    if setting.config.controls:
        controls["bigram_mean"] = Control(means, unchanged, "target")
    if untrained:
        maps = fits.beside.get(RANDOM_SOURCE) or untrained.maps("least_squares")
        controls[RANDOM_SOURCE] = Control(untrained.setting.source, maps, "source")
    return controls


def losses_of_copies(setting: StitchSetting, sums: Mapping[str, Tensor]) -> DocumentTotals:
    """Return the losses by document of copies of the target that are rounded to some bits.

    They are called `rung_4` and so on, and are those around each penalty. Weights that are
    integers already, or on several devices, have no calibration points.

    Args:
        setting: The models, and whether there are calibration points.
        sums: The sums by document of φ and of the target.
    """
    target = setting.target
    if setting.ruler is None or not can_be_rounded(target):
        return {}
    tokens = sums["tokens"].sum()
    target_loss = sums["target"]
    # A ladder rises with the bits, so that its values are gains: the negated costs per token.
    gains = ((target_loss - sums["stitch"]).sum(-1) / tokens).clamp(max=0).tolist()

    losses: DocumentTotals = {}
    known_gains: dict[int, list[float]] = {}
    bits = next_bits(gains, known_gains)
    while bits:
        log.info("%s at %d bits", target.name, bits)
        with doing(f"rounding to {bits} bits"):
            copy = rounded_copy(target, bits)
        loss = target_losses(copy, setting.corpus.report)
        del copy  # there is room for one copy
        gain = min(float((target_loss - loss).sum() / tokens), -LEAST_COST)
        known_gains[bits] = [gain] * len(gains)
        losses[f"rung_{bits}"] = loss
        bits = next_bits(gains, known_gains)
    return losses
