"""Numbers for the pairs of levels of a feature, of which training knows k.

Two stimuli of one level, or of which one is ignored, have code 0; those of the known levels a < b codes from 1, in the
order (0, 1), (0, 2), ..., (k - 2, k - 1); those of which one has a level that training did not have the last code.
"""

from __future__ import annotations

import torch
from jaxtyping import Int
from torch import Tensor


def level_pairs(known: int) -> list[tuple[int, int]]:
    """Return the pairs of levels of codes 1, 2, ...; the last one, (k, k), is any with a level new to training."""
    rows, columns = torch.triu_indices(known, known, 1).tolist()
    return [*zip(rows, columns, strict=True), (known, known)]


def pair_codes(left: Int[Tensor, "*a"], right: Int[Tensor, "*b"], known: int) -> Int[Tensor, "*c"]:
    """Return the codes of pairs of levels; `left` and `right` are broadcast, and a negative level is ignored."""
    codes = torch.zeros(known + 1, known + 1, dtype=torch.int32, device=left.device)
    rows, columns = torch.triu_indices(known, known, 1, device=left.device)
    codes[rows, columns] = codes[columns, rows] = torch.arange(1, len(rows) + 1, device=left.device).int()
    codes[known] = codes[:, known] = len(rows) + 1
    place = left.clamp(0, known).long() * (known + 1) + right.clamp(0, known)
    found = codes.flatten().index_select(0, place.flatten()).view(place.shape)
    return found.where((left != right) & (left >= 0) & (right >= 0), 0)
