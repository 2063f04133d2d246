"""A source: a function from tokens to states whose similarity to a target is known."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.evaluation.batch_sizes import BATCH_TOKENS
from thinkalike.models.families import Layer
from thinkalike.models.frozen import FrozenModel

Tokens = Int[Tensor, "b t"]
StateFunction = Callable[[Tensor], Tensor]
"""A function from tokens (b, t) to states (b, t, d)."""


class Source:
    """A function from tokens to states as a `StateSource`.

    It has one layer, 0, and no unembedding, and it reads text as the target does.

    Attributes:
        name: What tables call it.
        kind: How the source is similar to the target, or why it is not.
        d_model: The width of its states.
        device, dtype: Those of its states.
    """

    n_layers = 1
    layers = (0,)

    def __init__(self, name: str, kind: str, states: StateFunction, target: FrozenModel):
        """Wrap a function from tokens to states, so that it can be read like a model of one layer.

        Such a source has a known similarity to the target, a language model, and serves to test
        measures of similarity. Both read the same tokens, so the tokenizer and all other
        attributes about text are the target's.

        Args:
            name: The name of the source in tables.
            kind: How it is similar to the target, or why it is not.
            states: A function from tokens (b, t) to states (b, t, d).
            target: The model that the source is compared with.
        """
        self.name = name
        self.kind = kind
        self._states = states

        # Only the states themselves tell width, device and dtype, so one token (id 0) is read.
        example = states(torch.zeros(1, 1, dtype=torch.long))  # (1, 1, d)
        self.d_model = example.shape[-1]
        self.device = example.device
        self.dtype = example.dtype
        # Caches of states tell models apart by this number.
        self.identity = id(self)

        # Attributes and methods of the target that concern text, tokens and the vocabulary. Code
        # that reads models expects them of a source as well.
        self.vocabulary = target.vocabulary
        self.tokenizer = target.tokenizer
        self.context = target.context
        self.revision = target.revision
        self.bos_each_row = target.bos_each_row
        self.ids_fingerprint = target.ids_fingerprint
        self.encoded = target.encoded
        self.sampled_vocabulary = target.sampled_vocabulary
        self.embedded = target.embedded
        self.check_context = target.check_context

    def sites_at(self, layers: Iterable[int]) -> list[Layer]:
        """Return the sites after some layers, which are the layers themselves."""
        return list(layers)

    def width(self, layer: Layer) -> int:
        """Return the width of the states, whatever the layer."""
        return int(self.d_model)

    def parameters(self) -> int:
        """Return 0: a source counts as having no parameters."""
        return 0

    def fingerprint(self) -> str:
        """Return a text that identifies the source, in place of a checksum of weights."""
        return f"{self.name} {self.kind}"

    def describe(self) -> dict[str, str]:
        """Return name and kind, by key."""
        return {"name": self.name, "kind": self.kind}

    def residuals(
        self, rows: Tokens, layers: Sequence[Layer], mask: Tokens | None = None
    ) -> list[Float[Tensor, "b t d"]]:
        """Return the states of the tokens, one tensor for each of `layers`.

        A source is a function from tokens to states that is read like a model of one layer, so all
        tensors are the same. The mask, which says where padding is, is ignored.
        """
        return [self._states(rows)] * len(layers)


class CachedStates:
    """A function from rows of tokens to states that computes the states of each row only once."""

    def __init__(self, states: StateFunction):
        self._states = states
        self._states_of_row: dict[bytes, Tensor] = {}

    @torch.no_grad()
    def __call__(self, rows: Tokens) -> Float[Tensor, "b t d"]:
        """Return the states of rows of tokens; those of rows that were read before are cached.

        The cache has the states of whole rows. New rows are read in batches.
        """
        rows = rows.long().cpu()
        keys = [row.numpy().tobytes() for row in rows]
        # The index of one row for each key that is not cached; equal rows share a key.
        index_of_new = {
            key: index for index, key in enumerate(keys) if key not in self._states_of_row
        }
        if index_of_new:
            new_indices = torch.tensor(list(index_of_new.values()))
            rows_per_batch = max(BATCH_TOKENS // rows.shape[1], 1)
            for batch in new_indices.split(rows_per_batch):
                states = self._states(rows[batch])
                for index, state in zip(batch.tolist(), states, strict=True):
                    self._states_of_row[keys[index]] = state
        return torch.stack([self._states_of_row[key] for key in keys])


def states_after(model: FrozenModel, layer: Layer, rows: Tokens) -> Float[Tensor, "b t d"]:
    """Return a model's states after a block, or at its embedding, in at least float32."""
    state = model.residuals(rows, [layer])[0]
    return state.to(torch.promote_types(state.dtype, torch.float32))


def states_of_lone_tokens(model: FrozenModel, layer: Layer) -> Float[Tensor, "v d"]:
    """Return a model's state of each token of its vocabulary, read as a row of one token."""
    states = []
    for batch in torch.arange(model.vocabulary).split(BATCH_TOKENS):
        rows = batch[:, None]
        states.append(states_after(model, layer, rows)[:, 0])
    return torch.cat(states)
