"""A model that is not trained: head, tail and residuals of any family, proved by its full pass.

One mechanism serves all families. The model's own forward pass runs, embedding and unembedding
included, so positions, masks, scales and caps are the model's own. All blocks stay in place: those
that are not wanted return their input, a state is put in before the first that is, and the pass
ends after the last state that is asked for. (A shortened list of blocks shifts the indices by
which a block finds its kind of attention. `start_at_layer` of TransformerLens 4 runs the skipped
blocks too, and is wrong for Mamba; `stop_at_layer` returns logits for BERT.) All changes undo
themselves.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from thinkalike.digests import tokenizer_fingerprint
from thinkalike.errors import ModelError
from thinkalike.models.cut_model import StateSites
from thinkalike.models.families import EMBED, Family, Layer, Place, Predicts, after
from thinkalike.models.hooks import (
    Arguments,
    NamedArguments,
    alone,
    ended_at,
    one_text_per_row,
    recomputed_in_backward,
    replaced_forward,
    replaced_input,
    skipped,
    state_in,
    without_hooks_on,
)
from thinkalike.models.module_facts import (
    Tokens,
    accepted,
    embedding_of,
    entries_of,
    first_tensor,
    longest_row,
    padding_of_head,
    persistent_buffers,
    tensors_of,
)
from thinkalike.models.proof import output_error_of, prove
from thinkalike.models.survey import survey

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# The most tokens of a vocabulary from which the mean and the size of its embeddings are estimated.
SAMPLED_TOKENS = 4096

# The most tokens in a pass that ends before block 0.
EMBEDDED_AT_ONCE = 2**14


def sampled_tokens(vocabulary: int) -> Int[Tensor, " sample"]:
    """Return the ids of tokens that stand for a vocabulary of this size, in ascending order.

    They are equally far apart, from the first id to the last one, and at most SAMPLED_TOKENS. A
    smaller vocabulary is returned whole.
    """
    count = min(vocabulary, SAMPLED_TOKENS)
    return torch.linspace(0, vocabulary - 1, count).long()


def encoded_text(
    tokenizer: PreTrainedTokenizerBase, text: str, bos_each_row: bool
) -> tuple[list[int], list[tuple[int, int]]]:
    """Return the token ids of a text that is read alone, and the span of characters of each.

    A span is (start, end) in the text; special tokens have an empty one. With `bos_each_row`, BOS
    comes first even if the tokenizer does not put it there, unless the tokenizer has no BOS.
    """
    encoded = tokenizer(text, return_offsets_mapping=True, verbose=False)
    token_ids = encoded["input_ids"]
    spans = encoded["offset_mapping"]
    bos = tokenizer.bos_token_id
    if bos_each_row and bos is not None and token_ids[:1] != [bos]:
        token_ids = [bos, *token_ids]
        spans = [(0, 0), *spans]
    return token_ids, spans


class FrozenModel:
    """A pretrained model without dropout or gradients for its weights.

    Layer l is the residual stream after block l, the site resid_post[l], which is
    `hidden_states[l + 1]` of transformers. EMBED is the stream before block 0.

    In all methods `mask` is 1 for tokens and 0 for padding, and `types` tells the two texts of a
    pair apart; None means that there is no padding and one text.

    Attributes:
        name: The everyday name.
        family: Where the blocks of the module are.
        tokenizer: The Hugging Face tokenizer.
        n_layers, d_model: The number of blocks and the width of the stream.
        vocabulary: The number of rows of the embedding.
        context: The longest row of tokens.
        bos_each_row: Whether the model expects rows to begin with BOS.
        device: Where states and logits are.
        revision: What was loaded, for the provenance.
        quantization: How its weights are or were quantised, such as "8bit" or "Q4_1 x 210, F32 x
            62"; "" if they are not.
        classes: What a classifier's logits are of, in their order.
        corpus: The text that suits it, by its name in `data=`; None if nothing is known of it.
        sites: The `Sites` at which its states are taken; None: after each block.

    Args:
        is_proved: Whether the module is a copy of one that passed, with other weights.

    Raises:
        ModelError: For a few fixed tokens x, tail(l, head(l, x)) is not the full pass.

    >>> model = load_model("gelu-3l-mini")
    >>> model.head(torch.zeros(1, 8, dtype=torch.long), 2).shape
    torch.Size([1, 8, 128])
    """

    corpus: str | None = None
    sites: StateSites | None = None
    # Whether its output for the next rows is proved too, as it runs code of its user.
    proves_next_rows = False
    # Why its output is not what its head makes of states; states are right all the same.
    output_error: ModelError | None = None

    def __init__(
        self,
        module: nn.Module,
        family: Family,
        tokenizer: PreTrainedTokenizerBase,
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
        self.family = family
        self.tokenizer = tokenizer
        self.name = name
        self.context = context
        self.bos_each_row = bos_each_row
        self.revision = revision
        self.classes = tuple(classes)
        self.quantization = quantization

        embedding = embedding_of(module)
        self.vocabulary = len(embedding)
        self.dtype = embedding.dtype
        self.device = device or embedding.device

        # A tokenizer may have ids without a row, as long as no text has them: see `_check_ids`.
        token_ids: Iterable[int] = ()
        if hasattr(tokenizer, "get_vocab"):
            token_ids = tokenizer.get_vocab().values()
        self._has_ids_without_row = max(token_ids, default=0) >= self.vocabulary

        self._argument_names = accepted(module)
        self._padding_id = None
        if family.predicts == "class":
            self._padding_id = padding_of_head(module, tokenizer)

        self.blocks = list(module.get_submodule(family.blocks).children())
        self.n_layers = len(self.blocks)
        # The lengths of the tuples that blocks return; None for a block that returns a tensor.
        self.d_model, self._tuple_lengths = survey(self)
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
        """A digest of all that decides which ids a text becomes.

        Models that cut texts alike have the same one.
        """
        return tokenizer_fingerprint(self.tokenizer)

    def __repr__(self) -> str:
        shape = (
            f"{self.n_layers} layers of width {self.d_model}, vocabulary {self.vocabulary}, "
            f"context {self.context}"
        )
        dtype = str(self.dtype).removeprefix("torch.")
        return f"FrozenModel({self.name}: {shape}; {self.family.name}, {dtype} on {self.device})"

    def check_context(self, asked: int | None) -> None:
        """Raise a ModelError if the model cannot read rows of this many tokens.

        Nothing is raised for None, or for a model whose configuration states no longest row.
        """
        longest = longest_row(self.module)
        if asked and longest and asked > longest:
            raise ModelError(
                f"data.context={asked}: {self.name} reads at most {longest} tokens; choose fewer"
            )

    @property
    def predicts(self) -> Predicts:
        """What the model outputs.

        It is logits of the "next" token, of "hidden" tokens or of the "class" of a text, or
        "states".
        """
        return self.family.predicts

    def residuals(
        self,
        tokens: Tokens,
        layers: Sequence[Layer],
        mask: Tokens | None = None,
        types: Tokens | None = None,
    ) -> list[Float[Tensor, "b t d"]]:
        """Return the states of these layers in one pass, which ends at the deepest of them.

        Args:
            tokens: The token ids, (b, t).
            layers: At least one of: the number of a block, counted from 0; EMBED, the site before
                block 0; a place of the model's `sites`. Results come in this order.

        Raises:
            ModelError: A layer is out of range, or the model cannot read these tokens.
        """
        self.check_layers(layers)
        states: dict[Layer, Tensor] = {}
        deepest = max(after(layer) for layer in layers)
        is_text = tokens.shape[1] > 1
        if self.proves_next_rows and is_text and deepest == self.n_layers:
            self.proves_next_rows = False
            self.output_error = output_error_of(self, tokens, mask, types)
        with contextlib.ExitStack() as hooks:
            hooks.enter_context(alone(self.module))
            for layer in set(layers):
                hooks.enter_context(self._captured(layer, tokens.shape, states))
            # A place behind the last block, such as the final norm, needs the whole pass.
            if deepest <= self.n_layers:
                hooks.enter_context(self._ended_after(deepest))
            self._run(tokens, mask, types)
        # The blocks of a model that is laid out over several devices leave states where they are.
        return [states[layer].to(self.device) for layer in layers]

    def head(
        self,
        tokens: Tokens,
        layer: Layer,
        mask: Tokens | None = None,
        types: Tokens | None = None,
    ) -> Float[Tensor, "b t d"]:
        """Return the residual stream after block `layer`; later blocks do not run."""
        return self.residuals(tokens, [layer], mask, types)[0]

    def advance(
        self, residual: Float[Tensor, "b t d"], start: int, stop: int, mask: Tokens | None = None
    ) -> Float[Tensor, "b t d"]:
        """Return the residual stream after blocks start..stop-1.

        `residual` is the stream before block `start`, and is itself returned if no block is to
        run (start >= stop). The result is differentiable with respect to `residual`.

        Raises:
            ModelError: The model has no such blocks.
        """
        if not (0 <= start <= self.n_layers and stop <= self.n_layers):
            raise ModelError(
                f"{self.name} has no blocks {start} to {stop - 1}, only 0 to {self.n_layers - 1}"
            )
        if start >= stop:
            return residual
        last = stop - 1
        states: dict[Layer, Tensor] = {}
        rows = residual.shape[:-1]  # (b, t)
        # Hooks are registered only once no other thread can run into them.
        with (
            alone(self.module),
            self._captured(last, rows, states),
            self._ended_after(stop),
        ):
            self._continued(residual, start, mask)
        return states[last].to(self.device)

    def finish(
        self, residual: Float[Tensor, "*b d"], mask: Tokens | None = None
    ) -> Float[Tensor, "... v"]:
        """Return the logits of the last block's residual.

        It passes through the final norm and the unembedding, or through the pooler and the
        classes. The result is differentiable with respect to `residual`. A language model reads
        each token by itself, so `residual` may have any leading shape, which the logits keep, and
        a row may be longer than the context. A classifier needs (b, t, d), and returns (b, v).

        Raises:
            ModelError: The model predicts no next token, or single tokens are given to a
                classifier.
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
        """Return the logits, given the residual stream after block `layer`.

        Earlier blocks do not run. The result is differentiable with respect to `residual`.

        Raises:
            ModelError: The layer is out of range, or the model predicts neither next tokens nor
                the class of a text.
        """
        self.check_layers([layer])
        last_residual = self.advance(residual, after(layer), self.n_layers, mask)
        return self.finish(last_residual, mask)

    def output(
        self, residual: Float[Tensor, "b t d"], mask: Tokens | None = None
    ) -> Float[Tensor, "b ... v"]:
        """Return the model's output for the last block's residual.

        It is logits, (b, t, v) or (b, v) of a classifier, or the states of a model without a head.

        Raises:
            ModelError: Code of the user outside of the blocks makes another output of a text.
        """
        if self.output_error is not None:
            raise self.output_error
        return self._continued(residual, self.n_layers, mask)

    def full(
        self, tokens: Tokens, mask: Tokens | None = None, types: Tokens | None = None
    ) -> Float[Tensor, "b ... v"]:
        """Return the output of the model's own full pass, without gradients.

        It is logits, (b, t, v) or (b, v) of a classifier, or the states of a model without a head.
        """
        with torch.no_grad():
            return self._run(tokens, mask, types)

    def encoded(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Return the token ids of a text and the span of characters of each, (start, end).

        Special tokens have an empty span.
        """
        return encoded_text(self.tokenizer, text, self.bos_each_row)

    def embedded(self, vocabulary: Int[Tensor, " v"]) -> Float[Tensor, "v d"]:
        """Return what enters block 0 for each of these tokens as the first of a row."""
        embeddings = []
        for rows in vocabulary[:, None].split(EMBEDDED_AT_ONCE):
            (states,) = self.residuals(rows, [EMBED])  # (b, 1, d)
            embeddings.append(states[:, 0])
        return torch.cat(embeddings)

    def sampled_vocabulary(self) -> Int[Tensor, " sample"]:
        """Return the ids of at most SAMPLED_TOKENS tokens, equally spaced over the vocabulary."""
        return sampled_tokens(self.vocabulary)

    def sites_at(self, layers: Iterable[int]) -> list[Layer]:
        """Return where states are taken in these layers: the layers, or places of `sites`.

        A layer has several places where `sites` names several sites or heads.
        """
        if self.sites is None:
            return list(layers)
        return list(self.sites.at(layers))

    def width(self, layer: Layer) -> int:
        """Return the width of the states of a layer."""
        if not isinstance(layer, Place):
            return self.d_model
        # No setting tells the width of a site, such as that of an MLP's neurons: a pass does.
        one_token = torch.zeros(1, 1, dtype=torch.long)
        (states,) = self.residuals(one_token, [layer])
        return states.shape[-1]

    def check_layers(self, layers: Sequence[Layer]) -> None:
        """Raise a ModelError if the model lacks one of these layers."""
        for layer in layers:
            if isinstance(layer, Place) or layer == EMBED:
                continue
            # True is an int for Python, and no layer.
            is_number = isinstance(layer, int | np.integer) and not isinstance(layer, bool)
            if not (is_number and 0 <= int(layer) < self.n_layers):
                raise ModelError(
                    f"{self.name} has no layer {layer!r}, only 0 to {self.n_layers - 1} and "
                    f"'{EMBED}'"
                )

    def parameters(self) -> int:
        """Return how many weights the model has."""
        return sum(weight.numel() for weight in self.module.parameters())

    def compiled(self, wanted: bool = True) -> contextlib.AbstractContextManager[None]:
        """Compile the forward pass of every block while the context is open.

        The first pass then takes minutes. Hooks are not compiled. Nothing happens unless `wanted`.
        """
        if not wanted:
            return contextlib.nullcontext()
        forwards = [torch.compile(block.forward) for block in self.blocks]
        return replaced_forward(self.blocks, forwards)

    @contextlib.contextmanager
    def cast(self, wanted: bool = True) -> Iterator[None]:
        """Keep the weights of linear maps in bfloat16 while the context is open.

        Autocast casts frozen weights again in every product. Values stay the same to the bit under
        autocast. Embeddings keep their float32 weights, even those that a linear map shares. The
        copies take half the memory of float32 maps. Nothing happens unless `wanted`.
        """
        originals: list[tuple[nn.Module, str, nn.Parameter]] = []
        copies: dict[int, nn.Parameter] = {}  # one for each weight that maps may share
        for module in self.module.modules():
            if not wanted or not isinstance(module, nn.Linear | Conv1D):
                continue
            for name, weight in module._parameters.items():
                if weight is None or weight.dtype != torch.float32:
                    continue
                originals.append((module, name, weight))
                if id(weight) not in copies:
                    narrow = weight.to(torch.bfloat16)
                    copies[id(weight)] = nn.Parameter(narrow, requires_grad=False)
        try:
            for module, name, weight in originals:
                module._parameters[name] = copies[id(weight)]
            yield
        finally:
            for module, name, weight in originals:
                module._parameters[name] = weight

    def recomputed(self, wanted: bool = True) -> contextlib.AbstractContextManager[None]:
        """Let blocks run again in the backward pass while the context is open, and keep no states.

        Hooks do not run again. Values and gradients stay the same to the bit, as frozen blocks
        have no dropout. It takes a third more time and about a twentieth of the memory. Nothing
        happens unless `wanted`.
        """
        if not wanted:
            return contextlib.nullcontext()
        forwards = [recomputed_in_backward(block.forward) for block in self.blocks]
        return replaced_forward(self.blocks, forwards)

    def fingerprint(self) -> str:
        """Return the SHA-256 of all parameters and persistent buffers with their names.

        It has 16 hexadecimal digits.
        """
        digest = hashlib.sha256()
        for name, tensor in tensors_of(self.module, in_order=True):
            digest.update(name.encode())
            # As bytes, since NumPy has no bfloat16.
            octets = tensor.detach().cpu().reshape(-1).view(torch.uint8)
            digest.update(octets.numpy())  # type: ignore[arg-type]
        return digest.hexdigest()[:16]

    def settings(self) -> str:
        """Return the SHA-256 of the configuration's entries that are not its class's defaults.

        Entries that no pass reads, such as dropout, do not count. It has 16 hexadecimal digits.
        """
        changed_entries = sorted(entries_of(self.module, chosen=True).items())
        return hashlib.sha256(repr(changed_entries).encode()).hexdigest()[:16]

    def marks(self) -> str:
        """Return which special tokens surround a text that is read alone, and a row of text.

        For BERT it is "text: [CLS] [SEP]; row: ... [SEP]", and "None" stands for no such token.
        """
        tokenizer = self.tokenizer
        marks_of_empty_text = tokenizer("", verbose=False)["input_ids"]
        around_text = " ".join(tokenizer.convert_ids_to_tokens(marks_of_empty_text)) or None
        before_row = f"{tokenizer.bos_token} " if self.bos_each_row else ""
        after_row = tokenizer.eos_token or tokenizer.sep_token or None
        return f"text: {around_text}; row: {before_row}... {after_row}"

    def describe(self) -> dict[str, str]:
        """Return what the provenance of a result says of the model."""
        description = {
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
        }
        other_dtypes = self.other_dtypes()
        if other_dtypes:
            description["other_dtypes"] = other_dtypes
        if self.quantization:
            description["quantization"] = self.quantization
        return description

    def other_dtypes(self) -> str:
        """Return how many weights have another floating dtype than `dtype`, as "float32 x 24".

        It is "" if there are no such weights.
        """
        counts = Counter[str]()
        buffers = persistent_buffers(self.module).values()
        for tensor in [*self.module.parameters(), *buffers]:
            if tensor.is_floating_point() and tensor.dtype != self.dtype:
                counts[str(tensor.dtype).removeprefix("torch.")] += 1
        return ", ".join(f"{dtype} x {count}" for dtype, count in sorted(counts.items()))

    def _captured(
        self, layer: Layer, rows: Sequence[int], states: MutableMapping[Layer, Tensor]
    ) -> contextlib.AbstractContextManager[object]:
        """Store the states of a layer in every pass while the context is open.

        Args:
            layer: The layer.
            rows: The shape of the states without their width, (b, t).
            states: Gets the states, (b, t, d), as `states[layer]`. A later pass replaces them.

        Raises:
            ModelError: The layer is a place, and the model has no `sites`.
        """
        if isinstance(layer, Place):
            if self.sites is None:
                raise ModelError(f"{self.name} has no place {layer}: set model.site")
            return self.sites.captured(layer, layer, rows, states)
        if layer == EMBED:

            def store_input(_: nn.Module, args: Arguments, kwargs: NamedArguments) -> None:
                states[layer] = state_in(args, kwargs)

            return self.blocks[0].register_forward_pre_hook(store_input, with_kwargs=True)

        def store_output(_: nn.Module, args: Arguments, output: object) -> None:
            states[layer] = first_tensor(output)

        return self.blocks[int(layer)].register_forward_hook(store_output)

    def _ended_after(self, count: int) -> contextlib.AbstractContextManager[None]:
        """End the pass that runs inside of the context after this many blocks; 0: before them."""
        if count == 0:
            return ended_at(self.blocks[0], entering=True)
        return ended_at(self.blocks[count - 1])

    def _run(
        self, tokens: Tensor, mask: Tensor | None = None, types: Tensor | None = None
    ) -> Tensor:
        """Return the output of the model's own pass, or its first tensor if there are several.

        `mask` and `types` are passed on if the module's forward has arguments for them.
        """
        named_inputs = {}
        if mask is not None and "attention_mask" in self._argument_names:
            named_inputs["attention_mask"] = mask.to(self.device)
        if types is not None and "token_type_ids" in self._argument_names:
            named_inputs["token_type_ids"] = types.to(self.device)
        self._check_ids(tokens)
        tokens = self._padded(tokens.to(self.device), mask)

        first_argument = self._argument_names[0]
        takes_tokens_by_name = "input_ids" in self._argument_names
        with alone(self.module), one_text_per_row():
            # The first argument of a model of images and text may be the pixels of an image.
            if takes_tokens_by_name and first_argument != "input_ids":
                return first_tensor(self.module(input_ids=tokens, **named_inputs))
            return first_tensor(self.module(tokens, **named_inputs))

    def _check_ids(self, tokens: Tensor) -> None:
        """Raise a ModelError for a token that has no row in the embedding.

        Ids on a GPU are not checked: that would wait for the device.
        """
        if not self._has_ids_without_row or tokens.device.type != "cpu" or not tokens.numel():
            return
        largest = int(tokens.max())
        if largest < self.vocabulary:
            return
        piece = self.tokenizer.convert_ids_to_tokens(largest)
        raise ModelError(
            f"{self.name}: the text has the token {piece!r} (id {largest}), and the embedding has "
            f"{self.vocabulary} rows; remove it from the text, or give the tokenizer of the "
            "checkpoint"
        )

    def _padded(self, tokens: Tensor, mask: Tensor | None) -> Tensor:
        """Return the token ids with the id of padding wherever the mask is 0.

        The head of a decoder that classifies reads the last token of a text, which it finds by the
        id of padding alone.
        """
        if mask is None or self._padding_id is None:
            return tokens
        return tokens.masked_fill(mask.to(tokens.device) == 0, self._padding_id)

    def _continued(self, residual: Tensor, start: int, mask: Tensor | None) -> Tensor:
        """Return the model's output with this state before block `start`, or after the last one.

        Earlier blocks are passed over. The state comes out of the block before, since some models
        do something between two blocks.
        """
        # The model's pass needs tokens, whose embeddings the state replaces. They may be any but
        # padding, by which a classifier finds the end of a text.
        placeholder_id = 1 if self._padding_id == 0 else 0
        placeholder = torch.full(
            residual.shape[:2], placeholder_id, dtype=torch.long, device=self.device
        )
        blocks_before = self.blocks[:start]
        block_that_hands_on = self.blocks[max(start - 1, 0)]
        with (
            alone(self.module),
            skipped(blocks_before, self._tuple_lengths[:start]),
            without_hooks_on(blocks_before),  # the state that is put in has passed them
            replaced_input(block_that_hands_on, residual),
        ):
            return self._run(placeholder, mask)
