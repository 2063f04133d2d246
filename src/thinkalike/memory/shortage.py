"""Whether an error says that there was no memory left: libraries have many ways to say so."""

from __future__ import annotations

import errno
import re

import torch

from thinkalike.errors import chain

WORDS = re.compile(
    r"out of memory"  # CUDA, HIP, MPS, XPU; "kind: OutOfMemory" below
    r"|outofmemory"
    r"|not enough memory|insufficient memory|too little memory"
    r"|(cannot|can't|unable to|could not|failed to) allocate"  # malloc and mmap, the CPU allocator, NumPy
    r"|bad_?alloc"
    r"|alloc_failed"  # cuBLAS, cuDNN
    r"|memory ?allocation.*(failed|failure)|cudaerrormemoryallocation"
    r"|paging file is too small"
    r"|os error (12|1455)\b|errno:? 12\b|error code:? 12\b",
    re.IGNORECASE,
)


def exhausted(error: BaseException) -> BaseException | None:
    """Return the error in the chain of causes of this one that says that there is no memory left, or None."""
    for each in chain(error, suppressed=True):
        if isinstance(each, MemoryError | torch.OutOfMemoryError):
            return each
        if isinstance(each, OSError) and each.errno is not None:
            if each.errno == errno.ENOMEM:
                return each
            continue  # a disk or a file has its own number, whatever the words
        if WORDS.search(str(each)):
            return each
    return None
