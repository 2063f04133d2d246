"""A folder of states that a model computed elsewhere, in place of the model.

The states of a row are looked up by its tokens, so that everything that reads a `StateSource`
reads a folder in the same way. A row that was not written is an error, and no state is ever made
up.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from thinkalike.advice import named_setting
from thinkalike.config import DataConfig, ModelConfig
from thinkalike.config.parts import CONTEXT
from thinkalike.data.documents import rows_folder
from thinkalike.data.words import Span
from thinkalike.digests import tokenizer_fingerprint
from thinkalike.errors import ConfigError, DataError, listed, short
from thinkalike.measures.seeds import seeded
from thinkalike.models.families import EMBED, Layer, Place, pick_device
from thinkalike.models.frozen import encoded_text, sampled_tokens
from thinkalike.models.load import load_groups, load_model, load_tokenizer
from thinkalike.models.sites import SITES_OUTSIDE_BLOCKS
from thinkalike.processes import counted
from thinkalike.shards.arrays import StoredRows
from thinkalike.shards.index import HOOK, INDEX, checked_file, holds_states
from thinkalike.states.source import StateSource, TextReader, Tokenizer

log = logging.getLogger(__name__)

SITE_OF_HOOK = {
    "hook_resid_pre": "resid_pre",
    "hook_resid_mid": "resid_mid",
    "hook_resid_post": "resid_post",
    "hook_attn_out": "attn_out",
    "hook_mlp_out": "mlp_out",
    "attn.hook_z": "z",
    "mlp.hook_post": "mlp_post",
}
"""The sites of blocks by the names of TransformerLens's hook points within a block."""

UNKNOWN_TOKENIZER = "unknown"
"""Stands for the digest of a tokenizer of which nothing is known."""

NO_TOKEN_IDS = "numbered rows"
"""Stands for the digest of a tokenizer if files have no token ids."""

SETTINGS_OF_FOLDERS = ("name", "path", "device", "dtype", "site", "corpus")
"""Settings of a model that a folder of states has."""

ROUNDING = 0.2
"""Computing a text in another batch moves a state by less than this share of the distance between
two tokens. It is at most 0.07 between batches and attention implementations in bfloat16."""

ROUNDING_OF_VALUE = 1.5
"""It moves no value by as much as this in standard deviations of its channel; 0.7 occurs."""

TOKENS_FOR_SPREAD = 1024
"""So many tokens of a folder tell how much a channel varies."""

SAME_TEXT = "write states of the same rows by thinkalike.write_states(..., texts=FOLDER)"


def layer_of(hook: str, blocks: int) -> Layer:
    """Return the layer of a hook point of TransformerLens in a model with this many blocks.

    The residual stream after a block is the number of the block, and what enters block 0 is EMBED;
    any other place is a `Place`.

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
    site = SITE_OF_HOOK[match["inside"]]
    if site == "resid_post":
        return layer
    if site == "resid_pre" and layer == 0:
        return EMBED
    return Place(site, layer)


def hook_of(layer: Layer) -> str:
    """Return the name of TransformerLens's hook point at a layer.

    Raises:
        ValueError: TransformerLens has none there.

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
    for hook, site in SITE_OF_HOOK.items():
        if site == layer.site:
            return f"blocks.{layer.layer}.{hook}"
    raise ValueError(f"TransformerLens has no hook point at {layer}")


class PaddedRows(NamedTuple):
    """Rows of tokens, of which shorter ones are padded on the right."""

    tokens: Int[Tensor, "r t"]

    is_token: Bool[Tensor, "r t"]
    """False for padding."""

    documents: Int[Tensor, " r"]
    """The document of each row."""


class _Embedding(NamedTuple):
    """What enters block 0 for each token that is known."""

    tokens: Int[Tensor, " v"]
    """The known tokens, in order."""

    vectors: Float[Tensor, "v d"]

    sample: Int[Tensor, " sample"]
    """Known tokens that stand for the whole vocabulary."""


