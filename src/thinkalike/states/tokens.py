"""States of several models at the tokens of shared rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from thinkalike.models import EMBED, FrozenModel, Layer


def sites(model: FrozenModel, embed: bool) -> list[Layer]:
    """Return all layers of a model, before them EMBED if asked for."""
    return [*([EMBED] if embed else []), *range(model.n_layers)]


def site_numbers(model: FrozenModel, embed: bool) -> list[int]:
    """Return the same as the numbers that tables have, where -1 stands for EMBED."""
    return list(range(-1 if embed else 0, model.n_layers))


@torch.no_grad()
def token_states(
    models: Sequence[FrozenModel],
    rows: Int[Tensor, "b t"],
    embed: bool = False,
    *,
    mask: Int[Tensor, "b t"] | None = None,
    types: Int[Tensor, "b t"] | None = None,
    site: str = "resid_post",
) -> list[list[Float[Tensor, "b t _"]]]:
    """Return for each model its residuals at all layers; a model that is named twice runs once. No unembedding runs.

    Args:
        mask, types: of rows that are padded texts or pairs of texts; `counted` says which of their tokens to compare.
        site: "update" for what each block of a BERT adds last.
    """
    different = dict.fromkeys(models)
    states = {id(model): model.residuals(rows.long(), sites(model, embed), mask, types, site) for model in different}
    return [states[id(model)] for model in models]


def counted(
    rows: Int[Tensor, "b t"],
    skip_first: int = 0,
    special: Iterable[int] = (),
    *,
    mask: Int[Tensor, "b t"] | None = None,
    include_padding: bool = False,
) -> Bool[Tensor, "b t"]:
    """Return which tokens count: not the first few of a row, none of these special ones, and no padding.

    Args:
        mask: 1 for tokens and 0 for padding; None: there is none.
        include_padding: let it count, as Brown et al. (2023, appendix C.2) do.
    """
    kept = ~torch.isin(rows, torch.tensor(sorted(special), dtype=rows.dtype))
    kept[:, :skip_first] = False
    return kept if mask is None or include_padding else kept & mask.bool()
