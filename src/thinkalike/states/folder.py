"""A folder of states in place of a model: rows of text whose states were written elsewhere are found by their tokens.

What a model would compute is looked up, so that everything that reads a `StateSource` reads a folder in the same way.
A row that was not written is an error, and no state is ever made up.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Sequence
from dataclasses import fields
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from thinkalike.config import DataConfig, ModelConfig
from thinkalike.config.parts import CONTEXT
from thinkalike.data.documents import rows_folder
from thinkalike.data.words import Span
from thinkalike.digests import tokenizer_fingerprint
from thinkalike.errors import ConfigError, DataError, listed, short
from thinkalike.measures.estimates import seeded
from thinkalike.models.families import EMBED, Layer, Place, pick_device
from thinkalike.models.frozen import encoded_text, sampled_tokens
from thinkalike.models.load import load_groups, load_model, load_tokenizer
from thinkalike.models.sites import ONCE
from thinkalike.processes import counted
from thinkalike.shards.arrays import StoredRows
from thinkalike.shards.index import HOOK, INDEX, holds_states
from thinkalike.states.source import StateSource, TextReader, Tokenizer

log = logging.getLogger(__name__)

INSIDE = {  # the sites of blocks by the names of TransformerLens's hook points
    "hook_resid_pre": "resid_pre",
    "hook_resid_mid": "resid_mid",
    "hook_resid_post": "resid_post",
    "hook_attn_out": "attn_out",
    "hook_mlp_out": "mlp_out",
    "attn.hook_z": "z",
    "mlp.hook_post": "mlp_post",
}
UNKNOWN = "unknown"  # stands for the digest of a tokenizer of which nothing is known
NUMBERED = "numbered rows"  # the same, where files have no token ids
READS = (
    "name",
    "path",
    "device",
    "dtype",
    "site",
    "corpus",
)  # settings of a model that a folder of states has
SAME_TEXT = "write states of the same rows by thinkalike.write_states(..., texts=FOLDER)"


def layer_of(hook: str, blocks: int) -> Layer:
    """Return the layer of a hook point of TransformerLens.

    >>> layer_of("blocks.2.hook_resid_post", 3), layer_of("blocks.0.hook_resid_pre", 3)
    (2, 'embed')
    >>> layer_of("blocks.1.attn.hook_z", 3)
    Place(site='z', layer=1, head=None)
    """
    match = HOOK.fullmatch(hook)
    assert match is not None, f"{hook} was checked when the index was read"
    if hook == "hook_embed":
        return Place("embed", -1)
    if match["layer"] is None:
        return Place("ln_final", blocks)
    layer = int(match["layer"])
    site = INSIDE[match["inside"]]
    if site == "resid_post":
        return layer
    return EMBED if site == "resid_pre" and layer == 0 else Place(site, layer)


def hook_of(layer: Layer) -> str:
    """Return the hook point of TransformerLens that a layer is.

    >>> hook_of(2), hook_of(EMBED), hook_of(Place("mlp_out", 0))
    ('blocks.2.hook_resid_post', 'blocks.0.hook_resid_pre', 'blocks.0.hook_mlp_out')
    """
    if layer == EMBED:
        return "blocks.0.hook_resid_pre"
    if not isinstance(layer, Place):
        return f"blocks.{layer}.hook_resid_post"
    if layer.site == "embed":
        return "hook_embed"
    if layer.site == "ln_final":
        return "ln_final.hook_normalized"
    inside = next(name for name, site in INSIDE.items() if site == layer.site)
    return f"blocks.{layer.layer}.{inside}"


class PaddedRows(NamedTuple):
    """Rows of tokens, with padding on the right of shorter ones, and the document of each row."""

    tokens: Int[Tensor, "r t"]
    is_token: Bool[Tensor, "r t"]
    documents: Int[Tensor, " r"]


class StateFolder:
    """The states of rows of text that a model computed elsewhere; see `thinkalike.shards.index` for the files.

    Attributes:
        name: What tables call it: by default the name of the folder.
        rows: The rows, with the token ids, the document and the states of each.
        tokenizer: What cut the text into tokens; None: it is not known.
        context: A text of any length can be looked up.
        bos_each_row: Whether rows begin with BOS.
        device, dtype: Of the states that it gives.

    Args:
        config: The folder by its path, with a device, a dtype and the sites at which states are taken.

    Raises:
        DataError: A file of the folder is missing, damaged, still being written, or not what its index says.
    """

    context = CONTEXT

    def __init__(self, config: ModelConfig, name: str | None = None):
        _check_settings(config)
        self.folder = Path(str(config.path))
        self.name = name or self.folder.resolve().name
        self.rows = StoredRows(self.folder)
        self.index = self.rows.index
        self.n_layers = self.index.blocks
        self.device = torch.device(pick_device(config.device))
        self.dtype: torch.dtype = getattr(torch, config.dtype)
        self.bos_each_row = self.index.bos
        self.revision = self.index.revision
        self._hooks = {layer_of(hook, self.n_layers): hook for hook in self.index.hooks}
        self._chosen: list[str] = (
            [config.site] if isinstance(config.site, str) else list(config.site)
        )
        stream = [layer for layer in self._hooks if isinstance(layer, int) or layer == EMBED]
        widths = {self.width(layer) for layer in stream}
        if len(widths) > 1:
            raise DataError(
                f"{self.index.path}: hooks of one residual stream have the widths {listed(sorted(widths))}"
            )
        self.d_model = widths.pop() if widths else max(self.index.hooks.values())
        largest = max(int(ids.max()) for ids in map(self.rows.token_ids, range(len(self.rows))))
        self.vocabulary = max(self.index.vocabulary, largest + 1)

    def __repr__(self) -> str:
        tokens = sum(row.length for row in self.rows.rows)
        return f"StateFolder({self.name}: {len(self._hooks)} layers of {self.index.model}, {tokens} tokens)"

    # ---- what it is of

    @cached_property
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer that the index names, whose fingerprint must be the one that the index has."""
        if not self.index.tokenizer or not self.rows.has_token_ids:
            return None
        tokenizer: Tokenizer = load_tokenizer(self.index.tokenizer, beside=self.folder)
        known = self.index.tokenizer_fingerprint
        if known and tokenizer_fingerprint(tokenizer) != known:
            raise DataError(
                f"{self.index.path}: tokenizer={self.index.tokenizer} is not the one that cut the text (fingerprint "
                f"{tokenizer_fingerprint(tokenizer)}, not {known}): name the tokenizer of {self.index.model}"
            )
        return tokenizer

    @property
    def ids_fingerprint(self) -> str:
        if not self.rows.has_token_ids:
            return NUMBERED
        if self.index.tokenizer_fingerprint:
            return self.index.tokenizer_fingerprint
        return tokenizer_fingerprint(self.tokenizer) if self.tokenizer else UNKNOWN

    @property
    def identity(self) -> int:
        return id(self.rows)

    @property
    def layers(self) -> Sequence[int]:
        """The blocks at which there are states of all chosen sites."""
        of_blocks = [site for site in self._chosen if site not in ONCE]
        numbers = [
            {int(layer) for layer in self._hooks if self._site(layer) == site}
            for site in of_blocks
        ]
        return sorted(set.intersection(*numbers)) if numbers else []

    def sites_at(self, layers: Iterable[int]) -> list[Layer]:
        numbers = list(layers)
        found: list[Layer] = []
        for site in self._chosen:
            if site == "resid_post":
                found += numbers
            elif site in ONCE:
                found += [layer for layer in self._hooks if self._site(layer) == site]
            else:
                found += [
                    EMBED if (site, number) == ("resid_pre", 0) else Place(site, number)
                    for number in numbers
                ]
        for site in self._chosen:
            if not any(self._site(layer) == site for layer in self._hooks):
                has = listed(list(self.index.hooks))
                raise ConfigError(f"model.site={site} is no site of {self.name}, which has {has}")
        found.sort(key=_depth)
        self.check_layers(found)
        return found

    def width(self, layer: Layer) -> int:
        return self.index.hooks[self._hooks[layer]]

    def parameters(self) -> int:
        return 0

    def check_context(self, asked: int | None) -> None:
        """Rows are as long as they were written."""

    def check_layers(self, layers: Iterable[Layer]) -> None:
        """Raise a DataError if there are no states of one of these layers."""
        for layer in layers:
            if layer not in self._hooks:
                has = listed(list(self.index.hooks))
                raise DataError(f"{self.name} has no states at {hook_of(layer)}; it has {has}")

    def fingerprint(self) -> str:
        return self.index.digest[:16]

    def describe(self) -> dict[str, str]:
        return {
            "name": self.name,
            "family": "states",
            "model": self.index.model,
            "revision": self.revision,
            "states": self.fingerprint(),
            "tokenizer": self.ids_fingerprint,
            "dtype": self.index.dtype,
            "device": str(self.device),
        }

    # ---- text and states

    def text(self, row: int) -> str:
        """Return the text of a row: what was written with it, or what its tokens stand for."""
        written = self.rows.rows[row].text
        if written is not None:
            return written
        if self.tokenizer is None:
            raise DataError(
                f"{self.name} has no text, as {INDEX} names no tokenizer: add the tokenizer of {self.index.model}"
            )
        ids = self.rows.token_ids(row).tolist()
        return self.tokenizer.decode(
            ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )

    def encoded(self, text: str) -> tuple[list[int], list[Span]]:
        """Return the tokens of a text and the characters of each: those of the row that has it, if there is one."""
        row = self._row_of_text.get(text)
        if self.tokenizer is None:
            raise DataError(
                f"{self.name} cannot be compared word by word, as {INDEX} names no tokenizer: add that of "
                f"{self.index.model}"
            )
        if row is None:
            return encoded_text(self.tokenizer, text, self.bos_each_row)
        ids = self.rows.token_ids(row).tolist()
        for bos_each_row in (self.bos_each_row, not self.bos_each_row):
            tokens, offsets = encoded_text(self.tokenizer, text, bos_each_row)
            if tokens == ids:
                return tokens, offsets
        return ids, offsets_of(self.tokenizer, ids, text)

    def residuals(
        self,
        tokens: Int[Tensor, "b t"],
        layers: Sequence[Layer],
        mask: Int[Tensor, "b t"] | None = None,
    ) -> list[Float[Tensor, "b t _"]]:
        """Return the states of rows of tokens that were written, and 0 where the mask has padding."""
        self.check_layers(layers)
        different = list(dict.fromkeys(layers))
        hooks = [self._hooks[layer] for layer in different]
        lengths = [tokens.shape[1]] * len(tokens) if mask is None else mask.sum(1).tolist()
        states = [
            torch.zeros(*tokens.shape, self.width(layer), dtype=self.dtype) for layer in different
        ]
        for place, (row, length) in enumerate(zip(tokens, lengths, strict=True)):
            found = self.row_of(row[:length])
            for state, written in zip(states, self.rows.states(found, hooks), strict=True):
                state[place, :length] = written
        by_layer = {
            layer: state.to(self.device) for layer, state in zip(different, states, strict=True)
        }
        return [by_layer[layer] for layer in layers]

    def row_of(self, ids: Int[Tensor, " t"]) -> int:
        """Return the number of the row that has these tokens; a DataError says that none has."""
        found = self._row_of_ids.get(_digest(ids))
        if found is None:
            raise DataError(f"{self.name} has no states of {short(self.said(ids))}: {SAME_TEXT}")
        return found

    def has_row(self, ids: Int[Tensor, " t"]) -> bool:
        return _digest(ids) in self._row_of_ids

    def said(self, ids: Int[Tensor, " t"]) -> str:
        """Return tokens in writing, as a message has them."""
        if self.tokenizer is None:
            return f"the tokens {ids[:8].tolist()}"
        return repr(self.tokenizer.decode(ids.tolist()))

    def drawn_rows(self, tokens: int) -> Int[Tensor, " r"]:
        """Draw rows at random until they have so many tokens, or all rows, and return their numbers in order."""
        drawn = torch.randperm(len(self.rows), generator=seeded(0))
        lengths = torch.tensor([self.rows.rows[row].length for row in drawn.tolist()])
        return drawn[: int((lengths.cumsum(0) < tokens).sum()) + 1].sort().values

    def token_rows(self, chosen: Int[Tensor, " r"]) -> PaddedRows:
        """Return the tokens and the documents of some rows."""
        numbers = chosen.tolist()
        longest = max(self.rows.rows[row].length for row in numbers)
        tokens = torch.zeros(len(numbers), longest, dtype=torch.long)
        is_token = torch.zeros(len(numbers), longest, dtype=torch.bool)
        for place, row in enumerate(numbers):
            ids = torch.from_numpy(self.rows.token_ids(row))
            tokens[place, : len(ids)] = ids
            is_token[place, : len(ids)] = True
        documents = torch.tensor([self.rows.rows[row].document for row in numbers])
        return PaddedRows(tokens, is_token, documents)

    def sampled_vocabulary(self) -> Int[Tensor, " sample"]:
        return self._embedding[2]

    def embedded(self, vocabulary: Int[Tensor, " v"]) -> Float[Tensor, "v d"]:
        known, embedding, _ = self._embedding
        places = torch.searchsorted(known, vocabulary).clamp(max=len(known) - 1)
        if (missing := vocabulary[known[places] != vocabulary]).numel():
            raise DataError(
                f"{self.name} has no embedding of token {int(missing[0])}, which none of its rows holds"
            )
        return embedding[places].to(self.device)

    @cached_property
    def _embedding(self) -> tuple[Int[Tensor, " v"], Float[Tensor, "v d"], Int[Tensor, " sample"]]:
        """Return the known tokens in order, what enters block 0 for each, and those that stand for the vocabulary.

        Where the folder has no embedding, that of a token is the mean of its states at the first layer that there is:
        before block 0 this is the embedding itself, or with that of positions, and later it is an estimate.
        """
        written = self.rows.embedding()
        if written is not None:
            ids, embedding = written
            order = ids.argsort()
            sample = sampled_tokens(self.vocabulary)
            is_complete = bool(torch.isin(sample, ids).all())
            return ids[order], embedding[order].to(self.dtype), sample if is_complete else ids
        stream = [layer for layer in self._hooks if layer == EMBED or isinstance(layer, int)]
        beginnings: list[Layer] = [Place("embed", -1), EMBED]
        first: Layer = next(
            (layer for layer in beginnings if layer in self._hooks),
            min(stream, key=_depth, default=0),
        )
        self.check_layers([first])
        if first not in beginnings:
            log.warning(
                f"warning: {self.name} has no embedding: that of a token is estimated by the mean of its states at "
                f"{hook_of(first)}; states at {hook_of(EMBED)} would have it"
            )
        known = torch.cat(
            [torch.from_numpy(self.rows.token_ids(row)) for row in range(len(self.rows))]
        ).unique()
        sums = torch.zeros(len(known), self.width(first), dtype=torch.float64)
        counts = torch.zeros(len(known), dtype=torch.float64)
        for row in counted(range(len(self.rows)), "row"):
            places = torch.searchsorted(known, torch.from_numpy(self.rows.token_ids(row)))
            (states,) = self.rows.states(row, [self._hooks[first]])
            sums.index_add_(0, places, states.double())
            counts.index_add_(0, places, torch.ones(len(places), dtype=torch.float64))
        return known, (sums / counts[:, None]).to(self.dtype), known

    @cached_property
    def _row_of_ids(self) -> dict[bytes, int]:
        found: dict[bytes, int] = {}
        for row in range(len(self.rows)):
            found.setdefault(_digest(torch.from_numpy(self.rows.token_ids(row))), row)
        return found

    @cached_property
    def _row_of_text(self) -> dict[str, int]:
        found: dict[str, int] = {}
        if self.tokenizer is not None or all(row.text is not None for row in self.rows.rows):
            for row in range(len(self.rows)):
                found.setdefault(self.text(row), row)
        return found

    def _site(self, layer: Layer) -> str:
        if layer == EMBED:
            return "resid_pre"
        return layer.site if isinstance(layer, Place) else "resid_post"


