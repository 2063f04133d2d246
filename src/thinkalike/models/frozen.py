"""A model that is not trained: head, tail and residuals of any family, proved against its full pass.

One mechanism serves all families. The model's own forward pass runs, embedding and unembedding included, so positions,
masks, scales and caps are the model's own. All blocks stay in place: those that are not wanted return their input, a
state is put in before the first that is, and the pass ends after the last state that is asked for. (A shortened list of
blocks shifts the indices by which a block finds its kind of attention. `start_at_layer` of TransformerLens 4 runs the
skipped blocks too, and is wrong for Mamba; `stop_at_layer` returns logits for BERT.)

Controls are copies of a model with random, noisy or new weights.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from thinkalike.errors import ModelError
from thinkalike.measures.estimates import seeded
from thinkalike.models import surgery
from thinkalike.models.families import EMBED, Family, Layer, Predicts, after
from thinkalike.models.survey import Tokens, accepted, embedding_of, prove, survey, tensors_of, without_cache


@runtime_checkable
class StateSource(Protocol):
    """The part of a FrozenModel that a stitch needs of its source."""

    d_model: int
    n_layers: int
    vocabulary: int
    device: torch.device
    dtype: torch.dtype

    def residuals(self, tokens: Tensor, layers: Sequence[Any], /) -> list[Tensor]:
        """Return the states (b, t, d) of tokens (b, t) at each of these layers."""


class FrozenModel:
    """A pretrained model without dropout or gradients for its weights; a layer l means the site resid_post[l].

    In all methods `mask` is 1 for tokens and 0 for padding, and `types` tells the two texts of a pair apart; None means
    that there is no padding and one text. Layer l is the stream after block l, which is `hidden_states[l + 1]` of
    transformers, and EMBED the stream before block 0.

    Attributes:
        name: the everyday name.
        family: where the blocks of the module are.
        tokenizer: the Hugging Face tokenizer.
        n_layers, d_model: the number of blocks and the width of the stream.
        vocabulary: the number of rows of the embedding.
        context: the longest row of tokens.
        bos_each_row: whether the model expects rows to begin with BOS.
        device: where states and logits are.
        revision, kernels: what was loaded and which code runs it, for the provenance.
        quantization: how its weights are or were quantised, such as "8bit" or "Q4_1 x 210, F32 x 62"; "": they are not.
        classes: what a classifier's logits are of, in their order.

    Raises:
        ModelError: for a few fixed tokens x, tail(l, head(l, x)) is not the full pass.
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
        device: torch.device | None = None,
        revision: str = "",
        kernels: str = "torch",
        classes: Sequence[str] = (),
        quantization: str = "",
    ):
        self.module = module.eval().requires_grad_(False)
        without_cache(module)
        self.family, self.tokenizer, self.name = family, tokenizer, name
        self.context, self.bos_each_row, self.revision, self.kernels = context, bos_each_row, revision, kernels
        self.classes, self.quantization = tuple(classes), quantization
        embedding = embedding_of(module)
        self.vocabulary, self.dtype, self.device = len(embedding), embedding.dtype, device or embedding.device
        self._accepts = accepted(module)
        self.blocks = list(module.get_submodule(family.blocks).children())
        self.n_layers = len(self.blocks)
        self.d_model, self._forms = survey(self)
        prove(self)

    def __repr__(self) -> str:
        shape = f"{self.n_layers} layers of width {self.d_model}, vocabulary {self.vocabulary}, context {self.context}"
        return f"FrozenModel({self.name}: {shape}; {self.family.name}, {str(self.dtype)[6:]} on {self.device})"

    @property
    def predicts(self) -> Predicts:
        """The model outputs logits of the "next" token, of "hidden" tokens or of the "class" of a text, or "states"."""
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
        layers: Sequence[Layer],
        mask: Tokens | None = None,
        types: Tokens | None = None,
    ) -> list[Float[Tensor, "b t d"]]:
        """Return the residual stream after each of these blocks in one pass, which ends at the deepest of them.

        Args:
            layers: numbers of blocks from 0 on; EMBED is the site before block 0.

        Raises:
            ModelError: a layer is out of range, or the model cannot read these tokens.
        """
        self.check_layers(layers)
        states: dict[Layer, Tensor] = {}
        deepest = max(after(layer) for layer in layers)
        with contextlib.ExitStack() as hooks:
            hooks.enter_context(surgery.alone(self.module))
            for layer in set(layers):
                if layer == EMBED:
                    hooks.enter_context(surgery.captured_input(self.blocks[0], layer, states))
                else:
                    hooks.enter_context(surgery.captured_output(self.blocks[int(layer)], layer, states))
            hooks.enter_context(surgery.ended_at(self.blocks[max(deepest - 1, 0)], entering=not deepest))
            self._run(tokens, mask, types)
        return [states[layer].to(self.device) for layer in layers]

    def head(
        self, tokens: Tokens, layer: Layer, mask: Tokens | None = None, types: Tokens | None = None
    ) -> Float[Tensor, "b t d"]:
        """Return the residual stream after block `layer`; later blocks do not run."""
        return self.residuals(tokens, [layer], mask, types)[0]

    def advance(
        self, residual: Float[Tensor, "b t d"], start: int, stop: int, mask: Tokens | None = None
    ) -> Float[Tensor, "b t d"]:
        """Return the residual stream after blocks start..stop-1, given the one before block `start`.

        The result is differentiable with respect to `residual`.

        Raises:
            ModelError: the model has no such blocks.
        """
        if not (0 <= start <= self.n_layers and stop <= self.n_layers):
            raise ModelError(f"{self.name} has no blocks {start} to {stop - 1}, only 0 to {self.n_layers - 1}")
        if start >= stop:
            return residual
        states: dict[int, Tensor] = {}
        last = self.blocks[stop - 1]
        with surgery.alone(self.module), surgery.captured_output(last, stop, states), surgery.ended_at(last):
            self._continued(residual, start, mask)
        return states[stop].to(self.device)

    def finish(self, residual: Float[Tensor, "*b d"], mask: Tokens | None = None) -> Float[Tensor, "... v"]:
        """Return the logits of the last block's residual: final norm and unembedding, or pooler and classes.

        The result is differentiable with respect to `residual`. A language model reads each token by itself, so a row
        may be longer than the context.

        Raises:
            ModelError: the model predicts no next token, or single tokens are given to a classifier.
        """
        if self.predicts == "class":
            if residual.dim() != 3:
                raise self._no_language_model()
            return self.output(residual, mask)
        if self.predicts != "next":
            raise ModelError(f"{self.name} predicts no next token, so it has no tail")
        logits = self.output(residual.reshape(-1, 1, residual.shape[-1]))
        return logits.view(*residual.shape[:-1], -1)

    def tail(
        self, residual: Float[Tensor, "b t d"], layer: Layer, mask: Tokens | None = None
    ) -> Float[Tensor, "b ... v"]:
        """Return the logits, given the residual stream after block `layer`; earlier blocks do not run.

        The result is differentiable with respect to `residual`.

        Raises:
            ModelError: the layer is out of range, or see `finish`.
        """
        self.check_layers([layer])
        return self.finish(self.advance(residual, after(layer), self.n_layers, mask), mask)

    def output(self, residual: Float[Tensor, "b t d"], mask: Tokens | None = None) -> Float[Tensor, "b ... v"]:
        """Return the model's output for the last block's residual: see `predicts`."""
        return self._continued(residual, self.n_layers, mask)

    def full(self, tokens: Tokens, mask: Tokens | None = None, types: Tokens | None = None) -> Float[Tensor, "b ... v"]:
        """Run the model's own full pass."""
        with torch.no_grad():
            return self._run(tokens, mask, types)

    def check_layers(self, layers: Sequence[Layer]) -> None:
        """Raise a ModelError if the model lacks one of these layers."""
        for layer in layers:
            is_block = isinstance(layer, int | np.integer) and not isinstance(layer, bool)
            if layer != EMBED and not (is_block and 0 <= layer < self.n_layers):
                raise ModelError(f"{self.name} has no layer {layer!r}, only 0 to {self.n_layers - 1} and '{EMBED}'")

    def parameters(self) -> tuple[int, int]:
        """Return how many weights the model has, and how many of them are in its blocks."""
        parts = [self.module], self.blocks
        whole, own = (sum(weight.numel() for part in each for weight in part.parameters()) for each in parts)
        return whole, own

    def compiled(self, wanted: bool = True) -> contextlib.AbstractContextManager[None]:
        """Compile the forward pass of every block while the context is open: minutes at first; hooks stay outside."""
        blocks = self.blocks if wanted else []
        return surgery.replaced_forward(blocks, [torch.compile(block.forward) for block in blocks])

    def cast(self, wanted: bool = True) -> contextlib.AbstractContextManager[None]:
        """Keep the weights of linear maps in bfloat16 while the context is open, for autocast: see `cast_once`."""
        return surgery.cast_once(self.module, torch.bfloat16) if wanted else contextlib.nullcontext()

    def recomputed(self, wanted: bool = True) -> contextlib.AbstractContextManager[None]:
        """Keep no states inside the blocks for the backward pass while the context is open: see `recomputed`."""
        return surgery.recomputed(self.blocks if wanted else [])

    def fingerprint(self) -> str:
        """Return the SHA-256 of all parameters and persistent buffers with their names, as 16 hexadecimal digits."""
        digest = hashlib.sha256()
        for name, tensor in tensors_of(self.module, in_order=True):
            digest.update(name.encode())
            digest.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]
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
            **({"quantization": self.quantization} if self.quantization else {}),
        }

    def _no_language_model(self) -> ModelError:
        return ModelError(f"{self.name} predicts the class of a whole text and no tokens; choose a language model")

    def _run(self, tokens: Tensor, mask: Tensor | None = None, types: Tensor | None = None) -> Tensor:
        given = {"attention_mask": mask, "token_type_ids": types}
        named = {name: each.to(self.device) for name, each in given.items() if each is not None and self._accepts(name)}
        with surgery.alone(self.module), surgery.one_text_per_row():
            return surgery.first_tensor(self.module(tokens.to(self.device), **named))

    def _continued(self, residual: Tensor, start: int, mask: Tensor | None) -> Tensor:
        """Run the model with this state before block `start`, or after the last one; earlier blocks are passed over.

        The state comes out of the block before, since some models do something between two blocks.
        """
        placeholder = torch.zeros(residual.shape[:2], dtype=torch.long, device=self.device)
        with (
            surgery.alone(self.module),
            surgery.passed_over(self.blocks[:start], self._forms[:start]),
            surgery.replaced_input(self.blocks[max(start - 1, 0)], residual),
        ):
            return self._run(placeholder, mask)


