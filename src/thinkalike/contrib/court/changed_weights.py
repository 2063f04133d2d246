"""Sources that are the states of a model: the target with changed weights, or another model."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from jaxtyping import Int
from torch import Tensor

from thinkalike.contrib.court.materials import Materials
from thinkalike.contrib.court.source import StateFunction, states_after
from thinkalike.contrib.pretraining.config import PretrainConfig
from thinkalike.contrib.pretraining.training import Pretraining
from thinkalike.evaluation.batch_sizes import BATCH_TOKENS
from thinkalike.measures.seeds import seeded
from thinkalike.models.families import EMBED
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.variants import fresh, variant
from thinkalike.training.data import StepData

WEIGHT_NOISE = 0.02  # of the root mean square of each tensor
REVERTED_SHARE = 0.1  # of the way back to untrained weights

# Short trainings from the target's own weights: at a twentieth of the rate that minis are trained
# at, and at three times as much.
SHORT_TRAINING = PretrainConfig(tokens=50 * 2048, tokens_per_step=2048, lr=1e-4, warmup=10)
TUNING = PretrainConfig(tokens=100 * 2048, tokens_per_step=2048, lr=3e-4, warmup=10)
# Of each pair of tokens, only the second is predicted: half of the tokens.
TOKEN_ALONE = PretrainConfig(tokens=100 * 2048, tokens_per_step=2048, lr=1e-3, warmup=10)


def at_layer(materials: Materials, model: FrozenModel) -> StateFunction:
    """Return a function of tokens: the states of a model at the target's layer."""
    return lambda rows: states_after(model, materials.layer, rows)


def states_after_change(
    change: Callable[..., FrozenModel], purpose: str
) -> Callable[[Materials], StateFunction]:
    """Return a function that takes `Materials` and returns the states of a changed target.

    `Materials` hold the target. The states that are returned are a function of tokens.

    Args:
        change: Takes the target and a `seed`, and returns a changed copy.
        purpose: What the seed is for; different purposes have independent seeds.
    """

    def states(materials: Materials) -> StateFunction:
        """Return the states of the changed copy, at the layer of the target."""
        model = change(materials.target, seed=materials.seed_for(purpose))
        return at_layer(materials, model)

    return states


def with_noisy_weights(model: FrozenModel, share: float, seed: int) -> FrozenModel:
    """Return a copy with normal noise on every weight.

    Args:
        model: The model that is copied.
        share: The standard deviation of the noise, as a share of the root mean square of the
            tensor that it is added to.
        seed: The seed of the noise.
    """
    module = copy.deepcopy(model.module)
    generator = seeded(seed)
    with torch.no_grad():
        for weight in module.parameters():
            noise = torch.randn(weight.shape, generator=generator)
            root_mean_square = weight.float().square().mean().sqrt().cpu()
            weight.add_((noise * (share * root_mean_square)).to(weight))
    return variant(model, module, f"{model.name} (noisy)")


@torch.no_grad()
def reverted(model: FrozenModel, share: float, seed: int) -> FrozenModel:
    """Return a copy whose weights are (1 - share) · trained + share · untrained weights.

    Args:
        model: The model that is copied.
        share: The share of the untrained weights, from 0 to 1.
        seed: The seed of the untrained weights.
    """
    changed = fresh(model, seed)  # a copy with untrained weights, which are changed in place
    parameters = zip(changed.module.parameters(), model.module.parameters(), strict=True)
    for weight, trained_weight in parameters:
        weight.lerp_(trained_weight, 1 - share)
    return changed


def trained_on(materials: Materials, config: PretrainConfig, name: str) -> StateFunction:
    """Return a function of tokens: the states of a copy of the target that was trained further.

    The training text shares no document with the texts of fits and scores.

    Args:
        materials: The target model with its layer, the text, and a seed for each purpose.
        config: The number of tokens, the learning rate and other settings of the training.
        name: The name of the training, which is the seed of the order of its rows.
    """
    return at_layer(materials, _trained_copy(materials, materials.other_rows, config, name))


def _trained_copy(
    materials: Materials, rows: Int[Tensor, "rows t"], config: PretrainConfig, name: str
) -> FrozenModel:
    """Return a copy of the target that was trained further on rows of tokens.

    Args:
        materials: The target, a seed for the order of the rows, and the function that trains.
        rows: The rows of tokens.
        config: The settings of the training.
        name: The name of the training, which also decides its seed.
    """
    module = copy.deepcopy(materials.target.module).train().requires_grad_(True)
    data = StepData(rows, config.tokens_per_step, config.steps, materials.seed_for(name))
    materials.train(Pretraining(module, config), data, name)
    module = module.to(materials.target.device)
    return variant(materials.target, module, f"{materials.target.name} ({name})")


def token_alone(materials: Materials) -> StateFunction:
    """Return a function of tokens: the states of a copy of the target that sees no context.

    The copy is trained on rows of two tokens, to predict the second from the first, so that it has
    no context to use, in any architecture. It begins with the target's weights, which makes it
    harder to tell from the target.
    """
    rows = materials.other_rows
    pairs = torch.stack([rows[:, :-1], rows[:, 1:]], -1).flatten(0, 1)  # (n, 2)
    model = _trained_copy(materials, pairs, TOKEN_ALONE, "token alone")

    tokens = torch.arange(model.vocabulary)[:, None]
    states = [
        states_after(model, materials.layer, batch)[:, 0] for batch in tokens.split(BATCH_TOKENS)
    ]
    state_of_token = torch.cat(states)  # (vocabulary, d)
    return lambda rows: state_of_token[rows.to(state_of_token.device)]


def other_layer(materials: Materials, steps: int) -> StateFunction:
    """Return a function of tokens: the target's states at a different layer.

    A layer before block 0 is the embedding.

    Args:
        materials: The target model with its layer, the text, and a seed for each purpose.
        steps: How many blocks later the layer is; negative numbers are earlier layers.
    """
    layer = materials.layer + steps
    if layer < 0:
        return lambda rows: states_after(materials.target, EMBED, rows)
    return lambda rows: states_after(materials.target, layer, rows)


def sibling(materials: Materials, name: str) -> StateFunction:
    """Return a function of tokens: states of a separately trained model at the same depth.

    The depth is the share of a model's blocks that have been computed, rounded to whole blocks.

    Args:
        materials: The target model with its layer, and the separately trained models.
        name: The name of the model among `materials.siblings`.
    """
    model = materials.siblings[name]
    relative_depth = (materials.layer + 1) / materials.target.n_layers
    n_blocks = max(round(relative_depth * model.n_layers), 1)
    return lambda rows: states_after(model, n_blocks - 1, rows)
