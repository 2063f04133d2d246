"""The map φ between two residual streams (Brown et al. 2023, section 2: g after φ after f)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils.parametrizations import orthogonal

from thinkalike import plugins
from thinkalike.arguments import Count, Seed, shown, takes_arrays
from thinkalike.errors import PluginError, one_line
from thinkalike.measures.closed_forms import AffineMap
from thinkalike.measures.moments import LayerPair
from thinkalike.stitches.kinds import KINDS, NORMS

NAME = "stitch.safetensors"  # of the stitches of a result


def _plugged(kind: str, width_in: int, width_out: int) -> nn.Module:
    """Return the module that a plugin makes; a PluginError if it has no weights, or leads to another width."""
    function: Any = plugins.load(kind)
    with plugins.blaming(f"stitch {kind}"):
        made: Any = function(width_in, width_out)
    try:
        with torch.no_grad():
            shape = tuple(made(torch.zeros(2, 3, width_in)).shape)
    except Exception as error:  # whatever the user's code raises
        raise PluginError(f"stitch {kind} does not take (2, 3, {width_in}): {one_line(error)}") from error
    if not isinstance(made, nn.Module) or next(made.parameters(), None) is None or shape != (2, 3, width_out):
        wanted = f"an nn.Module with weights, from (2, 3, {width_in}) to (2, 3, {width_out})"
        raise PluginError(f"stitch {kind} must make {wanted}; it makes a {type(made).__name__} to {shape}")
    return made


def _start(linear: nn.Linear, *, zero: bool) -> None:
    with torch.no_grad():
        nn.init.zeros_(linear.weight) if zero else nn.init.orthogonal_(linear.weight)
        if linear.bias is not None:
            linear.bias.zero_()


class Stitch(nn.Module):
    """A trainable map φ from width d to width e.

    | kind | φ(h) | parameters |
    |---|---|---|
    | identity | h | none but those of a LayerNorm |
    | linear | h + W h | d² |
    | affine | h + W h + b | d² + d |
    | low_rank | h + B A h + b, A of `rank` rows | 2 r d + d |
    | orthogonal | Q h + b, QᵀQ = 1 | d² + d |
    | one of a plugin | what its module gives | its own |

    W and b start at zero, so that weight decay pulls to the identity (as in tuned-lens). Between different widths the
    term h is left out, and W starts orthogonal. `norm` puts a LayerNorm before or after the map; the paper has one, but
    does not say where.

    Raises:
        ValueError: The kind or norm is unknown, an identity or orthogonal map is to go between different widths, or the
            rank of low_rank is more than a width.

    >>> phi, states = Stitch("linear", 4, 4), torch.randn(2, 4)
    >>> torch.equal(phi(states), states)  # it starts at the identity
    True
    """

    @takes_arrays
    def __init__(
        self, kind: str, width_in: Count, width_out: Count, norm: str = "none", rank: Count = 16, seed: Seed = 0
    ):
        super().__init__()
        own = plugins.is_plugin(kind)
        plugins.trust(plugins.named_in(kind))  # an argument that a person gives
        if not (kind in KINDS or own):
            raise ValueError(f"kind={shown(kind)} is unknown; kinds are {', '.join(KINDS)}")
        if norm not in NORMS:
            raise ValueError(f"norm={shown(norm)} is unknown; norms are {', '.join(NORMS)}")
        if kind in ("identity", "orthogonal") and width_in != width_out:
            raise ValueError(f"an {kind} stitch needs equal widths, not {width_in} and {width_out}")
        if kind == "low_rank" and rank > min(width_in, width_out):
            raise ValueError(
                f"rank={rank} is more than the smaller width of {width_in} and {width_out}: choose a lower one"
            )
        self.kind, self.residual = kind, width_in == width_out and kind != "orthogonal" and not own
        self.norm, self.widths = norm, (width_in, width_out)
        self.pre = nn.LayerNorm(width_in) if norm == "pre" else nn.Identity()
        self.post = nn.LayerNorm(width_out) if norm == "post" else nn.Identity()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.map = _plugged(kind, *self.widths) if own else self._new_map(kind, *self.widths, rank)

    def _new_map(self, kind: str, width_in: int, width_out: int, rank: int) -> nn.Module | None:
        if kind == "identity":
            return None
        if kind == "low_rank":
            inner, outer = nn.Linear(width_in, rank, bias=False), nn.Linear(rank, width_out)
            nn.init.orthogonal_(inner.weight)
            _start(outer, zero=self.residual)
            return nn.Sequential(inner, outer)
        linear = nn.Linear(width_in, width_out, bias=kind != "linear")
        _start(linear, zero=self.residual)
        if kind == "orthogonal":
            with torch.no_grad():
                linear.weight.copy_(torch.eye(width_in))
            return orthogonal(linear)
        return linear

    def extra_repr(self) -> str:
        return f"{self.kind}, {self.widths[0]} -> {self.widths[1]}"

    def forward(self, residual: Float[Tensor, "*b d"]) -> Float[Tensor, "*b e"]:
        weight = next(self.parameters(), None)  # φ computes in its own precision, whatever that of the models
        state = self.pre(residual if weight is None else residual.to(weight.dtype))
        if self.map is not None:
            state = state + self.map(state) if self.residual else self.map(state)
        return self.post(state)

    @torch.no_grad()
    def start_from(self, weight: Float[Tensor, "e d"], bias: Float[Tensor, " e"]) -> None:
        """Make φ(h) = weight h + bias; linear drops the bias, and low_rank takes the nearest map of its rank."""
        departure = weight - torch.eye(len(weight)).to(weight) if self.residual else weight
        if isinstance(self.map, nn.Sequential):
            inner, outer = (part for part in self.map if isinstance(part, nn.Linear))
            left, singular, right = torch.linalg.svd(departure, full_matrices=False)
            rank = len(inner.weight)
            inner.weight.copy_(right[:rank])
            outer.weight.copy_(left[:, :rank] * singular[:rank])
            outer.bias.copy_(bias)
            return
        assert isinstance(self.map, nn.Linear)
        if self.kind == "orthogonal":
            self.map.weight = departure.to(self.map.weight.dtype)
        else:
            self.map.weight.copy_(departure)
        if self.map.bias is not None:
            self.map.bias.copy_(bias)

    @torch.no_grad()
    def affine(self) -> AffineMap:
        """Return φ as one map W h + b in float64, with the identity and both factors of a low rank folded in.

        Raises:
            ValueError: There is a LayerNorm, so that φ is no affine map, or φ is a plugin's and may be none.
        """
        if self.kind not in KINDS or self.norm != "none":
            raise ValueError(f"kind={self.kind}, norm={self.norm}: a plugin or a LayerNorm may be no affine map")
        linear = [part for part in self.modules() if isinstance(part, nn.Linear)]  # one, or the two of a low rank
        if not linear:
            return AffineMap(torch.eye(self.widths[0]).double(), torch.zeros(self.widths[1]).double())
        weight, bias = linear[-1].weight.double(), linear[-1].bias
        if len(linear) > 1:
            weight = weight @ linear[0].weight.double()
        if self.residual:
            weight = weight + torch.eye(len(weight)).to(weight)
        return AffineMap(weight, weight.new_zeros(len(weight)) if bias is None else bias.to(weight))


def facts_of_stitches(pairs: Sequence[LayerPair], kind: str, norm: str = "none", **more: Any) -> dict[str, str]:
    """Return what the file of a result's stitches says of them, with `more`: the widths and the rank of a `Stitch`.

    Tensors are called by the number of the layer pair and the part, as in "0.map.weight"; those of a further seed begin
    with "seed_1.", and those from the target to the source with "back.", as in "back.seed_1.0.map.weight".
    """
    # one entry: the order of several is not kept
    return {"stitch": json.dumps({"pairs": pairs, "kind": kind, "norm": norm, **more})}
