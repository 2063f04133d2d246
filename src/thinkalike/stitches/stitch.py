"""The map φ between two residual streams (Brown et al. 2023, section 2: g after φ after f)."""

from __future__ import annotations

import json
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils.parametrizations import orthogonal

from thinkalike import plugins
from thinkalike.arguments import Count, Seed, shown, takes_arrays
from thinkalike.errors import PluginError, reason_in_words
from thinkalike.measures.closed_forms import AffineMap
from thinkalike.measures.moments import LayerPair
from thinkalike.stitches.kinds import KINDS, NORMS

# The file of the stitches of a result.
NAME = "stitch.safetensors"

# The rows and tokens of the states by which the module of a plugin is tried.
PROBE_SHAPE = (2, 3)


class StitchModule(nn.Module):
    """A trainable map φ from width d to width e.

    | kind | φ(h) | parameters |
    |---|---|---|
    | identity | h | none but those of a LayerNorm |
    | linear | h + W h | d² |
    | affine | h + W h + b | d² + d |
    | low_rank | h + B A h + b, A of `rank` rows | 2 r d + d |
    | orthogonal | Q h + b, QᵀQ = 1 | d² + d |
    | one of a plugin | what its module gives | its own |

    W and b start at zero, so that weight decay pulls to the identity (as in tuned-lens). Between
    different widths the term h is left out, and W starts orthogonal. `norm` puts a LayerNorm
    before or after the map; the paper has one, but does not say where.

    Raises:
        ValueError: The kind or norm is unknown, an identity or orthogonal map is to go between
            different widths, or the rank of low_rank is more than a width.

    >>> phi, states = StitchModule("linear", 4, 4), torch.randn(2, 4)
    >>> torch.equal(phi(states), states)  # it starts at the identity
    True
    """

    @takes_arrays
    def __init__(
        self,
        kind: str,
        width_in: Count,
        width_out: Count,
        norm: str = "none",
        rank: Count = 16,
        seed: Seed = 0,
    ):
        """Make a map with its initial weights; see the class for the arguments.

        Args:
            kind: A kind of the table, or FILE.py:NAME for a module of the user's own.
            width_in, width_out: The widths d and e.
            norm: Where a LayerNorm is: "none", "pre" or "post".
            rank: The rank r of a map of low rank.
            seed: Decides random initial weights; the global generator of torch is not changed.
        """
        super().__init__()
        is_plugin = plugins.is_plugin(kind)
        plugins.trust(plugins.named_in(kind))  # the caller names the file, so it may be run
        _check_arguments(kind, width_in, width_out, norm, rank)

        self.kind = kind
        self.norm = norm
        self.widths = (width_in, width_out)
        # Whether φ(h) has the term h.
        self.residual = width_in == width_out and kind != "orthogonal" and not is_plugin
        self.pre: nn.Module = nn.Identity()
        self.post: nn.Module = nn.Identity()
        if norm == "pre":
            self.pre = nn.LayerNorm(width_in)
        if norm == "post":
            self.post = nn.LayerNorm(width_out)

        self.map: nn.Module | None
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            if is_plugin:
                self.map = _map_of_plugin(kind, width_in, width_out)
            else:
                self.map = self._new_map(rank)

    def _new_map(self, rank: int) -> nn.Module | None:
        """Return a map of this stitch's kind, with initial weights; None for the identity.

        Where φ(h) is h plus the map of h, the map starts at zero. Otherwise the weight starts as a
        random orthogonal matrix, or for the kind "orthogonal" at the identity. Biases start at 0.

        Args:
            rank: The rank of a map of low rank; other kinds ignore it.
        """
        width_in, width_out = self.widths
        if self.kind == "identity":
            return None
        if self.kind == "low_rank":
            inner = nn.Linear(width_in, rank, bias=False)
            outer = nn.Linear(rank, width_out)
            nn.init.orthogonal_(inner.weight)
            _initialise_linear(outer, to_zero=self.residual)
            return nn.Sequential(inner, outer)

        has_bias = self.kind != "linear"
        linear = nn.Linear(width_in, width_out, bias=has_bias)
        _initialise_linear(linear, to_zero=self.residual)
        if self.kind != "orthogonal":
            return linear
        with torch.no_grad():
            linear.weight.copy_(torch.eye(width_in))
        return orthogonal(linear)  # of torch: whatever is trained, the weight stays orthogonal

    def extra_repr(self) -> str:
        """Return the kind and the widths, to be shown in the `repr` of the module."""
        width_in, width_out = self.widths
        return f"{self.kind}, {width_in} -> {width_out}"

    def forward(self, residual: Float[Tensor, "*b d"]) -> Float[Tensor, "*b e"]:
        """Return φ of each state, computed in the dtype of φ's weights.

        φ(h) is the map of h, or h plus the map of h if `self.residual`; the identity has no map. A
        LayerNorm before the map (`self.pre`) applies to both terms, and one after it
        (`self.post`) to their sum.

        Args:
            residual: The states h, of a residual stream, with any leading axes.
        """
        weight = next(self.parameters(), None)
        if weight is not None:
            residual = residual.to(weight.dtype)
        state = self.pre(residual)
        if self.map is not None:
            mapped = self.map(state)
            if self.residual:
                mapped = state + mapped
            state = mapped
        result: Tensor = self.post(state)
        return result

    @torch.no_grad()
    def start_from(self, weight: Float[Tensor, "e d"], bias: Float[Tensor, " e"]) -> None:
        """Set the weights such that φ(h) = weight h + bias, as far as the kind of φ allows.

        A linear φ drops the bias. One of low rank takes the nearest map of its rank, and an
        orthogonal one the nearest orthogonal matrix. A LayerNorm is not changed. φ must not be
        the identity, which has no map to set, nor a plugin's module.
        """
        # If φ(h) is h plus the map of h, the map is the wanted map minus the identity.
        map_weight = weight
        if self.residual:
            map_weight = weight - torch.eye(len(weight)).to(weight)

        if isinstance(self.map, nn.Sequential):
            inner, outer = self.map
            assert isinstance(inner, nn.Linear)
            assert isinstance(outer, nn.Linear)
            # The leading singular vectors give the nearest matrix of a rank (Eckart and Young).
            u, singular_values, v_transposed = torch.linalg.svd(map_weight, full_matrices=False)
            rank = len(inner.weight)
            inner.weight.copy_(v_transposed[:rank])
            outer.weight.copy_(u[:, :rank] * singular_values[:rank])
            outer.bias.copy_(bias)
            return

        assert isinstance(self.map, nn.Linear)
        if self.kind == "orthogonal":
            # Torch parametrizes this weight, and turns what is assigned to it into the nearest
            # orthogonal matrix.
            self.map.weight = map_weight.to(self.map.weight.dtype)
        else:
            self.map.weight.copy_(map_weight)
        if self.map.bias is not None:
            self.map.bias.copy_(bias)

    @torch.no_grad()
    def affine(self) -> AffineMap:
        """Return the W and b in float64 with which φ(h) = W h + b.

        W includes the identity if φ(h) has the term h, and is the product of both factors if φ is
        of low rank.

        Raises:
            ValueError: φ may be no affine map, because it has a LayerNorm or is a user's module.
        """
        if self.kind not in KINDS or self.norm != "none":
            raise ValueError(
                f"kind={self.kind}, norm={self.norm}: a plugin or a LayerNorm may be no affine map"
            )
        # One linear map, or the two factors of a map of low rank, the one that is applied first in
        # front; none for the identity.
        linear_maps = [module for module in self.modules() if isinstance(module, nn.Linear)]
        if not linear_maps:
            identity = torch.eye(self.widths[0], dtype=torch.float64)
            return AffineMap(identity, identity.new_zeros(self.widths[1]))

        last = linear_maps[-1]
        weight = last.weight.double()
        if len(linear_maps) > 1:
            weight = weight @ linear_maps[0].weight.double()
        if self.residual:
            weight = weight + torch.eye(len(weight)).to(weight)
        bias = weight.new_zeros(len(weight))
        if last.bias is not None:
            bias = last.bias.to(weight)
        return AffineMap(weight, bias)