def _check_settings(config: ModelConfig) -> None:
    """Refuse settings of a model that change nothing of states that are written already."""
    schema = type(config)  # that of installed packages, which add settings
    usual = vars(schema(name=config.name, path=config.path)) | {"bos": None, "corpus": None}
    for field in fields(schema):
        value = getattr(config, field.name)
        if field.name not in READS and value not in (usual[field.name], field.default):
            raise ConfigError(
                f"model.{field.name}={value} has no effect on {config.path}, a folder of states; leave it out"
            )


def _depth(layer: Layer) -> int:
    return -1 if layer == EMBED else int(layer)


def _digest(ids: Int[Tensor, " t"]) -> bytes:
    return hashlib.blake2b(ids.long().cpu().numpy().tobytes(), digest_size=16).digest()


def offsets_of(tokenizer: Tokenizer, ids: list[int], text: str) -> list[Span]:
    """Return the characters of each token of a row that its tokenizer would cut otherwise, as pieces of text are.

    A token ends where the text of all tokens up to it ends, as far as it is whole: a token may hold a part of a
    character, which then belongs to the last of its tokens.
    """
    ends: list[int] = []
    for count in range(1, len(ids) + 1):
        before = tokenizer.decode(
            ids[:count], skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        same = 0
        for ours, theirs in zip(before, text, strict=False):
            if ours != theirs:
                break
            same += 1
        ends.append(max(same, ends[-1] if ends else 0))
    return [(start, end) for start, end in zip([0, *ends], ends, strict=False)]


def folder_of_rows(data: DataConfig, models: Sequence[TextReader]) -> StateFolder:
    """Return the folder whose rows of text are read: one of the models, or one of its own."""
    place = Path(rows_folder(data))
    for model in models:
        if isinstance(model, StateFolder) and model.folder.resolve() == place.resolve():
            folder = model
            break
    else:
        folder = StateFolder(ModelConfig(name="local", path=str(place), bos=None, corpus=None))
    if not folder.rows.has_documents:
        log.warning(
            f"warning: {folder.name} does not say which document a row is of: each row counts as a document"
        )
    if not folder.rows.has_token_ids:
        log.warning(
            f"warning: {folder.name} has no token ids: its rows are compared in the order in which they lie"
        )
    return folder


def check_reads_rows(model: StateSource, folder: StateFolder, rows: PaddedRows) -> None:
    """Check that a model reads the tokens of rows of a folder, or that another folder has the states of all of them.

    Raises:
        DataError: It has not, or a token is beyond the model's vocabulary.
    """
    if model is folder:
        return
    if isinstance(model, StateFolder):
        lengths = rows.is_token.sum(1).tolist()
        lacking = [place for place, (row, length) in enumerate(zip(rows.tokens, lengths, strict=True))
                   if not model.has_row(row[:length])]  # fmt: skip
        if lacking:
            first = rows.tokens[lacking[0]][: lengths[lacking[0]]]
            raise DataError(
                f"{model.name} has no states of {len(lacking)} of the {len(rows.tokens)} rows of {folder.name}, such "
                f"as {short(folder.said(first))}: {SAME_TEXT}"
            )
        return
    largest = int(rows.tokens.max())
    if largest >= model.vocabulary:
        raise DataError(
            f"{folder.name} has the token {largest}, and {model.name} a vocabulary of {model.vocabulary}"
        )
    longest = rows.tokens.shape[1]
    if longest > model.context:
        raise DataError(
            f"{folder.name} has a row of {longest} tokens, and {model.name} reads {model.context}: "
            "raise model.context, or write shorter rows by thinkalike.write_states(context=...)"
        )


def load_source(config: ModelConfig, name: str | None = None) -> StateSource:
    """Return the model of a configuration, or the folder of states that its path is."""
    return StateFolder(config, name) if holds_states(config.path) else load_model(config, name)


def load_sources(*configs: ModelConfig) -> list[StateSource]:
    """Load several models or folders of states, each different one once, under labels that tell them apart."""
    return load_groups([configs], load_source)[0]
