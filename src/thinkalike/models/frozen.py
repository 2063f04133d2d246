"""A language model that is only looked at: head, tail and residuals of any family, proved against its full pass.

One mechanism serves all families: the model's own code runs, with its list of blocks cut to those that are wanted and
its final norm and unembedding taken out, so positions, masks and rotary tables are what the model itself makes them.
(`start_at_layer` of TransformerLens 4 runs the skipped blocks too, and is wrong for Mamba; `stop_at_layer` returns
logits for BERT.)
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from thinkalike.errors import ModelError
from thinkalike.models.families import Family
from thinkalike.models.samples import Rows, sample_padding, sample_tokens

EMBED = -1  # the site before block 0, as a layer

# largest difference between the full pass and tail(head), relative to the largest logit
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}


class FrozenModel:
    """A pretrained model without dropout or gradients for its weights; a layer l means the site resid_post[l].

    Attributes:
        name: everyday name.
        tokenizer: the Hugging Face tokenizer.
        n_layers, d_model, vocabulary, context: blocks, width, rows of the embedding, longest row of tokens.
        bos_each_row: whether the model expects rows to begin with BOS.
        revision, kernels: what was loaded and which code runs it, for the provenance.
        classes: what a classifier's logits are of, in their order.

    `mask` is 1 for tokens and 0 for padding, `types` tells the two texts of a pair apart; None: no padding, one text.

    Raises:
        ModelError: tail(l, head(l, x)) is not the full pass at the middle layer, for x a few fixed tokens.
    """

    def __init__(
        self,
        module: nn.Module,
        family: Family,
        tokenizer: Any,
        *,
        name: str,
        context: int,
        bos_each_row: bool = False,
        revision: str = "",
        kernels: str = "torch",
        classes: Sequence[str] = (),
    ):
        self.module = module.eval().requires_grad_(False)
        self.family, self.tokenizer, self.name = family, tokenizer, name
        self.context, self.bos_each_row, self.revision, self.kernels = context, bos_each_row, revision, kernels
        self.classes = tuple(classes)
        self.n_layers = len(self._blocks)
        self.vocabulary, self.d_model = self._embedding.shape
        self.prove()

    @property
    def device(self) -> torch.device:
        return self._embedding.device

    @property
    def dtype(self) -> torch.dtype:
        return self._embedding.dtype

    @property
    def predicts_next(self) -> bool:
        """Whether it predicts each next token; BERT predicts hidden ones.

        Raises:
            ModelError: it is a classifier, which predicts no tokens at all.
        """
        if self.family.predicts == "class":
            raise self._no_language_model()
        return self.family.predicts == "next"

    def _no_language_model(self) -> ModelError:
        return ModelError(f"{self.name} predicts the class of a whole text and no tokens; choose a language model")

    @property
    def _embedding(self) -> Tensor:
        """The token embedding: the first matrix of the body, (vocabulary, d_model)."""
        body = self.module.get_submodule(self.family.body)
        return next(weight for weight in body.parameters() if weight.dim() == 2)

    @property
    def _blocks(self) -> Any:
        return self.module.get_submodule(self.family.blocks)

    def residuals(
        self,
        tokens: Rows,
        layers: Sequence[int],
        mask: Rows | None = None,
        types: Rows | None = None,
        site: str = "resid_post",
    ) -> list[Float[Tensor, "b t d"]]:
        """Residual stream after each block of `layers` (EMBED: before block 0), one pass up to the deepest.

        Args:
            site: "update": what a BERT's block adds last to its residual stream, in its place.

        Raises:
            ModelError: a layer is out of range or has no such site.
        """
        self.check_layers(layers, site)
        found: dict[int, Tensor] = {}
        with contextlib.ExitStack() as hooks:
            for layer in set(layers):
                hooks.enter_context(self._seen(layer, site, found))
            self._run(tokens, 0, max(max(layers) + 1, 1), mask, types)
        return [found[layer] for layer in layers]

    def head(
        self, tokens: Rows, layer: int, mask: Rows | None = None, types: Rows | None = None
    ) -> Float[Tensor, "b t d"]:
        """Residual stream after block `layer`; later blocks do not run."""
        return self.residuals(tokens, [layer], mask, types)[0]

    def advance(
        self, residual: Float[Tensor, "b t d"], start: int, stop: int, mask: Rows | None = None
    ) -> Float[Tensor, "b t d"]:
        """Residual stream after blocks start..stop-1, given the one before block `start`. Differentiable."""
        if start >= stop:
            return residual

        def swap(module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
            return (residual, *args[1:]), kwargs

        placeholder = torch.zeros(residual.shape[:2], dtype=torch.long, device=self.device)
        handle = self._blocks[start].register_forward_pre_hook(swap, with_kwargs=True)
        try:
            return self._run(placeholder, start, stop, mask)
        finally:
            handle.remove()

    def finish(self, residual: Float[Tensor, "*b d"]) -> Float[Tensor, "... v"]:
        """Logits of the last block's residual: final norm and unembedding, or the pooler and classes. Differentiable.

        Raises:
            ModelError: the family has no logits, or single tokens are given to a classifier.
        """
        if self.family.predicts == "class" and residual.dim() != 3:
            raise self._no_language_model()
        if self.family.norm is None or self.family.unembed is None:
            raise ModelError(f"{self.name} predicts no next token, so it has no tail; its residuals can be compared")
        normed = self.module.get_submodule(self.family.norm)(residual)
        return self.module.get_submodule(self.family.unembed)(normed)

    def tail(self, residual: Float[Tensor, "b t d"], layer: int, mask: Rows | None = None) -> Float[Tensor, "b ... v"]:
        """Logits, given the residual stream after block `layer`; earlier blocks do not run. Differentiable."""
        return self.finish(self.advance(residual, layer + 1, self.n_layers, mask))

    def check_layers(self, layers: Sequence[int], site: str = "resid_post") -> None:
        if site not in self.family.sites or (site != "resid_post" and EMBED in layers):
            known = ", ".join(self.family.sites)
            raise ModelError(f"{self.name} has no site {site} at layers {list(layers)}: its blocks have {known}")
        for layer in layers:
            if not EMBED <= layer < self.n_layers:
                raise ModelError(f"{self.name} has no layer {layer}: its layers are 0 to {self.n_layers - 1}")

    def full(self, tokens: Rows, mask: Rows | None = None, types: Rows | None = None) -> Float[Tensor, "b ... v"]:
        """The model's own full pass: logits, or the last hidden state of a family without a tail."""
        with torch.no_grad():
            module = self.module if self.family.unembed else self.module.get_submodule(self.family.body)
            output = module(tokens.to(self.device), **self._beside(mask, types))
        return output if isinstance(output, Tensor) else output[0]

    def prove(self) -> None:
        """Check on fixed tokens that head and tail compose to the full pass at the middle layer.

        Raises:
            ModelError: they do not, or the model's output is not finite.
        """
        tokens = sample_tokens(self.vocabulary, self.context)
        mask, types = (None, None) if self.family.predicts == "next" else sample_padding(tokens)
        full, middle = self.full(tokens, mask, types), max(self.n_layers // 2 - 1, 0)
        with torch.no_grad():
            joined = self.advance(self.head(tokens, middle, mask, types), middle + 1, self.n_layers, mask)
            joined = self.finish(joined) if self.family.unembed else joined
        error = ((joined - full).abs().max() / full.abs().max()).item()
        if not error <= TOLERANCE[self.dtype]:  # NaN fails, too
            raise ModelError(
                f"{self.name}: tail({middle}, head({middle}, x)) differs from the full pass by {error:.1e} of the "
                f"largest logit (allowed: {TOLERANCE[self.dtype]:.0e}); this model cannot be cut at its blocks"
            )

    def parameters(self) -> tuple[int, int]:
        """How many weights the model has, and how many of them are in its blocks."""
        counts = [sum(weight.numel() for weight in part.parameters()) for part in (self.module, self._blocks)]
        return counts[0], counts[1]

    @contextlib.contextmanager
    def compiled(self, wanted: bool = True) -> Iterator[None]:
        """While open, every block's forward pass is compiled (outside of hooks); the first passes take minutes."""
        blocks = list(self._blocks) if wanted else []
        try:
            for block in blocks:
                block.forward = torch.compile(block.forward)
            yield
        finally:
            for block in blocks:
                del block.forward

    def fingerprint(self) -> str:
        """SHA-256 of all parameters and persistent buffers with their names, as 16 hexadecimal digits."""
        digest = hashlib.sha256()
        for name, tensor in sorted(self.module.state_dict().items()):
            digest.update(name.encode())
            digest.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy())
        return digest.hexdigest()[:16]

    def describe(self) -> dict[str, str]:
        """What the provenance of a result says of the model."""
        return {
            "name": self.name,
            "revision": self.revision,
            "weights": self.fingerprint(),
            "kernels": self.kernels,
            "dtype": str(self.dtype).removeprefix("torch."),
            "device": str(self.device),
        }

    def _run(
        self, tokens: Tensor, start: int, stop: int, mask: Tensor | None = None, types: Tensor | None = None
    ) -> Tensor:
        """The body with blocks start..stop-1 only, neither final norm nor unembedding."""
        replaced: dict[str, nn.Module] = {self.family.blocks: nn.ModuleList(list(self._blocks)[start:stop])}
        if self.family.norm:
            replaced[self.family.norm] = nn.Identity()
        if self.family.body_holds_unembed and self.family.unembed:
            replaced[self.family.unembed] = nn.Identity()
        body, beside = self.module.get_submodule(self.family.body), self._beside(mask, types)
        with swapped(self.module, replaced):
            output = body(tokens.to(self.device), **beside)
        return output if isinstance(output, Tensor) else output[0]

    def _beside(self, mask: Tensor | None, types: Tensor | None) -> dict[str, Tensor]:
        """What a forward pass takes beside tokens."""
        named = {"attention_mask": mask, "token_type_ids": types}
        return {name: tensor.to(self.device) for name, tensor in named.items() if tensor is not None}

    @contextlib.contextmanager
    def _seen(self, layer: int, site: str, found: dict[int, Tensor]) -> Iterator[None]:
        """While open, the state at a site of `layer` of any pass lands in `found`."""

        def before(module: nn.Module, args: tuple) -> None:
            found[layer] = args[0]

        def after(module: nn.Module, args: tuple, output: Any) -> None:
            found[layer] = output if isinstance(output, Tensor) else output[0]

        if layer == EMBED:
            handle = self._blocks[0].register_forward_pre_hook(before)
        else:
            handle = self._blocks[layer].get_submodule(self.family.sites[site]).register_forward_hook(after)
        try:
            yield
        finally:
            handle.remove()


@contextlib.contextmanager
def swapped(module: nn.Module, replaced: dict[str, nn.Module]) -> Iterator[None]:
    """While open, the submodules at these dotted paths are others."""
    places = [(*_parent(module, path), new) for path, new in replaced.items()]
    originals = [parent._modules[name] for parent, name, _ in places]
    try:
        for parent, name, new in places:
            parent._modules[name] = new
        yield
    finally:
        for (parent, name, _), original in zip(places, originals, strict=True):
            parent._modules[name] = original


def _parent(module: nn.Module, path: str) -> tuple[nn.Module, str]:
    head, _, name = path.rpartition(".")
    return module.get_submodule(head), name
