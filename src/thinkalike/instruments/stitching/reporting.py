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
    largest_evaluation_batch,
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
from thinkalike.models.rounding import is_rounded_unasked, rounded_copy
from thinkalike.processes import doing

log = logging.getLogger(__name__)

DocumentTotals = dict[str, Tensor]
"""Sums over the tokens of each document, by name; see `document_sums`."""

LEAST_COST = 1e-6
"""A copy costs at least so many nats per token, so that what costs nothing is above all copies."""


@dataclass(frozen=True)
class ShuffledMap:
    """φ on the states of other tokens of the same row of text.

    Attributes:
        phi: The map φ.
        seed: The seed of the order of the tokens.
    """

    phi: Callable[[Tensor], Tensor]
    seed: int

    def __call__(self, states: Float[Tensor, "b t d"]) -> Float[Tensor, "b t e"]:
        """Map the states by φ, and give each token the mapped state of a random token of its row.

        All rows of one length have the same random order. So a row's result does not depend on the
        rows that are read with it, whose number follows from the memory that is free.
        """
        mapped = self.phi(states)
        generator = torch.Generator().manual_seed(self.seed)
        order = torch.randperm(mapped.shape[-2], generator=generator)
        return mapped[..., order.to(mapped.device), :]


def report_sums(
    closed_forms: ClosedForms,
    fits: FittedStitches,
    untrained: ClosedForms | None,
    further_seeds: Mapping[str, StateMaps],
    means: TokenMeans,
) -> DocumentTotals:
    """Return the losses of stitched models on the evaluation text, summed over each document.

    They are stitched by the trained map φ of each layer pair, by its baselines, and by its
    controls. The floor is the target stitched into itself.

    Args:
        closed_forms: The closed-form maps of the layer pairs, with the models and the text.
        fits: The φ of every layer pair, and the stitches that were trained with them.
        untrained: The closed forms of a source that was never trained; None: there is no such
            control.
        further_seeds: The φ of further seeds, by name.
        means: The target's mean states of tokens, a baseline.
    """
    setting = closed_forms.setting
    target = setting.target
    floor = fits.further_stitches.get(FLOOR)
    # If a model is stitched to itself, layer by layer, its maps φ are the floor.
    phi_is_floor = floor == fits.maps

    maps = _maps_of_source(closed_forms, fits, further_seeds)
    controls: dict[str, Control] = {}
    if floor and not phi_is_floor:
        controls[FLOOR] = Control(target, floor, "target")
    controls |= _controls_of_other_models(closed_forms, fits, untrained, means)

    free_cached_memory(target.device)
    rows = setting.corpus.report
    batch_size = largest_evaluation_batch(  # in rows and in layer pairs
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
        *batch_size,
        controls=controls,
    )
    if phi_is_floor:
        sums[FLOOR] = sums["stitch"]
    return sums


def _maps_of_source(
    closed_forms: ClosedForms, fits: FittedStitches, further_seeds: Mapping[str, StateMaps]
) -> dict[str, StateMaps]:
    """Return all maps of the source's states that are evaluated: by name, a map per layer pair.

    These are the trained maps φ of every seed, φ after half of the steps and at other learning
    rates, and the identity, if both models have one width. If controls are asked for, there are
    also closed-form maps, and φ whose outputs are shuffled over the tokens of each row.

    Args:
        closed_forms: The closed forms of the source's states.
        fits: The φ of every layer pair, and the stitches that were trained with them.
        further_seeds: The φ of further seeds, by name.
    """
    setting = closed_forms.setting
    maps: dict[str, StateMaps] = {"stitch": fits.maps, **further_seeds}
    if setting.equal_widths:
        maps["identity"] = identity_maps(setting.source, setting.layer_pairs)
    if fits.half:
        maps["half"] = fits.half
    for name, maps_of_rate in fits.further_stitches.items():
        if name.startswith("lr_x"):
            maps[name] = maps_of_rate
    if setting.config.controls:
        maps["least_squares"] = closed_forms.maps("least_squares")
        if setting.equal_widths:
            maps["procrustes"] = closed_forms.maps("procrustes")
            maps["bias"] = closed_forms.maps("bias")
        maps["shuffled"] = [ShuffledMap(phi, setting.seed) for phi in fits.maps]
    return maps


def _controls_of_other_models(
    closed_forms: ClosedForms,
    fits: FittedStitches,
    untrained: ClosedForms | None,
    means: TokenMeans,
) -> dict[str, Control]:
    """Return the controls, by name, that put states into the target that are not the source's.

    These are the target's mean state of each token; if controls are asked for, its mean state of
    each pair of tokens; and, if there is an untrained source, the mapped states of that model.

    Args:
        closed_forms: The closed forms of the source's states, with their setting.
        fits: The trained stitches, of which some may read an untrained source.
        untrained: The closed forms of an untrained source's states; None: there is no such source.
        means: The target's mean states of each token, and of each pair of tokens.
    """
    setting = closed_forms.setting
    identity = identity_maps(setting.target, setting.layer_pairs)
    # A control has what gives the states, a map of them for each layer pair, and whose tokens and
    # layers it reads. Mean states are the target's own, so that no map is needed.
    controls = {"token_mean": Control(means.of_current_token, identity, "target")}
    if setting.config.controls:
        controls["bigram_mean"] = Control(means, identity, "target")
    if untrained:
        # If no stitch was trained from the untrained source, its maps are in closed form.
        maps = fits.further_stitches.get(RANDOM_SOURCE) or untrained.maps("least_squares")
        controls[RANDOM_SOURCE] = Control(untrained.setting.source, maps, "source")
    return controls


def losses_of_copies(setting: StitchSetting, sums: Mapping[str, Tensor]) -> DocumentTotals:
    """Return the loss of rounded copies of the target, summed over each document, by name.

    A copy of 4 bits is called `rung_4`. Copies are made until the cost of each stitch lies between
    the costs of two neighbouring copies. There are none if the job does not ask for them, or if
    the target's weights cannot be rounded: they are integers already, or on several devices, whose
    memory may not hold a copy beside the models of the job.

    Args:
        setting: The models, the text, and whether copies are asked for.
        sums: Sums over each document: the loss of the stitched models (`stitch`), that of the
            target alone (`target`), and the number of `tokens`.
    """
    target = setting.target
    if setting.ruler is None or not is_rounded_unasked(target):
        return {}
    tokens = sums["tokens"].sum()
    target_loss = sums["target"]
    # `next_bits` takes values that rise with the bits, so costs per token are negated. A stitch
    # that costs less than nothing counts as one that costs nothing.
    negated_costs = ((target_loss - sums["stitch"]).sum(-1) / tokens).clamp(max=0).tolist()

    losses: DocumentTotals = {}
    negated_costs_of_copies: dict[int, list[float]] = {}
    bits = next_bits(negated_costs, negated_costs_of_copies)  # None: there are enough copies
    while bits:
        log.info("%s at %d bits", target.name, bits)
        with doing(f"copy of {target.name} rounded to {bits} bits"):
            copy = rounded_copy(target, bits)
        loss = target_losses(copy, setting.corpus.report)
        del copy  # there is memory for one copy
        # A copy costs at least `LEAST_COST`, so that a stitch that costs nothing is above it.
        negated_cost = min(float((target_loss - loss).sum() / tokens), -LEAST_COST)
        # Every stitch is compared with the same copy.
        negated_costs_of_copies[bits] = [negated_cost] * len(negated_costs)
        losses[f"rung_{bits}"] = loss
        bits = next_bits(negated_costs, negated_costs_of_copies)
    return losses
