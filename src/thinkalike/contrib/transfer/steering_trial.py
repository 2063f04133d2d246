"""Pairs of texts that differ in one feature, and how steering vectors change a model on them.

A pair is a text, such as one with a singular noun, and its counterpart, the same text with a
plural noun. Both have a word that carries the feature, here the noun. States are read, and
steering vectors are added, at the last token of this word.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike.advice import named_setting
from thinkalike.contrib.transfer.maps import PairMap
from thinkalike.contrib.transfer.steering_vectors import (
    held_out_differences,
    jackknifed_mean_effects,
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
    """Return one state of each text: after a block, at the last token of a certain word.

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
    also_later: bool = False,
) -> Float[Tensor, "c n"]:
    """Return the gap of each text after vectors were added to the states after a block.

    The gap is log P(up) - log P(down) of the next token in nats, where up and down are two sets of
    tokens that may follow the text.

    Args:
        model: The model that is steered.
        prompts: The tokens of n texts, with the position of the last token of a word in each.
        layer: The block after which vectors are added.
        added: c vectors for each text; each is added in a separate pass.
        also_later: Whether a vector is added at all tokens from the word's last one on, or only at
            this token.
    """
    gaps_of_batches = []
    for text_indices, batch in prompts.batches():
        states = model.head(batch.tokens, layer)  # (texts, tokens, d), after block `layer`
        positions = torch.arange(batch.tokens.shape[1])
        word_positions = batch.words[:, None]
        is_steered = positions == word_positions
        if also_later:
            is_steered = positions >= word_positions
        mask = is_steered.to(states.device, states.dtype)[..., None]  # (texts, tokens, 1)
        gaps_of_batch = []
        added_to_batch = added[:, text_indices].to(states.device, states.dtype)
        for vectors in added_to_batch:  # (texts, d)
            steered_states = states + mask * vectors[:, None]
            # The states after the last block: all blocks after `layer` run on the steered states.
            last_states = model.advance(steered_states, layer + 1, model.n_layers)
            gaps_of_batch.append(gap(model, last_states, batch))
        gaps_of_batches.append(torch.stack(gaps_of_batch))
    return torch.cat(gaps_of_batches, 1)