class StateFolder:
    """The states of rows of text that a model computed elsewhere; see `thinkalike.shards.index`
    for the files.

    Attributes:
        name: What tables call it: by default the name of the folder.
        rows: The rows, with the token ids, the document and the states of each.
        tokenizer: What cut the text into tokens; None: it is not known.
        context: The longest text; one of any length can be looked up.
        bos_each_row: Whether rows begin with BOS.
        device, dtype: Of the states that it gives.

    Args:
        config: The folder by its path, with a device, a dtype and the sites at which states are
            taken.

    Raises:
        DataError: A file of the folder is missing, damaged, still being written, or not what its
            index says.
    """

    context = CONTEXT

    def __init__(self, config: ModelConfig, name: str | None = None):
        """Read the index and the token ids of the folder, but no states yet.

        Args:
            config: The path of the folder, and the settings of a model that folders have.
            name: What tables call the folder; None: its own name.
        """
        _check_folder_settings(config)
        self._config = config
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
        self._sites: list[str] = list(config.site)
        if isinstance(config.site, str):
            self._sites = [config.site]
        # The first of several rows with the same tokens, and a hook at which they were compared.
        self._compared_hooks: set[tuple[int, str]] = set()
        self._spreads: dict[str, _Spread] = {}
        self.d_model = self._stream_width()
        largest_id = max(int(self.rows.token_ids(row).max()) for row in range(len(self.rows)))
        self.vocabulary = max(self.index.vocabulary, largest_id + 1)

    def __repr__(self) -> str:
        token_count = sum(row.length for row in self.rows.rows)
        layers = f"{len(self._hooks)} layers of {self.index.model}"
        return f"StateFolder({self.name}: {layers}, {token_count} tokens)"

    def _stream_layers(self) -> list[Layer]:
        """Return the layers of the residual stream at which there are states."""
        return [layer for layer in self._hooks if isinstance(layer, int) or layer == EMBED]

    def _stream_width(self) -> int:
        """Return the width of the residual stream, or the largest width if no states are of it.

        Raises:
            DataError: States of the stream have different widths.
        """
        widths = {self.width(layer) for layer in self._stream_layers()}
        if len(widths) > 1:
            raise DataError(
                f"{self.index.path}: hooks of one residual stream have the widths "
                f"{listed(sorted(widths))}"
            )
        if not widths:
            return max(self.index.hooks.values())
        return widths.pop()

    # What the states are of

    @cached_property
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer that cut the text; None if the files have no token ids or name none.

        Raises:
            DataError: The tokenizer that the index names is not the one that cut the text.
        """
        if not self.index.tokenizer or not self.rows.has_token_ids:
            return None
        tokenizer: Tokenizer = load_tokenizer(self.index.tokenizer, beside=self.folder)
        expected = self.index.tokenizer_fingerprint
        fingerprint = tokenizer_fingerprint(tokenizer)
        if expected and fingerprint != expected:
            raise DataError(
                f"{self.index.path}: tokenizer={self.index.tokenizer} is not the one that cut the "
                f"text (fingerprint {fingerprint}, not {expected}): name the tokenizer of "
                f"{self.index.model}"
            )
        return tokenizer

    @property
    def ids_fingerprint(self) -> str:
        """A digest of everything that decides which token ids a text becomes.

        If the tokenizer is not known, or the files have no token ids, a fixed word takes its
        place.
        """
        if not self.rows.has_token_ids:
            return NO_TOKEN_IDS
        if self.index.tokenizer_fingerprint:
            return self.index.tokenizer_fingerprint
        if self.tokenizer is None:
            return UNKNOWN_TOKENIZER
        return tokenizer_fingerprint(self.tokenizer)

    @property
    def identity(self) -> int:
        """A number that folders share if they give the same states, whatever they are called."""
        return id(self.rows)

    @property
    def layers(self) -> Sequence[int]:
        """The numbers of the blocks that have states of all sites in the setting `site`.

        Sites outside of blocks, such as the final norm, do not count. If all are such sites, there
        are no layers.
        """
        blocks_of_sites = []
        for site in self._sites:
            if site not in SITES_OUTSIDE_BLOCKS:
                blocks = {int(layer) for layer in self._hooks if self._site(layer) == site}
                blocks_of_sites.append(blocks)
        if not blocks_of_sites:
            return []
        return sorted(set.intersection(*blocks_of_sites))

    def sites_at(self, layers: Iterable[int]) -> list[Layer]:
        """Return the hook points in these blocks of the sites in the setting `site`.

        They are in order of depth. Sites outside of blocks are included whatever the blocks are.

        Raises:
            ConfigError: The folder has no hook point of a site in the setting.
            DataError: A block has no states at such a site.
        """
        blocks = list(layers)
        sites: list[Layer] = []
        for site in self._sites:
            if site == "resid_post":
                sites += blocks
            elif site in SITES_OUTSIDE_BLOCKS:
                sites += [layer for layer in self._hooks if self._site(layer) == site]
            else:
                sites += [_layer_at(site, block) for block in blocks]
        known_sites = {self._site(layer) for layer in self._hooks}
        for site in self._sites:
            if site not in known_sites:
                hooks = listed(list(self.index.hooks))
                raise ConfigError(
                    f"{named_setting('model.site', site)} is no site of {self.name}, which has "
                    f"{hooks}"
                )
        sites.sort(key=_depth_of)
        self.check_layers(sites)
        return sites

    def width(self, layer: Layer) -> int:
        """Return the width of the states of a layer, which the folder has."""
        return self.index.hooks[self._hooks[layer]]

    def parameters(self) -> int:
        """Return how many weights are in memory: none."""
        return 0

    def check_context(self, asked: int | None) -> None:
        """Raise nothing: rows are as long as they were written."""

    def check_layers(self, layers: Iterable[Layer]) -> None:
        """Raise a DataError if the folder has no states of one of these layers."""
        for layer in layers:
            if layer not in self._hooks:
                hooks = listed(list(self.index.hooks))
                raise DataError(f"{self.name} has no states at {hook_of(layer)}; it has {hooks}")

    def fingerprint(self) -> str:
        """Return 16 digits of the SHA-256 of the index, which has the digests of all files."""
        return self.index.digest[:16]

    def describe(self) -> dict[str, str]:
        """Return what a result stores about the folder, for its provenance."""
        return {
            "name": self.name,
            "family": "states",
            "model": self.index.model,
            "revision": self.revision,
            "states": self.fingerprint(),
            "tokenizer": self.ids_fingerprint,
            "layers": str(self.n_layers),
            "dtype": self.index.dtype,
            "device": str(self.device),
        }

    # Changed copies of the model

    def copy(self, name: str) -> StateFolder:
        """Return the stored states of a changed copy of the model, as a folder of states.

        Args:
            name: The name of the copy, such as "4" for the one rounded to 4 bits.

        Raises:
            DataError: The folder has no such copy, or a file of the copy is missing, damaged, or
                not the one that was written.
        """
        folder = self.folder_of_copy(name)
        place = folder.relative_to(self.folder).as_posix()
        return StateFolder(replace(self._config, path=str(folder)), f"{self.name}/{place}")

    def folder_of_copy(self, name: str) -> Path:
        """Return the folder of a changed copy of the model, after a check of its index.

        Raises:
            DataError: The folder has no such copy, or the index of the copy is missing or not the
                one that was written.
        """
        index_of_copy = self.index.copies.get(name)
        if index_of_copy is None:
            raise DataError(
                f"{self.index.path} lists no copy of {self.index.model} named {name}: write the "
                "folder again by thinkalike.write_states(..., copies=True)"
            )
        return checked_file(self.index, index_of_copy).parent

    # Text and states

    def text(self, row: int) -> str:
        """Return the text of a row: the one stored with it, or else its decoded tokens.

        Raises:
            DataError: No text is stored, and the tokenizer is not known.
        """
        written = self.rows.rows[row].text
        if written is not None:
            return written
        if self.tokenizer is None:
            raise DataError(f"{self.name} has no text, as {self._what_lacks_a_tokenizer()}")
        ids = self.rows.token_ids(row).tolist()
        return self.tokenizer.decode(
            ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )

    def _what_lacks_a_tokenizer(self) -> str:
        """Return the part of an error that says why no tokenizer is known, and the remedy."""
        if not self.rows.has_token_ids:
            return "its files have no token_ids: write them into the files, too"
        return f"{INDEX} names no tokenizer: add that of {self.index.model}"

    def encoded(self, text: str) -> tuple[list[int], list[Span]]:
        """Return the token ids of a text and the span of each, (first, one past the last).

        If a row has this text, its stored token ids are returned, also if the tokenizer would cut
        the text differently.

        Raises:
            DataError: The tokenizer is not known.
        """
        row = self._row_of_text.get(text)
        if self.tokenizer is None:
            raise DataError(
                f"{self.name} cannot be compared word by word, as {self._what_lacks_a_tokenizer()}"
            )
        if row is None:
            return encoded_text(self.tokenizer, text, self.bos_each_row)
        # Try both, because the index may be wrong about whether rows begin with BOS.
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
        """Return the stored states of rows of tokens at some layers; they are 0 at padding.

        Args:
            tokens: Token ids; each row, without its padding, must be a row of the folder.
            layers: The layers, in the order of the result; one may come several times.
            mask: 1 for tokens and 0 for padding on the right; None: there is no padding.

        Raises:
            DataError: A row or a layer has no states, or rows of the same tokens have different
                ones.
        """
        self.check_layers(layers)
        distinct_layers = list(dict.fromkeys(layers))
        hooks = [self._hooks[layer] for layer in distinct_layers]
        states = []
        for layer in distinct_layers:
            states.append(torch.zeros(*tokens.shape, self.width(layer), dtype=self.dtype))
        lengths = [tokens.shape[1]] * len(tokens)
        if mask is not None:
            lengths = mask.sum(1).tolist()
        for index, (token_ids, length) in enumerate(zip(tokens, lengths, strict=True)):
            row = self.row_of(token_ids[:length])
            self._check_equal_rows(row, hooks)
            for state, stored in zip(states, self.rows.states(row, hooks), strict=True):
                state[index, :length] = stored
        on_device = [state.to(self.device) for state in states]
        by_layer = dict(zip(distinct_layers, on_device, strict=True))
        return [by_layer[layer] for layer in layers]

    def row_of(self, ids: Int[Tensor, " t"]) -> int:
        """Return the number of the first row that consists of these tokens.

        Raises:
            DataError: There is no such row.
        """
        rows = self._rows_of_ids.get(_digest_of_ids(ids))
        if rows is None:
            text = short(self.written_tokens(ids))
            raise DataError(f"{self.name} has no states of {text}: {SAME_TEXT}")
        return rows[0]

    def _check_equal_rows(self, row: int, hooks: Sequence[str]) -> None:
        """Check that all rows with the tokens of one row have its states, but for rounding.

        The states of the first such row stand for all of them, since rows are found by their
        tokens. The states of each row are compared once.

        Args:
            row: The first row with its tokens.
            hooks: The stored layers that are read.

        Raises:
            DataError: One of the rows has other states.
        """
        token_ids = torch.from_numpy(self.rows.token_ids(row))
        equal_rows = self._rows_of_ids[_digest_of_ids(token_ids)]
        new_hooks = [hook for hook in hooks if (row, hook) not in self._compared_hooks]
        if len(equal_rows) == 1 or not new_hooks:
            return
        first_states = self.rows.states(row, new_hooks)
        for equal_row in equal_rows[1:]:
            equal_states = self.rows.states(equal_row, new_hooks)
            for hook, first, equal in zip(new_hooks, first_states, equal_states, strict=True):
                if torch.equal(first, equal):
                    continue
                if _differ(first, equal, self._spread(hook)):
                    raise DataError(
                        f"{self.name}: rows {row} and {equal_row} have the same tokens but other "
                        f"states at {hook}, and a row is found by its tokens; keep one of them, "
                        "or write them to two folders"
                    )
        self._compared_hooks |= {(row, hook) for hook in new_hooks}

    def _spread(self, hook: str) -> _Spread:
        """Return how the states of a sample of tokens differ at a hook point."""
        if hook not in self._spreads:
            states = []
            for row in self.drawn_rows(TOKENS_FOR_SPREAD).tolist():
                states += self.rows.states(row, [hook])
            self._spreads[hook] = _Spread.of(torch.cat(states).double())
        return self._spreads[hook]

    def has_row(self, ids: Int[Tensor, " t"]) -> bool:
        """Return whether a row of the folder consists of these tokens."""
        return _digest_of_ids(ids) in self._rows_of_ids

    def written_tokens(self, ids: Int[Tensor, " t"]) -> str:
        """Return what messages call some tokens: their text, or the first ids if it is unknown."""
        if self.tokenizer is None:
            return f"the tokens {ids[:8].tolist()}"
        return repr(self.tokenizer.decode(ids.tolist()))

    def shuffled_rows(self) -> Int[Tensor, " r"]:
        """Return the numbers of all rows in random order, except for those that repeat another.

        A row that has the tokens of an earlier one also has its states. Such rows are no
        independent documents, and are left out as copies of a document are from texts.
        """
        rows = self._distinct_rows
        return rows[torch.randperm(len(rows), generator=seeded(0))]

    def drawn_rows(self, tokens: int) -> Int[Tensor, " r"]:
        """Draw rows at random until they have at least so many tokens together, or all rows.

        Rows that repeat an earlier one are not drawn, see `shuffled_rows`.

        Returns:
            The numbers of the drawn rows, in ascending order.
        """
        order = self.shuffled_rows()
        lengths = torch.tensor([self.rows.rows[row].length for row in order.tolist()])
        # The rows whose tokens are too few together, and one more that completes them.
        row_count = int((lengths.cumsum(0) < tokens).sum()) + 1
        return order[:row_count].sort().values

    def token_rows(self, row_numbers: Int[Tensor, " r"]) -> PaddedRows:
        """Return the token ids of some rows, padded on the right, and the document of each row."""
        rows = row_numbers.tolist()
        longest = max(self.rows.rows[row].length for row in rows)
        tokens = torch.zeros(len(rows), longest, dtype=torch.long)
        is_token = torch.zeros(len(rows), longest, dtype=torch.bool)
        for index, row in enumerate(rows):
            token_ids = torch.from_numpy(self.rows.token_ids(row))
            tokens[index, : len(token_ids)] = token_ids
            is_token[index, : len(token_ids)] = True
        documents = torch.tensor([self.rows.rows[row].document for row in rows])
        return PaddedRows(tokens, is_token, documents)

    def sampled_vocabulary(self) -> Int[Tensor, " sample"]:
        """Return a sample of the vocabulary: tokens whose embeddings are known."""
        return self._embedding.sample

    def embedded(self, vocabulary: Int[Tensor, " v"]) -> Float[Tensor, "v d"]:
        """Return what enters block 0 for each of these tokens, or an estimate of it.

        It is estimated if the folder has no file with the embedding.

        Raises:
            DataError: Nothing is stored about a token.
        """
        embedded_tokens = self._embedding.tokens  # in ascending order
        indices = torch.searchsorted(embedded_tokens, vocabulary)
        indices = indices.clamp(max=len(embedded_tokens) - 1)
        missing = vocabulary[embedded_tokens[indices] != vocabulary]
        if missing.numel() > 0:
            raise DataError(
                f"{self.name} has no embedding of token {int(missing[0])}, which none of its rows "
                "holds"
            )
        return self._embedding.vectors[indices].to(self.device)

    @cached_property
    def _embedding(self) -> _Embedding:
        """The stored embedding, or an estimate if none is stored, with a sample of its tokens."""
        stored = self.rows.embedding()
        if stored is None:
            return self._estimated_embedding()
        tokens, vectors = stored
        order = tokens.argsort()
        # The sample that the model itself would take, unless the embedding of one is not stored.
        sample = sampled_tokens(self.vocabulary)
        if not torch.isin(sample, tokens).all():
            sample = tokens
        return _Embedding(tokens[order], vectors[order].to(self.dtype), sample)

    def _estimated_embedding(self) -> _Embedding:
        """Return the mean of each token's states at the first layer that is stored.

        If that is before block 0, the mean is the embedding itself, or the sum with the mean
        embedding of the token's positions. At a later layer it is an estimate.
        """
        layer = self._first_layer()
        all_tokens = []
        for row in range(len(self.rows)):
            all_tokens.append(torch.from_numpy(self.rows.token_ids(row)))
        tokens = torch.cat(all_tokens).unique()
        sums = torch.zeros(len(tokens), self.width(layer), dtype=torch.float64)
        counts = torch.zeros(len(tokens), dtype=torch.float64)
        for row in counted(range(len(self.rows)), "row"):
            indices = torch.searchsorted(tokens, all_tokens[row])
            (states,) = self.rows.states(row, [self._hooks[layer]])
            sums.index_add_(0, indices, states.double())
            counts.index_add_(0, indices, torch.ones(len(indices), dtype=torch.float64))
        means = (sums / counts[:, None]).to(self.dtype)
        return _Embedding(tokens, means, tokens)

    def _first_layer(self) -> Layer:
        """Return the layer of the embedding, or else the first stored layer of the stream.

        A warning says that the embedding is only estimated in the second case.

        Raises:
            DataError: No states of the residual stream are stored.
        """
        layers_of_embedding: list[Layer] = [Place("embed", -1), EMBED]
        for layer in layers_of_embedding:
            if layer in self._hooks:
                return layer
        first: Layer = min(self._stream_layers(), key=_depth_of, default=0)
        self.check_layers([first])
        log.warning(
            f"warning: {self.name} has no embedding: that of a token is estimated by the mean of "
            f"its states at {hook_of(first)}; states at {hook_of(EMBED)} would have it"
        )
        return first

    @cached_property
    def _rows_of_ids(self) -> dict[bytes, list[int]]:
        """The rows with certain tokens in ascending order, by the digest of their token ids."""
        rows: dict[bytes, list[int]] = {}
        for row in range(len(self.rows)):
            token_ids = torch.from_numpy(self.rows.token_ids(row))
            rows.setdefault(_digest_of_ids(token_ids), []).append(row)
        return rows

    @cached_property
    def _distinct_rows(self) -> Int[Tensor, " r"]:
        """The rows, in order, whose tokens no earlier row has; a warning counts the others."""
        rows = sorted(equal_rows[0] for equal_rows in self._rows_of_ids.values())
        repeated = len(self.rows) - len(rows)
        if repeated:
            log.warning(
                f"warning: {self.name}: {repeated} of {len(self.rows)} rows are left out, because "
                "they repeat the tokens of an earlier row"
            )
        return torch.tensor(rows)

    @cached_property
    def _row_of_text(self) -> dict[str, int]:
        """The first row with a certain text, by the text; empty if texts are not known."""
        rows: dict[str, int] = {}
        has_texts = all(row.text is not None for row in self.rows.rows)
        if self.tokenizer is not None or has_texts:
            for row in range(len(self.rows)):
                rows.setdefault(self.text(row), row)
        return rows

    def _site(self, layer: Layer) -> str:
        """Return the name of a layer's site within a block, such as "mlp_out".

        The number of a block stands for "resid_post", the stream after it.
        """
        if layer == EMBED:
            return "resid_pre"
        if isinstance(layer, Place):
            return layer.site
        return "resid_post"


def _layer_at(site: str, block: int) -> Layer:
    """Return the layer of a site in a block; "resid_pre" of block 0 is the embedding."""
    if site == "resid_pre" and block == 0:
        return EMBED
    return Place(site, block)


def _check_folder_settings(config: ModelConfig) -> None:
    """Raise a ConfigError for settings of a model that have no effect on stored states.

    Settings with their default value are allowed.
    """
    schema = type(config)  # installed packages may have added settings
    defaults = vars(schema(name=config.name, path=config.path)) | {"bos": None, "corpus": None}
    for setting in fields(schema):
        if setting.name in SETTINGS_OF_FOLDERS:
            continue
        value = getattr(config, setting.name)
        if value not in (defaults[setting.name], setting.default):
            raise ConfigError(
                f"{named_setting(f'model.{setting.name}', value)} has no effect on "
                f"{config.path}, a folder of states; leave it out"
            )


def _depth_of(layer: Layer) -> int:
    """Return the number of a layer's block, for sorting; -1 for what enters block 0."""
    if layer == EMBED:
        return -1
    return int(layer)


