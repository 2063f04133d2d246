"""Sources that are the target's states with something lost, added or distorted."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike.contrib.court.changed_weights import states_at_same_layer
from thinkalike.contrib.court.materials import Materials
from thinkalike.contrib.court.random_codes import noise_for
from thinkalike.contrib.court.source import CachedStates, StateFunction, Tokens, states_after
from thinkalike.evaluation.batch_sizes import BATCH_TOKENS
from thinkalike.measures.losses import CHUNK, token_loss
from thinkalike.models.variants import untrained_like

ADDED_SPREAD = 3.0  # standard deviation of added dimensions, in those of the target's states
SMALL_VARIANCE = 0.01  # share of the variance that a small principal component has at most


def with_noisy_states(materials: Materials, share: float) -> StateFunction:
    """Return a function of tokens: the target's states plus normal noise.

    The standard deviation of the noise is `share` times that of the states, in each dimension.

    Args:
        materials: The target model with its layer, the text, and a seed for each purpose.
        share: The size of the noise; with 1 it varies as much as the states.
    """
    unit_noise = noise_for(materials, "noisy states")
    noise_size = share * materials.standard_deviations
    return lambda rows: materials.target_states(rows) + noise_size * unit_noise(rows)


def rounded_states(materials: Materials, bits: int) -> StateFunction:
    """Return a function of tokens: the target's states, rounded to 2^bits levels per dimension.

    The levels are evenly spaced between the 1st and the 99th percentile of the dimension on the
    rows that maps are fitted on; values outside are clipped. The result is the index of the level,
    which is an affine function of the rounded state.
    """
    n_steps = 2**bits - 1  # between the lowest and the highest level
    sorted_states = materials.target_states(materials.fit_rows).flatten(0, 1).sort(0).values
    n_in_one_percent = len(sorted_states) // 100
    low = sorted_states[n_in_one_percent]  # (d,), the 1st percentile
    high = sorted_states[-1 - n_in_one_percent]  # (d,), the 99th percentile

    def level_indices(rows: Tokens) -> Tensor:
        """Return the index of the nearest level, from 0 to `n_steps`."""
        relative = (materials.target_states(rows) - low) / (high - low)
        return relative.clamp(0, 1).mul(n_steps).round()

    return level_indices


def distorted(materials: Materials, function: Callable[[Tensor], Tensor]) -> StateFunction:
    """Return a function of tokens: the target's standardised states, distorted elementwise.

    Args:
        materials: The target model with its layer, the text, and a seed for each purpose.
        function: The elementwise function of (state - mean) / standard deviation.
    """
    return lambda rows: function(materials.centred_states(rows) / materials.standard_deviations)


def components_between(materials: Materials, first: float, last: float) -> StateFunction:
    """Return a function of tokens: some principal components of the target's states.

    Components are in order of their variance, from the largest to the smallest, and their ranks
    are scaled to run from 0 to 1. For example, first=0 and last=1/2 is the half with more
    variance.

    Args:
        materials: The target model with its layer, the text, and a seed for each purpose.
        first: The scaled rank at which the chosen components begin.
        last: The scaled rank at which they end.
    """
    start = round(first * materials.width)
    stop = round(last * materials.width)
    _, covariance = materials.mean_and_covariance
    largest_first = torch.linalg.eigh(covariance).eigenvectors.flip(1)
    chosen = largest_first[:, start:stop].to(materials.dtype)
    return lambda rows: materials.centred_states(rows) @ chosen


def without_small_direction(materials: Materials) -> StateFunction:
    """Return a function of tokens: the target's states without one small but important direction.

    The direction has little variance, but the loss depends on it. It lies in the space of the
    principal components with less than 1 % of the variance each, which are scaled to variance 1
    (whitened). There it is the top eigenvector of the second moment of the loss's gradients (an
    empirical Fisher information). What is removed is uncorrelated with what remains, so no linear
    map restores it.
    """
    gradients = _gradients_of_loss(materials)
    _, covariance = materials.mean_and_covariance
    variances, axes = torch.linalg.eigh(covariance)
    is_small = variances < SMALL_VARIANCE * variances.sum()
    axes = axes[:, is_small]
    scales = variances[is_small].sqrt()
    # A step of whitened coordinates is a step of axes * scales in the space of states.
    whitened_gradients = gradients @ (axes * scales)
    direction = torch.linalg.svd(whitened_gradients, full_matrices=False).Vh[0]

    # The projection on the direction in whitened coordinates, as a matrix for the states.
    read_vector = axes / scales @ direction  # its product with states is the whitened coordinate
    write_vector = axes * scales @ direction  # the direction in the space of states
    projection = torch.outer(read_vector, write_vector).to(materials.dtype)
    return lambda rows: materials.target_states(rows) - materials.centred_states(rows) @ projection


def _gradients_of_loss(materials: Materials) -> Float[Tensor, "n d"]:
    """Return the gradients of the target's next-token loss by its states at the court's layer.

    There is one gradient, in float64, for each of n tokens: one batch of rows. It is a batch of
    `other_rows`, the text that sources are trained on, since no score is computed on it.
    """
    target = materials.target
    rows_at_once = max(BATCH_TOKENS // materials.other_rows.shape[1], 1)
    rows = materials.other_rows[:rows_at_once].long()
    with torch.enable_grad():
        state = materials.target_states(rows).to(target.dtype).requires_grad_()
        # The states are those after block `layer`, so that the next block is the first to run.
        last = target.advance(state, start=materials.layer + 1, stop=target.n_layers)
        predicting = last[:, :-1].flatten(0, 1)  # no token follows the last one of a row
        next_tokens = rows[:, 1:].flatten().to(last.device)
        loss = token_loss(predicting, target.finish, next_tokens).sum()
        (gradient,) = torch.autograd.grad(loss, state)
    return gradient.flatten(0, 1).double()


def superset(materials: Materials) -> StateFunction:
    """Return a function of tokens: the target's states concatenated with large noise.

    So the source contains all that the target's states contain, and more. There are as many
    dimensions of noise as of states. The standard deviation of the noise is `ADDED_SPREAD` times
    the typical (root mean square) standard deviation of a state's dimension.

    Args:
        materials: The target model with its layer, the text, and a seed for each purpose.
    """
    unit_noise = noise_for(materials, "superset")
    typical_deviation = materials.standard_deviations.square().mean().sqrt()
    noise_size = ADDED_SPREAD * typical_deviation
    return lambda rows: torch.cat(
        [materials.target_states(rows), noise_size * unit_noise(rows)], -1
    )


def beside_untrained(materials: Materials, share: float) -> StateFunction:
    """Return a function of tokens: some dimensions of the target and some of an untrained model.

    The dimensions of either model are projections of its states on random orthogonal directions.
    The untrained model's states are scaled to the total variance of the target's.

    Args:
        materials: The target model with its layer, the text, and a seed for each purpose,
            which any text names.
        share: The number of dimensions of each model, as a share of the width.
    """
    n_dimensions = round(share * materials.width)
    target_directions = materials.orthogonal_for("own, beside")[:, :n_dimensions]
    untrained_directions = materials.orthogonal_for("stranger, beside")[:, :n_dimensions]
    untrained = untrained_like(materials.target, materials.seed_for("stranger"))
    untrained_states = CachedStates(states_at_same_layer(materials, untrained))
    untrained_deviations = untrained_states(materials.fit_rows).flatten(0, 1).std(0)
    # The norm of the standard deviations is the root of the total variance.
    scale = materials.standard_deviations.norm() / untrained_deviations.norm()

    def states(rows: Tokens) -> Tensor:
        """Return the dimensions of the target, then those of the untrained model."""
        target_part = materials.target_states(rows) @ target_directions
        untrained_part = scale * untrained_states(rows) @ untrained_directions
        return torch.cat([target_part, untrained_part], -1)

    return states


def projected_log_probabilities(materials: Materials) -> StateFunction:
    """Return a function of tokens: random projections of the target's log-probabilities.

    These are the log-probabilities of all possible next tokens, projected to the width of the
    target's states. They contain the target's answers, but not how it computes them.

    Args:
        materials: The target model, and a seed for each purpose.
    """
    target = materials.target
    shape = (target.vocabulary, materials.width)
    # Divided by √vocabulary, so that projections have the size of log-probabilities.
    weight = materials.normals_for("log-probabilities", *shape) / target.vocabulary**0.5

    def states(rows: Tokens) -> Tensor:
        """Return the projected log-probabilities of the token after each position."""
        last = states_after(target, target.n_layers - 1, rows).flatten(0, 1)
        projected = []
        for chunk in last.split(CHUNK):  # as the logits of all tokens at once take much memory
            logits = target.finish(chunk.to(target.dtype)).to(weight)
            projected.append(logits.log_softmax(-1) @ weight)
        return torch.cat(projected).view(*rows.shape, materials.width)

    return states
