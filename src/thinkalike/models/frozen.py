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
from thinkalike.models.families import Family, Predicts
from thinkalike.models.proof import prove
from thinkalike.models.recomputation import recomputed
from thinkalike.models.samples import Tokens
from thinkalike.models.surgery import captured_input, captured_output, first_tensor, replaced_input, swapped

EMBED = -1  # the site before block 0, as a layer


class FrozenModel:
    """A pretrained model without dropout or gradients for its weights; a layer l means the site resid_post[l].

    In all methods `mask` is 1 for tokens and 0 for padding, and `types` tells the two texts of a pair apart; None means
    that there is no padding and one text.

    Attributes:
        name: the everyday name.
        family: where the parts of the module are.
        tokenizer: the Hugging Face tokenizer.
        n_layers, d_model: the number of blocks and their width.
        vocabulary: the number of rows of the embedding.
        context: the longest row of tokens.
        bos_each_row: whether the model expects rows to begin with BOS.
        revision, kernels: what was loaded and which code runs it, for the provenance.
        classes: what a classifier's logits are of, in their order.

    Raises:
        ModelError: for a few fixed tokens x, tail(l, head(l, x)) is not the full pass at the middle layer.
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
        prove(self)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self._embedding.device

    @property
    def dtype(self) -> torch.dtype:
        """The type of the weights."""
        return self._embedding.dtype

    @property
    def family_name(self) -> str:
        """The name of the architecture in the table of families."""
        return self.family.name

    @property
    def predicts(self) -> Predicts:
        """What the logits are of: the "next" token, "hidden" tokens, or the "class" of a whole text."""
        return self.family.predicts

    @property
    def predicts_next(self) -> bool:
        """Whether the model predicts each next token, as BERT does not.

        Raises:
            ModelError: the model is a classifier, which predicts no tokens at all.
        """
        if self.predicts == "class":
            raise self._no_language_model()
        return self.predicts == "next"

    def residuals(
        self,
        tokens: Tokens,
        layers: Sequence[int],
        mask: Tokens | None = None,
        types: Tokens | None = None,
        site: str = "resid_post",
    ) -> list[Float[Tensor, "b t d"]]:
        """Return the residual stream after each of these blocks in one pass, which ends at the deepest of them.

        Args:
            layers: numbers of blocks; EMBED is the site before block 0.
            site: "update" asks for what a BERT's block adds last to its residual stream instead.

        Raises:
            ModelError: a layer is out of range or has no such site.
        """
        self.check_layers(layers, site)
        states: dict[int, Tensor] = {}
        with contextlib.ExitStack() as hooks:
            for layer in set(layers):
                hooks.enter_context(self._captured(layer, site, states))
            self._run(tokens, 0, max(max(layers) + 1, 1), mask, types)
        return [states[layer] for layer in layers]

    def head(
        self, tokens: Tokens, layer: int, mask: Tokens | None = None, types: Tokens | None = None
    ) -> Float[Tensor, "b t d"]:
        """Return the residual stream after block `layer`; later blocks do not run."""
        return self.residuals(tokens, [layer], mask, types)[0]

    def advance(
        self, residual: Float[Tensor, "b t d"], start: int, stop: int, mask: Tokens | None = None
    ) -> Float[Tensor, "b t d"]:
        """Return the residual stream after blocks start..stop-1, given the one before block `start`.

        The result is differentiable with respect to `residual`.
        """
        if start >= stop:
            return residual
        placeholder = torch.zeros(residual.shape[:2], dtype=torch.long, device=self.device)
        with replaced_input(self._blocks[start], residual):
            return self._run(placeholder, start, stop, mask)

    def finish(self, residual: Float[Tensor, "*b d"]) -> Float[Tensor, "... v"]:
        """Return the logits of the last block's residual: final norm and unembedding, or pooler and classes.

        The result is differentiable with respect to `residual`.

        Raises:
            ModelError: the family has no logits, or single tokens are given to a classifier.
        """
        if self.predicts == "class" and residual.dim() != 3:
            raise self._no_language_model()
        if self.family.norm is None or self.family.unembed is None:
            raise ModelError(f"{self.name} predicts no next token, so it has no tail; its residuals can be compared")
        normed = self.module.get_submodule(self.family.norm)(residual)
        return self.module.get_submodule(self.family.unembed)(normed.to(self.dtype))  # Mamba keeps float32 residuals

    def tail(
        self, residual: Float[Tensor, "b t d"], layer: int, mask: Tokens | None = None
    ) -> Float[Tensor, "b ... v"]:
        """Return the logits, given the residual stream after block `layer`; earlier blocks do not run.

        The result is differentiable with respect to `residual`.
        """
        return self.finish(self.advance(residual, layer + 1, self.n_layers, mask))

    def full(self, tokens: Tokens, mask: Tokens | None = None, types: Tokens | None = None) -> Float[Tensor, "b ... v"]:
        """Run the model's own full pass; it gives logits, or the last hidden state of a family without a tail."""
        with torch.no_grad():
            module = self.module if self.family.unembed else self.module.get_submodule(self.family.body)
            return first_tensor(module(tokens.to(self.device), **self._keywords(mask, types)))

    def check_layers(self, layers: Sequence[int], site: str = "resid_post") -> None:
        """Check that the model has these layers, and this site in all of them.

        Raises:
            ModelError: it has not.
        """
        if site not in self.family.sites or (site != "resid_post" and EMBED in layers):
            known = ", ".join(self.family.sites)
            raise ModelError(f"{self.name} has no site {site} at layers {list(layers)}: its blocks have {known}")
        for layer in layers:
            if not EMBED <= layer < self.n_layers:
                raise ModelError(f"{self.name} has no layer {layer}: its layers are 0 to {self.n_layers - 1}")

    def parameters(self) -> tuple[int, int]:
        """Return how many weights the model has, and how many of them are in its blocks."""
        counts = [sum(weight.numel() for weight in part.parameters()) for part in (self.module, self._blocks)]
        return counts[0], counts[1]

    @contextlib.contextmanager
    def compiled(self, wanted: bool = True) -> Iterator[None]:
        """Compile the forward pass of every block while the context is open; hooks stay outside of it.

        The first passes take minutes.
        """
        blocks = list(self._blocks) if wanted else []
        try:
            for block in blocks:
                block.forward = torch.compile(block.forward)
            yield
        finally:
            for block in blocks:
                del block.forward

    def recomputed(self, wanted: bool = True) -> contextlib.AbstractContextManager[None]:
        """Keep no states inside the blocks for the backward pass while the context is open: see `recomputed`."""
        return recomputed(self._blocks if wanted else [])

    def fingerprint(self) -> str:
        """Return the SHA-256 of all parameters and persistent buffers with their names, as 16 hexadecimal digits."""
        digest = hashlib.sha256()
        for name, tensor in sorted(self.module.state_dict().items()):
            digest.update(name.encode())
            digest.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy())
        return digest.hexdigest()[:16]

    def describe(self) -> dict[str, str]:
        """Return what the provenance of a result says of the model."""
        return {
            "name": self.name,
            "family": self.family.name,
            "revision": self.revision,
            "weights": self.fingerprint(),
            "kernels": self.kernels,
            "dtype": str(self.dtype).removeprefix("torch."),
            "device": str(self.device),
        }

    @property
    def _embedding(self) -> Tensor:
        """The token embedding, which is the first matrix of the body, (vocabulary, d_model)."""
        body = self.module.get_submodule(self.family.body)
        return next(weight for weight in body.parameters() if weight.dim() == 2)

    @property
    def _blocks(self) -> Any:
        return self.module.get_submodule(self.family.blocks)

    def _no_language_model(self) -> ModelError:
        return ModelError(f"{self.name} predicts the class of a whole text and no tokens; choose a language model")

    def _run(
        self, tokens: Tensor, start: int, stop: int, mask: Tensor | None = None, types: Tensor | None = None
    ) -> Tensor:
        """Run the body with blocks start..stop-1 only, without final norm and unembedding."""
        replacements: dict[str, nn.Module] = {self.family.blocks: nn.ModuleList(list(self._blocks)[start:stop])}
        if self.family.norm:
            replacements[self.family.norm] = nn.Identity()
        if self.family.body_holds_unembed and self.family.unembed:
            replacements[self.family.unembed] = nn.Identity()
        body, keywords = self.module.get_submodule(self.family.body), self._keywords(mask, types)
        with swapped(self.module, replacements):
            return first_tensor(body(tokens.to(self.device), **keywords))

    def _keywords(self, mask: Tensor | None, types: Tensor | None) -> dict[str, Tensor]:
        """Return what a forward pass takes beside tokens."""
        named = {"attention_mask": mask, "token_type_ids": types}
        return {name: tensor.to(self.device) for name, tensor in named.items() if tensor is not None}

    def _captured(self, layer: int, site: str, states: dict[Any, Tensor]) -> contextlib.AbstractContextManager[None]:
        """Store the state at a site of `layer` in `states` while the context is open."""
        if layer == EMBED:
            return captured_input(self._blocks[0], layer, states)
        return captured_output(self._blocks[layer].get_submodule(self.family.sites[site]), layer, states)