class _Spread(NamedTuple):
    """How the states of different tokens differ at a hook point, each channel in its own unit.

    What all tokens have in common says nothing about them. So the unit of a channel is its
    standard deviation, whatever its mean is. The typical token is the median one, because first
    tokens can be many times larger than the others.
    """

    centre: Float[Tensor, " d"]
    """The median of each channel."""

    deviations: Float[Tensor, " d"]
    """The standard deviation of each channel, at least a hundredth of the median one."""

    typical_distance: Float[Tensor, ""]
    """The median distance of a token from the centre."""

    @classmethod
    def of(cls, states: Float[Tensor, "t d"]) -> _Spread:
        """Return how the states of a sample of tokens differ."""
        centre = states.median(0).values
        deviations = states.std(0, correction=0)
        varies = deviations > 0
        if varies.any():
            deviations = deviations.clamp(min=0.01 * deviations[varies].median())
        distances = _in_units(states - centre, deviations).norm(dim=1)
        return cls(centre, deviations, distances.median())

    def distances(self, states: Float[Tensor, "t d"]) -> Float[Tensor, " t"]:
        """Return about how far each token is from a typical other one."""
        from_centre = _in_units(states - self.centre, self.deviations).norm(dim=1)
        return torch.hypot(from_centre, self.typical_distance)


