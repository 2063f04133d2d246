"""The proof at load that a model may be cut at its blocks: head and tail compose to the model's own full pass."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from thinkalike.errors import ModelError
from thinkalike.models.checkpoints.weights import check_finite
from thinkalike.models.samples import sample_padding, sample_tokens
from thinkalike.models.sites import EMBED, Layer, after
from thinkalike.models.survey import kinds_of_layers, passing, windows

# the largest difference that rounding explains, relative to the largest logit
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}
AT_MOST = 1024  # tokens of the row that is longer than a window


def relative_error(actual: Tensor, expected: Tensor) -> float:
    """Return the largest difference, relative to the largest entry of `expected`."""
    return ((actual - expected).abs().max() / expected.abs().max()).item()


def prove(model: Any) -> None:
    """Check that weights are finite, and on fixed tokens that head and tail compose to the full pass.

    Cuts are before the first block, after the first, the middle and the last one, and after the first of each kind; the
    middle one also on a row that is longer than the windows of the layers that attend to one.

    Args:
        model: a FrozenModel, whose own module imports this one.

    Raises:
        ModelError: they do not, or the weights or the model's output are not finite.
    """
    check_finite(model.module, model.name)
    last, kinds = model.n_layers - 1, kinds_of_layers(model.module)
    firsts = {kinds.index(kind) for kind in kinds}
    cuts: list[Layer] = [EMBED, *sorted({0, last // 2, last} | {layer for layer in firsts if layer <= last})]
    if model.predicts == "states":
        cuts = [last]  # the blocks of a decoder also read what its encoder made of the tokens
    long = [size + 8 for size in windows(model.module) if 16 < size + 8 <= min(model.context, AT_MOST)]
    with passing(model.name):
        _compare(model, sample_tokens(model.vocabulary, model.context), cuts)
        if long and model.predicts != "states":
            _compare(model, sample_tokens(model.vocabulary, max(long), rows=1, at_most=AT_MOST), [last // 2])


def _compare(model: Any, tokens: Tensor, cuts: list[Layer]) -> None:
    mask, types = (None, None) if model.predicts == "next" else sample_padding(tokens)
    with torch.no_grad():
        full, states = model.full(tokens, mask, types), model.residuals(tokens, cuts, mask, types)
        for cut, state in zip(cuts, states, strict=True):
            joined = model.advance(state, after(cut), model.n_layers, mask)
            joined = model.finish(joined) if model.predicts == "next" else model.output(joined, mask)
            error, allowed = relative_error(joined, full), TOLERANCE[model.dtype]
            if not error <= allowed:  # NaN fails as well
                raise ModelError(
                    f"{model.name}: tail({cut}, head({cut}, x)) differs from the full pass by {error:.1e} of the "
                    f"largest logit (allowed: {allowed:.0e}); this model cannot be cut at its blocks"
                )
