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
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from thinkalike.advice import named_setting
from thinkalike.digests import tokenizer_fingerprint
from thinkalike.errors import ModelError
from thinkalike.models.cut_model import StateSites
from thinkalike.models.families import EMBED, Family, Layer, Place, Predicts, n_blocks_until
from thinkalike.models.hooks import (
    Arguments,
    NamedArguments,
    ended_at,
    one_text_per_row,
    pass_lock,
    recomputed_in_backward,
    replaced_forward,
    replaced_input,
    skipped,
    state_in,
    without_hooks_on,
)
from thinkalike.models.module_facts import (
    Tokens,
    embedding_of,
    entries_of,
    first_tensor,
    forward_argument_names,
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
    """Return evenly spaced token ids from 0 to `vocabulary - 1`, in ascending order.

    Statistics of the embedding are estimated from these tokens. There are at most SAMPLED_TOKENS
    (4,096); of a smaller vocabulary all ids are returned.

    Args:
        vocabulary: The number of tokens of the vocabulary.
    """
    count = min(vocabulary, SAMPLED_TOKENS)
    return torch.linspace(0, vocabulary - 1, count).long()  # the fraction is dropped


def encoded_text(
    tokenizer: PreTrainedTokenizerBase, text: str, bos_each_row: bool
) -> tuple[list[int], list[tuple[int, int]]]:
    """Return the token ids of one text, and for each token its (start, end) characters in it.

    The tokenizer adds its special tokens, whose spans are empty. With `bos_each_row`, BOS is put
    first if the tokenizer has a BOS and did not put it there by itself.
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
        name: What results and errors call the model.
        family: Where the blocks of the module are, and what the model predicts.
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
        ModelError: For a few fixed tokens x and a layer l, tail(head(x, l), l) is not the output
            of the full pass.

    >>> model = load_model("gelu-3l-mini")
    >>> model.head(torch.zeros(1, 8, dtype=torch.long), 2).shape
    torch.Size([1, 8, 128])
    """

    corpus: str | None = None
    sites: StateSites | None = None
    # The length of the longest row of text for which its output was proved, see `prove_again`.
    # None: it runs no code of its user, so that the proof at load is enough.
    proved_length: int | None = None
    # Why its output is not what its head makes of states; states are right all the same.
    output_error: ModelError | None = None
    # The code of users that libraries held at load, and what the model gave then for sample
    # tokens, see `models.identity.note_libraries`. None: it is no copy of a model in memory.
    library_code: Mapping[tuple[str, str], object] | None = None
    digest_at_load: str = ""

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

        self._argument_names = forward_argument_names(module)
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
        """A digest of everything in the tokenizer that decides which ids a text becomes.

        Two models with the same digest encode every text as the same ids.
        """
        return tokenizer_fingerprint(self.tokenizer)

    def __repr__(self) -> str:
        """Return the model's name, sizes, family, dtype and device in one line."""
        shape = (
            f"{self.n_layers} layers of width {self.d_model}, vocabulary {self.vocabulary}, "
            f"context {self.context}"
        )
        dtype = str(self.dtype).removeprefix("torch.")
        return f"FrozenModel({self.name}: {shape}; {self.family.name}, {dtype} on {self.device})"

    def check_context(self, row_length: int | None) -> None:
        """Raise a ModelError if the model cannot read rows of `row_length` tokens.

        `row_length` is the setting `data.context`. Nothing is raised if it is None, which leaves
        the length to the model, or if the model's configuration limits no length.
        """
        longest = longest_row(self.module)
        if row_length and longest and row_length > longest:
            raise ModelError(
                f"{named_setting('data.context', row_length)}: {self.name} reads at most "
                f"{longest} tokens; choose fewer"
            )

    @property
    def predicts(self) -> Predicts:
        """What the model outputs, as one of four words.

        "next", "hidden" and "class" mean logits: of the next token, of masked tokens, or of the
        class of a whole text. "states" means that the model has no head, and outputs states.
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
            layers: At least one layer. Each is the number of a block, counted from 0, for the
                stream after it; EMBED, for the stream before block 0; or a `Place`, another hook
                point inside or behind the blocks. The list that is returned has this order.
            mask: 1 for tokens and 0 for padding; None: there is no padding.
            types: BERT's token type ids, which tell the two texts of a pair apart, or None.

        Raises:
            ModelError: A layer is out of range, the model cannot read these tokens, or its forward
                runs no hooks.
        """
        self.check_layers(layers)
        n_blocks_to_run = max(n_blocks_until(layer) for layer in layers)

        if n_blocks_to_run >= self.n_layers:
            self._prove_longer_rows(tokens, mask, types)
        states: dict[Layer, Tensor] = {}  # filled by the hooks while the pass runs
        with contextlib.ExitStack() as hooks:
            hooks.enter_context(pass_lock(self.module))
            for layer in set(layers):
                hooks.enter_context(self._captured(layer, tokens.shape, states))
            # A hook point behind the last block, such as the final norm, needs the whole pass.
            if n_blocks_to_run <= self.n_layers:
                hooks.enter_context(self._ended_after(n_blocks_to_run))
            self._run(tokens, mask, types)
        if len(states) < len(set(layers)):
            raise ModelError(
                f"{self.name}: its modules run without their hooks, as in a forward of "
                "torch.compile; give the model as it was before, or compile it by model.compile()"
            )
        # The blocks of a model that is laid out over several devices leave states where they are.
        return [states[layer].to(self.device) for layer in layers]

    def head(
        self,
        tokens: Tokens,
        layer: Layer,
        mask: Tokens | None = None,
        types: Tokens | None = None,
    ) -> Float[Tensor, "b t d"]:
        """Return the residual stream after block `layer`; later blocks do not run.

        For EMBED it is the stream before block 0, and for a `Place` the state of that hook point,
        (b, t, d), for b rows of t tokens. `mask` is 1 for tokens and 0 for padding; `types` are
        BERT's token type ids.
        """
        return self.residuals(tokens, [layer], mask, types)[0]

    def advance(
        self, residual: Float[Tensor, "b t d"], start: int, stop: int, mask: Tokens | None = None
    ) -> Float[Tensor, "b t d"]:
        """Run blocks `start` to `stop - 1` on a residual stream, and return the stream after them.

        `residual` is the stream before block `start`, and is itself returned if no block is to
        run (start >= stop). The result is differentiable with respect to `residual`. `mask` is 1
        for tokens and 0 for padding, (b, t); without it, no token is padding.

        Raises:
            ModelError: The model has no such blocks.
        """
        if not (0 <= start <= self.n_layers and stop <= self.n_layers):
            raise ModelError(
                f"{self.name} has no blocks {start} to {stop - 1}, only 0 to {self.n_layers - 1}"
            )
        if start >= stop:
            return residual
        last_block = stop - 1
        states: dict[Layer, Tensor] = {}  # filled by a hook while the pass runs
        batch_shape = residual.shape[:-1]  # (b, t)
        # The lock is taken first, so that no pass of another thread runs into the hooks.
        with (
            pass_lock(self.module),
            self._captured(last_block, batch_shape, states),
            self._ended_after(stop),
        ):
            self._continued(residual, start, mask)
        return states[last_block].to(self.device)

    def finish(
        self, residual: Float[Tensor, "*b d"], mask: Tokens | None = None
    ) -> Float[Tensor, "... v"]:
        """Return the logits, given the residual stream after the last block.

        In a language model the stream passes through the final norm and the unembedding. These
        read each token by itself, so `residual` may have any leading shape, which the logits keep,
        and a row may be longer than the context. In a classifier the stream passes through the
        pooler and the classification head: (b, t, d) becomes (b, v).

        The result is differentiable with respect to `residual`. `mask` is 1 for tokens and 0 for
        padding, and only a classifier reads it.

        Raises:
            ModelError: The model predicts neither the next token nor a class, or a classifier is
                given a `residual` that is not (b, t, d).
        """
        if self.predicts == "class":
            if residual.dim() != 3:
                raise ModelError(f"{self.name} predicts the class of a whole text and no tokens")
            return self.output(residual, mask)
        if self.predicts != "next":
            remedy = (
                f"choose a language model, or compare states: {named_setting('measure', 'cka')}"
            )
            raise ModelError(f"{self.name} predicts no next token, so it has no tail; {remedy}")
        # Rows of one token, so that no row is too long for the model's positions.
        one_token_per_row = residual.reshape(-1, 1, residual.shape[-1])
        logits = self.output(one_token_per_row)
        return logits.view(*residual.shape[:-1], -1)

    def tail(
        self, residual: Float[Tensor, "b t d"], layer: Layer, mask: Tokens | None = None
    ) -> Float[Tensor, "b ... v"]:
        """Return the logits, given the residual stream after block `layer`.

        Blocks up to `layer` do not run. The result is differentiable with respect to `residual`.

        Args:
            residual: The stream of b rows of t tokens.
            layer: The number of a block, or EMBED for the stream before block 0.
            mask: 1 for tokens and 0 for padding, (b, t). None: there is no padding.

        Returns:
            The logits over the vocabulary at each token, (b, t, v), or over the classes of each
            text, (b, v).

        Raises:
            ModelError: The layer is out of range, or the model predicts neither next tokens nor
                the class of a text.
        """
        self.check_layers([layer])
        last_residual = self.advance(residual, n_blocks_until(layer), self.n_layers, mask)
        return self.finish(last_residual, mask)

    def output(
        self, residual: Float[Tensor, "b t d"], mask: Tokens | None = None
    ) -> Float[Tensor, "b ... v"]:
        """Return the model's output, given the residual stream after the last block.

        The output is logits (b, t, v), or (b, v) for a classifier, or states (b, t, d) for a model
        without a head.

        This is right only if the stream after the last block determines the output. That is
        checked on a few random tokens when any model is loaded. A model may run code of its user
        outside of the blocks, such as a hook or an overridden `forward`, which acts on certain
        tokens only. So for such a model it is checked again while real text runs through it: the
        output of the whole model is compared with what its head makes of its last states.

        Raises:
            ModelError: The check on a text that was read before found different outputs.
        """
        if self.output_error is not None:
            raise self.output_error
        # All blocks are skipped. What the model computes after them runs, such as its last norm
        # and its unembedding.
        return self._continued(residual, self.n_layers, mask)

    def prove_again(self) -> None:
        """Let the next pass check again that the output follows from the states of the last block.

        This is for a model that runs code of its user, which may have changed, and may change the
        output for certain tokens or positions only. So what was checked at load is checked for the
        first rows of real text, and for longer rows that follow.
        """
        self.proved_length = 0
        self.output_error = None

    def _prove_longer_rows(
        self, tokens: Tokens, mask: Tokens | None, types: Tokens | None
    ) -> None:
        """Check that the output follows from the states after the last block, for longer rows.

        Rows are checked that are longer than all rows before, and only for a model that runs code
        of its user (`proved_length` is not None). An error is stored in `output_error`, and
        nothing more is checked then.
        """
        if self.proved_length is None or self.output_error is not None:
            return
        row_length = tokens.shape[1]
        longest_without_check = max(self.proved_length, 1)  # a single token is no text
        if row_length > longest_without_check:
            self.proved_length = row_length  # set first, since the check takes states itself
            self.output_error = output_error_of(self, tokens, mask, types)

    def full(
        self, tokens: Tokens, mask: Tokens | None = None, types: Tokens | None = None
    ) -> Float[Tensor, "b ... v"]:
        """Run the whole model on tokens, without gradients, and return its output.

        The output is logits (b, t, v), or (b, v) for a classifier, or states (b, t, d) for a model
        without a head. `mask` is 1 for tokens and 0 for padding; `types` are BERT's token type
        ids.
        """
        with torch.no_grad():
            return self._run(tokens, mask, types)

    def encoded(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Return the token ids of one text, and the (start, end) characters of each token in it.

        Special tokens, which the tokenizer adds, have an empty span.
        """
        return encoded_text(self.tokenizer, text, self.bos_each_row)

    def embedded(self, vocabulary: Int[Tensor, " v"]) -> Float[Tensor, "v d"]:
        """Return the state (of width d) that enters block 0 for each of v token ids.

        Each token is the only one of its row, so that every state has the first position.
        """
        embeddings = []
        for rows in vocabulary[:, None].split(EMBEDDED_AT_ONCE):  # (b, 1) each, to bound memory
            (states,) = self.residuals(rows, [EMBED])  # (b, 1, d)
            embeddings.append(states[:, 0])
        return torch.cat(embeddings)

    def sampled_vocabulary(self) -> Int[Tensor, " sample"]:
        """Return the ids of at most SAMPLED_TOKENS tokens, equally spaced over the vocabulary."""
        return sampled_tokens(self.vocabulary)

    def sites_at(self, layers: Iterable[int]) -> list[Layer]:
        """Return the hook points at which this model's states are taken in these layers.

        They are the layers themselves (the stream after each block) unless `self.sites` chooses
        other hook points. If several sites or heads are chosen, a layer has several hook points.
        """
        if self.sites is None:
            return list(layers)
        return list(self.sites.at(layers))

    def width(self, layer: Layer) -> int:
        """Return the width of the states at a layer.

        It is that of the residual stream for the number of a block and for EMBED. A layer may also
        be another hook point (a `Place`), whose states may have another width.
        """
        if not isinstance(layer, Place):
            return self.d_model
        # Configurations do not state the width of every hook point, so one token is run.
        one_token = torch.zeros(1, 1, dtype=torch.long)
        (states,) = self.residuals(one_token, [layer])
        return states.shape[-1]

    def check_layers(self, layers: Sequence[Layer]) -> None:
        """Raise a ModelError if one of these layers is not a block's number or EMBED.

        A `Place`, another hook point, is not checked here.
        """
        for layer in layers:
            if isinstance(layer, Place) or layer == EMBED:
                continue
            # Python counts True as an int, but it is not a layer.
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
        """Return a context in which the forward pass of every block is compiled.

        The first pass in it takes minutes. Hooks are not compiled. If `wanted` is false, the
        context changes nothing.
        """
        if not wanted:
            return contextlib.nullcontext()
        forwards = [torch.compile(block.forward) for block in self.blocks]
        return replaced_forward(self.blocks, forwards)

    @contextlib.contextmanager
    def cast(self, wanted: bool = True) -> Iterator[None]:
        """Replace float32 weights of linear maps by bfloat16 copies while the context is open.

        This saves time under autocast, which would cast the frozen weights again in every product;
        values stay the same to the bit. The copies need half the memory of the originals, which
        are kept. An embedding keeps its float32 weight, even one that it shares with a linear map.
        If `wanted` is false, the context changes nothing.
        """
        originals: list[tuple[nn.Module, str, nn.Parameter]] = []
        copies: dict[int, nn.Parameter] = {}  # by the `id` of the weight, which maps may share
        for module in self.module.modules():
            # Conv1D is the linear map of GPT-2.
            if not wanted or not isinstance(module, nn.Linear | Conv1D):
                continue
            for name, weight in module._parameters.items():
                if weight is None or weight.dtype != torch.float32:
                    continue
                originals.append((module, name, weight))
                if id(weight) not in copies:
                    bfloat16_weight = weight.to(torch.bfloat16)
                    copies[id(weight)] = nn.Parameter(bfloat16_weight, requires_grad=False)
        try:
            for module, name, weight in originals:
                module._parameters[name] = copies[id(weight)]
            yield
        finally:
            for module, name, weight in originals:
                module._parameters[name] = weight

    def recomputed(self, wanted: bool = True) -> contextlib.AbstractContextManager[None]:
        """Return a context with gradient checkpointing of every block.

        The states inside a block are not kept, but computed again in the backward pass, where
        hooks do not run again. Values and gradients stay the same to the bit, as frozen blocks
        have no dropout. A pass takes a third more time and about a twentieth of the memory. If
        `wanted` is false, the context changes nothing.
        """
        if not wanted:
            return contextlib.nullcontext()
        forwards = [recomputed_in_backward(block.forward) for block in self.blocks]
        return replaced_forward(self.blocks, forwards)

    def fingerprint(self) -> str:
        """Return a hash of the names and values of all parameters and persistent buffers.

        It is the first 16 hexadecimal digits of a SHA-256.
        """
        digest = hashlib.sha256()
        for name, tensor in tensors_of(self.module, in_order=True):
            digest.update(name.encode())
            # NumPy has no bfloat16, so values are hashed as bytes.
            value_bytes = tensor.detach().cpu().reshape(-1).view(torch.uint8)
            digest.update(value_bytes.numpy())  # type: ignore[arg-type]
        return digest.hexdigest()[:16]

    def settings(self) -> str:
        """Return a hash of the configuration's entries that differ from its class's defaults.

        Entries that no forward pass reads, such as dropout, are left out. The hash is the first 16
        hexadecimal digits of a SHA-256.
        """
        changed_entries = entries_of(self.module, without_defaults=True)
        text = repr(sorted(changed_entries.items()))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def special_token_pattern(self) -> str:
        """Return in words the special tokens around a single text, and around a row of text.

        A row is a piece of a longer corpus. For BERT the pattern is
        `text: [CLS] [SEP]; row: ... [SEP]`. "None" says that there is no such token around a text,
        or after a row. Before a row nothing is said if no token stands there.
        """
        tokenizer = self.tokenizer
        special_ids = tokenizer("", verbose=False)["input_ids"]  # all tokens of an empty text
        around_text = " ".join(tokenizer.convert_ids_to_tokens(special_ids)) or "None"
        before_row = f"{tokenizer.bos_token} " if self.bos_each_row else ""
        after_row = tokenizer.eos_token or tokenizer.sep_token or "None"
        return f"text: {around_text}; row: {before_row}... {after_row}"

    def describe(self) -> dict[str, str]:
        """Return the facts about the model that are stored with each result, by their names.

        Three are hashes: "weights" of all tensors, "settings" of the entries of its configuration
        that change a pass, and "tokenizer". "marks" are the special tokens around a text.
        "other_dtypes" counts tensors of a dtype that is not "dtype"; this fact and "quantization"
        are left out where they do not apply.
        """
        description = {
            "name": self.name,
            "family": self.family.name,
            "revision": self.revision,
            "weights": self.fingerprint(),
            "settings": self.settings(),
            "tokenizer": tokenizer_fingerprint(self.tokenizer),
            "marks": self.special_token_pattern(),
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
        """Return how many tensors have a floating dtype different from `dtype`: "float32 x 24".

        The tensors are parameters and persistent buffers. "" means that none differ.
        """
        counts = Counter[str]()
        buffers = persistent_buffers(self.module).values()
        for tensor in [*self.module.parameters(), *buffers]:
            if tensor.is_floating_point() and tensor.dtype != self.dtype:
                counts[str(tensor.dtype).removeprefix("torch.")] += 1
        return ", ".join(f"{dtype} x {count}" for dtype, count in sorted(counts.items()))

    def _captured(
        self, layer: Layer, batch_shape: Sequence[int], states: MutableMapping[Layer, Tensor]
    ) -> contextlib.AbstractContextManager[object]:
        """Return a context in which every pass writes the states of a layer to `states[layer]`.

        It is the handle of a hook: leaving the context removes the hook.

        Args:
            layer: A block's number, EMBED for the input of block 0, or a `Place`, another hook
                point.
            batch_shape: The shape of the states without their width, (b, t).
            states: A dictionary that the pass fills: it gets the states, (b, t, d), under the key
                `layer`. A later pass replaces them.

        Raises:
            ModelError: The layer is a `Place`, and no `sites` were chosen for this model.
        """
        if isinstance(layer, Place):
            if self.sites is None:
                raise ModelError(
                    f"{self.name} has no place {layer}: set {named_setting('model.site')}"
                )
            key = layer
            return self.sites.captured(layer, key, batch_shape, states)
        if layer == EMBED:

            def store_input(_: nn.Module, args: Arguments, kwargs: NamedArguments) -> None:
                """Store the input of block 0, as a hook before it."""
                states[layer] = state_in(args, kwargs)

            return self.blocks[0].register_forward_pre_hook(store_input, with_kwargs=True)

        def store_output(_: nn.Module, args: Arguments, output: object) -> None:
            """Store the output of a block, as a hook after it."""
            states[layer] = first_tensor(output)

        return self.blocks[int(layer)].register_forward_hook(store_output)

    def _ended_after(self, count: int) -> contextlib.AbstractContextManager[None]:
        """Return a context in which a pass ends after its first `count` blocks.

        With `count` 0 it ends before block 0.
        """
        if count == 0:
            return ended_at(self.blocks[0], entering=True)
        return ended_at(self.blocks[count - 1])

    def _run(
        self, tokens: Tensor, mask: Tensor | None = None, types: Tensor | None = None
    ) -> Tensor:
        """Run the module's own forward pass, and return its output, the first of several tensors.

        `mask` and `types` are ignored if the module's forward has no argument for them. Padding
        tokens get the id by which a classifier finds the end of a text.

        Raises:
            ModelError: A token has no row in the embedding.
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
        # transformers would search each row for several packed texts, and wait for the GPU.
        with pass_lock(self.module), one_text_per_row():
            # The first argument of a model of images and text may be the pixels of an image.
            if takes_tokens_by_name and first_argument != "input_ids":
                return first_tensor(self.module(input_ids=tokens, **named_inputs))
            return first_tensor(self.module(tokens, **named_inputs))

    def _check_ids(self, tokens: Tensor) -> None:
        """Raise a ModelError for a token id that has no row in the embedding.

        A tokenizer may have such ids, as long as the text does not use them. Ids on a GPU are not
        checked, since reading them would wait for the device.
        """
        if not self._has_ids_without_row or tokens.device.type != "cpu" or not tokens.numel():
            return
        largest_id = int(tokens.max())
        if largest_id < self.vocabulary:
            return
        token = self.tokenizer.convert_ids_to_tokens(largest_id)
        raise ModelError(
            f"{self.name}: the text has the token {token!r} (id {largest_id}), and the embedding "
            f"has {self.vocabulary} rows; remove it from the text, or give the tokenizer of the "
            "checkpoint"
        )

    def _padded(self, tokens: Tensor, mask: Tensor | None) -> Tensor:
        """Return the token ids with the padding id wherever the mask is 0.

        A decoder that classifies reads the state of a text's last token. It looks for the padding
        id to find that token, and does not look at the mask. Without a mask, or for a model that
        is no classifier (`_padding_id` is None), the tokens are returned as they are.
        """
        if mask is None or self._padding_id is None:
            return tokens
        return tokens.masked_fill(mask.to(tokens.device) == 0, self._padding_id)

    def _continued(self, residual: Tensor, start: int, mask: Tensor | None) -> Tensor:
        """Return the output of a pass in which `residual` (b, t, d) is the input of block `start`.

        Blocks before `start` are skipped: each returns its input. If `start` is the number of
        blocks, only what follows the blocks works on `residual`. `mask` is 1 for tokens and 0 for
        padding.
        """
        # The model's pass needs token ids, whose embeddings `residual` replaces. Any id will do
        # except that of padding, by which a classifier finds the end of a text.
        placeholder_id = 1 if self._padding_id == 0 else 0
        placeholder = torch.full(
            residual.shape[:2], placeholder_id, dtype=torch.long, device=self.device
        )
        skipped_blocks = self.blocks[:start]
        # `residual` is the input of the last skipped block, which returns it, because some models
        # compute something between two blocks. If no block is skipped, it is the input of block 0.
        block_of_entry = self.blocks[max(start - 1, 0)]
        with (
            pass_lock(self.module),
            # A skipped block returns a tuple as long as its own, or a tensor.
            skipped(skipped_blocks, self._tuple_lengths[:start]),
            without_hooks_on(skipped_blocks),  # their hooks have worked on `residual` before
            replaced_input(block_of_entry, residual),
        ):
            return self._run(placeholder, mask)