def _differ(first: Float[Tensor, "t d"], second: Float[Tensor, "t d"], spread: _Spread) -> bool:
    """Return whether two rows of states differ at any token by more than rounding.

    Rounding is small beside how different tokens differ, over all channels and in each. Beyond
    that, each value may be off by the distance of two neighbouring numbers of its dtype.
    """
    steps = torch.maximum(_steps(first), _steps(second))
    changes = (second.double() - first.double()).abs()
    in_units = _in_units((changes - steps).clamp(min=0), spread.deviations)
    of_tokens = in_units.norm(dim=1)
    of_other_tokens = spread.distances(first.double())
    return bool(
        (of_tokens > ROUNDING * of_other_tokens).any() or (in_units > ROUNDING_OF_VALUE).any()
    )


def _in_units(changes: Float[Tensor, "t d"], units: Float[Tensor, " d"]) -> Float[Tensor, "t d"]:
    """Return changes in units of each channel; no change is none, also where the unit is 0."""
    return torch.where(changes == 0, 0, changes / units)


def _steps(states: Float[Tensor, "t d"]) -> Float[Tensor, "t d"]:
    """Return the largest distance of two neighbouring numbers of the size of each value.

    They are numbers of the narrowest dtype that holds all values, because a model may have
    computed in a narrower one than that of the file.
    """
    dtype = states.dtype
    for narrow in (torch.float16, torch.bfloat16):
        if torch.equal(states.to(narrow).to(states.dtype), states):
            dtype = narrow
    return states.double().abs() * torch.finfo(dtype).eps


