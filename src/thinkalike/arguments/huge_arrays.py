"""Arrays that stand for more numbers than they hold, and than there is memory for."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from thinkalike.memory import CPU, available_bytes, readable

# any machine has so many, so that nobody needs to ask what is left
BYTES_ALWAYS_THERE = 2**28
BYTES_OF_WHOLE_NUMBER = 8


def refuse_huge(value: object, name: str) -> None:
    """Raise a ValueError if an array stands for more numbers than there is memory for.

    Those are arrays that repeat a few numbers, as `torch.Tensor.expand` and `numpy.broadcast_to`
    make them, and files that are mapped. What computes with one has to lay it out.
    """
    laid_out = _bytes_to_lay_out(value)
    if laid_out <= BYTES_ALWAYS_THERE:
        return
    device = value.device if isinstance(value, Tensor) else CPU
    available = available_bytes(device)
    if laid_out > available:
        shape = tuple(getattr(value, "shape", ())) or (laid_out // BYTES_OF_WHOLE_NUMBER,)
        raise ValueError(
            f"{name} has shape {shape}, which takes {readable(float(laid_out))}, and there is "
            f"{readable(float(available))} of memory: give fewer rows or columns"
        )


def _bytes_to_lay_out(value: object) -> int:
    """Return the bytes of an array that is not in memory as it is; 0 for anything else."""
    if isinstance(value, Tensor):
        size = value.numel() * value.element_size()
        if size <= BYTES_ALWAYS_THERE or size <= value.untyped_storage().nbytes():
            return 0
        return size
    if isinstance(value, np.ndarray):
        steps = zip(value.strides, value.shape, strict=True)
        repeats = any(step == 0 and length > 1 for step, length in steps)
        return value.nbytes if repeats or isinstance(value, np.memmap) else 0
    if isinstance(value, range):
        return BYTES_OF_WHOLE_NUMBER * (abs(value.stop - value.start) // abs(value.step))
    return 0