def _check_arguments(kind: str, width_in: int, width_out: int, norm: str, rank: int) -> None:
    """Raise a ValueError for an unknown kind or norm, or widths or a rank that do not fit."""
    if kind not in KINDS and not plugins.is_plugin(kind):
        raise ValueError(f"kind={shown(kind)} is unknown; kinds are {', '.join(KINDS)}")
    if norm not in NORMS:
        raise ValueError(f"norm={shown(norm)} is unknown; norms are {', '.join(NORMS)}")
    if kind in ("identity", "orthogonal") and width_in != width_out:
        raise ValueError(f"an {kind} stitch needs equal widths, not {width_in} and {width_out}")
    if kind == "low_rank" and rank > min(width_in, width_out):
        raise ValueError(
            f"rank={rank} is more than the smaller width of {width_in} and {width_out}: "
            "choose a lower one"
        )


def _map_of_plugin(kind: str, width_in: int, width_out: int) -> nn.Module:
    """Return the module that a user's class or function makes for a stitch of these widths.

    It is called once on zeros, to see that it maps to states of the right width.

    Args:
        kind: The file and the name in it, FILE.py:NAME.
        width_in, width_out: The widths of the states that the module maps from and to.

    Raises:
        PluginError: It fails, makes no module with weights, or maps to another width.
    """
    function = plugins.load(kind)
    # An error in this context names the stitch of the user in its message.
    with plugins.blaming(f"stitch {kind}"):
        assert callable(function), "it is neither a class nor a function"
        module = function(width_in, width_out)
    try:
        with torch.no_grad():
            shape = tuple(module(torch.zeros(*PROBE_SHAPE, width_in)).shape)
    except (Exception, SystemExit) as error:  # whatever the user's code raises
        taken = (*PROBE_SHAPE, width_in)
        reason = reason_in_words(error)
        raise PluginError(f"stitch {kind} does not take {taken}: {reason}") from error

    expected_shape = (*PROBE_SHAPE, width_out)
    is_trainable = isinstance(module, nn.Module) and any(True for _ in module.parameters())
    if not is_trainable or shape != expected_shape:
        raise PluginError(
            f"stitch {kind} must make an nn.Module with weights, from "
            f"{(*PROBE_SHAPE, width_in)} to {expected_shape}; "
            f"it makes a {type(module).__name__} to {shape}"
        )
    return module


