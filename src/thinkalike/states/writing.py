"""Writes folders of states: from a model, or by an index of what another program wrote, such as vLLM or SAELens."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor

from thinkalike.digests import digest_of, tokenizer_fingerprint
from thinkalike.errors import ConfigError, DataError, listed, natural_order, short
from thinkalike.models.families import EMBED, Layer, Place
from thinkalike.processes import counted
from thinkalike.shards.arrays import DTYPES, StoredArray, StoredRows, arrays_of
from thinkalike.shards.index import FORMAT, HIDDEN_STATES, HOOK, INDEX, TOKEN_IDS, is_being_written
from thinkalike.states.folder import hook_of
from thinkalike.states.source import StateSource, Tokenizer

ROWS = "rows.jsonl"
EMBEDDING = "embedding.safetensors"
AT_ONCE = 8  # rows in a pass
LARGEST_SHARD = 2**28  # bytes
UNFINISHED = (
    ".partial",
    ".tmp",
    ".incomplete",
    ".tmp_shards",
)  # how programs call what they have not written yet


class TextRow(NamedTuple):
    """A row of text that is read alone, and the document that it is of."""

    text: str
    document: int | str


def write_folder(
    folder: Path,
    source: StateSource,
    rows: Sequence[TextRow],
    layers: Sequence[Layer],
    dtype: torch.dtype,
) -> None:
    """Write the states of rows of text at some layers; the folder appears when it is complete.

    Raises:
        ConfigError: The folder has something in it, or a layer is no hook point of TransformerLens.
        DataError: There are no rows, or a state is not finite.
    """
    if not rows:
        raise DataError(
            "the text has no words, so that there are no states to write: give more text"
        )
    for layer in layers:
        if isinstance(layer, Place) and layer.head is not None:
            raise ConfigError(
                f"head={layer.head}: states are written of all heads side by side; leave head out"
            )
    with appearing(folder) as aside:
        hooks: dict[str, int] = {}
        shards: list[dict[str, object]] = []
        lengths: list[int] = []
        seen: list[Tensor] = []
        for number, part in enumerate(_parts(source, rows, layers, dtype)):
            name = f"states-{number:05d}.safetensors"
            arrays = {
                hook_of(layer): states for layer, states in zip(layers, part.states, strict=True)
            }
            hooks = {hook: states.shape[-1] for hook, states in arrays.items()}
            save_file({TOKEN_IDS: part.token_ids.to(torch.int32), **arrays}, aside / name)
            shards.append({"rows": len(part.lengths), "files": {name: digest_of(aside / name)}})
            lengths += part.lengths
            seen.append(part.token_ids.unique())
        _write_rows(aside, rows, lengths)
        vocabulary = torch.cat([*seen, source.sampled_vocabulary()]).unique()
        embedding = source.embedded(vocabulary).cpu().contiguous()
        save_file(
            {TOKEN_IDS: vocabulary.to(torch.int32), "embedding": embedding}, aside / EMBEDDING
        )
        _write_index(
            aside,
            model=source.name,
            revision=source.revision,
            blocks=source.n_layers,
            **_tokenizer(source.tokenizer, aside),
            vocabulary=source.vocabulary,
            bos=source.bos_each_row,
            dtype=str(dtype).removeprefix("torch."),
            layout="flat",
            hooks=hooks,
            rows=_listed(aside, ROWS),
            embedding=_listed(aside, EMBEDDING),
            shards=shards,
        )


@contextmanager
def appearing(folder: Path) -> Iterator[Path]:
    """Yield a folder beside a new one, which gets its name once all is written; what is left of it otherwise goes."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(
            f"{folder} has something in it: give the name of a new folder, or remove it"
        )
    aside = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    try:
        yield aside
        if folder.exists():
            folder.rmdir()
        os.replace(aside, folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


class _Part(NamedTuple):
    """Rows one after another: their tokens, lengths, and states at each layer."""

    token_ids: Tensor
    lengths: list[int]
    states: list[Tensor]


def _parts(
    source: StateSource, rows: Sequence[TextRow], layers: Sequence[Layer], dtype: torch.dtype
) -> Iterator[_Part]:
    """Yield states of rows, as many as fit into a shard."""
    ids: list[Tensor] = []
    lengths: list[int] = []
    states: list[list[Tensor]] = []
    size = 0
    for first in counted(range(0, len(rows), AT_ONCE), "batch of rows"):
        batch = rows[first : first + AT_ONCE]
        encoded = [source.encoded(row.text)[0] for row in batch]
        longest = max(map(len, encoded))
        tokens = torch.zeros(len(batch), longest, dtype=torch.long)
        mask = torch.zeros(len(batch), longest, dtype=torch.long)
        for place, numbers in enumerate(encoded):
            tokens[place, : len(numbers)] = torch.tensor(numbers)
            mask[place, : len(numbers)] = 1
        with torch.no_grad():
            found = source.residuals(tokens, layers, mask)
        is_token = mask.bool()
        of_batch = [layer[is_token.to(layer.device)].to("cpu", dtype) for layer in found]
        for layer, of_layer in zip(layers, of_batch, strict=True):
            if not of_layer.isfinite().all():
                raise DataError(
                    f"a state of {source.name} at {hook_of(layer)} is not finite in {str(dtype)[6:]}: "
                    "write states of a wider dtype"
                )
        ids.append(tokens[is_token])
        lengths += map(len, encoded)
        states.append(of_batch)
        size += sum(layer.nbytes for layer in of_batch)
        if size >= LARGEST_SHARD:
            yield _Part(
                torch.cat(ids), lengths, [torch.cat(layer) for layer in zip(*states, strict=True)]
            )
            ids, lengths, states, size = [], [], [], 0
    if lengths:
        yield _Part(
            torch.cat(ids), lengths, [torch.cat(layer) for layer in zip(*states, strict=True)]
        )


@dataclass(frozen=True)
class Prompt:
    """The tokens of a row of text that another program reads."""

    token_ids: Sequence[int]
    document: int | str
    text: str


def write_prompts_of(path: Path, prompts: Sequence[Prompt]) -> None:
    """Write prompts as lines of JSON, of which `prompt_token_ids` are to be sent."""
    aside = path.with_name(f"{path.name}.partial")
    with aside.open("w", encoding="utf-8") as file:
        for prompt in prompts:
            line = {
                "prompt_token_ids": list(prompt.token_ids),
                "document": prompt.document,
                "text": prompt.text,
            }
            file.write(json.dumps(line) + "\n")
    os.replace(aside, path)


def read_prompts(path: Path) -> list[Prompt]:
    """Read what `write_prompts_of` wrote."""
    prompts = []
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            try:
                record = json.loads(line)
                prompts.append(
                    Prompt(list(record["prompt_token_ids"]), record["document"], record["text"])
                )
            except (ValueError, KeyError, TypeError) as error:
                raise DataError(
                    f"{path} line {number} is no prompt of thinkalike.write_prompts ({type(error).__name__}: {error})"
                ) from error
    return prompts


def index_folder(
    folder: Path,
    *,
    model: str,
    blocks: int,
    tokenizer: Tokenizer | None,
    bos: bool,
    revision: str,
    layers: Sequence[int] | None,
    prompts: Sequence[Prompt] | None,
    documents: Sequence[int | str] | None,
) -> None:
    """Write the index of a folder in which another program has written states, and check that it is right.

    Args:
        layers: Of files of vLLM: the numbers of layers as it counts them, in the order that was asked for.
        prompts: Of files of vLLM: what was sent.
        documents: The document of each row.

    Raises:
        ConfigError: An argument does not fit the files.
        DataError: A file is damaged or still being written, or the folder has no states.
    """
    shards = _files_in(folder)
    first = {name: array for path in shards[0] for name, array in arrays_of(path).items()}
    is_of_vllm = HIDDEN_STATES in first
    rows: list[TextRow] | None = None
    lengths: list[int] = []
    if is_of_vllm:
        if layers is None:
            raise ConfigError(
                f"layers is missing: {folder} has files of vLLM, which do not say what was asked for"
            )
        hooks, layout = _hooks_of_vllm(first, layers, blocks, shards[0][0])
        if prompts is not None:
            shards, rows = _matched(folder, shards, prompts)
    else:
        if layers is not None or prompts is not None:
            raise ConfigError(
                f"layers and prompts are for files of vLLM; those in {folder} name their hook points"
            )
        hooks, layout = _hooks_in(first, folder)
    counts = [
        1 if is_of_vllm else _count(path_group, hooks, layout, folder) for path_group in shards
    ]
    if documents is not None:
        if len(documents) != sum(counts):
            raise ConfigError(
                f"documents has {len(documents)} entries, and {folder} has {sum(counts)} rows"
            )
        texts = [row.text for row in rows] if rows else [""] * len(documents)
        rows = [TextRow(text, document) for text, document in zip(texts, documents, strict=True)]
    if rows is not None:
        _write_rows(folder, rows, lengths)
    dtype = _dtype_of(first, hooks)
    entries = [
        {
            "rows": count,
            "files": {path.relative_to(folder).as_posix(): digest_of(path) for path in group},
        }
        for count, group in zip(counts, counted(shards, "file"), strict=True)
    ]
    _write_index(
        folder,
        model=model,
        revision=revision,
        blocks=blocks,
        **_tokenizer(tokenizer, folder),
        bos=bos,
        dtype=dtype,
        layout=layout,
        hooks=hooks,
        rows=_listed(folder, ROWS) if (folder / ROWS).is_file() else None,
        shards=entries,
    )
    try:
        StoredRows(folder)
    except DataError:
        (folder / INDEX).unlink()  # an index that lies is worse than none
        raise


def _files_in(folder: Path) -> list[list[Path]]:
    """Return the files with states in a folder, by shard: .npy files of one folder belong together."""
    if not folder.is_dir():
        raise ConfigError(f"{folder} is no folder: give the one in which the states are")
    for path in sorted(folder.iterdir()):
        if path.name.endswith(UNFINISHED) or is_being_written(path):
            raise DataError(
                f"{path} is still being written: wait for the program that writes it, or remove it"
            )
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != EMBEDDING]
    single = [
        path
        for path in files
        if path.name.endswith((".safetensors", ".safetensors.zst", ".arrow"))
    ]
    arrays = [path for path in files if path.suffix == ".npy"]
    together = [
        [path for path in arrays if path.parent == place]
        for place in {path.parent for path in arrays}
    ]
    shards = [*([path] for path in single), *map(sorted, together)]
    if not shards:
        raise DataError(f"{folder} has no states: no .safetensors, .npy or .arrow file is in it")
    return sorted(shards, key=lambda group: natural_order(group[0].relative_to(folder).as_posix()))