def variant(model: FrozenModel, module: nn.Module, name: str) -> FrozenModel:
    """Return a module of a model's architecture as a FrozenModel with the same tokenizer and context."""
    return FrozenModel(
        module,
        model.family,
        model.tokenizer,
        name=name,
        context=model.context,
        bos_each_row=model.bos_each_row,
        device=model.device,
        kernels=model.kernels,
        classes=model.classes,
    )


def randomised(model: FrozenModel, seed: int) -> FrozenModel:
    """Return a copy in which every matrix is drawn anew from a normal distribution of its own spread."""
    module, generator = copy.deepcopy(model.module), seeded(seed)
    with torch.no_grad():
        for weight in module.parameters():
            if weight.dim() > 1:
                noise = torch.randn(weight.shape, generator=generator)
                weight.copy_(noise * weight.float().std().cpu())
    return variant(model, module, f"{model.name} (random)")


def perturbed(model: FrozenModel, share: float, seed: int) -> FrozenModel:
    """Return a copy with normal noise on every weight, of this share of the root mean square of its tensor."""
    module, generator = copy.deepcopy(model.module), seeded(seed)
    with torch.no_grad():
        for weight in module.parameters():
            noise = torch.randn(weight.shape, generator=generator)
            weight.add_((noise * (share * weight.float().square().mean().sqrt().cpu())).to(weight))
    return variant(model, module, f"{model.name} (noisy)")


def fresh(model: FrozenModel, seed: int) -> FrozenModel:
    """Return the architecture with new initial weights, as its own library draws them."""
    from transformer_lens.model_bridge.sources.native.init import initialize_native_model
    from transformer_lens.model_bridge.sources.native.model import NativeModel

    if isinstance(model.module, NativeModel):
        module: nn.Module = copy.deepcopy(model.module)
        initialize_native_model(module, model.module.cfg, seed)  # type: ignore[arg-type]
    else:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            module = type(model.module)(copy.deepcopy(model.module.config))
    return variant(model, module.to(model.device, model.dtype), f"{model.name} (fresh)")