def _initialise_linear(linear: nn.Linear, *, to_zero: bool) -> None:
    """Set a weight to zero or to a random orthogonal matrix, and the bias, if any, to zero."""
    with torch.no_grad():
        if to_zero:
            nn.init.zeros_(linear.weight)
        else:
            nn.init.orthogonal_(linear.weight)
        if linear.bias is not None:
            linear.bias.zero_()


def facts_of_stitches(
    pairs: Sequence[LayerPair],
    kind: str,
    norm: str = "none",
    *,
    widths: Sequence[int] | None = None,
    rank: int | None = None,
) -> dict[str, str]:
    """Return the metadata of the file in which the stitches of a result are stored.

    Tensors in the file are named by the index of the layer pair and the parameter, as in
    "0.map.weight". Names of a further seed begin with "seed_1.", and those of stitches from the
    target to the source with "back.", as in "back.seed_1.0.map.weight".

    Args:
        pairs: The layer pairs, in the order of their indices.
        kind: The kind of the stitches.
        norm: Where they have a LayerNorm: "none", "pre" or "post".
        widths: The widths of the source and the target; None for maps that were not trained.
        rank: The setting of the rank, which only low_rank uses; None for maps that were not
            trained.
    """
    facts: dict[str, object] = {"pairs": pairs, "kind": kind, "norm": norm}
    if widths is not None:
        facts["widths"] = widths
    if rank is not None:
        facts["rank"] = rank
    # A single entry, because safetensors writes several entries in no fixed order.
    return {"stitch": json.dumps(facts)}
