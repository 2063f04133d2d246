"""The stitches of a job: trained or solved for all layer pairs, with further maps beside them."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
from pytorch_lightning.loggers import Logger
from torch import Tensor, nn

from thinkalike.evaluation.stitched_losses import StateMaps
from thinkalike.instruments.stitching.closed_forms import ClosedForms
from thinkalike.instruments.stitching.setting import StitchSetting
from thinkalike.measures.closed_forms import AffineMap
from thinkalike.measures.moments import LayerPair
from thinkalike.models.frozen import FrozenModel
from thinkalike.stitches.stitch import StitchModule
from thinkalike.training.data import StepData
from thinkalike.training.optimizers import peak_rate
from thinkalike.training.recipe import whole_rows
from thinkalike.training.run import TrainingRun
from thinkalike.training.stitching import Fit, StitchTraining
from thinkalike.training.trainer import fit

log = logging.getLogger(__name__)

TOKENS_PER_PARAMETER = 20
"""A φ that is fitted on fewer tokens for each of its parameters overfits."""

REPEATED = 1.01
"""A training that reads its text more often than this is warned of."""

RANDOM_SOURCE = "random_source"
"""The stitches from a source that was never trained."""

FLOOR = "floor"
"""The stitches from the target into itself."""


@dataclass(frozen=True)
class FittedStitches:
    """The φ of every layer pair, and further stitches that were trained in the same pass.

    Attributes:
        maps: The φ of every layer pair.
        half: The φ after half of the steps; None: they were not trained.
        beside: Further stitches by name, one for each layer pair: `lr_x3` at three times the rate,
            `random_source` and `floor`.
        weights: The weights that the result keeps.
        arrays: The learning curves.
    """

    maps: StateMaps
    half: StateMaps | None = None
    beside: Mapping[str, StateMaps] = field(default_factory=dict)
    weights: dict[str, Tensor] = field(default_factory=dict)
    arrays: dict[str, np.ndarray] = field(default_factory=dict)


def fitted(
    forms: ClosedForms,
    run: TrainingRun,
    loggers: Sequence[Logger] = (),
    untrained: ClosedForms | None = None,
) -> FittedStitches:
    """Train the φ of every layer pair, or solve for them.

    Args:
        forms: The closed forms of the setting.
        run: Where and how stitches are trained.
        loggers: What gets the learning curves.
        untrained: The closed forms of the same setting with a source that was never trained. Its
            stitches are fitted likewise.
    """
    setting = forms.setting
    kind = setting.config.kind
    if setting.config.trained:
        return _trained_stitches(forms, run, loggers, untrained)
    if kind == "identity":
        return FittedStitches(identity_maps(setting.source, setting.layer_pairs))

    maps = forms.maps(kind)
    weights = {}
    for number, phi in enumerate(maps):
        weights[f"{number}.map.weight"] = phi.weight.cpu()
        weights[f"{number}.map.bias"] = phi.bias.cpu()
    beside = {}
    if untrained:
        beside[RANDOM_SOURCE] = untrained.maps(kind)
    return FittedStitches(maps, beside=beside, weights=weights)


def identity_maps(model: FrozenModel, pairs: Sequence[LayerPair]) -> StateMaps:
    """Return the identity for each layer pair."""
    return [StitchModule("identity", model.d_model, model.d_model)] * len(pairs)


def _trained_stitches(
    forms: ClosedForms, run: TrainingRun, loggers: Sequence[Logger], untrained: ClosedForms | None
) -> FittedStitches:
    """Train the φ of every layer pair, and further stitches in the same pass.

    Args:
        forms: The closed forms of the setting, for starts and whitened coordinates.
        run: Where and how stitches are trained.
        loggers: What gets the learning curves.
        untrained: The closed forms of the same setting with a source that was never trained.
    """
    setting = forms.setting
    config = setting.config
    pairs = setting.layer_pairs
    fits_beside = _fits_beside(setting, untrained)
    further_fits = [stitch for fits in fits_beside.values() for stitch in fits]
    rows = setting.corpus.fit
    module = StitchTraining(
        setting.source,
        setting.target,
        pairs,
        config,
        setting.seed,
        layout=rows.layout,
        limits=run.trainer,
        beside=further_fits,
    )
    warn_of_overfitting(module, setting.corpus.counts["fit_tokens"], rows.context)
    if config.init != "identity":
        _start_from_closed_forms(module, forms, untrained)
    if config.whiten:
        _whiten(module, forms, untrained)
    data = StepData(
        rows.packed(),
        config.tokens_per_step,
        config.steps,
        setting.seed,
        rows.context,
        setting="stitch.tokens_per_step",
    )
    _train(module, data, setting.target, run, loggers)

    # The stitches of the layer pairs come first, and then those beside them in their order.
    stitches = iter(module.stitches)
    maps = list(islice(stitches, len(pairs)))
    beside = {name: list(islice(stitches, len(fits))) for name, fits in fits_beside.items()}
    if config.floor:
        beside[FLOOR] = _floor_of_pairs(setting, maps, fits_beside[FLOOR], beside[FLOOR])
    else:
        del beside[FLOOR]
    weights = nn.ModuleList(maps).state_dict()
    curves = module.curve.cpu().numpy()  # (steps, stitches)
    return FittedStitches(
        maps,
        half=list(module.halfway),
        beside=beside,
        weights={name: weight.cpu().contiguous() for name, weight in weights.items()},
        arrays={"curve": curves[:, : len(pairs)], "curves_beside": curves[:, len(pairs) :]},
    )


def _fits_beside(setting: StitchSetting, untrained: ClosedForms | None) -> dict[str, list[Fit]]:
    """Return the further stitches to train, by name.

    There is one for each layer pair, but for the floor one for each layer of the target that is
    not stitched to itself already.
    """
    source = setting.source
    fits = {}
    for factor in setting.config.lr_multiples:
        fits[f"lr_x{factor:g}"] = [
            Fit(source, layer, target_layer, factor) for layer, target_layer in setting.layer_pairs
        ]
    if untrained:
        random_source = untrained.setting.source
        fits[RANDOM_SOURCE] = [
            Fit(random_source, layer, target_layer) for layer, target_layer in setting.layer_pairs
        ]
    fits[FLOOR] = []
    if setting.config.floor:
        layers = set(setting.target_layers) - set(_pairs_into_itself(setting))
        fits[FLOOR] = [Fit(setting.target, layer, layer) for layer in sorted(layers)]
    return fits


def _pairs_into_itself(setting: StitchSetting) -> dict[int, int]:
    """Return which layer pairs are one layer of one model, by the number of the layer.

    Their φ already are stitches of the target into itself.
    """
    if setting.source is not setting.target:
        return {}
    pairs = {}
    for index, (layer, target_layer) in enumerate(setting.layer_pairs):
        if layer == target_layer:
            pairs[target_layer] = index
    return pairs


def _floor_of_pairs(
    setting: StitchSetting,
    maps: Sequence[nn.Module],
    fits: Sequence[Fit],
    stitches: Sequence[nn.Module],
) -> list[nn.Module]:
    """Return for each layer pair the stitch of the target into itself at the target's layer.

    Args:
        setting: The models and their layer pairs.
        maps: The φ of every layer pair.
        fits: The layers of the target that were stitched to themselves.
        stitches: The stitches of these layers.
    """
    into_itself = {}
    for layer, index in _pairs_into_itself(setting).items():
        into_itself[layer] = maps[index]
    for stitch_fit, stitch in zip(fits, stitches, strict=True):
        into_itself[stitch_fit.layer] = stitch
    return [into_itself[layer] for layer in setting.target_layers]


def warn_of_overfitting(module: StitchTraining, fit_tokens: int, context: int) -> None:
    """Warn if there are few tokens for each parameter of φ, or if they are read repeatedly.

    Args:
        module: The training.
        fit_tokens: How many tokens there are to fit on.
        context: How many tokens a row has.
    """
    config = module.config
    parameters = sum(weight.numel() for weight in module.stitches[0].parameters())
    tokens_read = config.steps * whole_rows(config.tokens_per_step, context)
    if fit_tokens < TOKENS_PER_PARAMETER * parameters:
        remedy = "raise stitch.steps or stitch.tokens_per_step"
        if tokens_read > fit_tokens:
            remedy = "give more text"
        log.warning(
            f"warning: {fit_tokens:,} fitting tokens are fewer than {TOKENS_PER_PARAMETER} per "
            f"parameter of φ ({parameters:,}): expect overfitting; {remedy}"
        )
    if tokens_read > REPEATED * fit_tokens:
        log.warning(
            "warning: training reads the fitting tokens %.1f times over: there are no more",
            tokens_read / fit_tokens,
        )


def _start_from_closed_forms(
    module: StitchTraining, forms: ClosedForms, untrained: ClosedForms | None
) -> None:
    """Let stitches begin with a closed form.

    Those of the target into itself begin with the identity.

    Args:
        module: The training, whose stitches are changed.
        forms: The closed forms of the source's states.
        untrained: Those of an untrained source's states; None: no stitch reads one.
    """
    start_of_fit: dict[tuple[object, int, int], AffineMap] = {}
    for closed_forms in (forms, untrained):
        if closed_forms is None:
            continue
        for pair, start in zip(closed_forms.setting.layer_pairs, closed_forms.starts, strict=True):
            start_of_fit[closed_forms.setting.source, pair[0], pair[1]] = start
    starts = []
    for number, stitch in enumerate(module.fits):
        key = (stitch.reads, stitch.layer, stitch.depth)
        if key in start_of_fit:
            starts.append((number, start_of_fit[key]))
    module.start_from(starts)


def _whiten(module: StitchTraining, forms: ClosedForms, untrained: ClosedForms | None) -> None:
    """Let SGD step in coordinates in which the states that each stitch reads are white.

    Args:
        module: The training, which keeps the coordinates.
        forms: Statistics of the source's states, and of the target's.
        untrained: Those of an untrained source's states; None: no stitch reads one.
    """
    statistics = []
    for stitch in module.fits:
        read_from = forms
        if untrained and stitch.reads is untrained.setting.source:
            read_from = untrained
        statistics.append(read_from.statistics_read_by(stitch))
    module.whiten(statistics)


def _train(
    module: StitchTraining,
    data: StepData,
    target: FrozenModel,
    run: TrainingRun,
    loggers: Sequence[Logger],
) -> None:
    """Train all stitches of a module, with the models as the trainer's settings want them.

    In the end the module is on the device of the target.

    Args:
        module: The stitches with the models that they are between.
        data: The rows of each step.
        target: The model that is stitched into.
        run: Where and how the training runs.
        loggers: What the losses are logged to.
    """
    rate = peak_rate(module.config, module.models[0].d_model)
    log.info(
        "%d stitches, %d steps, peak rate %g", len(module.stitches), module.config.steps, rate
    )
    models_read = list(dict.fromkeys(stitch.reads for stitch in module.fits))
    with contextlib.ExitStack() as changes:
        for model in models_read:
            changes.enter_context(model.compiled(run.trainer.compile))
        for model in (*models_read, target):
            changes.enter_context(model.cast(run.trainer.precision == "bf16-mixed"))
        changes.enter_context(target.recomputed(run.trainer.recompute))
        fit(module, data, run, loggers)
    module.to(target.device).eval()
