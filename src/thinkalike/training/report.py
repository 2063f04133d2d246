"""What a stitch is measured by: sums over documents of every loss and distance, all on the same tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from thinkalike.measures import Moments, same_top_token, sum_by_document, token_kl
from thinkalike.models import FrozenModel
from thinkalike.training.stitching import Pair, last_states, next_token_losses

Maps = Sequence[Callable[[Tensor], Tensor]]  # one map from source states to target states for every pair


@torch.no_grad()
def document_sums(
    source: FrozenModel,
    target: FrozenModel,
    pairs: Sequence[Pair],
    maps: Mapping[str, Maps],
    rows: Int[Tensor, "rows context"],
    documents: Int[Tensor, "rows context"],
    batch: int,
) -> dict[str, Tensor]:
    """Run the report's rows through all maps.

    Args:
        maps: by name; `stitch` is the one that is also compared with the target's output and states.
        documents: number of each token's document.
        batch: rows at a time.

    Returns:
        Sums over the predicted tokens of each document, float64. By the name of each map, its loss (pairs, documents)
        in nats; `target` and `source`, the models' own losses (documents,), and `tokens`, how many there are; for
        `stitch` also (pairs, documents): `kl` to the target's output in nats, `top1` agreements with it,
        `distance` = |φ(h) - t| / |t| and `norm` = |φ(h)| / |t| with t the target's own state.
    """
    count, last, layers = int(documents.max()) + 1, target.n_layers - 1, [layer for layer, _ in pairs]
    totals: dict[str, Tensor] = {}
    for part, owners in zip(rows.split(batch), documents.split(batch), strict=True):
        tokens, owner = part.long(), owners[:, 1:].flatten()
        *states, own = source.residuals(tokens, [*layers, source.n_layers - 1])
        *goals, standard = target.residuals(tokens, [*(depth for _, depth in pairs), last])
        found = {
            "source": next_token_losses(source, [own], tokens)[0],
            "target": next_token_losses(target, [standard], tokens)[0],
        }
        found["tokens"] = torch.ones_like(found["target"])
        for name, functions in maps.items():
            mapped = [function(state.to(target.device)) for function, state in zip(functions, states, strict=True)]
            ends = last_states(target, [(depth, state) for (_, depth), state in zip(pairs, mapped, strict=True)])
            found[name] = torch.stack(next_token_losses(target, ends, tokens))
            if name == "stitch":
                found |= _matches(target, mapped, goals, ends, standard)
        for name, values in found.items():
            totals[name] = totals.get(name, 0) + sum_by_document(values.flatten(-2).cpu(), owner, count)
    return totals


def _matches(
    target: FrozenModel, mapped: list[Tensor], goals: list[Tensor], ends: list[Tensor], standard: Tensor
) -> dict[str, Tensor]:
    """How near each map's states and outputs are to the target's own, per predicted token: (pairs, b, t - 1)."""
    shape = standard[:, :-1].shape[:2]
    rows = [end[:, :-1].flatten(0, 1) for end in ends]
    own = standard[:, :-1].flatten(0, 1)
    states = [(state[:, :-1].float(), goal[:, :-1].float()) for state, goal in zip(mapped, goals, strict=True)]
    return {
        "kl": torch.stack([token_kl(row, target.finish, own).view(shape) for row in rows]),
        "top1": torch.stack([same_top_token(row, target.finish, own).float().view(shape) for row in rows]),
        "distance": torch.stack([(state - goal).norm(dim=-1) / goal.norm(dim=-1) for state, goal in states]),
        "norm": torch.stack([state.norm(dim=-1) / goal.norm(dim=-1) for state, goal in states]),
    }


@torch.no_grad()
def state_moments(
    source: FrozenModel, target: FrozenModel, pairs: Sequence[Pair], rows: Int[Tensor, "rows context"], batch: int
) -> Moments:
    """Sufficient statistics of the closed-form maps of all pairs, from one pass over fit rows."""
    moments = Moments(pairs)
    for part in rows.split(batch):
        tokens = part.long()
        mine = source.residuals(tokens, range(source.n_layers))
        theirs = target.residuals(tokens, range(target.n_layers))
        moments.update(
            [state.flatten(0, 1).to(target.device) for state in mine], [state.flatten(0, 1) for state in theirs]
        )
    return moments
