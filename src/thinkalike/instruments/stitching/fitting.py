"""How the φ of every layer pair is had: trained beside what it is compared with, or in closed form."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from torch import Tensor, nn

from thinkalike.evaluation import Maps
from thinkalike.instruments.stitching.setting import Setting
from thinkalike.models import FrozenModel
from thinkalike.training import Fit, Run, StitchTraining, fit, peak_rate, speed, step_operations

log = logging.getLogger(__name__)

TOKENS_PER_PARAMETER = 20  # of φ; with fewer fit tokens than that it overfits


@dataclass(frozen=True)
class Fitted:
    """The φ of every layer pair, and what was trained beside it.

    Attributes:
        maps: the φs.
        late: the φs as they were when the last fifth of the steps began.
        rates: the φs of other rates, by their multiple of the rate.
        floor: of the target into itself, by layer pair.
        untrained: of the source's never-trained twin.
        weights, arrays: what of the φs is kept, and their learning curves.
        speed: operations of the training, and how fast they were.
    """

    maps: Maps
    late: Maps | None = None
    rates: Mapping[float, Maps] = field(default_factory=dict)
    floor: Maps | None = None
    untrained: Maps | None = None
    weights: dict[str, Tensor] = field(default_factory=dict)
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    speed: dict[str, float] = field(default_factory=dict)

    @property
    def is_own_floor(self) -> bool:
        """Whether the φs are their own floor, as where each goes from a layer of a model to the same one."""
        pairs = zip(self.floor or (), self.maps, strict=False)
        return bool(self.floor) and all(floor is phi for floor, phi in pairs)


def fitted(setting: Setting, run: Run, loggers: Sequence[Any], untrained: Setting | None = None) -> Fitted:
    """Train the φ of every layer pair, or solve for them.

    Args:
        untrained: the same setting with a source that was never trained, whose φs are trained alike.
    """
    config = setting.config
    if not config.trained and config.kind == "identity":
        return Fitted(setting.identity())
    if not config.trained:
        closed = setting.closed_forms(config.kind)
        parts = ("weight", "bias")
        weights = {f"{i}.map.{part}": getattr(phi, part).cpu() for i, phi in enumerate(closed) for part in parts}
        twin = untrained.closed_forms(config.kind) if untrained else None
        return Fitted(closed, weights=weights, untrained=twin)
    beside = _Beside(setting, untrained)
    rows, trainer = setting.corpus.fit, run.trainer
    module = StitchTraining(
        setting.source, setting.target, setting.layer_pairs, rows.tokens, config, setting.seed,
        layout=rows.layout, limits=trainer, beside=beside.fits,
    )  # fmt: skip
    _warn_of_overfitting(module, setting.corpus.counts["fit_tokens"])
    _start(module, setting, untrained)
    log.info(
        "%d stitches, %d steps, peak rate %g, %.3g TFLOP",
        len(module.stitches),
        config.steps,
        peak_rate(config, setting.source.d_model),
        step_operations(module) * config.steps / 1e12,
    )
    with contextlib.ExitStack() as changed:
        for model in dict.fromkeys(each.reads for each in module.fits):
            changed.enter_context(model.compiled(trainer.compile))
        for model in (*dict.fromkeys(each.reads for each in module.fits), setting.target):
            changed.enter_context(model.cast(trainer.precision == "bf16-mixed"))
        changed.enter_context(setting.target.recomputed(trainer.recompute))
        fit(module, run, loggers)
    module.to(setting.target.device).eval()
    return replace(beside.sorted(module), speed=speed(module, setting.target.device, trainer))


class _Beside:
    """What is trained beside the φs: other rates, the target into itself, and a source that was never trained.

    Where a model is stitched to itself, a φ from a layer to the same one is the target into itself already.
    """

    def __init__(self, setting: Setting, untrained: Setting | None):
        config, pairs = setting.config, setting.layer_pairs
        self.pairs, self.rates = pairs, config.rates
        self.fits = [Fit(setting.source, *pair, rate) for rate in config.rates for pair in pairs]
        self.twins = len(pairs) if untrained else 0
        if untrained:
            self.fits += [Fit(untrained.source, *pair) for pair in pairs]
        self.floor = config.floor
        self.own = {
            depth: i for i, (layer, depth) in enumerate(pairs) if setting.source is setting.target and layer == depth
        }
        self.depths = sorted({depth for _, depth in pairs} - set(self.own)) if config.floor else []
        self.fits += [Fit(setting.target, depth, depth) for depth in self.depths]

    def sorted(self, module: StitchTraining) -> Fitted:
        """Return all stitches under their names."""
        count, stitches = len(self.pairs), list(module.stitches)
        own, rest = stitches[:count], stitches[count:]
        rates = {rate: rest[i * count : (i + 1) * count] for i, rate in enumerate(self.rates)}
        rest = rest[len(rates) * count :]
        into_itself = {depth: own[place] for depth, place in self.own.items()}
        into_itself |= dict(zip(self.depths, rest[self.twins :], strict=True))
        state = nn.ModuleList(own).state_dict()
        curves = module.curve.cpu().numpy()
        return Fitted(
            own,
            list(module.late),
            rates,
            [into_itself[depth] for _, depth in self.pairs] if self.floor else None,
            rest[: self.twins] or None,
            {name: weight.cpu().contiguous() for name, weight in state.items()},
            {"curve": curves[:, :count], "curves_beside": curves[:, count:]},
        )


def _start(module: StitchTraining, setting: Setting, untrained: Setting | None) -> None:
    """Let stitches begin with a closed form; the target into itself begins with the identity, which that form is."""
    if setting.config.init == "identity":
        return
    starts: dict[FrozenModel, Sequence[Any]] = {setting.source: setting.starts}
    if untrained:
        starts[untrained.source] = untrained.starts
    places = {pair: place for place, pair in enumerate(setting.layer_pairs)}
    module.start_from(
        [
            (number, starts[each.reads][places[each.layer, each.depth]])
            for number, each in enumerate(module.fits)
            if each.reads in starts and (each.layer, each.depth) in places
        ]
    )


def _warn_of_overfitting(module: StitchTraining, tokens: int) -> None:
    parameters = sum(weight.numel() for weight in module.stitches[0].parameters())
    seen = module.config.steps * module.config.tokens_per_step
    if tokens < TOKENS_PER_PARAMETER * parameters:
        log.warning(
            "warning: %s fit tokens are fewer than %d per parameter of φ (%s): expect overfitting; %s",
            f"{tokens:,}",
            TOKENS_PER_PARAMETER,
            f"{parameters:,}",
            "give more text" if seen > tokens else "raise stitch.steps or stitch.tokens_per_step",
        )
    if seen > 1.01 * tokens:
        log.warning("warning: training reads the fit tokens %.1f times over: there are no more", seen / tokens)
