"""One side of an encoder-decoder, whose residual streams can be compared and have no tail of their own."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from thinkalike.config import ModelConfig
from thinkalike.errors import ModelError


def one_side(module: Any, config: ModelConfig) -> nn.Module:
    """Return the encoder or the decoder of an encoder-decoder, whichever the configuration asks for.

    Raises:
        ModelError: it asks for neither.
    """
    if config.side == "encoder":
        return module.get_encoder()  # type: ignore[no-any-return]
    if config.side == "decoder":
        return DecoderSide(module)
    raise ModelError(
        f"{config.name} is an encoder-decoder, and each side has a residual stream of its own: choose one with "
        "model.side=encoder or model.side=decoder"
    )


class DecoderSide(nn.Module):
    """The decoder of an encoder-decoder that reads a text while the decoder reads the same text, token by token."""

    def __init__(self, module: Any):
        super().__init__()
        self.both = module
        self.config = module.config

    def get_input_embeddings(self) -> Any:
        """Return the token embedding, as modules of transformers do."""
        return self.both.get_input_embeddings()

    def forward(self, tokens: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Return the decoder's last states, (b, t, d)."""
        return self.both.base_model(  # type: ignore[no-any-return]
            input_ids=tokens,
            attention_mask=attention_mask,
            decoder_input_ids=tokens,
            decoder_attention_mask=attention_mask,
        )[0]
