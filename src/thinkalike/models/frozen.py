"""A model that is not trained: head, tail and residuals of any family, proved against its full pass.

One mechanism serves all families. The model's own forward pass runs, embedding and unembedding included, so positions,
masks, scales and caps are the model's own. All blocks stay in place: those that are not wanted return their input, a
state is put in before the first that is, and the pass ends after the last state that is asked for. (A shortened list of
blocks shifts the indices by which a block finds its kind of attention. `start_at_layer` of TransformerLens 4 runs the
skipped blocks too, and is wrong for Mamba; `stop_at_layer` returns logits for BERT.) All changes undo themselves.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers.pytorch_utils import Conv1D

from thinkalike.digests import tokenizer_fingerprint
from thinkalike.errors import ModelError
from thinkalike.models.families import EMBED, Family, Layer, Place, Predicts, after
from thinkalike.models.survey import (
    Tokens,
    accepted,
    embedding_of,
    entries_of,
    first_tensor,
    longest_row,
    padding_of_head,
    persistent_buffers,
    prove,
    survey,
    tensors_of,
)

SAMPLED = 4096  # tokens of the vocabulary, of which the mean and the size of embeddings are
EMBEDDED_AT_ONCE = 2**14  # tokens in a pass that ends before block 0
_CHANGING = threading.Lock()  # held while the next two change
_LOCKS: WeakKeyDictionary[nn.Module, Any] = WeakKeyDictionary()  # of each module, see `alone`
_one_text_per_row: list[Any] = []  # transformers' own function, once for each running pass, see `one_text_per_row`


def sampled_tokens(vocabulary: int) -> Int[Tensor, " sample"]:
    """Return some tokens that stand for a vocabulary of this size, equally far apart."""
    return torch.linspace(0, vocabulary - 1, min(vocabulary, SAMPLED)).long()


def encoded_text(tokenizer: Any, text: str, bos_each_row: bool) -> tuple[list[int], list[tuple[int, int]]]:
    """Return the tokens of a text that is read alone, and the characters of each; special tokens have none.

    BOS comes first if rows begin with it, also where a tokenizer does not put it there by itself.
    """
    encoded = tokenizer(text, return_offsets_mapping=True, verbose=False)
    ids, offsets, bos = encoded["input_ids"], encoded["offset_mapping"], tokenizer.bos_token_id
    if bos_each_row and bos is not None and ids[:1] != [bos]:
        return [bos, *ids], [(0, 0), *offsets]
    return ids, offsets


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
        revision: what was loaded, for the provenance.
        quantization: how its weights are or were quantised, such as "8bit" or "Q4_1 x 210, F32 x 62"; "": they are not.
        classes: what a classifier's logits are of, in their order.
        corpus: the text that suits it, by its name in `data=`; None: nothing is known of it.
        sites: the `Sites` at which its states are taken; None: after each block.

    Args:
        is_proved: whether the module is a copy of one that passed, with other weights.

    Raises:
        ModelError: for a few fixed tokens x, tail(l, head(l, x)) is not the full pass.

    >>> model = load_model("gelu-3l-mini")
    >>> model.head(torch.zeros(1, 8, dtype=torch.long), 2).shape
    torch.Size([1, 8, 128])
    """

    corpus: str | None = None
    sites: Any = None

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
        classes: Sequence[str] = (),
        quantization: str = "",
        is_proved: bool = False,
    ):
        self.module = module.eval().requires_grad_(False)
        self.family, self.tokenizer, self.name = family, tokenizer, name
        self.context, self.bos_each_row, self.revision = context, bos_each_row, revision
        self.classes, self.quantization = tuple(classes), quantization
        embedding = embedding_of(module)
        self.vocabulary, self.dtype, self.device = len(embedding), embedding.dtype, device or embedding.device
        # Tokens that a tokenizer adds may have no row, as long as no text has them.
        ids = tokenizer.get_vocab().values() if hasattr(tokenizer, "get_vocab") else ()
        self._has_ids_without_row = max(ids, default=0) >= self.vocabulary
        self._accepts = accepted(module)
        self._padding = padding_of_head(module, tokenizer) if family.predicts == "class" else None
        self.blocks = list(module.get_submodule(family.blocks).children())
        self.n_layers = len(self.blocks)
        self.d_model, self._forms = survey(self)
        if not is_proved:
            prove(self)

    @property
    def layers(self) -> Sequence[int]:
        """The numbers of the blocks after which it has states: all."""
        return range(self.n_layers)

    @property
    def identity(self) -> int:
        """A number that models share if they are one module, whatever they are called."""
        return id(self.module)

    @property
    def ids_fingerprint(self) -> str:
        """A digest of all that decides which ids a text becomes, the same for models that cut texts alike."""
        return tokenizer_fingerprint(self.tokenizer)

    def __repr__(self) -> str:
        shape = f"{self.n_layers} layers of width {self.d_model}, vocabulary {self.vocabulary}, context {self.context}"
        return f"FrozenModel({self.name}: {shape}; {self.family.name}, {str(self.dtype)[6:]} on {self.device})"

    def check_context(self, asked: int | None) -> None:
        """Raise a ModelError if rows of this many tokens are longer than what the model can read."""
        longest = longest_row(self.module)
        if asked and longest and asked > longest:
            raise ModelError(f"data.context={asked}: {self.name} reads at most {longest} tokens; choose fewer")

    @property
    def predicts(self) -> Predicts:
        """The model outputs logits of the "next" token, of "hidden" tokens or of the "class" of a text, or "states"."""
        return self.family.predicts

    def residuals(
        self, tokens: Tokens, layers: Sequence[Layer], mask: Tokens | None = None, types: Tokens | None = None
    ) -> list[Float[Tensor, "b t d"]]:
        """Return the residual stream after each of these blocks in one pass, which ends at the deepest of them.

        Args:
            layers: numbers of blocks from 0 on; EMBED is the site before block 0; places of the model's `sites`.

        Raises:
            ModelError: a layer is out of range, or the model cannot read these tokens.
        """
        self.check_layers(layers)
        states: dict[Layer, Tensor] = {}
        deepest = max(after(layer) for layer in layers)
        with contextlib.ExitStack() as hooks:
            hooks.enter_context(alone(self.module))
            for layer in set(layers):
                hooks.enter_context(self._captured(layer, tokens.shape, states))
            if deepest <= self.n_layers:
                hooks.enter_context(self._ended_after(deepest))
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
        states: dict[Layer, Tensor] = {}
        with alone(self.module), self._captured(stop - 1, residual.shape[:-1], states), self._ended_after(stop):
            self._continued(residual, start, mask)
        return states[stop - 1].to(self.device)

    def finish(self, residual: Float[Tensor, "*b d"], mask: Tokens | None = None) -> Float[Tensor, "... v"]:
        """Return the logits of the last block's residual: final norm and unembedding, or pooler and classes.

        The result is differentiable with respect to `residual`. A language model reads each token by itself, so a row
        may be longer than the context.

        Raises:
            ModelError: the model predicts no next token, or single tokens are given to a classifier.
        """
        if self.predicts == "class":
            if residual.dim() != 3:
                raise ModelError(f"{self.name} predicts the class of a whole text and no tokens")
            return self.output(residual, mask)
        if self.predicts != "next":
            remedy = "choose a language model, or compare states: measure=cka"
            raise ModelError(f"{self.name} predicts no next token, so it has no tail; {remedy}")
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

    def encoded(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Return the tokens of a text that is read alone, and the characters of each; special tokens have none."""
        return encoded_text(self.tokenizer, text, self.bos_each_row)

    def embedded(self, vocabulary: Int[Tensor, " v"]) -> Float[Tensor, "v d"]:
        """Return what enters block 0 for each of these tokens in the first place of a row."""
        parts = vocabulary[:, None].split(EMBEDDED_AT_ONCE)
        return torch.cat([self.residuals(part, [EMBED])[0][:, 0] for part in parts])

    def sampled_vocabulary(self) -> Int[Tensor, " sample"]:
        """Return some tokens that stand for the whole vocabulary."""
        return sampled_tokens(self.vocabulary)

    def sites_at(self, layers: Iterable[int]) -> list[Layer]:
        """Return the places at which states are taken in these layers."""
        return list(self.sites.at(layers)) if self.sites else list(layers)

    def width(self, layer: Layer) -> int:
        """Return the width of the states of a layer."""
        if not isinstance(layer, Place):
            return self.d_model
        return self.residuals(torch.zeros(1, 1, dtype=torch.long), [layer])[0].shape[-1]

    def check_layers(self, layers: Sequence[Layer]) -> None:
        """Raise a ModelError if the model lacks one of these layers."""
        for layer in (each for each in layers if not isinstance(each, Place)):
            is_block = isinstance(layer, int | np.integer) and not isinstance(layer, bool)
            if layer != EMBED and not (is_block and 0 <= int(layer) < self.n_layers):
                raise ModelError(f"{self.name} has no layer {layer!r}, only 0 to {self.n_layers - 1} and '{EMBED}'")

    def parameters(self) -> int:
        """Return how many weights the model has."""
        return sum(weight.numel() for weight in self.module.parameters())

    def compiled(self, wanted: bool = True) -> contextlib.AbstractContextManager[None]:
        """Compile the forward pass of every block while the context is open: minutes at first; hooks stay outside."""
        blocks = self.blocks if wanted else []
        return replaced_forward(blocks, [torch.compile(block.forward) for block in blocks])

    @contextlib.contextmanager
    def cast(self, wanted: bool = True) -> Iterator[None]:
        """Keep the weights of linear maps in bfloat16 while the context is open, as autocast would.

        Autocast casts frozen weights again in every product. Values stay the same to the bit under autocast. Embeddings
        keep their own weights, also those that a linear map shares. The copies take half the memory of float32 maps.
        """
        maps = [part for part in self.module.modules() if wanted and isinstance(part, nn.Linear | Conv1D)]
        own = [(part, name, weight) for part in maps for name, weight in part._parameters.items()
               if weight is not None and weight.dtype == torch.float32]  # fmt: skip
        copies = {id(weight): nn.Parameter(weight.to(torch.bfloat16), requires_grad=False) for _, _, weight in own}
        try:
            for part, name, weight in own:
                part._parameters[name] = copies[id(weight)]
            yield
        finally:
            for part, name, weight in own:
                part._parameters[name] = weight

    def recomputed(self, wanted: bool = True) -> contextlib.AbstractContextManager[None]:
        """Let blocks run again in the backward pass while the context is open, and keep no states; hooks stay outside.

        Values and gradients stay the same to the bit, as frozen blocks have no dropout. It takes a third more time and
        about a twentieth of the memory.
        """
        blocks = self.blocks if wanted else []
        return replaced_forward(blocks, [_again_in_backward(block.forward) for block in blocks])

    def fingerprint(self) -> str:
        """Return the SHA-256 of all parameters and persistent buffers with their names, as 16 hexadecimal digits."""
        digest = hashlib.sha256()
        for name, tensor in tensors_of(self.module, in_order=True):
            digest.update(name.encode())
            digest.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]
        return digest.hexdigest()[:16]

    def settings(self) -> str:
        """Return the SHA-256 of the settings that are not the defaults of its class, as 16 hexadecimal digits."""
        chosen = sorted(entries_of(self.module, chosen=True).items())
        return hashlib.sha256(repr(chosen).encode()).hexdigest()[:16]

    def marks(self) -> str:
        """Return which tokens stand around a text that is read alone, and which begins and ends rows of text."""
        name, ends = self.tokenizer.convert_ids_to_tokens, [self.tokenizer.eos_token, self.tokenizer.sep_token]
        begin = f"{self.tokenizer.bos_token} " if self.bos_each_row else ""
        alone = " ".join(name(self.tokenizer("", verbose=False)["input_ids"]))
        return f"text: {alone or None}; row: {begin}... {next(filter(None, ends), None)}"

    def describe(self) -> dict[str, str]:
        """Return what the provenance of a result says of the model."""
        return {
            "name": self.name,
            "family": self.family.name,
            "revision": self.revision,
            "weights": self.fingerprint(),
            "settings": self.settings(),
            "tokenizer": tokenizer_fingerprint(self.tokenizer),
            "marks": self.marks(),
            "layers": str(self.n_layers),
            "dtype": str(self.dtype).removeprefix("torch."),
            "device": str(self.device),
            **({"other_dtypes": self.other_dtypes()} if self.other_dtypes() else {}),
            **({"quantization": self.quantization} if self.quantization else {}),
        }

    def other_dtypes(self) -> str:
        """Return how many weights are floats of another dtype than `dtype`, such as "float32 x 24"; "": none is."""
        tensors = [*self.module.parameters(), *persistent_buffers(self.module).values()]
        dtypes = [tensor.dtype for tensor in tensors if tensor.is_floating_point()]
        counts = Counter(str(dtype).removeprefix("torch.") for dtype in dtypes if dtype != self.dtype)
        return ", ".join(f"{dtype} x {count}" for dtype, count in sorted(counts.items()))

    def _captured(self, layer: Layer, rows: Sequence[int], states: Any) -> contextlib.AbstractContextManager[Any]:
        """Store the state (*rows, d) of a layer in every pass as `states[layer]` while the context is open."""
        if isinstance(layer, Place):
            return self.sites.captured(layer, layer, rows, states)  # type: ignore[no-any-return]
        if layer == EMBED:
            enters = self.blocks[0].register_forward_pre_hook
            return enters(lambda _, *given: states.update({layer: state_in(*given)}), with_kwargs=True)
        leaves = self.blocks[int(layer)].register_forward_hook
        return leaves(lambda _, args, output: states.update({layer: first_tensor(output)}))

    def _ended_after(self, count: int) -> contextlib.AbstractContextManager[None]:
        """End the pass that runs inside of the context after so many blocks."""
        return ended_at(self.blocks[max(count - 1, 0)], entering=not count)

    def _run(self, tokens: Tensor, mask: Tensor | None = None, types: Tensor | None = None) -> Tensor:
        given = {"attention_mask": mask, "token_type_ids": types}
        named = {key: each.to(self.device) for key, each in given.items() if each is not None and key in self._accepts}
        self._check_ids(tokens)
        tokens = self._padded(tokens.to(self.device), mask)
        first, *_ = self._accepts
        with alone(self.module), one_text_per_row():
            if "input_ids" in self._accepts and first != "input_ids":  # but the pixels of an image
                return first_tensor(self.module(input_ids=tokens, **named))
            return first_tensor(self.module(tokens, **named))

    def _check_ids(self, tokens: Tensor) -> None:
        """Raise a ModelError for a token that has no row in the embedding; ids on a device are not waited for."""
        if not self._has_ids_without_row or tokens.device.type != "cpu" or not tokens.numel():
            return
        if int(tokens.max()) < self.vocabulary:
            return
        largest = int(tokens.max())
        piece = self.tokenizer.convert_ids_to_tokens(largest)
        found = f"the text has the token {piece!r} (id {largest})"
        found += f", and the embedding has {self.vocabulary} rows"
        remedy = "remove it from the text, or give the tokenizer of the checkpoint"
        raise ModelError(f"{self.name}: {found}; {remedy}")

    def _padded(self, tokens: Tensor, mask: Tensor | None) -> Tensor:
        """Return the tokens with padding where the mask has none.

        The head of a decoder that classifies reads the last token of a text, which it finds by the
        id of padding alone.
        """
        if mask is None or self._padding is None:
            return tokens
        return tokens.masked_fill(mask.to(tokens.device) == 0, self._padding)

    def _continued(self, residual: Tensor, start: int, mask: Tensor | None) -> Tensor:
        """Run the model with this state before block `start`, or after the last one; earlier blocks are passed over.

        The state comes out of the block before, since some models do something between two blocks.
        """
        token = 1 if self._padding == 0 else 0  # any that is not padding
        placeholder = torch.full(residual.shape[:2], token, dtype=torch.long, device=self.device)
        entered, replace = self.blocks[max(start - 1, 0)], functools.partial(_replace_input, residual)
        with (
            alone(self.module),
            replaced_forward(self.blocks[:start], [functools.partial(_same, form) for form in self._forms[:start]]),
            without_hooks_on(self.blocks[:start]),  # the state that is put in has passed them
            entered.register_forward_pre_hook(replace, with_kwargs=True),
        ):
            return self._run(placeholder, mask)


class _Reached(Exception):
    """Ends a pass once all wanted states have been captured."""


def alone(module: nn.Module) -> contextlib.AbstractContextManager[Any]:
    """Let no other thread pass through a module while the context is open: its hooks would see both passes."""
    with _CHANGING:
        return _LOCKS.setdefault(module, threading.RLock())  # type: ignore[no-any-return]


@contextlib.contextmanager
def replaced_forward(blocks: Sequence[nn.Module], forwards: Sequence[Callable[..., Any]]) -> Iterator[None]:
    """Give each block another forward pass while the context is open, and then its own, or that of an outer context."""
    own = [vars(block).get("forward") for block in blocks]
    try:
        for block, forward in zip(blocks, forwards, strict=True):
            vars(block)["forward"] = forward  # a wrapper of TransformerLens would hand on what is assigned
        yield
    finally:
        for block, before in zip(blocks, own, strict=True):
            vars(block).pop("forward", None)
            if before is not None:
                vars(block)["forward"] = before


@contextlib.contextmanager
def without_hooks_on(blocks: Sequence[nn.Module]) -> Iterator[None]:
    """Let no hook of a block, such as one that adds a steering vector, run inside the context."""
    kinds = ("_forward_hooks", "_forward_pre_hooks")
    before = [{kind: vars(block)[kind] for kind in kinds} for block in blocks]
    try:
        for block in blocks:
            vars(block).update({kind: OrderedDict() for kind in kinds})
        yield
    finally:
        for block, hooks in zip(blocks, before, strict=True):
            vars(block).update(hooks)


@contextlib.contextmanager
def one_text_per_row() -> Iterator[None]:
    """Let no pass of transformers look for several texts in a row, which waits for the device, while this is open."""
    from transformers import masking_utils  # imports torch's compiler, which takes a second

    with _CHANGING:
        _one_text_per_row.append(masking_utils.find_packed_sequence_indices)
        masking_utils.find_packed_sequence_indices = lambda _: None
    try:
        yield
    finally:
        with _CHANGING:
            before = _one_text_per_row.pop()  # the last pass to end takes out what the first one found
            if not _one_text_per_row:
                masking_utils.find_packed_sequence_indices = before


def _again_in_backward(forward: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(forward)
    def run(*args: Any, **keywords: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **keywords)
        return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=False, **keywords)

    return run


@contextlib.contextmanager
def ended_at(module: nn.Module, *, entering: bool = False) -> Iterator[None]:
    """End the pass that runs inside of the context where it leaves or enters a module; what was captured stays."""
    register = module.register_forward_pre_hook if entering else module.register_forward_hook
    with contextlib.suppress(_Reached), register(_end):
        yield


def _replace_input(state: Tensor, _: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
    if args:
        return (state, *args[1:]), kwargs
    return args, kwargs | {_name_of_state(kwargs): state}


def _end(*_: Any) -> None:
    raise _Reached


def _same(form: int | None, *args: Any, **kwargs: Any) -> Any:
    """Return the state that a block was given, in the form in which the block returns one."""
    state = state_in(args, kwargs)
    return state if form is None else (state, *[None] * (form - 1))


def state_in(args: tuple, kwargs: dict[str, Any]) -> Any:
    return args[0] if args else kwargs[_name_of_state(kwargs)]


def _name_of_state(kwargs: dict[str, Any]) -> str:
    """Return the name by which a block is given the state: the first one, by convention hidden_states."""
    return "hidden_states" if "hidden_states" in kwargs else next(iter(kwargs))
