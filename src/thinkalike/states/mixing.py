"""States that only mix the tokens read so far: what models share without anything learnt in
blocks.

Two models that read the same text share what can be read off its last few tokens, whatever else
they compute. These sources have a model's embedding and no block of it. `BAGS` and `POSITION` are
linear in embeddings and positions, and what they predict is removed from states before these are
compared. `CONTROLS` are not linear, and show how much of local mixing is left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.data.words import Span
from thinkalike.measures.seeds import seeded
from thinkalike.states.source import StateSource

SPECTRAL_RADIUS = 0.2
"""That of the weights of the recurrent network; with other radii between 0 and 1, its states share
less with those of models."""

POSITION = "position"
"""The layer whose only dimension is the position of a token in its row."""

BAGS: Mapping[str, float | None] = {"bag .5": 0.5, "bag .9": 0.9, "mean": None}
"""The decay of earlier tokens in each bag; None: the mean of all."""

CONTROLS = ("recurrent", "bilinear", "bag .8", "shrinking")
"""The layers that are no linear function of what `BAGS` and `POSITION` hold."""

DECAYS: Mapping[str, float | None] = {**BAGS, "bag .8": 0.8}
"""The decays of all bags, including that of the controls."""


class TokenMixing:
    """A reader of text whose layers are ways of mixing the tokens read so far.

    It takes the place of a `StateSource`. With e_t the embedding of token t of a row, less the
    mean embedding of the vocabulary, layers are

    - `POSITION`: t, of width 1;
    - "bag .5", "bag .9": Σ decay^(t - s) e_s over all s ≤ t; "mean": the mean of e_s over these;
    - "recurrent": h_t = tanh(W h_(t-1) + U e_t + b), with random W, U and b;
    - "bilinear": P e_t ∘ Q e_(t-1), with random P and Q; 0 for the first token;
    - "bag .8": as above; its decay lies between those of the bags that are taken out of states;
    - "shrinking": e_t / (t + 1), which the sum of a token's and a position's part does not hold.

    Args:
        model: The source whose tokenizer and embedding are read.
        seed: Of random weights.
    """

    def __init__(self, model: StateSource, seed: int = 0):
        """Make a reader of text whose states are mixtures of the model's token embeddings.

        What says how the model reads text is taken over. Random weights are drawn only when a
        layer that has some is read.
        """
        self.name = model.name
        self.tokenizer = model.tokenizer
        self.context = model.context
        self.bos_each_row = model.bos_each_row
        self.device = torch.device("cpu")
        self.d_model = model.d_model
        self.identity = model.identity
        self._model = model
        self._seed = seed

    @cached_property
    def _centre_and_size(self) -> tuple[Float[Tensor, " d"], Float[Tensor, ""]]:
        """The mean embedding, and the root mean square norm of embeddings after centring.

        Both are of a sample of the vocabulary.
        """
        embedding = self._first_tokens(self._model.sampled_vocabulary())
        mean = embedding.mean(0)
        return mean, (embedding - mean).square().sum(1).mean().sqrt()

    def encoded(self, text: str) -> tuple[list[int], list[Span]]:
        """Return the token ids of a text as the model reads it, and the span of each token."""
        return self._model.encoded(text)

    def residuals(
        self, tokens: Int[Tensor, "b t"], layers: Sequence[str], mask: Tensor | None = None
    ) -> list[Float[Tensor, "b t _"]]:
        """Return the states of rows of tokens at some layers, which are ways of mixing tokens.

        Padding on the right does not change the states of tokens, which depend on earlier ones.

        Args:
            tokens: Token ids.
            layers: Names of layers, such as `POSITION` or "bag .5".
            mask: 1 for tokens and 0 for padding; None: there is no padding.
        """
        # Positions need only the shape of the rows; no token is embedded for them.
        if list(layers) == [POSITION]:
            return [self._mixed(POSITION, tokens[..., None].float())]
        if mask is not None:
            # The embedding of a padding token may not be known; it is replaced by the first token
            # of its row.
            tokens = torch.where(mask.bool().cpu(), tokens, tokens[:, :1])
        embedded = self._embedded(tokens)
        return [self._mixed(layer, embedded) for layer in layers]

    def _mixed(self, layer: str, rows: Float[Tensor, "b t d"]) -> Float[Tensor, "b t _"]:
        """Return the states of a layer, a way of mixing the tokens read so far.

        Args:
            layer: `POSITION`, "recurrent", "bilinear", "shrinking", or the name of a bag in
                `DECAYS`, whose states are sums of earlier tokens.
            rows: The centred embeddings of the tokens of b rows of t.
        """
        positions = torch.arange(rows.shape[1])[:, None]  # (t, 1)
        if layer == POSITION:
            return positions.float().expand(len(rows), -1, -1)
        if layer == "recurrent":
            return self._recurrent(rows)
        if layer == "bilinear":
            return self._bilinear(rows)
        if layer == "shrinking":
            return rows / (positions + 1)
        return bag(rows, DECAYS[layer])

    def _embedded(self, tokens: Int[Tensor, "b t"]) -> Float[Tensor, "b t d"]:
        """Return the centred embedding of each token, as if it were the first of its row."""
        # Each distinct token is embedded once, and its embedding put wherever the token occurs.
        distinct_tokens, index_of_token = tokens.unique(return_inverse=True)
        mean, _ = self._centre_and_size
        centred = self._first_tokens(distinct_tokens) - mean
        return centred[index_of_token]

    def _first_tokens(self, vocabulary: Int[Tensor, " v"]) -> Float[Tensor, "v d"]:
        """Return what enters block 0 for each token if it is the first of its row."""
        return self._model.embedded(vocabulary).float().cpu()

    def _recurrent(self, rows: Float[Tensor, "b t d"]) -> Float[Tensor, "b t d"]:
        """Return the states h_t = tanh(h_(t-1) W + e_t U + b) with random W, U and b.

        Args:
            rows: The centred embeddings e_t of the tokens of b rows of t.
        """
        width = self.d_model
        generator = seeded(self._seed)
        # The spectral radius of a random matrix of independent normal entries is about √width.
        recurrent_weight = torch.randn(width, width, generator=generator)
        recurrent_weight = recurrent_weight * SPECTRAL_RADIUS / width**0.5
        # Dividing by the root mean square norm of embeddings gives inputs a variance of about 1.
        _, embedding_size = self._centre_and_size
        input_weight = torch.randn(width, width, generator=generator) / embedding_size
        bias = torch.randn(width, generator=generator)
        inputs = rows @ input_weight + bias
        state = torch.zeros_like(inputs[:, 0])
        states = []
        for step in inputs.unbind(1):
            state = (state @ recurrent_weight + step).tanh()
            states.append(state)
        return torch.stack(states, 1)

    def _bilinear(self, rows: Float[Tensor, "b t d"]) -> Float[Tensor, "b t d"]:
        """Return the elementwise product of random projections of each token and the one before.

        The first token of a row has none before it, and its states are 0. `rows` are the centred
        embeddings, of width d, of b rows of t tokens.
        """
        width = self.d_model
        generator = seeded(self._seed + 1)  # other weights than those of the recurrent network
        token_weight = torch.randn(width, width, generator=generator)
        previous_weight = torch.randn(width, width, generator=generator)
        # Shifted by one position, with zeros before the first token.
        previous = torch.nn.functional.pad(rows, (0, 0, 1, 0))[:, :-1]
        return (rows @ token_weight) * (previous @ previous_weight)


def bag(rows: Float[Tensor, "b t d"], decay: float | None) -> Float[Tensor, "b t d"]:
    """Return, at each position t of a row, Σ decay^(t - s) e_s over all positions s ≤ t.

    If decay is None, it is the mean of the e_s over all s ≤ t.

    Args:
        rows: The embeddings e_s of the tokens of b rows of t.
        decay: The factor by which a token counts less for each position that it is further back.
    """
    if decay is None:
        lengths = torch.arange(1, rows.shape[1] + 1)[:, None]
        return rows.cumsum(1) / lengths
    total = torch.zeros_like(rows[:, 0])
    totals = []
    for embeddings in rows.unbind(1):  # of one position in all rows
        total = decay * total + embeddings
        totals.append(total)
    return torch.stack(totals, 1)
