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

from thinkalike.advice import named_setting
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
        further_stitches: Further stitches by name, one for each layer pair: `lr_x3` is trained at
            three times the rate, `random_source` reads a source that was never trained, and
            `floor` goes from the target into itself.
        weights: The weights that the result keeps.
        arrays: The learning curves.
    """

    maps: StateMaps
    half: StateMaps | None = None
    further_stitches: Mapping[str, StateMaps] = field(default_factory=dict)
    weights: dict[str, Tensor] = field(default_factory=dict)
    arrays: dict[str, np.ndarray] = field(default_factory=dict)


def fit_stitches(
    closed_forms: ClosedForms,
    run: TrainingRun,
    loggers: Sequence[Logger] = (),
    untrained: ClosedForms | None = None,
) -> FittedStitches:
    """Return the map φ of every layer pair, as the kind of stitch says.

    It is trained, computed in closed form, or the identity.

    Args:
        closed_forms: The setting (models, layer pairs and text), and the closed forms of its maps.
        run: Where and how stitches are trained.
        loggers: Loggers of the learning curves.
        untrained: The closed forms of the same setting with a source that was never trained, as a
            control, whose stitches are fitted as well. Identity maps are not fitted, and have no
            such control. None: there is no control.
    """
    setting = closed_forms.setting
    kind = setting.config.kind
    if setting.config.trained:
        return _trained_stitches(closed_forms, run, loggers, untrained)
    if kind == "identity":
        return FittedStitches(identity_maps(setting.source, setting.layer_pairs))

    maps = closed_forms.maps(kind)
    weights = {}
    for index, phi in enumerate(maps):
        # The names under which trained stitches save their weights.
        weights[f"{index}.map.weight"] = phi.weight.cpu()
        weights[f"{index}.map.bias"] = phi.bias.cpu()
    further_stitches = {}
    if untrained:
        further_stitches[RANDOM_SOURCE] = untrained.maps(kind)
    return FittedStitches(maps, further_stitches=further_stitches, weights=weights)


def identity_maps(model: FrozenModel, pairs: Sequence[LayerPair]) -> StateMaps:
    """Return the identity map for each layer pair, one object for all of them."""
    return [StitchModule("identity", model.d_model, model.d_model)] * len(pairs)


def _trained_stitches(
    closed_forms: ClosedForms,
    run: TrainingRun,
    loggers: Sequence[Logger],
    untrained: ClosedForms | None,
) -> FittedStitches:
    """Train the map φ of every layer pair, and further stitches in the same pass.

    Further stitches are controls, or φ at other learning rates.

    Args:
        closed_forms: The closed-form maps of the layer pairs, from which training may start, and
            the statistics of states, for whitened coordinates.
        run: Where and how stitches are trained.
        loggers: What gets the learning curves.
        untrained: The closed forms of the same setting with a source that was never trained.
    """
    setting = closed_forms.setting
    config = setting.config
    pairs = setting.layer_pairs
    further_fits = _further_fits(setting, untrained)
    all_further_fits = []
    for fits in further_fits.values():
        all_further_fits += fits
    rows = setting.corpus.fit
    module = StitchTraining(
        setting.source,
        setting.target,
        pairs,
        config,
        setting.seed,
        layout=rows.layout,
        limits=run.trainer,
        beside=all_further_fits,
    )
    warn_of_overfitting(module, setting.corpus.counts["fit_tokens"], rows.context)
    if config.init != "identity":
        _start_from_closed_forms(module, closed_forms, untrained)
    if config.whiten:
        _whiten_coordinates(module, closed_forms, untrained)
    data = StepData(
        rows.packed(),
        config.tokens_per_step,
        config.steps,
        setting.seed,
        rows.context,
        setting="stitch.tokens_per_step",
    )
    _train(module, data, setting.target, run, loggers)

    # The stitches of the layer pairs come first, and then the further ones in their order. Each
    # slice takes the next ones from the iterator.
    stitches = iter(module.stitches)
    maps = list(islice(stitches, len(pairs)))
    further_stitches: dict[str, list[nn.Module]] = {}
    for name, fits in further_fits.items():
        further_stitches[name] = list(islice(stitches, len(fits)))
    trained_self_stitches = further_stitches.pop(FLOOR)
    if config.floor:
        further_stitches[FLOOR] = _self_stitch_by_pair(
            setting, maps, further_fits[FLOOR], trained_self_stitches
        )
    weights = nn.ModuleList(maps).state_dict()
    curves = module.curve.cpu().numpy()  # (steps, stitches)
    return FittedStitches(
        maps,
        half=list(module.halfway),
        further_stitches=further_stitches,
        weights={name: weight.cpu().contiguous() for name, weight in weights.items()},
        arrays={"curve": curves[:, : len(pairs)], "curves_beside": curves[:, len(pairs) :]},
    )


def _further_fits(setting: StitchSetting, untrained: ClosedForms | None) -> dict[str, list[Fit]]:
    """Return the stitches to train besides the stitch φ of each layer pair, by name.

    For each layer pair these are a stitch at each further learning rate and, as a control, one
    from an untrained source. For the floor (what it costs to stitch the target into itself) there
    is one for each layer of the target, except for layers that some φ stitches into themselves
    already. Without the setting `floor`, the floor has an empty list.

    Args:
        setting: The models and their layer pairs.
        untrained: The closed forms of an untrained source; None: there is no such control.
    """
    source = setting.source
    # A fit describes a stitch: the model whose states it reads, its layer, the target's layer, and
    # a factor of the learning rate (1 by default).
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
        # Of these layers, a map φ is a stitch into itself already.
        layers_of_self_stitches = _pair_index_of_self_stitch(setting).keys()
        layers_to_train = set(setting.target_layers) - layers_of_self_stitches
        fits[FLOOR] = [Fit(setting.target, layer, layer) for layer in sorted(layers_to_train)]
    return fits


def _pair_index_of_self_stitch(setting: StitchSetting) -> dict[int, int]:
    """Return the index of each layer pair that stitches a layer into itself, by the layer.

    The dictionary is empty unless source and target are one model.
    """
    if setting.source is not setting.target:
        return {}
    index_of_layer = {}
    for index, (layer, target_layer) in enumerate(setting.layer_pairs):
        if layer == target_layer:
            index_of_layer[target_layer] = index
    return index_of_layer


def _self_stitch_by_pair(
    setting: StitchSetting,
    maps: Sequence[nn.Module],
    self_fits: Sequence[Fit],
    trained_self_stitches: Sequence[nn.Module],
) -> list[nn.Module]:
    """Return for each layer pair the self-stitch at the pair's target layer.

    A self-stitch maps a layer of the target into the same layer of the target. What it costs is
    called the floor: the cost of stitching without a second model.

    Self-stitches come from two places. If source and target are one model, the map φ of a layer
    with itself is one. For all other layers they were trained beside the maps φ.

    Args:
        setting: The models and their layer pairs.
        maps: The map φ of every layer pair.
        self_fits: Describes the self-stitches that were trained beside φ, one for each layer.
        trained_self_stitches: These self-stitches themselves, in the same order.
    """
    self_stitch_of_layer = {}
    for layer, pair_index in _pair_index_of_self_stitch(setting).items():
        self_stitch_of_layer[layer] = maps[pair_index]
    for self_fit, self_stitch in zip(self_fits, trained_self_stitches, strict=True):
        self_stitch_of_layer[self_fit.layer] = self_stitch
    return [self_stitch_of_layer[layer] for layer in setting.target_layers]


def warn_of_overfitting(module: StitchTraining, fit_tokens: int, context: int) -> None:
    """Warn if there are few tokens for each parameter of a map φ, or if they are read repeatedly.

    A job takes only as much text to fit on as its training steps read. So if the steps do not read
    more than there is, more steps, or more tokens in each, bring more text. If they do, there
    is no further text to fit on, and more must be given.

    Args:
        module: The training, with its steps and stitches.
        fit_tokens: How many different tokens the job has taken to fit on.
        context: How many tokens a row has.
    """
    config = module.config
    parameters = sum(weight.numel() for weight in module.stitches[0].parameters())
    tokens_read = config.steps * whole_rows(config.tokens_per_step, context)
    if fit_tokens < TOKENS_PER_PARAMETER * parameters:
        remedy = (
            f"raise {named_setting('stitch.steps')} or {named_setting('stitch.tokens_per_step')}"
        )
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
    module: StitchTraining, closed_forms: ClosedForms, untrained: ClosedForms | None
) -> None:
    """Replace the initial weights of stitches by the closed-form map of their layer pair.

    Stitches of the target into itself have no closed form here, and begin with the identity.

    Args:
        module: The training, whose stitches are changed.
        closed_forms: The closed forms of the source's states.
        untrained: The closed forms of an untrained source's states; None: no stitch reads one.
    """
    # The keys are the model whose states are read, its layer, and the target's layer.
    start_by_fit: dict[tuple[object, int, int], AffineMap] = {}
    for forms_of_source in (closed_forms, untrained):
        if forms_of_source is None:
            continue
        source = forms_of_source.setting.source
        pairs = forms_of_source.setting.layer_pairs
        for (layer, target_layer), start in zip(pairs, forms_of_source.starts, strict=True):
            start_by_fit[source, layer, target_layer] = start
    starts = []
    for index, stitch_fit in enumerate(module.fits):
        key = (stitch_fit.reads, stitch_fit.layer, stitch_fit.depth)  # depth: the target's layer
        if key in start_by_fit:
            starts.append((index, start_by_fit[key]))
    module.start_from(starts)


def _whiten_coordinates(
    module: StitchTraining, closed_forms: ClosedForms, untrained: ClosedForms | None
) -> None:
    """Let SGD step in coordinates in which the states that each stitch reads are white.

    White states have the identity as covariance, so that steps are equally fast in all directions.

    Args:
        module: The training, which gets the statistics of states.
        closed_forms: Has the statistics of the source's states and of the target's.
        untrained: Has the statistics of an untrained source's states; None: no stitch reads one.
    """
    statistics = []
    for stitch in module.fits:
        read_from = closed_forms
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
    """Train all stitches of a module together.

    The settings of the trainer say whether models are compiled, run in bfloat16 or recomputed in
    the backward pass; these changes of the models are undone at the end. The module is then in
    evaluation mode, on the device of the target.

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
    with contextlib.ExitStack() as undone_changes:
        for model in models_read:
            undone_changes.enter_context(model.compiled(run.trainer.compile))
        for model in (*models_read, target):
            undone_changes.enter_context(model.cast(run.trainer.precision == "bf16-mixed"))
        undone_changes.enter_context(target.recomputed(run.trainer.recompute))
        fit(module, data, run, loggers)
    module.to(target.device).eval()
