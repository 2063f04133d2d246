"""The operations of a model's passes, counted in two of them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from thinkalike.models.frozen import FrozenModel
from thinkalike.models.hooks import one_text_per_row

# The tokens of the shorter of the two rows; the longer has twice as many.
TOKENS_OF_SHORT_ROW = 8


@dataclass(frozen=True)
class Operations:
    """The operations of a model for each token, two for each product, as torch counts them.

    Attributes:
        blocks: Of each block, whatever the length of the row.
        attention: Of each block for each token of the row; kernels that skip later tokens need
            half.
        output: Of everything outside the blocks, mostly the unembedding.
    """

    blocks: tuple[float, ...]
    attention: tuple[float, ...]
    output: float

    def forward(self, start: int, stop: int, context: int) -> float:
        """Return the floating-point operations for one token in blocks `start` to `stop - 1`.

        `context` is the number of tokens in the row of the token: the operations of attention grow
        with it.
        """
        fixed = sum(self.blocks[start:stop])
        per_token_of_row = sum(self.attention[start:stop])
        return float(fixed + context * per_token_of_row)

    def full(self, context: int) -> float:
        """Return the floating-point operations of a full pass, with logits, for one token.

        `context` is the number of tokens in the row of the token.
        """
        return self.forward(0, len(self.blocks), context) + self.output


def operations(model: FrozenModel) -> Operations:
    """Return the operations of a model, counted in two passes."""
    return counted_operations(model.full, model.blocks, model.device)


@torch.no_grad()
def counted_operations(
    run: Callable[[Tensor], object], blocks: Sequence[nn.Module], device: torch.device
) -> Operations:
    """Count the operations of two rows; what grows with the square of their length is attention.

    Args:
        run: Runs the model on tokens (b, t).
        blocks: Its blocks.
        device: Where the tokens are to be.
    """
    counts: list[int] = []  # before and after each block, in the order in which they run
    # By the plain products of attention, since a fused kernel hides them from the counter.
    with sdpa_kernel(SDPBackend.MATH), one_text_per_row(), contextlib.ExitStack() as hooks:
        counter = hooks.enter_context(FlopCounterMode(display=False))

        def note_count(*_: object) -> None:
            counts.append(counter.get_total_flops())

        for block in blocks:
            hooks.enter_context(block.register_forward_pre_hook(note_count))
            hooks.enter_context(block.register_forward_hook(note_count))
        run(torch.zeros(1, TOKENS_OF_SHORT_ROW, dtype=torch.long, device=device))
        total_of_short_row = counter.get_total_flops()
        run(torch.zeros(1, 2 * TOKENS_OF_SHORT_ROW, dtype=torch.long, device=device))

    # The blocks of the pass over the short row, then those of the pass over the long row.
    of_blocks = [after - before for before, after in zip(counts[::2], counts[1::2], strict=True)]
    blocks_with_short_row = of_blocks[: len(blocks)]
    blocks_with_long_row = of_blocks[len(blocks) :]
    fixed = []
    attention = []
    for count_of_short_row, count_of_long_row in zip(
        blocks_with_short_row, blocks_with_long_row, strict=True
    ):
        # With n tokens in a row, the operations for one token are fixed + attention * n.
        per_token_of_short_row = count_of_short_row / TOKENS_OF_SHORT_ROW
        per_token_of_long_row = count_of_long_row / (2 * TOKENS_OF_SHORT_ROW)
        difference = max(per_token_of_long_row - per_token_of_short_row, 0.0)
        per_token_of_row = difference / TOKENS_OF_SHORT_ROW
        attention.append(per_token_of_row)
        fixed.append(per_token_of_short_row - TOKENS_OF_SHORT_ROW * per_token_of_row)
    output = (total_of_short_row - sum(blocks_with_short_row)) / TOKENS_OF_SHORT_ROW
    return Operations(tuple(fixed), tuple(attention), output)
