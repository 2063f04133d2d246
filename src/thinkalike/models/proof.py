"""The proof at load that a model may be cut at its blocks: head and tail compose to the model's own full pass."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from thinkalike.errors import ModelError
from thinkalike.models.checkpoints.weights import check_finite
from thinkalike.models.samples import sample_padding, sample_tokens

# the largest difference that rounding explains, relative to the largest logit
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}


def relative_error(actual: Tensor, expected: Tensor) -> float:
    """Return the largest difference, relative to the largest entry of `expected`."""
    return ((actual - expected).abs().max() / expected.abs().max()).item()


def prove(model: Any) -> None:
    """Check that weights are finite, and on fixed tokens that head and tail compose to the full pass at one cut.

    Args:
        model: a FrozenModel, whose own module imports this one.

    Raises:
        ModelError: they do not, or the weights or the model's output are not finite.
    """
    check_finite(model.module, model.name)
    tokens = sample_tokens(model.vocabulary, model.context)
    mask, types = (None, None) if model.predicts == "next" else sample_padding(tokens)
    full, middle = model.full(tokens, mask, types), max(model.n_layers // 2 - 1, 0)
    with torch.no_grad():
        joined = model.advance(model.head(tokens, middle, mask, types), middle + 1, model.n_layers, mask)
        joined = model.finish(joined) if model.family.unembed else joined
    error, allowed = relative_error(joined, full), TOLERANCE[model.dtype]
    if not error <= allowed:  # NaN fails as well
        raise ModelError(
            f"{model.name}: tail({middle}, head({middle}, x)) differs from the full pass by {error:.1e} of the "
            f"largest logit (allowed: {allowed:.0e}); this model cannot be cut at its blocks"
        )