def _digest_of_ids(ids: Int[Tensor, " t"]) -> bytes:
    """Return a hash of a row of token ids, 16 bytes, which does not depend on its dtype."""
    return hashlib.blake2b(ids.long().cpu().numpy().tobytes(), digest_size=16).digest()


def offsets_of(tokenizer: Tokenizer, ids: list[int], text: str) -> list[Span]:
    """Return the span of each token in a text, found by decoding more and more tokens.

    It is for tokens that the tokenizer, given the text, would not return itself. A token ends
    where the decoded text of all tokens up to it no longer agrees with `text`. If several tokens
    are parts of one character, the character belongs to the last of them.

    Args:
        tokenizer: The tokenizer that decodes.
        ids: The token ids of the text.
        text: The text.
    """
    offsets: list[Span] = []
    previous_end = 0
    for count in range(1, len(ids) + 1):
        decoded = tokenizer.decode(
            ids[:count], skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        end = max(_common_prefix_length(decoded, text), previous_end)
        offsets.append((previous_end, end))
        previous_end = end
    return offsets


def _common_prefix_length(first: str, second: str) -> int:
    """Return the number of characters at the beginning of two texts that are equal."""
    length = 0
    for first_character, second_character in zip(first, second, strict=False):
        if first_character != second_character:
            break
        length += 1
    return length


def folder_of_rows(data: DataConfig, models: Sequence[TextReader]) -> StateFolder:
    """Return the folder of states whose text is read; if it is one of the models, that object.

    Warnings say if the folder does not tell the documents or the token ids of its rows.

    Args:
        data: The settings of the text, whose source is "states".
        models: The models and folders of states that are compared.

    Raises:
        DataError: The folder is damaged.
    """
    path = Path(rows_folder(data))
    folder = None
    for model in models:
        if isinstance(model, StateFolder) and model.folder.resolve() == path.resolve():
            folder = model
            break
    if folder is None:
        folder = StateFolder(ModelConfig(name="local", path=str(path), bos=None, corpus=None))
    if not folder.rows.has_documents:
        log.warning(
            f"warning: {folder.name} does not say which document a row is of: each row counts as "
            "a document"
        )
    if not folder.rows.has_token_ids:
        log.warning(
            f"warning: {folder.name} has no token ids: its rows are compared in the order in "
            "which they lie"
        )
    return folder


def check_reads_rows(model: StateSource, folder: StateFolder, rows: PaddedRows) -> None:
    """Check that a model can read rows of a folder, or that another folder has their states.

    Args:
        model: The model or folder to check.
        folder: The folder that the rows are from.
        rows: The rows.

    Raises:
        DataError: The model's vocabulary or context is too small, or the other folder lacks the
            states of a row.
    """
    if model is folder:
        return
    if isinstance(model, StateFolder):
        _check_has_rows(model, folder, rows)
        return
    largest_id = int(rows.tokens.max())
    if largest_id >= model.vocabulary:
        raise DataError(
            f"{folder.name} has the token {largest_id}, and {model.name} a vocabulary of "
            f"{model.vocabulary}"
        )
    longest = rows.tokens.shape[1]
    if longest > model.context:
        raise DataError(
            f"{folder.name} has a row of {longest} tokens, and {model.name} reads "
            f"{model.context}: write shorter rows by "
            "thinkalike.write_states(context=...)"
        )


def _check_has_rows(model: StateFolder, folder: StateFolder, rows: PaddedRows) -> None:
    """Check that a folder has the states of rows of another folder.

    Args:
        model: The folder that should have the states.
        folder: The folder that the rows are from.
        rows: The rows.

    Raises:
        DataError: The states of a row are missing.
    """
    lengths = rows.is_token.sum(1).tolist()
    missing = []
    for token_ids, length in zip(rows.tokens, lengths, strict=True):
        row = token_ids[:length]
        if not model.has_row(row):
            missing.append(row)
    if missing:
        example = short(folder.written_tokens(missing[0]))
        raise DataError(
            f"{model.name} has no states of {len(missing)} of the {len(rows.tokens)} rows of "
            f"{folder.name}, such as {example}: {SAME_TEXT}"
        )


def load_source(config: ModelConfig, name: str | None = None) -> StateSource:
    """Load a model, or open the folder of stored states if the path of the configuration is one.

    Args:
        config: The configuration of the model or folder.
        name: What tables call it; None: the label of the model, or the name of the folder.
    """
    if holds_states(config.path):
        return StateFolder(config, name)
    return load_model(config, name)


def load_sources(*configs: ModelConfig) -> list[StateSource]:
    """Load several models or folders of states, under labels that tell them apart.

    They come in the order of their configurations. Equal configurations give the same object.
    """
    return load_groups([configs], load_source)[0]
