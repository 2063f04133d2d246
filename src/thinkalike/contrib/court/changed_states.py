"""Sources that are the target's states with something lost, added or distorted."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from thinkalike.contrib.court.changed_weights import at_layer
from thinkalike.contrib.court.materials import Materials
from thinkalike.contrib.court.random_codes import noise_for
from thinkalike.contrib.court.source import CachedStates, StateFunction, Tokens, states_after
from thinkalike.evaluation.batch_sizes import BATCH_TOKENS
from thinkalike.measures.losses import CHUNK, token_loss
from thinkalike.models.variants import fresh

ADDED_SPREAD = 3.0  # standard deviation of added dimensions, in those of the target's states
SMALL_VARIANCE = 0.01  # share of the variance that a small principal component has at most


def with_noisy_states(materials: Materials, share: float) -> StateFunction:
    """Return a function of tokens: the target's states plus normal noise.

    The standard deviation of the noise is `share` times that of the states, in each dimension.
    """
    noise = noise_for(materials, "noisy states")
    size = share * materials.standard_deviations
    return lambda rows: materials.target_states(rows) + size * noise(rows)


def rounded_states(materials: Materials, bits: int) -> StateFunction:
    """Return a function of tokens: the target's states, rounded to 2^bits levels per dimension.

    The levels are evenly spaced between the 1st and the 99th percentile of the dimension on the
    rows that maps are fitted on. The result is the index of the level, which is an affine function
    of the rounded state.
    """
    n_steps = 2**bits - 1
    sorted_states = materials.target_states(materials.fit_rows).flatten(0, 1).sort(0).values
    low = sorted_states[len(sorted_states) // 100]  # (d,), the 1st percentile
    high = sorted_states[-1 - len(sorted_states) // 100]

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

    The space of the principal components with less than 1 % of the variance each is scaled so that
    each has variance 1. In this space, the direction is the top eigenvector of the second moment
    of the gradients of the loss (an empirical Fisher information). What is removed is uncorrelated
    with what remains, so no linear map restores it.
    """
    target = materials.target
    rows_at_once = max(BATCH_TOKENS // materials.other_rows.shape[1], 1)
    rows = materials.other_rows[:rows_at_once].long()
    with torch.enable_grad():
        state = materials.target_states(rows).to(target.dtype).requires_grad_()
        last = target.advance(state, materials.layer + 1, target.n_layers)[:, :-1].flatten(0, 1)
        next_tokens = rows[:, 1:].flatten().to(last.device)
        loss = token_loss(last, target.finish, next_tokens).sum()
        (gradient,) = torch.autograd.grad(loss, state)
    gradients = gradient.flatten(0, 1).double()  # (n, d)

    _, covariance = materials.mean_and_covariance
    variances, axes = torch.linalg.eigh(covariance)
    is_small = variances < SMALL_VARIANCE * variances.sum()
    axes = axes[:, is_small]
    scales = variances[is_small].sqrt()
    direction = torch.linalg.svd(gradients @ (axes * scales), full_matrices=False).Vh[0]

    # The projection on the direction in whitened coordinates, as a matrix for the states.
    read_vector = axes / scales @ direction  # its product with states is the whitened coordinate
    write_vector = axes * scales @ direction  # the direction in the space of states
    projection = torch.outer(read_vector, write_vector).to(materials.dtype)
    return lambda rows: materials.target_states(rows) - materials.centred_states(rows) @ projection


def superset(materials: Materials) -> StateFunction:
    """Return a function of tokens: the target's states concatenated with large noise.

    The standard deviation of the noise is `ADDED_SPREAD` times the root mean square of those of
    the states' dimensions.
    """
    noise = noise_for(materials, "superset")
    size = ADDED_SPREAD * materials.standard_deviations.square().mean().sqrt()
    return lambda rows: torch.cat([materials.target_states(rows), size * noise(rows)], -1)


def beside_stranger(materials: Materials, share: float) -> StateFunction:
    """Return a function of tokens: some dimensions of the target and some of an untrained model.

    The dimensions of either model are projections of its states on random orthogonal directions.
    The untrained model's states are scaled to the total variance of the target's.

    Args:
        materials: The target model with its layer, the text, and a seed for each purpose.
        share: The number of dimensions of each model, as a share of the width.
    """
    n_dimensions = round(share * materials.width)
    of_target = materials.orthogonal_for("own, beside")[:, :n_dimensions]
    of_stranger = materials.orthogonal_for("stranger, beside")[:, :n_dimensions]
    untrained = fresh(materials.target, materials.seed_for("stranger"))
    stranger_states = CachedStates(at_layer(materials, untrained))
    stranger_spread = stranger_states(materials.fit_rows).flatten(0, 1).std(0)
    size = materials.standard_deviations.norm() / stranger_spread.norm()

    def states(rows: Tokens) -> Tensor:
        """Return the dimensions of the target, then those of the untrained model."""
        target_part = materials.target_states(rows) @ of_target
        stranger_part = size * stranger_states(rows) @ of_stranger
        return torch.cat([target_part, stranger_part], -1)

    return states


def projected_log_probabilities(materials: Materials) -> StateFunction:
    """Return a function of tokens: random projections of the target's log-probabilities.

    These are the log-probabilities of the next token, so the outputs of the target instead of its
    states.
    """
    target = materials.target
    shape = (target.vocabulary, materials.width)
    weight = materials.normals_for("log-probabilities", *shape) / target.vocabulary**0.5

    def states(rows: Tokens) -> Tensor:
        """Return the projected log-probabilities of the token after each position."""
        last = states_after(target, target.n_layers - 1, rows).flatten(0, 1)
        projected = []
        for chunk in last.split(CHUNK):
            logits = target.finish(chunk.to(target.dtype)).to(weight)
            projected.append(logits.log_softmax(-1) @ weight)
        return torch.cat(projected).view(*rows.shape, materials.width)

    return states