def _hooks_of_vllm(
    arrays: Mapping[str, StoredArray], layers: Sequence[int], blocks: int, path: Path
) -> tuple[dict[str, int], str]:
    """Return the hook points of the layers that vLLM was asked for, and which axis of its files they are.

    Layer i of vLLM is what enters block i, so the stream after block i - 1, and the number of blocks is what the last
    block gives, before the final norm.
    """
    for layer in layers:
        if not 0 <= layer <= blocks:
            raise ConfigError(
                f"layers has {layer}, and vLLM counts those of {blocks} blocks from 0 to {blocks}"
            )
    if len(set(layers)) < len(layers):
        raise ConfigError(
            f"layers={list(layers)} has a layer twice: give those that vLLM was asked for, in order"
        )
    if TOKEN_IDS not in arrays:
        raise DataError(
            f"{path} has no {TOKEN_IDS}: it is no file of vLLM's extract_hidden_states"
        )
    tokens = int(arrays[TOKEN_IDS].shape[0])
    shape = tuple(arrays[HIDDEN_STATES].shape)
    hooks = [hook_of(EMBED if layer == 0 else layer - 1) for layer in layers]
    if shape[:2] == (tokens, len(layers)):
        layout = "vllm"
    elif shape[:2] == (len(layers), tokens):
        layout = "vllm_layers_first"
    else:
        found = " x ".join(map(str, shape))
        raise DataError(
            f"{path}: {HIDDEN_STATES} has the shape {found}, not {tokens} tokens x {len(layers)} layers x width: "
            f"give the layers that vLLM was asked for"
        )
    return dict.fromkeys(hooks, int(shape[2])), layout


