"""The tables of task=sae: what autoencoders explain as they read, and recover at the end."""

from __future__ import annotations

import itertools
import math

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike.contrib.sae.costs import SiteCost, operations_of_start, operations_per_token
from thinkalike.contrib.sae.courses import StartCurve
from thinkalike.contrib.sae.fitting import FittedAutoencoders
from thinkalike.contrib.sae.materials import SAEMaterials
from thinkalike.contrib.sae.site_states import SplicedLosses, spliced_losses
from thinkalike.evaluation.columns import interval_columns
from thinkalike.measures.bootstrap import bootstrap_interval, documents_and_seeds_interval
from thinkalike.measures.estimates import Estimate
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.operations import operations

# Columns whose cells are empty where there is no loss to recover.
BLANK = ["loss_recovered", "loss_recovered_low", "loss_recovered_high"]
NOTHING_TO_RECOVER = Estimate(*(torch.tensor(math.nan),) * 3)

# Those that are compared with come first.
STARTS_IN_ORDER = ("random", "least_squares", "transferred")


def curves_of_starts(materials: SAEMaterials, fitted: FittedAutoencoders) -> list[StartCurve]:
    """Return, for each start, its explained variance during training and its operations.

    The starts that others are compared with come first. At each evaluation, the curve is that of
    the learning rate that is best at this evaluation.
    """
    config = materials.config
    errors, spread = fitted.judged  # Σ‖h - ĥ‖² and Σ‖h - μ‖² by document
    explained = 1 - errors.sum(-1) / spread.sum()  # (evaluations, starts, rates, seeds)
    context = materials.corpus.fit.context
    share_read = 1 - config.skip_first_tokens / context

    target = _site_cost(materials.model, config.layer, context)
    source = None
    if materials.source is not None:
        source = _site_cost(materials.source.model, materials.source.layer, context)

    start_curves = []
    for start in STARTS_IN_ORDER:
        if start not in config.starts:
            continue
        start_index = config.starts.index(start)
        at_best_rate = []
        for evaluation, explained_now in enumerate(explained):
            rate_index = fitted.best_rate_index(start_index, evaluation)
            at_best_rate.append(explained_now[start_index, rate_index])
        start_curves.append(
            StartCurve(
                start,
                materials.tokens_read,
                torch.stack(at_best_rate),
                operations_of_start(start, config, share_read, target, source),
                operations_per_token(config, share_read, target),
            )
        )
    return start_curves


def _site_cost(model: FrozenModel, layer: int, context: int) -> SiteCost:
    """Return the width of a site, and the operations per token to compute its states.

    Args:
        model: The model.
        layer: The block after which the states are read.
        context: The length of the rows that the model reads.
    """
    return SiteCost(model.d_model, operations(model).forward(0, layer + 1, context))


def curves(materials: SAEMaterials, fitted: FittedAutoencoders) -> pd.DataFrame:
    """Return a row for each autoencoder and evaluation: explained variance, latents and FLOPs.

    Autoencoders differ in start, learning rate and seed. Intervals are over documents.
    """
    config = materials.config
    errors, spread = fitted.judged  # Σ‖h - ĥ‖² and Σ‖h - μ‖² by document
    explained = _explained(bootstrap_interval(errors, spread))
    curve_of_start = {curve.start: curve for curve in curves_of_starts(materials, fitted)}
    rates = [config.lr * factor for factor in config.factors]
    rows = itertools.product(materials.tokens_read, config.starts, rates, materials.seeds)
    table = pd.DataFrame(list(rows), columns=["tokens", "start", "rate", "seed"])
    table["flops"] = [
        curve_of_start[start].spent(tokens)
        for tokens, start in zip(table["tokens"], table["start"], strict=True)
    ]
    flat = Estimate(*(tensor.flatten() for tensor in explained))
    return table.assign(
        **interval_columns("explained_variance", flat),
        active_latents=fitted.active.flatten().tolist(),
        dead_latents=fitted.dead.flatten().tolist(),
    )


def table_of(materials: SAEMaterials, fitted: FittedAutoencoders) -> pd.DataFrame:
    """Return one row for each start before training, and one after it at its best rate.

    Intervals are of 95 %, over documents and seeds. Those of `loss_recovered` are of the spliced
    loss alone: what the ablation costs is taken as known.
    """
    config = materials.config
    evaluations = [0]
    if config.steps:
        evaluations.append(len(config.evaluation_steps) - 1)
    cases = []
    saes = []
    for start, evaluation in itertools.product(range(len(config.starts)), evaluations):
        rate = fitted.best_rate_index(start, evaluation)
        cases.append((start, evaluation, rate))
        is_before_training = evaluation == 0 and config.steps > 0
        candidates = fitted.starts if is_before_training else fitted.trained
        for seed in range(config.seeds):
            saes.append(candidates[fitted.index(start, rate, seed)])
    losses = spliced_losses(
        materials.model,
        config.layer,
        saes,
        materials.mean,
        materials.corpus.report,
        config.skip_first_tokens,
    )
    spliced_by_case = losses.spliced.unflatten(0, (len(cases), config.seeds))

    errors, spread = fitted.judged
    curve_of_start = {curve.start: curve for curve in curves_of_starts(materials, fitted)}
    rows = []
    for (start, evaluation, rate), spliced in zip(cases, spliced_by_case, strict=True):
        name = config.starts[start]
        tokens = materials.tokens_read[evaluation]
        explained = _explained(
            documents_and_seeds_interval(errors[evaluation, start, rate], spread)
        )
        rows.append(
            {
                "model": materials.model.name,
                "layer": config.layer,
                "start": name,
                "rate": config.lr * config.factors[rate] if evaluation else 0.0,
                "tokens": tokens,
                "flops": curve_of_start[name].spent(tokens),
                **interval_columns("explained_variance", explained),
                **_loss_columns(losses, spliced),
                "active_latents": float(fitted.active[evaluation, start, rate].mean()),
                "dead_latents": float(fitted.dead[evaluation, start, rate].mean()),
            }
        )
    return pd.DataFrame(rows)


def _loss_columns(
    losses: SplicedLosses, spliced: Float[Tensor, "seeds documents"]
) -> dict[str, object]:
    """Return the columns about the model's loss with the autoencoder's output in place of states.

    In the ablated model, the mean state is put in place of every state. With the losses c of the
    clean model, a of the ablated model, and s of the model with the autoencoder, the penalty is
    s - c, and the recovered share is (a - s) / (a - c). The share is NaN if the ablation does not
    raise the loss.

    Args:
        losses: The losses of the clean, the ablated and the spliced model, by document.
        spliced: The losses with the autoencoder of each seed in place of the states.
    """
    n_tokens = losses.tokens.sum()
    clean = losses.clean.sum() / n_tokens
    ablated = losses.ablated.sum() / n_tokens
    penalty = documents_and_seeds_interval(spliced - losses.clean, losses.tokens)
    recovered = NOTHING_TO_RECOVER
    if ablated > clean:
        gap = ablated - clean
        value, from_low, from_high = ((ablated - (clean + end)) / gap for end in penalty)
        recovered = Estimate(value, from_high, from_low)  # it falls as the penalty rises
    return {
        "clean_loss": float(clean),
        "ablated_loss": float(ablated),
        **interval_columns("penalty", penalty),
        **interval_columns("loss_recovered", recovered),
    }


def _explained(unexplained: Estimate) -> Estimate:
    """Return 1 - the share that is not explained, with its interval."""
    value, low, high = unexplained
    return Estimate(1 - value, 1 - high, 1 - low)