class SteeringTrial:
    """Pairs of a text and its counterpart, encoded for both models, to steer the target.

    The target's gap is log P(up) - log P(down) of the next token. Up and down are two sets of
    tokens, such as plural and singular verbs, of which the counterpart favours the first and the
    text the second.

    Attributes:
        natural: How much larger the target's gap is for each counterpart than for its text, in
            nats.
        groups: The number of the word that carries the feature, for each pair. A word may have
            several pairs.
        fold_of: The fold of each pair. Pairs of one word are in one fold, if there are at least as
            many words as folds.
    """

    def __init__(
        self,
        source: FrozenModel,
        target: FrozenModel,
        contrasts: Contrasts,
        measure: SteeringSettings,
        seed: int,
    ):
        """Encode the texts for both models, run the target on them, and assign pairs to folds.

        Args:
            source: The model that steering vectors may come from.
            target: The model that is steered.
            contrasts: Pairs of a text and its counterpart, such as one with a singular and one
                with a plural noun.
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
        # If there are fewer words than folds, pairs of one word may be in several folds.
        groups_of_folds = None
        n_words = len(self.groups.unique())
        if n_words >= measure.folds:
            groups_of_folds = self.groups
        try:
            self.fold_of = stimulus_folds(len(self.groups), measure.folds, seed, groups_of_folds)
        except ValueError as error:
            raise DataError(
                f"{contrasts.source}: {error}; give more pairs, or lower "
                f"{named_setting('measure.folds')}"
            ) from error

    def conditions(self, pair: LayerPair, maps: PairMap) -> Iterator[Condition]:
        """Steer the target in each condition, and yield the effects with their intervals.

        A condition is a kind of steering vector, such as one that was computed in the target. Each
        is added at several positions (at the last token of the word, or at later tokens, too) and
        with several strengths.

        Args:
            pair: A layer of the source, and the layer of the target at which vectors are added.
            maps: The maps between these layers.
        """
        _, target_layer = pair
        vectors_of = self._vectors_by_condition(pair, maps)
        for position, strength in itertools.product(
            self.measure.positions, self.measure.strengths
        ):
            effects = self._effects(target_layer, vectors_of, position, strength)
            # The mean effect of each condition as a difference from 0, and as a share of the mean
            # effect of replacing texts by their counterparts.
            mean_effects, natural_effect = jackknifed_mean_effects(
                effects, self.natural, self.groups
            )
            shares = mean_effects.share_of(natural_effect)
            intervals = mean_effects.interval()
            for number, (condition, vectors) in enumerate(vectors_of.items()):
                share, low, high = (float(end) for end in shares[number])
                effect, effect_low, effect_high = (float(end) for end in intervals[number])
                cosine = torch.cosine_similarity(vectors, vectors_of[NATIVE], dim=-1)
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

    def _vectors_by_condition(
        self, pair: LayerPair, maps: PairMap
    ) -> dict[str, Float[Tensor, "_ n e"]]:
        """Return the steering vectors of each condition, (draws, n, e), for each of n texts.

        A vector is computed in the target itself, or computed in the source and mapped to the
        target by φ (as it is, rescaled to the norm of the target's own vector, or negated), or a
        random direction with the norm of the target's own vector. All conditions but the last have
        one draw.

        Args:
            pair: The layers of the source and of the target at which states are read.
            maps: The maps between these layers. Only the matrix of φ applies to differences of
                states.
        """
        source_layer, target_layer = pair
        native = self._differences(self.target, self.target_prompts, target_layer)
        in_source = self._differences(self.source, self.source_prompts, source_layer)
        mapped = in_source @ maps.phi.weight.double().T
        generator = torch.Generator().manual_seed(self.seed)
        return {
            NATIVE: native[None],
            CARRIED: mapped[None],
            MATCHED: with_norms_of(mapped, native)[None],
            NEGATED: -mapped[None],
            RANDOM: random_directions(self.measure.draws, native, generator),
        }

    def _effects(
        self,
        layer: int,
        vectors_of: Mapping[str, Float[Tensor, "_ n e"]],
        position: str,
        strength: float,
    ) -> Float[Tensor, "c n"]:
        """Return how much each condition moves the target's gap of each text, in nats.

        The gap is log P(up) - log P(down) of the next token. The effect of a condition with
        several random vectors is the mean over them.

        Args:
            layer: The layer of the target after which vectors are added.
            vectors_of: The vectors of each of c conditions.
            position: Where they are added: at the last token of the word, or also at all later
                tokens.
            strength: The number that vectors are multiplied by.
        """
        all_vectors = torch.cat(list(vectors_of.values()))
        steered = steered_gaps(
            self.target, self.texts, layer, strength * all_vectors, also_later=position == LATER
        )
        n_vectors = [len(vectors) for vectors in vectors_of.values()]
        effects_by_condition = (steered - self.gaps_before).split(n_vectors)
        return torch.stack([effects.mean(0) for effects in effects_by_condition])

    def _differences(
        self,
        model: FrozenModel,
        prompts: tuple[EncodedPrompts, EncodedPrompts],
        layer: int,
    ) -> Float[Tensor, "n d"]:
        """Return a steering vector for each text, computed from the pairs of all other folds.

        A pair is a text and its counterpart, such as one with the noun in the plural. The vector
        is the mean over these pairs of the counterpart's state minus the text's state. Both are
        states at the last token of the word that carries the feature, such as the noun if the
        pairs differ in number.

        Args:
            model: The model whose states are used.
            prompts: The texts, and the counterpart of each.
            layer: The number of the block after which states are taken, from 0.
        """
        texts, counterparts = prompts
        states_of_texts = states_at_words(model, texts, layer)
        states_of_counterparts = states_at_words(model, counterparts, layer)
        return held_out_differences(states_of_texts, states_of_counterparts, self.fold_of)