def _matched(
    folder: Path, shards: Sequence[list[Path]], prompts: Sequence[Prompt]
) -> tuple[list[list[Path]], list[TextRow]]:
    """Return the files of prompts in the order in which these were written, and their rows of text."""
    by_ids: dict[tuple[int, ...], list[Path]] = {}
    for group in shards:
        arrays = arrays_of(group[0])
        if TOKEN_IDS not in arrays:
            raise DataError(
                f"{group[0]} has no {TOKEN_IDS}: it is no file of vLLM's extract_hidden_states"
            )
        by_ids.setdefault(tuple(arrays[TOKEN_IDS].whole().tolist()), group)
    asked = {tuple(prompt.token_ids) for prompt in prompts}
    if strange := [group[0].name for ids, group in by_ids.items() if ids not in asked]:
        raise DataError(
            f"{folder / strange[0]} has token ids that no prompt has: give the prompts that were sent"
        )
    missing = [prompt for prompt in prompts if tuple(prompt.token_ids) not in by_ids]
    if missing:
        raise DataError(
            f"{folder} lacks {len(missing)} of {len(prompts)} prompts, such as {short(repr(missing[0].text))}: "
            "wait until all are written, or send these again"
        )
    different = {tuple(prompt.token_ids): prompt for prompt in reversed(prompts)}
    in_order = [prompt for prompt in prompts if different[tuple(prompt.token_ids)] is prompt]
    groups = [by_ids[tuple(prompt.token_ids)] for prompt in in_order]
    return groups, [TextRow(prompt.text, prompt.document) for prompt in in_order]


