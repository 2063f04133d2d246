"""What vectors do to the texts of contrasts: native, carried, and beside controls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike.data import Contrasts
from thinkalike.errors import DataError, ModelError
from thinkalike.evaluation import LayerPair
from thinkalike.instruments.of_stimuli import FEW
from thinkalike.instruments.transfer.maps import PairMap
from thinkalike.instruments.transfer.prompts import gaps, read_prompts, states_at_words, steered_gaps
from thinkalike.measures import (
    carried_vectors,
    effects_of,
    held_out_differences,
    random_directions,
    stimulus_folds,
    with_norms_of,
)
from thinkalike.models import FrozenModel

NATIVE, CARRIED, MATCHED, NEGATED, RANDOM = "native", "carried", "carried, native norm", "carried, negated", "random"
NOT_RANDOM = (NATIVE, CARRIED, MATCHED, NEGATED)
LATER = "later"
POSITIONS = ("word", LATER)  # at the last token of the word alone | at that and all later ones


class Trial:
    """Contrasts in a source and a target, and what is needed to steer the target by them.

    Attributes:
        natural: by how much the counterpart of each text moves the target's log-probability gap, in nats.
        groups: what folds and resamples keep together: pairs of one word, unless there are few words.

    Raises:
        DataError: there are fewer words, or pairs, than folds; see `read_prompts`.
        ModelError: a model predicts no next token.
    """

    def __init__(self, source: FrozenModel, target: FrozenModel, contrasts: Contrasts, measure: Any, seed: int):
        for model in (source, target):
            if not model.predicts_next:
                raise ModelError(
                    f"{model.name} predicts no next token, so no text goes on in it; choose a model that does"
                )
        self.source, self.target, self.measure, self.seed = source, target, measure, seed
        self.read = read_prompts(source, contrasts), read_prompts(target, contrasts)
        texts, counterparts = self.read[1]
        self.texts, self.before = texts, gaps(target, texts)
        self.natural = gaps(target, counterparts) - self.before
        words = contrasts.groups
        self.groups = words if len(words.unique()) >= FEW else torch.arange(len(words))
        try:
            self.fold_of = stimulus_folds(len(words), measure.folds, seed, self.groups)
        except ValueError as error:
            raise DataError(f"{contrasts.source}: {error}; give more pairs, or lower measure.folds") from error

    def rows(self, pair: LayerPair, maps: PairMap) -> Iterator[tuple[dict[str, Any], Float[Tensor, " n"]]]:
        """Yield the columns of each position, strength and condition, and its effect on each text, in nats."""
        native = self._differences(1, pair[1])
        moved = carried_vectors(self._differences(0, pair[0]), maps.phi)
        random = random_directions(self.measure.draws, native, torch.Generator().manual_seed(self.seed))
        conditions = {
            NATIVE: native[None],
            CARRIED: moved[None],
            MATCHED: with_norms_of(moved, native)[None],
            NEGATED: -moved[None],
            RANDOM: random,
        }
        for position in self.measure.positions:
            for strength in self.measure.strengths:
                effects = self._effects(conditions, pair[1], position, strength)
                found = effects_of(effects, self.natural, self.groups, self.measure.resamples, self.seed)
                shares, nats = found.shares(), found.interval()
                for place, (name, vectors) in enumerate(conditions.items()):
                    row = {"position": position, "strength": strength, "condition": name}
                    row |= dict(zip(("share", "low", "high"), map(float, shares[place]), strict=True))
                    row |= dict(zip(("effect", "effect_low", "effect_high"), map(float, nats[place]), strict=True))
                    yield row | _about(vectors, native), effects[place]

    def _differences(self, side: int, layer: int) -> Float[Tensor, "n d"]:
        """Return the vector that each text of one side is steered by, made of pairs of other words."""
        model = (self.source, self.target)[side]
        before, after = (states_at_words(model, prompts, [layer])[0] for prompts in self.read[side])
        return held_out_differences(before, after, self.fold_of)

    def _effects(
        self, conditions: Mapping[str, Float[Tensor, "_ n d"]], depth: int, position: str, strength: float
    ) -> Float[Tensor, "c n"]:
        """Return the effect of each condition on each text, a mean over the vectors that it has."""
        added = strength * torch.cat(list(conditions.values()))
        moved = steered_gaps(self.target, self.texts, depth, added, position == LATER) - self.before
        parts = moved.split([len(vectors) for vectors in conditions.values()])
        return torch.stack([part.mean(0) for part in parts])


def _about(vectors: Float[Tensor, "_ n d"], native: Float[Tensor, "n d"]) -> dict[str, float]:
    """Return the mean norm of the vectors of a condition, and their mean cosine with the native ones."""
    cosine = torch.cosine_similarity(vectors, native[None], dim=-1)
    return {"norm": float(vectors.norm(dim=-1).mean()), "cosine": float(cosine.mean())}
