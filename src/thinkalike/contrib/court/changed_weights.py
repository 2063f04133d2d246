"""Sources that are the states of a model: the target with changed weights, or another model."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from jaxtyping import Int
from torch import Tensor

from thinkalike.contrib.court.materials import Materials
from thinkalike.contrib.court.source import StateFunction, states_after, states_of_lone_tokens
from thinkalike.contrib.pretraining.config import PretrainConfig
from thinkalike.contrib.pretraining.training import Pretraining
from thinkalike.measures.seeds import seeded
from thinkalike.models.families import EMBED
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.variants import untrained_like, variant
from thinkalike.training.data import StepData

WEIGHT_NOISE = 0.02  # of the root mean square of each tensor
REVERTED_SHARE = 0.1  # of the way back to untrained weights

# Short trainings from the target's own weights: at a twentieth of the rate that minis are trained
# at, and at three times as much.
SHORT_TRAINING = PretrainConfig(tokens=50 * 2048, tokens_per_step=2048, lr=1e-4, warmup=10)
TUNING = PretrainConfig(tokens=100 * 2048, tokens_per_step=2048, lr=3e-4, warmup=10)
# Of each pair of tokens, only the second is predicted: half of the tokens.
TOKEN_ALONE = PretrainConfig(tokens=100 * 2048, tokens_per_step=2048, lr=1e-3, warmup=10)


def states_at_same_layer(materials: Materials, model: FrozenModel) -> StateFunction:
    """Return a function of tokens: a model's states after the block that the target is read at."""
    return lambda rows: states_after(model, materials.layer, rows)


def states_after_change(
    change: Callable[..., FrozenModel], purpose: str
) -> Callable[[Materials], StateFunction]:
    """Return a function that changes a target model and gives the changed copy's states.

    It takes `Materials`, which hold the target, and returns a function from tokens to states.

    Args:
        change: Takes the target and a `seed`, and returns a changed copy.
        purpose: What the seed is for; different purposes have independent seeds.
    """

    def states_of_changed_copy(materials: Materials) -> StateFunction:
        """Return a function of tokens: the changed copy's states, at the target's layer."""
        changed_copy = change(materials.target, seed=materials.seed_for(purpose))
        return states_at_same_layer(materials, changed_copy)

    return states_of_changed_copy


def with_noisy_weights(model: FrozenModel, share: float, seed: int) -> FrozenModel:
    """Return a copy of a model with normal noise on every weight.

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
            noise = noise * (share * root_mean_square)
            weight.add_(noise.to(weight))
    return variant(model, module, f"{model.name} (noisy)")


@torch.no_grad()
def reverted(model: FrozenModel, share: float, seed: int) -> FrozenModel:
    """Return a copy whose weights are (1 - share) · trained + share · untrained weights.

    Args:
        model: The model that is copied.
        share: The share of the untrained weights, from 0 to 1.
        seed: The seed of the untrained weights.
    """
    changed = untrained_like(model, seed)  # its weights are changed in place below
    parameters = zip(changed.module.parameters(), model.module.parameters(), strict=True)
    for weight, trained_weight in parameters:
        weight.lerp_(trained_weight, 1 - share)  # untrained + (1 - share) · (trained - untrained)
    return changed


def trained_further(materials: Materials, config: PretrainConfig, name: str) -> StateFunction:
    """Return a function of tokens: the states of a copy of the target that was trained further.

    The copy is trained on `materials.other_rows`, which share no document with the text that maps
    are fitted on or evaluated on.

    Args:
        materials: The target model with its layer, the text, and a seed for each purpose.
        config: The number of tokens, the learning rate and other settings of the training.
        name: The name of the training. The seed of the order of its rows is derived from it.
    """
    copy_of_target = _trained_copy(materials, materials.other_rows, config, name)
    return states_at_same_layer(materials, copy_of_target)


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
    materials.train(Pretraining(module, config), data, name)  # changes `module` in place
    module = module.to(materials.target.device)
    return variant(materials.target, module, f"{materials.target.name} ({name})")


def token_alone(materials: Materials) -> StateFunction:
    """Return a function of tokens: the states of a copy of the target that sees no context.

    It tests whether a measure of similarity to the target is fooled by the tokens alone. The copy
    is trained on rows of two tokens, to predict the second from the first, so that it has no
    context to use, in any architecture. It begins with the target's weights, which makes it harder
    to tell from the target.
    """
    training_rows = materials.other_rows
    # Each token with the next one is a row of its own: (n, 2).
    pairs = torch.stack([training_rows[:, :-1], training_rows[:, 1:]], -1).flatten(0, 1)
    model = _trained_copy(materials, pairs, TOKEN_ALONE, "token alone")

    # As the state of a token does not depend on its context, a table of all tokens holds it.
    state_of_token = states_of_lone_tokens(model, materials.layer)
    return lambda rows: state_of_token[rows.to(state_of_token.device)]


def other_layer(materials: Materials, steps: int) -> StateFunction:
    """Return a function from tokens to the target's states some blocks earlier or later.

    Before the first block, these are the target's embeddings.

    Args:
        materials: The target model and the layer to count from.
        steps: How many blocks later; a negative number for earlier. The target must have such a
            block, if it is later.
    """
    layer = materials.layer + steps
    if layer < 0:
        return embedding_states(materials)
    return lambda rows: states_after(materials.target, layer, rows)


def embedding_states(materials: Materials) -> StateFunction:
    """Return a function of tokens: the target's states before its first block."""
    return lambda rows: states_after(materials.target, EMBED, rows)


def sibling(materials: Materials, name: str) -> StateFunction:
    """Return a function of tokens: states of a separately trained model at the same depth.

    The depth of the target's layer is the share of its blocks that have been computed there. In
    the other model it is rounded to whole blocks, and to at least one.

    Args:
        materials: The target model with its layer, and the separately trained models.
        name: The name of the model among `materials.siblings`.
    """
    model = materials.siblings[name]
    relative_depth = (materials.layer + 1) / materials.target.n_layers
    n_blocks = max(round(relative_depth * model.n_layers), 1)
    layer = n_blocks - 1  # blocks are numbered from 0
    return lambda rows: states_after(model, layer, rows)