def _hooks_in(arrays: Mapping[str, StoredArray], folder: Path) -> tuple[dict[str, int], str]:
    """Return the width at each hook point among some arrays, and how rows lie in them."""
    hooks = {name: array for name, array in arrays.items() if HOOK.fullmatch(name)}
    if not hooks:
        raise DataError(
            f"{folder} has the arrays {listed(sorted(arrays))}, and none of a hook point of the residual stream: name "
            "them as blocks.5.hook_resid_post"
        )
    dimensions = {len(array.shape) for array in hooks.values()}
    if dimensions not in ({2}, {3}):
        raise DataError(
            f"{folder}: hook points must be (rows, context, width) or (tokens, width), all of them alike"
        )
    layout = "padded" if dimensions == {3} else "flat"
    return {name: int(array.shape[-1]) for name, array in hooks.items()}, layout


def _count(paths: Sequence[Path], hooks: Mapping[str, int], layout: str, folder: Path) -> int:
    """Return how many rows of text some files have."""
    arrays = {name: array for path in paths for name, array in arrays_of(path).items()}
    if layout == "padded":
        hook = next((name for name in hooks if name in arrays), None)
        if hook is None:
            raise DataError(f"{paths[0]} has none of the hook points {listed(list(hooks))}")
        return int(arrays[hook].shape[0])
    raise ConfigError(
        f"{folder} has rows one after another: write (rows, context, width), or the index itself with the tokens of "
        "each row in rows.jsonl"
    )


def _dtype_of(arrays: Mapping[str, StoredArray], hooks: Mapping[str, int]) -> str:
    name = HIDDEN_STATES if HIDDEN_STATES in arrays else next(iter(hooks))
    dtype = arrays[name].part(0, 1).dtype
    called = str(dtype).removeprefix("torch.")
    if dtype not in DTYPES.values():
        raise DataError(f"states are {called}: write one of {', '.join(DTYPES)}")
    return called


def _write_rows(folder: Path, rows: Sequence[TextRow], lengths: Sequence[int]) -> None:
    """Write a line for each row: its document, its length where the arrays do not have it, and its text if known."""
    with (folder / ROWS).open("w", encoding="utf-8") as file:
        for number, row in enumerate(rows):
            line: dict[str, int | str] = {"document": row.document}
            if lengths:
                line["tokens"] = lengths[number]
            if row.text:
                line["text"] = row.text
            file.write(json.dumps(line) + "\n")


def _tokenizer(tokenizer: Tokenizer | None, folder: Path) -> dict[str, str]:
    """Save a tokenizer in a folder of states, and return what the index says of it."""
    if tokenizer is None:
        return {}
    tokenizer.save_pretrained(folder)
    return {"tokenizer": ".", "tokenizer_fingerprint": tokenizer_fingerprint(tokenizer)}


def _listed(folder: Path, name: str) -> dict[str, str]:
    return {"file": name, "sha256": digest_of(folder / name)}


def _write_index(folder: Path, **entries: object) -> None:
    """Write `states.json`, in which entries that are None are left out."""
    content = {
        "format": FORMAT,
        **{name: value for name, value in entries.items() if value is not None},
    }
    aside = folder / f"{INDEX}.partial"
    aside.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    os.replace(aside, folder / INDEX)
