"""The model that a stitch makes of two: the early layers of the source, φ, and the late layers of the target."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from thinkalike.arguments import seeded, takes_arrays
from thinkalike.errors import StitchError
from thinkalike.models import FrozenModel, tokenizer_fingerprint


class StitchedModel:
    """Runs tokens through the source up to a layer, through φ, and through the target from a layer on.

    Attributes:
        source, target: The models.
        phi: The map from the source's states after block `layer` to the target's after block `depth`.
        context: The most tokens of a row, that of the shorter model.

    Raises:
        StitchError: The models have different tokenizers, or another width than φ.
    """

    def __init__(self, source: FrozenModel, layer: int, phi: nn.Module, depth: int, target: FrozenModel):
        self.source, self.layer, self.phi, self.depth, self.target = source, layer, phi, depth, target
        self.context = min(source.context, target.context)
        widths, own = (source.d_model, target.d_model), tuple(phi.get_parameter("weight").shape[::-1])
        if widths != own:
            raise StitchError(f"{source.name} and {target.name} have the widths {widths}, and the stitch {own}")
        if tokenizer_fingerprint(source.tokenizer) != tokenizer_fingerprint(target.tokenizer):
            raise StitchError(
                f"{source.name} and {target.name} have different tokenizers, so no tokens are those of both: choose "
                "models of one tokenizer (python train.py aligns the tokens of a text, and reports what that loses)"
            )
        source.check_layers([layer])
        target.check_layers([depth])

    def __call__(self, tokens: Int[Tensor, "b t"]) -> Float[Tensor, "b t v"]:
        """Return the target's logits of each next token; they are differentiable with respect to what φ has trainable.

        Raises:
            ModelError: The target predicts no next token.
        """
        states = self.phi(self.source.head(tokens, self.layer))
        return self.target.tail(states.to(self.target.device, self.target.dtype), self.depth)

    @takes_arrays
    @torch.no_grad()
    def generate(
        self, tokens: Int[Tensor, "b t"], steps: int, temperature: float = 0.0, seed: int = 0
    ) -> Int[Tensor, "b more"]:
        """Return the tokens with so many more, each the most likely one, or drawn at a temperature.

        Every step is a whole pass.

        Args:
            temperature: What logits are divided by before one token is drawn from their softmax; 0: none is drawn.
            seed: Of the draws.

        Raises:
            StitchError: The temperature is negative, or the row would be longer than one of the models can read.
        """
        if not 0 <= temperature < float("inf"):
            raise StitchError(f"temperature={temperature} must be a number >= 0")
        if tokens.shape[1] + steps > self.context:
            raise StitchError(
                f"{tokens.shape[1]} tokens and steps={steps} more are longer than {self.context}, the most that "
                f"{self.source.name} and {self.target.name} both read: give fewer"
            )
        chance = seeded(seed)
        for _ in range(steps):
            logits = self(tokens)[:, -1].float().cpu()
            if temperature:
                new = (logits / temperature).softmax(-1).multinomial(1, generator=chance)
            else:
                new = logits.argmax(-1, keepdim=True)
            tokens = torch.cat([tokens, new.to(tokens)], 1)
        return tokens
