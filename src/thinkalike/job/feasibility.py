"""Estimates of the least that a job needs, so that one that cannot end is refused before it begins."""

from __future__ import annotations

import os

import torch

from thinkalike.errors import ResourceError

FASTEST = 1e15  # operations per second of a large GPU in half precision
YEAR = 3.15e7  # seconds


def check_feasible(what: str, device: torch.device, *, memory: float = 0.0, operations: float = 0.0) -> None:
    """Check that a device has the memory for something, and that it would end within a year on the fastest device.

    Args:
        what: the settings that decide it, for the message.
        memory: the fewest bytes that it can take.
        operations: the fewest multiplications and additions.

    Raises:
        ResourceError: it has not, or it would not.
    """
    there = memory_of(device)
    if memory > there:
        raise ResourceError(f"{what} needs at least {memory / 2**30:,.0f} GiB of {there / 2**30:,.0f} GiB; lower it")
    if operations > YEAR * FASTEST:
        years = operations / FASTEST / YEAR
        raise ResourceError(f"{what} would take at least {years:,.0f} years on the fastest GPU there is; lower it")


def memory_of(device: torch.device) -> float:
    """Return the bytes of memory that a device has."""
    if device.type == "cuda":
        return float(torch.cuda.get_device_properties(device).total_memory)
    return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
