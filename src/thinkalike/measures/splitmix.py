"""Pseudo-random codes of whole numbers, the same on every device (splitmix64, 2014)."""

from __future__ import annotations

from jaxtyping import Int
from torch import Tensor

# The increment of the sequence and the two factors of its finaliser. Integers of torch are signed,
# and their products wrap around.
SPLITMIX_STEP = 0x9E3779B97F4A7C15 - 2**64
FIRST_FACTOR = 0xBF58476D1CE4E5B9 - 2**64
SECOND_FACTOR = 0x94D049BB133111EB - 2**64


def splitmix(codes: Int[Tensor, "*b"]) -> Int[Tensor, "*b"]:
    """Return a hash of each 64-bit code, whose bits all depend on all bits of the code.

    It is the finaliser of splitmix64. Products wrap around modulo 2^64.
    """
    codes = (codes ^ shift_right(codes, 30)) * FIRST_FACTOR
    codes = (codes ^ shift_right(codes, 27)) * SECOND_FACTOR
    return codes ^ shift_right(codes, 31)


def shift_right(codes: Int[Tensor, "*b"], bits: int) -> Int[Tensor, "*b"]:
    """Return 64-bit codes shifted right, filled with zeros; torch would fill in the sign."""
    return (codes >> bits) & ((1 << (64 - bits)) - 1)


def random_codes(numbers: Int[Tensor, "*n"], seed: int) -> Int[Tensor, "*n"]:
    """Return a pseudo-random 64-bit code for each number; equal numbers have equal codes.

    The code of a number is its mixture by the function of the generator splitmix64, after an
    offset that depends on the seed is added. It is the same on all machines.
    """
    offset = (seed + 1) * SPLITMIX_STEP % 2**63  # kept within int64
    return splitmix(numbers.long() + offset)
