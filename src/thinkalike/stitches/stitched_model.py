"""The model that runs the head of one model, a stitch, and the tail of another."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from thinkalike.digests import tokenizer_fingerprint
from thinkalike.errors import StitchError
from thinkalike.models.frozen import FrozenModel


class StitchedModel:
    """Runs tokens through the head of the source, through φ, and through the tail of the target.

    φ maps the source's states after block `layer` to the target's after block `depth`; both models
    read rows of at most `context` tokens.

    Raises:
        StitchError: The models have different tokenizers.
    """

    def __init__(
        self, source: FrozenModel, layer: int, phi: nn.Module, depth: int, target: FrozenModel
    ):
        """Check that the models read the same tokens and have the layers.

        Args:
            source: The model that is run up to `layer`.
            layer: The block of the source after which its states are taken.
            phi: Maps these states to states of the target.
            depth: The block of the target whose output the mapped states replace.
            target: The model whose later blocks continue.
        """
        self.source = source
        self.layer = layer
        self.phi = phi
        self.depth = depth
        self.target = target
        self.context = min(source.context, target.context)
        if tokenizer_fingerprint(source.tokenizer) != tokenizer_fingerprint(target.tokenizer):
            raise StitchError(
                f"{source.name} and {target.name} have different tokenizers: "
                "train.py stitches them on text"
            )
        source.check_layers([layer])
        target.check_layers([depth])

    def __call__(self, tokens: Int[Tensor, "b t"]) -> Float[Tensor, "b t v"]:
        """Return the logits of each next token, (row, position, token of the vocabulary).

        The source runs up to block `layer`, φ maps the states after it, and the target continues
        after its block `depth` as if they were its own. The logits are differentiable with respect
        to the trainable weights of φ.

        Raises:
            ModelError: The target predicts no next token.
        """
        states = self.phi(self.source.head(tokens, self.layer))
        return self.target.tail(states.to(self.target.device, self.target.dtype), self.depth)

    @torch.no_grad()
    def generate(self, tokens: Int[Tensor, "b t"], steps: int) -> Int[Tensor, "b t_plus_steps"]:
        """Return the tokens followed by `steps` more, each the most likely next token.

        Each step runs the whole row, without a cache. The result is on the device of `tokens`.

        Raises:
            StitchError: The row would be longer than one of the models can read.
        """
        length = tokens.shape[1]
        if length + steps > self.context:
            raise StitchError(
                f"{length} tokens and steps={steps} more are longer than {self.context}, "
                "the most that both models read"
            )
        for _ in range(steps):
            last_logits = self(tokens)[:, -1].float().cpu()
            next_tokens = last_logits.argmax(-1, keepdim=True)
            tokens = torch.cat([tokens, next_tokens.to(tokens)], 1)
        return tokens
