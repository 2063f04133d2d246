"""Texts and their counterparts as both models read them, and what steering vectors do to them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike.contrib.transfer.maps import PairMap
from thinkalike.contrib.transfer.steering_vectors import (
    effects_of,
    held_out_differences,
    random_directions,
    with_norms_of,
)
from thinkalike.errors import DataError
from thinkalike.measures.folds import stimulus_folds
from thinkalike.measures.moments import LayerPair
from thinkalike.models.frozen import FrozenModel
from thinkalike.states.contrasts import Contrasts, EncodedPrompts, encode_prompts, gap, gaps

# The conditions: which vector is added.
NATIVE = "native"
CARRIED = "carried"
MATCHED = "carried, native norm"
NEGATED = "carried, negated"
RANDOM = "random"
SINGLE_VECTORS = (NATIVE, CARRIED, MATCHED, NEGATED)  # all but RANDOM have one vector

LATER = "later"
POSITIONS = ("word", LATER)  # at the last token of the word alone | at that and all later ones


@runtime_checkable
class SteeringSettings(Protocol):
    """The settings of `measure=steering` that a trial needs."""

    folds: int
    draws: int
    positions: list[str]
    strengths: list[float]


class Condition(NamedTuple):
    """What one condition does at one position and strength.

    Attributes:
        columns: The columns of its row in the table.
        effects: The effect on each of n texts, in nats.
    """

    columns: dict[str, str | float]
    effects: Float[Tensor, " n"]


@torch.no_grad()
def states_at_words(
    model: FrozenModel, prompts: EncodedPrompts, layer: int
) -> Float[Tensor, "n d"]:
    """Return the state of one word of each text, at its last token after a block, on the CPU.

    Args:
        model: The model that reads the texts.
        prompts: The tokens of n texts, with the position of the word's last token in each.
        layer: The number of the block, from 0.
    """
    word_states = []
    for _, batch in prompts.batches():
        states = model.head(batch.tokens, layer)  # (texts, tokens, d)
        text_indices = torch.arange(len(states))
        word_states.append(states[text_indices, batch.words].cpu())
    return torch.cat(word_states)


@torch.no_grad()
def steered_gaps(
    model: FrozenModel,
    prompts: EncodedPrompts,
    layer: int,
    added: Float[Tensor, "c n d"],
    later: bool = False,
) -> Float[Tensor, "c n"]:
    """Return the gap of each text if vectors are added to the states after a block.

    The gap is log P(up) - log P(down) in nats, where up and down are two sets of tokens that may
    follow the text.

    Args:
        model: The model that is steered.
        prompts: The tokens of n texts, with the position of the word's last token in each.
        layer: The block after which vectors are added.
        added: The vector of each of c conditions for each text. Each condition is a separate pass.
        later: Whether vectors are added at all tokens from the word on, or only at its last token.
    """
    gaps_of_batches = []
    for rows, batch in prompts.batches():
        state = model.head(batch.tokens, layer)
        positions = torch.arange(batch.tokens.shape[1])
        word_positions = batch.words[:, None]
        is_steered = positions == word_positions
        if later:
            is_steered = positions >= word_positions
        mask = is_steered.to(state.device, state.dtype)[..., None]
        gaps_of_batch = []
        for vector in added[:, rows].to(state.device, state.dtype):
            entering = state + mask * vector[:, None]
            last = model.advance(entering, layer + 1, model.n_layers)
            gaps_of_batch.append(gap(model, last, batch))
        gaps_of_batches.append(torch.stack(gaps_of_batch))
    return torch.cat(gaps_of_batches, 1)


class SteeringTrial:
    """The contrasts as both models read them, to steer the target.

    Attributes:
        natural: How far each counterpart moves the target's gap, in nats.
        groups: The pairs of one word.
        fold_of: The fold of each pair; folds keep groups together if there are enough.
    """

    def __init__(
        self,
        source: FrozenModel,
        target: FrozenModel,
        contrasts: Contrasts,
        measure: SteeringSettings,
        seed: int,
    ):
        """Encode the texts for both models, and measure the target's gaps and natural effects.

        Args:
            source: The model that steering vectors may come from.
            target: The model that is steered.
            contrasts: Pairs of a text and its counterpart, such as a singular and a plural noun.
            measure: The settings.
            seed: The seed of the folds and of random vectors.

        Raises:
            DataError: There are fewer pairs than folds.
        """
        self.source = source
        self.target = target
        self.measure = measure
        self.seed = seed
        self.source_prompts = encode_prompts(source, contrasts)
        self.target_prompts = encode_prompts(target, contrasts)
        self.texts, counterparts = self.target_prompts
        self.gaps_before = gaps(target, self.texts)
        self.natural = gaps(target, counterparts) - self.gaps_before

        self.groups = contrasts.groups
        # With too few words for the folds, pairs of one word may be in several folds.
        kept_together = None
        if len(self.groups.unique()) >= measure.folds:
            kept_together = self.groups
        try:
            self.fold_of = stimulus_folds(len(self.groups), measure.folds, seed, kept_together)
        except ValueError as error:
            raise DataError(
                f"{contrasts.source}: {error}; give more pairs, or lower measure.folds"
            ) from error

    def conditions(self, pair: LayerPair, maps: PairMap) -> Iterator[Condition]:
        """Yield each condition at a layer pair, by position and strength.

        Args:
            pair: The layers of the source and of the target.
            maps: The maps between them; φ carries directions from the source to the target.
        """
        source_layer, target_layer = pair
        native = self._differences(self.target, self.target_prompts, target_layer)
        of_source = self._differences(self.source, self.source_prompts, source_layer)
        carried = of_source @ maps.phi.weight.double().T
        generator = torch.Generator().manual_seed(self.seed)
        random = random_directions(self.measure.draws, native, generator)
        vectors_of = {
            NATIVE: native[None],
            CARRIED: carried[None],
            MATCHED: with_norms_of(carried, native)[None],
            NEGATED: -carried[None],
            RANDOM: random,
        }
        all_vectors = torch.cat(list(vectors_of.values()))
        n_vectors = [len(vectors) for vectors in vectors_of.values()]
        for position, strength in itertools.product(
            self.measure.positions, self.measure.strengths
        ):
            steered = steered_gaps(
                self.target,
                self.texts,
                target_layer,
                strength * all_vectors,
                later=position == LATER,
            )
            movements = (steered - self.gaps_before).split(n_vectors)
            effects = torch.stack([of_vectors.mean(0) for of_vectors in movements])
            mean_effects, natural = effects_of(effects, self.natural, self.groups)
            shares = mean_effects.share_of(natural)
            intervals = mean_effects.interval()
            for number, (condition, vectors) in enumerate(vectors_of.items()):
                share, low, high = (float(end) for end in shares[number])
                effect, effect_low, effect_high = (float(end) for end in intervals[number])
                cosine = torch.cosine_similarity(vectors, native[None], dim=-1)
                columns: dict[str, str | float] = {
                    "position": position,
                    "strength": strength,
                    "condition": condition,
                    "share": share,
                    "low": low,
                    "high": high,
                    "effect": effect,
                    "effect_low": effect_low,
                    "effect_high": effect_high,
                    "norm": float(vectors.norm(dim=-1).mean()),
                    "cosine": float(cosine.mean()),
                }
                yield Condition(columns, effects[number])

    def _differences(
        self,
        model: FrozenModel,
        prompts: tuple[EncodedPrompts, EncodedPrompts],
        layer: int,
    ) -> Float[Tensor, "n d"]:
        """Return a steering vector for each text: a mean difference over the texts of other folds.

        The difference is the state of a text's counterpart minus that of the text, at the word.

        Args:
            model: The model whose states are used.
            prompts: The texts, and the counterpart of each.
            layer: The number of the block after which states are taken, from 0.
        """
        texts, counterparts = prompts
        before = states_at_words(model, texts, layer)
        after = states_at_words(model, counterparts, layer)
        return held_out_differences(before, after, self.fold_of)
