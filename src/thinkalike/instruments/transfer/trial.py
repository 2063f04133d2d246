"""The effect of vectors that are added to a model's states on the next token of texts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from thinkalike.data.contrasts import Contrasts, Prompt, continuations
from thinkalike.errors import DataError
from thinkalike.instruments.of_stimuli import FEW
from thinkalike.instruments.transfer.maps import PairMap
from thinkalike.measures.closed_forms import LayerPair
from thinkalike.measures.estimates import stimulus_folds
from thinkalike.measures.transfer.steering import (
    carried_vectors,
    effects_of,
    held_out_differences,
    random_directions,
    with_norms_of,
)
from thinkalike.models.frozen import FrozenModel
from thinkalike.states.tokens import last_tokens

AT_ONCE = 64  # texts


@dataclass(frozen=True)
class Prompts:
    """Texts as a model reads them, padded on the right.

    Attributes:
        words: the place of the last token of the word of each.
        ends: the place of the last token of each.
        up, down: the next tokens that the feature makes likelier, and less likely.
    """

    tokens: Int[Tensor, "n t"]
    words: Int[Tensor, " n"]
    ends: Int[Tensor, " n"]
    up: Bool[Tensor, "n v"]
    down: Bool[Tensor, "n v"]

    def batches(self) -> Iterator[tuple[slice, Prompts]]:
        """Yield some of the texts at a time, cut to the longest of them."""
        for first in range(0, len(self.tokens), AT_ONCE):
            part = slice(first, first + AT_ONCE)
            longest = int(self.ends[part].max()) + 1
            rest = (self.words[part], self.ends[part], self.up[part], self.down[part])
            yield part, Prompts(self.tokens[part, :longest], *rest)


def read_prompts(model: FrozenModel, contrasts: Contrasts) -> tuple[Prompts, Prompts]:
    """Return the texts of contrasts and their counterparts as a model reads them.

    Raises:
        DataError: see `continuations`, `last_tokens`.
    """
    masks = continuations(contrasts, model.tokenizer, model.vocabulary)
    texts, counterparts = (_read(model, side, *masks) for side in (contrasts.texts, contrasts.counterparts))
    return texts, counterparts


def _read(model: FrozenModel, texts: Sequence[Prompt], up: Tensor, down: Tensor) -> Prompts:
    bos = model.tokenizer.bos_token_id
    first = [bos] if model.bos_each_row and bos is not None else []
    rows, words = [], []
    for text, span in texts:
        read = model.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        rows.append([*first, *read["input_ids"]])
        words.append(len(first) + last_tokens(text, [span], read["offset_mapping"], model.name)[0])
    tokens = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.long)
    for place, row in enumerate(rows):
        tokens[place, : len(row)] = torch.tensor(row)
    return Prompts(tokens, torch.tensor(words), torch.tensor([len(row) - 1 for row in rows]), up, down)


@torch.no_grad()
def states_at_words(model: FrozenModel, prompts: Prompts, layers: Sequence[int]) -> list[Float[Tensor, "n d"]]:
    """Return the states of the word of each text at these layers, on the CPU."""
    parts = []
    for _, part in prompts.batches():
        states = model.residuals(part.tokens, layers)
        rows = torch.arange(len(part.tokens))
        parts.append([state[rows, part.words].cpu() for state in states])
    return [torch.cat(layer) for layer in zip(*parts, strict=True)]


@torch.no_grad()
def gaps(model: FrozenModel, prompts: Prompts) -> Float[Tensor, " n"]:
    """Return log P(up) - log P(down) for the token after each text, in nats."""
    last = model.n_layers - 1
    return torch.cat([_gap(model, model.head(part.tokens, last), part) for _, part in prompts.batches()])


@torch.no_grad()
def steered_gaps(
    model: FrozenModel, prompts: Prompts, layer: int, added: Float[Tensor, "c n d"], later: bool = False
) -> Float[Tensor, "c n"]:
    """Return the gaps of `gaps` after each of c vectors was added to the states of each text after block `layer`.

    Args:
        added: a vector for each text.
        later: at all tokens from the last one of the word on; otherwise at that alone.
    """
    parts = []
    for where, part in prompts.batches():
        state = model.head(part.tokens, layer)
        places = torch.arange(part.tokens.shape[1])
        chosen = places >= part.words[:, None] if later else places == part.words[:, None]
        chosen = chosen.to(state.device, state.dtype)[..., None]
        vectors = added[:, where].to(state.device, state.dtype)
        steered = [model.advance(state + chosen * vector[:, None], layer + 1, model.n_layers) for vector in vectors]
        parts.append(torch.stack([_gap(model, each, part) for each in steered]))
    return torch.cat(parts, 1)


def _gap(model: FrozenModel, state: Float[Tensor, "n t d"], prompts: Prompts) -> Float[Tensor, " n"]:
    logits = model.finish(state[torch.arange(len(state)), prompts.ends]).double().cpu()
    up, down = (logits.masked_fill(~mask, -torch.inf).logsumexp(1) for mask in (prompts.up, prompts.down))
    return up - down


# ---- Effects of vectors


NATIVE, CARRIED, MATCHED, NEGATED, RANDOM = "native", "carried", "carried, native norm", "carried, negated", "random"
NOT_RANDOM = (NATIVE, CARRIED, MATCHED, NEGATED)
LATER = "later"
POSITIONS = ("word", LATER)  # at the last token of the word alone | at that and all later ones


class Trial:
    """The contrasts as both models read them, to steer the target.

    Attributes:
        natural: how far the counterpart of each text moves the target's log-probability gap, in nats.
        groups: the pairs that folds and resamples keep together: those of one word, unless there are few words.

    Raises:
        DataError: there are fewer words, or pairs, than folds; see `read_prompts`.
        ModelError: the target predicts no next token.
    """

    def __init__(self, source: FrozenModel, target: FrozenModel, contrasts: Contrasts, measure: Any, seed: int):
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
        """Return the steering vector of each text on one side, made of the pairs of other folds."""
        model = (self.source, self.target)[side]
        before, after = (states_at_words(model, prompts, [layer])[0] for prompts in self.read[side])
        return held_out_differences(before, after, self.fold_of)

    def _effects(
        self, conditions: Mapping[str, Float[Tensor, "_ n d"]], depth: int, position: str, strength: float
    ) -> Float[Tensor, "c n"]:
        """Return the effect of each condition on each text, a mean over its vectors."""
        added = strength * torch.cat(list(conditions.values()))
        moved = steered_gaps(self.target, self.texts, depth, added, position == LATER) - self.before
        parts = moved.split([len(vectors) for vectors in conditions.values()])
        return torch.stack([part.mean(0) for part in parts])


def _about(vectors: Float[Tensor, "_ n d"], native: Float[Tensor, "n d"]) -> dict[str, float]:
    """Return the mean norm of the vectors of a condition, and their mean cosine with the native ones."""
    cosine = torch.cosine_similarity(vectors, native[None], dim=-1)
    return {"norm": float(vectors.norm(dim=-1).mean()), "cosine": float(cosine.mean())}
