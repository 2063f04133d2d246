"""The tables of task=sae: what autoencoders explain as they read, and recover at the end."""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike.contrib.sae.autoencoder import SparseAutoencoder
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

    A start is how the first weights of autoencoders are made. They are in the order of
    `STARTS_IN_ORDER`, so that each one is compared with those before it. At each evaluation, the
    explained variance is that at the learning rate which is best at this evaluation.

    Args:
        materials: The models and the text of the job, and its settings.
        fitted: The errors of all autoencoders at each evaluation.
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
    """Return the width of states after a block, and the operations per token to compute them.

    Args:
        model: The model.
        layer: The number of the block, from 0.
        context: The length of the rows that the model reads.
    """
    operations_to_layer = operations(model).forward(0, layer + 1, context)
    return SiteCost(model.d_model, operations_to_layer)


def curves(materials: SAEMaterials, fitted: FittedAutoencoders) -> pd.DataFrame:
    """Return a table of the training: a row for each autoencoder at each evaluation.

    It has the explained variance with an interval over documents, how many latents are active, the
    share of dead ones, and the floating-point operations to train it so far. Autoencoders differ
    in their start (how their first weights are made), learning rate and seed.
    """
    config = materials.config
    # Of the documents that no setting was chosen on: Σ‖h - ĥ‖² and Σ‖h - μ‖² of each document
    errors, spread = fitted.judged
    unexplained = bootstrap_interval(errors, spread)  # of Σ errors / Σ spread over documents
    explained = _explained(unexplained)
    curve_of_start = {curve.start: curve for curve in curves_of_starts(materials, fitted)}
    rates = [config.lr * factor for factor in config.factors]
    # In the order of the axes of `explained`, which are flattened: evaluation, start, rate, seed.
    rows = itertools.product(materials.tokens_read, config.starts, rates, materials.seeds)
    table = pd.DataFrame(list(rows), columns=["tokens", "start", "rate", "seed"])
    table["flops"] = [
        curve_of_start[start].operations_at(tokens)
        for tokens, start in zip(table["tokens"], table["start"], strict=True)
    ]
    flat = Estimate(*(tensor.flatten() for tensor in explained))
    return table.assign(
        **interval_columns("explained_variance", flat),
        active_latents=fitted.active.flatten().tolist(),
        dead_latents=fitted.dead.flatten().tolist(),
    )


def table_of(materials: SAEMaterials, fitted: FittedAutoencoders) -> pd.DataFrame:
    """Return the table of the result: one row for each start before training, and one after it.

    A start is how the first weights are made. The row after training is that of the best learning
    rate. Intervals are of 95 %, over documents and seeds. The column `loss_recovered` compares
    three losses: of the clean model, of the ablated model, and of the spliced model, in which
    reconstructions take the place of states. Its interval is of the spliced loss alone, as if the
    other two losses were known exactly.
    """
    config = materials.config
    cases = _reported_cases(materials, fitted)
    saes = [sae for case in cases for sae in case.saes]
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
    for case, spliced in zip(cases, spliced_by_case, strict=True):
        index = (case.evaluation, case.start, case.rate)
        start = config.starts[case.start]
        tokens = materials.tokens_read[case.evaluation]
        is_trained = case.evaluation > 0
        explained = _explained(documents_and_seeds_interval(errors[index], spread))
        rows.append(
            {
                "model": materials.model.name,
                "layer": config.layer,
                "start": start,
                "rate": config.lr * config.factors[case.rate] if is_trained else 0.0,
                "tokens": tokens,
                "flops": curve_of_start[start].operations_at(tokens),
                **interval_columns("explained_variance", explained),
                **_loss_columns(losses, spliced),
                "active_latents": float(fitted.active[index].mean()),
                "dead_latents": float(fitted.dead[index].mean()),
            }
        )
    return pd.DataFrame(rows)


class ReportedCase(NamedTuple):
    """The autoencoders of one row of the table of a result, which differ in their seed.

    Attributes:
        evaluation: The index of the evaluation during training, after which they are taken.
        start: The index of the start, which is how their first weights were made.
        rate: The index of their learning rate.
        saes: The autoencoders.
    """

    evaluation: int
    start: int
    rate: int
    saes: list[SparseAutoencoder]


def _reported_cases(materials: SAEMaterials, fitted: FittedAutoencoders) -> list[ReportedCase]:
    """Return the autoencoders of each start before and after training, at the best learning rate.

    A start is how the first weights of autoencoders are made. If there was no training, there is
    one case for each start: the autoencoders "after" zero steps.
    """
    config = materials.config
    evaluations = [0]
    if config.steps > 0:
        last_evaluation = len(config.evaluation_steps) - 1
        evaluations.append(last_evaluation)
    cases = []
    start_indices = range(len(config.starts))
    for start, evaluation in itertools.product(start_indices, evaluations):
        rate = fitted.best_rate_index(start, evaluation)  # an index, as `start` and `evaluation`
        is_before_training = evaluation == 0 and config.steps > 0
        candidates = fitted.before_training if is_before_training else fitted.after_training
        saes = [candidates[fitted.index(start, rate, seed)] for seed in range(config.seeds)]
        cases.append(ReportedCase(evaluation, start, rate, saes))
    return cases


def _loss_columns(
    losses: SplicedLosses, spliced: Float[Tensor, "seeds documents"]
) -> dict[str, object]:
    """Return columns of the model's loss with the autoencoder's output in place of its states.

    In the ablated model, the mean state is put in place of every state. With the losses c of the
    clean model, a of the ablated model, and s of the model with the autoencoder, the penalty is
    s - c, and the recovered share is (a - s) / (a - c). The share is NaN if the ablation does not
    raise the loss.

    Args:
        losses: The losses of the clean and the ablated model, summed by document.
        spliced: The losses with the autoencoder of each seed in place of the states, summed by
            document.
    """
    n_tokens = losses.tokens.sum()
    clean = losses.clean.sum() / n_tokens
    ablated = losses.ablated.sum() / n_tokens
    penalty = documents_and_seeds_interval(spliced - losses.clean, losses.tokens)
    recovered = NOTHING_TO_RECOVER
    if ablated > clean:

        def share_at(penalty: Tensor) -> Tensor:
            """Return (a - s) / (a - c) for a penalty s - c."""
            return (ablated - (clean + penalty)) / (ablated - clean)

        # The recovered share falls as the penalty rises, so the ends change places.
        recovered = Estimate(
            share_at(penalty.value), low=share_at(penalty.high), high=share_at(penalty.low)
        )
    return {
        "clean_loss": float(clean),
        "ablated_loss": float(ablated),
        **interval_columns("penalty", penalty),
        **interval_columns("loss_recovered", recovered),
    }


def _explained(unexplained: Estimate) -> Estimate:
    """Return 1 - the share of variance that is not explained, with its interval."""
    value, low, high = unexplained
    return Estimate(1 - value, low=1 - high, high=1 - low)
