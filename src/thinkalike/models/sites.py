"""Sites of a model beside the stream after each block, by TransformerLens's names: found by what adds up, so proved.

In one pass over a few fixed tokens every module of a block shows what it reads and gives, and sums tell which of them
add to the stream. Where a norm stands behind attention or MLP, what is added comes out of the norm.

    resid_pre + attn_out = resid_mid,  resid_mid + mlp_out = resid_post                    one after the other
    norm(resid_pre + attn_out) = resid_mid,  norm(resid_mid + mlp_out) = resid_post        the same in BERT
    resid_pre + attn_out + mlp_out = resid_post                                            side by side

`z` and `mlp_post` are what the last linear map of attention and MLP reads. What does not add up is not offered.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, TypeVar, get_args

import torch
from torch import Tensor, nn

from thinkalike.config.parts import MIDDLE, Site
from thinkalike.errors import ModelError, listed
from thinkalike.models.families import EMBED, Layer, Place
from thinkalike.models.frozen import FrozenModel, alone, ended_at, state_in
from thinkalike.models.module_facts import HEADS, embedding_of, first_tensor, number_in, sample_tokens, text_config
from thinkalike.models.parts import component_of
from thinkalike.models.proof import prove
from thinkalike.models.survey import ROWS, passing

TOKENS = 8  # of each row of the sample
ROUNDING = 8  # units of the dtype, of all that is added, by which a sum may differ
ONCE = ("embed", "ln_final")  # sites of no block

Direction = Literal["read", "gave"]
Choice = TypeVar("Choice", bound=Hashable)


@dataclass(frozen=True, eq=False)
class Seen:
    """What a module did in the pass, with its states as rows (n, d) in float64; None: it had no state of each token."""

    path: str  # from the block, whose own is ""
    module: nn.Module
    entered: int  # the order in which modules began and ended
    left: int
    read: Tensor | None
    gave: Tensor | None

    @property
    def is_norm(self) -> bool:
        return component_of(self.path.rpartition(".")[2]) == "norms"


Block = dict[str, Seen]  # the modules of a block that ran by path, short paths first


class Form(NamedTuple):
    """The modules of a block that add to the stream, by path; "" stands for one that it has not."""

    middle: tuple[str, Direction] | None  # whose state is resid_mid; None: the block has no such state
    attention: str
    mlp: str


class Sites:
    """The sites of a model at which its states are taken.

    Args:
        chosen: their names.
        head: the head of `z` that is taken alone, or "all" of them one by one; None: all of them side by side.

    Raises:
        ModelError: the model lacks one of them.
    """

    def __init__(self, model: FrozenModel, chosen: Sequence[str], head: int | str | None):
        heads = number_in(text_config(model.module), HEADS)
        self.modules = find(model, heads or 1)
        self.chosen, self.head, self.n_layers, self.n_heads = list(chosen), head, model.n_layers, heads or 1
        for site in chosen:
            if not self.layers(site):
                raise ModelError(f"model.site={site} is no site of {model.name}, which has {self._said()}")
        if head is not None and not (heads and (head == "all" or int(head) < heads)):
            has = f"heads 0 to {heads - 1}" if heads else "no known number of heads"
            raise ModelError(f"model.head={head}: {model.name} has {has}")
        every = range(self.n_heads) if head == "all" else [head]
        self.heads = [None if each is None else int(each) for each in every]

    def layers(self, site: str) -> list[int]:
        """Return the layers that have a site, or none if some block lacks it."""
        found = [layer for name, layer in self.modules if name == site]
        return found if site in ONCE or len(found) == self.n_layers else []

    def _said(self) -> str:
        partly = dict.fromkeys(site for site, _ in self.modules if not self.layers(site))
        some = [f"in blocks {listed([layer for name, layer in self.modules if name == site])} alone {site}"
                for site in partly]  # fmt: skip
        return "; ".join([", ".join(filter(self.layers, get_args(Site))), *some])

    def at(self, layers: Iterable[int]) -> list[Place]:
        """Return the places at these layers; the embedding and the last norm are of no block, and always there."""
        layers = list(layers)
        found = [
            Place(site, int(layer), head)
            for site in self.chosen
            for layer in (self.layers(site) if site in ONCE else layers)
            for head in (self.heads if site == "z" else [None])
        ]
        return sorted(found, key=int)

    def captured(self, place: Place, key: Any, rows: Any, states: Any) -> contextlib.AbstractContextManager[Any]:
        """Store the states of a place, (*rows, d), in every pass as `states[key]` while the context is open."""
        module, direction = self.modules[place.site, place.layer]

        def keep(state: Tensor) -> None:
            whole = state.reshape(*rows, -1)
            own = whole if place.head is None else whole.chunk(self.n_heads, -1)[place.head]
            states[key] = own.clone()  # Falcon adds to what its MLP gave in place

        if direction == "gave":
            return module.register_forward_hook(lambda _, args, output: keep(first_tensor(output)))
        return module.register_forward_pre_hook(lambda _, args, named: keep(state_in(args, named)), with_kwargs=True)

    def output_of_head(self, place: Place, z: Tensor) -> Tensor:
        """Return what a head adds to the output of its attention, given what the last linear map of attention reads."""
        projection, _ = self.modules["z", place.layer]
        heads = [torch.zeros_like(head) for head in z.chunk(self.n_heads, -1)]
        heads[place.head or 0] = z.chunk(self.n_heads, -1)[place.head or 0]
        with_bias, bias = projection.forward(torch.cat(heads, -1)), projection.forward(torch.zeros_like(z))
        return with_bias - bias  # type: ignore[no-any-return]

    def replaced(self, place: Place, state: Tensor) -> contextlib.AbstractContextManager[Any]:
        """Put this output in the place of the model's own in every pass while the context is open.

        It is that of attention or an MLP, or, at a head of `z`, what `output_of_head` returns.
        """
        module, direction = self.modules[place.site, place.layer]

        def replace_output(_: nn.Module, args: Any, output: Any) -> Any:
            own = first_tensor(output)
            changed = state.reshape(own.shape).to(own)
            if place.site == "z":
                changed = own - self.output_of_head(place, state_in(args, {})) + changed
            return changed if isinstance(output, Tensor) else (changed, *output[1:])

        if place.site != "z" and direction != "gave":
            raise ValueError(f"{place} is no output of a module")
        return module.register_forward_hook(replace_output)


class MiddleModel(FrozenModel):
    """A model cut after attention: a layer l means the site resid_mid[l], and its tail begins with the MLP of block l.

    Layers are as many as blocks, as the last MLP is part of `finish`: it reads each token by itself. The MLP of a block
    is run by giving the block the state, and 0 in place of what its attention adds. Blocks that add both side by side,
    or lack one, are a ModelError.
    """

    def __init__(self, model: FrozenModel, is_proved: bool = False):
        vars(self).update(vars(model))
        self.sites = Sites(model, [MIDDLE], None)
        if not self.sites.layers("attn_out"):
            raise ModelError(f"model.site={MIDDLE} cannot be cut: not every block of {model.name} has attention")
        if not is_proved:
            prove(self)

    def describe(self) -> dict[str, str]:
        return super().describe() | {"site": MIDDLE}

    def _captured(self, layer: Layer, rows: Sequence[int], states: Any) -> contextlib.AbstractContextManager[Any]:
        if layer == EMBED:
            return super()._captured(layer, rows, states)
        return self.sites.captured(Place(MIDDLE, int(layer)), layer, rows, states)  # type: ignore[no-any-return]

    def _ended_after(self, count: int) -> contextlib.AbstractContextManager[None]:
        module, direction = self.sites.modules[MIDDLE, count - 1] if count else (self.blocks[0], "read")
        return ended_at(module, entering=direction == "read")

    def _continued(self, residual: Tensor, start: int, mask: Tensor | None) -> Tensor:
        if not start:
            return super()._continued(residual, start, mask)
        middle, direction = self.sites.modules[MIDDLE, start - 1]
        attention, _ = self.sites.modules["attn_out", start - 1]
        replaced, by = (middle, lambda *_: residual) if direction == "gave" else (attention, _nothing)
        with alone(self.module), replaced.register_forward_hook(by):
            return super()._continued(residual, start - 1, mask)


def _nothing(_: nn.Module, args: Any, output: Any) -> Any:
    """Return 0 in place of what a module gave."""
    nothing = torch.zeros_like(first_tensor(output))
    return nothing if isinstance(output, Tensor) else (nothing, *output[1:])


def find(model: FrozenModel, heads: int) -> dict[tuple[str, int], tuple[nn.Module, Direction]]:
    """Return by site and layer the module of each site that is proved, and whether it reads or gives the state."""
    blocks, outside = _seen(model)
    unit = ROUNDING * torch.finfo(model.dtype).eps
    forms = _agreed([[*_forms(block, unit)] for block in blocks])
    found: dict[tuple[str, int], tuple[nn.Module, Direction]] = {}
    for layer, (block, form) in enumerate(zip(blocks, forms, strict=True)):
        found["resid_pre", layer], found["resid_post", layer] = (block[""].module, "read"), (block[""].module, "gave")
        if form and form.middle:
            path, direction = form.middle
            found["resid_mid", layer] = block[path].module, direction
    for added, inner, part in (("attn_out", "z", "attention"), ("mlp_out", "mlp_post", "mlp")):
        paths = [getattr(form, part, "") for form in forms]
        inside = _agreed(
            [[*_projections(block, path)] if path else [] for block, path in zip(blocks, paths, strict=True)]
        )
        for layer, (block, path, last) in enumerate(zip(blocks, paths, inside, strict=True)):
            if path:
                found[added, layer] = block[path].module, "gave"
            if last and (inner != "z" or block[last].read.shape[-1] % heads == 0):  # type: ignore[union-attr]
                found[inner, layer] = block[last].module, "read"
    return found | _outside(model, outside, blocks)


def _seen(model: FrozenModel) -> tuple[list[Block], list[Seen]]:
    """Return what the modules of each block, and those outside, did with sample tokens."""
    tokens, order = sample_tokens(model.vocabulary, model.context, ROWS, TOKENS), itertools.count()
    began: dict[nn.Module, tuple[int, Tensor | None]] = {}
    seen: dict[str, Seen] = {}

    def rows(of: Callable[..., Any], *given: Any) -> Tensor | None:
        with contextlib.suppress(LookupError, StopIteration, TypeError, AttributeError):
            state = of(*given)
            if state.is_floating_point() and state.shape[:-1].numel() == tokens.numel():
                return state.reshape(tokens.numel(), -1).to("cpu", torch.float64, copy=True)
        return None

    def enter(module: nn.Module, args: Any, named: Any) -> None:
        began[module] = next(order), rows(state_in, args, named)

    def leave(path: str, module: nn.Module, output: Any) -> None:
        entered, read = began[module]
        seen[path] = Seen(path, module, entered, next(order), read, rows(first_tensor, output))

    with contextlib.ExitStack() as hooks, passing(model.name), alone(model.module):
        for path, module in model.module.named_modules():
            hooks.enter_context(module.register_forward_pre_hook(enter, with_kwargs=True))
            hooks.enter_context(module.register_forward_hook(lambda own, _, out, path=path: leave(path, own, out)))
        model.full(tokens)
    blocks, outside, start = [Block() for _ in range(model.n_layers)], [], f"{model.family.blocks}."
    for path in sorted(seen, key=lambda path: (path.count("."), seen[path].left)):
        number, _, inside = path.removeprefix(start).partition(".")
        if path.startswith(start):
            blocks[int(number)][inside] = replace(seen[path], path=inside)
        else:
            outside.append(seen[path])
    return blocks, outside


def _agreed(options: Sequence[Sequence[Choice]]) -> list[Choice | None]:
    """Return for each block the choice that most blocks have: a part that adds 0 fits in many ways."""
    counts = Counter(each for own in options for each in own)
    return [max(own, key=lambda each: counts[each], default=None) for own in options]


def _forms(block: Block, unit: float) -> Iterator[Form]:
    """Yield every way in which the modules of a block add up to what it gives."""
    pre, post = block[""].read, block[""].gave
    if pre is None or post is None:
        return
    inside = [seen for path, seen in block.items() if path]
    giving = [seen for seen in inside if seen.gave is not None and seen.gave.shape == post.shape]
    reading = [seen for seen in inside if seen.read is not None and seen.read.shape == post.shape]

    def adding(
        total: Tensor | None, *others: Tensor | None, after: int = 0, before: int | float = math.inf
    ) -> list[Seen]:
        """Return the modules, run between two moments, whose output and these others are the total."""
        return [each for each in giving if each.entered >= after and each.left <= before
                and _is_sum(total, [*others, each.gave], unit)]  # fmt: skip

    def named(attentions: Sequence[Seen], mlps: Sequence[Seen]) -> Iterator[tuple[str, str]]:
        for one, other in itertools.product(attentions, mlps):
            if not _is_attention(block, other):
                yield one.path if _is_attention(block, one) else "", other.path

    for norm in reading:
        mlps = adding(post, norm.read, after=norm.entered)
        attentions = adding(norm.read, pre, before=norm.entered) if mlps else []
        yield from (Form((norm.path, "read"), *paths) for paths in named(attentions, mlps))
        if not attentions and not _is_sum(norm.read, [pre], unit):
            yield from (Form(None, "", each.path) for each in mlps if not _is_attention(block, each))
    for first, last in itertools.permutations([each for each in reading if each in giving], 2):
        if first.left < last.entered and _is_sum(post, [last.gave], unit):
            mlps = adding(last.read, first.gave, after=first.left, before=last.entered)
            attentions = adding(first.read, pre, before=first.entered) if mlps else []
            yield from (Form((first.path, "gave"), *paths) for paths in named(attentions, mlps))
    for one in giving:
        if _is_attention(block, one):
            if _is_sum(post, [pre, one.gave], unit):
                yield Form(None, one.path, "")
            yield from (Form(None, *paths) for paths in named([one], adding(post, pre, one.gave)))


def _is_sum(total: Tensor | None, parts: Sequence[Tensor | None], unit: float) -> bool:
    """Return whether states add up to a total, as far as rounding lets them."""
    if total is None:
        return False
    known = [part for part in parts if part is not None and part.shape == total.shape]
    if len(known) < len(parts):
        return False
    size = sum((part.abs() for part in known), total.abs())
    return bool(((total - sum(known)).abs() <= unit * size).all())


def _is_attention(block: Block, seen: Seen) -> bool:
    """Return whether a module is attention by its name or class, or a norm of what attention gives."""
    if seen.is_norm:
        return any(_is_attention(block, each) for each in block.values()
                   if each.path and not each.is_norm and _is_same(each.gave, seen.read))  # fmt: skip
    parts = seen.path.split(".")
    owners = [".".join(parts[: count + 1]) for count in range(len(parts))]
    classes = [type(block[path].module).__name__ for path in owners if path in block]
    return any("att" in name.lower() for name in [seen.path, *classes])


def _is_same(first: Tensor | None, second: Tensor | None) -> bool:
    return first is not None and second is not None and torch.equal(first, second)


def _projections(block: Block, path: str) -> Iterator[str]:
    """Yield the linear maps whose output is that of a module, before its norm if it is one."""
    output = block[path].read if block[path].is_norm else block[path].gave
    for seen in block.values():
        weight = getattr(seen.module, "weight", None)
        if weight is not None and weight.dim() == 2 and seen.read is not None and _is_same(seen.gave, output):
            yield seen.path


def _outside(
    model: FrozenModel, outside: Sequence[Seen], blocks: Sequence[Block]
) -> dict[tuple[str, int], tuple[nn.Module, Direction]]:
    """Return the embedding of tokens and the norm after the last block, if the model has them."""
    found: dict[tuple[str, int], tuple[nn.Module, Direction]] = {}
    first, last = blocks[0][""].entered, blocks[-1][""]
    weight = embedding_of(model.module)
    tokens = sample_tokens(model.vocabulary, model.context, ROWS, TOKENS).flatten().to(weight.device)
    rows = weight[tokens].double().cpu()
    for seen in outside:
        if seen.left < first and seen.gave is not None and seen.gave.shape == rows.shape:
            scale = seen.gave.norm() / rows.norm()  # that some embeddings have
            if torch.allclose(seen.gave, scale * rows, rtol=ROUNDING * torch.finfo(model.dtype).eps):
                found.setdefault(("embed", -1), (seen.module, "gave"))
        is_read = any(_is_same(each.read, seen.gave) for each in outside if each.entered > seen.left)
        if seen.is_norm and is_read and _is_same(seen.read, last.gave):
            found.setdefault(("ln_final", model.n_layers), (seen.module, "gave"))
    return found
