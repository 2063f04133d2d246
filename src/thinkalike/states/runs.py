"""What models hold of inputs, where each model runs once for each different input, whoever asks for its states."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.models import FrozenModel
from thinkalike.states.tokens import token_states
from thinkalike.states.words import Pieces, word_states


class ModelRuns:
    """Runs models, each once for each different input until `forget`.

    Jobs that go through their batches in step share one of these. Inputs are equal if their content is, so that jobs
    whose contexts or tokenizers cut a text differently get states of their own. Two models are one if they have the
    same module, whatever they are called.
    """

    def __init__(self) -> None:
        self._states: dict[Hashable, list[Tensor]] = {}
        self._texts: dict[Hashable, Any] = {}

    def text(self, asked: Hashable, read: Callable[[], Any]) -> Any:
        """Return a text, which `read` reads the first time that exactly this is asked for; it is never forgotten."""
        if asked not in self._texts:
            self._texts[asked] = read()
        return self._texts[asked]

    def of_tokens(
        self, models: Sequence[FrozenModel], rows: Int[Tensor, "b t"], embed: bool
    ) -> list[list[Float[Tensor, "b t _"]]]:
        """Return the states of each model at all layers; see `token_states`."""
        content = (*content_of_rows(rows), embed)
        return [self.once(model, content, lambda model: token_states([model], rows, embed)[0]) for model in models]

    def of_words(
        self, models: Sequence[FrozenModel], batch: Pieces, embed: bool
    ) -> list[list[Float[Tensor, "words _"]]]:
        """Return the states of each model at all layers; see `word_states`."""
        content = (*content_of_pieces(batch), embed)
        return [self.once(model, content, lambda model: word_states(model, batch, embed)) for model in models]

    def forget(self) -> None:
        """Let go of all states, because the next inputs come."""
        self._states.clear()

    def once(self, model: FrozenModel, content: Hashable, run: Callable[[FrozenModel], list[Tensor]]) -> list[Tensor]:
        """Return what a model makes of an input, of this content, which `run` makes the first time."""
        place = (id(model.module), content)
        if place not in self._states:
            self._states[place] = run(model)
        return self._states[place]


def content_of_rows(rows: Int[Tensor, "b t"]) -> tuple[Hashable, ...]:
    """Return what is equal for equal rows of tokens alone."""
    return (tuple(rows.shape), rows.cpu().numpy().tobytes())


def content_of_pieces(batch: Pieces) -> tuple[Hashable, ...]:
    """Return what is equal for equal pieces of text with equal words alone."""
    return (tuple(batch.texts), tuple(map(tuple, batch.words)))
