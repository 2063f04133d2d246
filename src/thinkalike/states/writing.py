"""Writes folders of states.

The states are those of a model, or those that another program wrote, such as vLLM or SAELens,
which get an index.
"""

from __future__ import annotations

import gc
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

from thinkalike.digests import digest_of, regular, tokenizer_fingerprint
from thinkalike.errors import (
    LONGEST_FILE_NAME,
    ConfigError,
    DataError,
    listed,
    natural_order,
    one_line,
    short,
)
from thinkalike.memory import free_cached_memory
from thinkalike.models.families import EMBED, Layer, Place
from thinkalike.processes import counted, doing
from thinkalike.shards.arrays import DTYPES, StoredArray, StoredRows, arrays_of
from thinkalike.shards.index import FORMAT, HIDDEN_STATES, HOOK, INDEX, TOKEN_IDS, is_being_written
from thinkalike.states.copies import COPIES, Copies
from thinkalike.states.folder import hook_of
from thinkalike.states.source import StateSource, Tokenizer

ROWS = "rows.jsonl"
"""The file with a line for each row."""

EMBEDDING = "embedding.safetensors"
"""The file with what enters block 0 for each token."""

FOLDER_OF_COPIES = "copies"
"""The folder with a folder of states for each changed copy of the model."""

ROWS_PER_PASS = 8
"""How many rows a model reads together."""

LARGEST_SHARD = 2**28
"""The bytes of states after which a new shard begins."""

UNFINISHED = (".partial", ".tmp", ".incomplete", ".tmp_shards")
"""The endings of files that programs have not finished."""


class TextRow(NamedTuple):
    """A row of text that is read alone, and the document that it is of."""

    text: str
    document: int | str
    """The number or the name of the document."""


def write_folder(
    folder: Path,
    source: StateSource,
    rows: Sequence[TextRow],
    layers: Sequence[Layer],
    dtype: torch.dtype,
    copies: Copies | None = None,
) -> None:
    """Write the states of rows of text at some layers; the folder appears when it is complete.

    States of changed copies of the model, which rulers compare it with, are folders inside it. One
    copy is in memory at a time.

    Args:
        folder: The folder, which does not exist or is empty.
        source: The model.
        rows: The rows, each of which the model reads alone.
        layers: The layers.
        dtype: The dtype in which states are stored.
        copies: The copies of the model; None: none are written.

    Raises:
        ConfigError: The folder has something in it, or a layer is one head of several.
        ValueError: A layer is no hook point of TransformerLens.
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
    with new_folder(folder) as temporary:
        entries = _write_states(temporary, source, rows, layers, dtype)
        if copies is not None:
            entries["parameters"] = copies.parameters
            index_of_copy: dict[str, dict[str, str]] = {}
            for name in COPIES:
                place = f"{FOLDER_OF_COPIES}/{_folder_name_of_copy(name)}"
                (temporary / place).mkdir(parents=True)
                _write_copy(temporary / place, copies.copy(name), rows, layers, dtype)
                gc.collect()  # a copy that is read at other sites refers to itself
                free_cached_memory(source.device)
                index_of_copy[name] = _file_entry(temporary, f"{place}/{INDEX}")
            entries["copies"] = index_of_copy
        _write_index(temporary, **entries)


def _folder_name_of_copy(name: str) -> str:
    """Return the name of the folder of a changed copy of a model, such as 4bits or untrained."""
    if name.isdigit():
        return f"{name}bits"
    return name


def _write_copy(
    folder: Path,
    copy: StateSource,
    rows: Sequence[TextRow],
    layers: Sequence[Layer],
    dtype: torch.dtype,
) -> None:
    """Write a changed copy of a model as a folder of states.

    Args:
        folder: The folder, which is empty.
        copy: The copy.
        rows: The rows of the model itself.
        layers: The layers of the model itself.
        dtype: The dtype in which states are stored.
    """
    with doing(f"states of {copy.name}"):
        entries = _write_states(folder, copy, rows, layers, dtype)
        _write_index(folder, **entries)


def _write_states(
    folder: Path,
    source: StateSource,
    rows: Sequence[TextRow],
    layers: Sequence[Layer],
    dtype: torch.dtype,
) -> dict[str, object]:
    """Write all files of a folder of states but its index, and return the entries of that.

    Args:
        folder: The folder, which exists.
        source: The model.
        rows: The rows, each of which the model reads alone.
        layers: The layers.
        dtype: The dtype in which states are stored.
    """
    hook_points = [hook_of(layer) for layer in layers]
    widths: dict[str, int] = {}
    shards: list[dict[str, object]] = []
    lengths: list[int] = []
    # The tokens of the rows, and those that stand for the whole vocabulary.
    known_tokens = [source.sampled_vocabulary()]
    for number, shard in enumerate(_shards(source, rows, layers, dtype)):
        arrays = dict(zip(hook_points, shard.states, strict=True))
        widths = {hook_point: states.shape[-1] for hook_point, states in arrays.items()}
        token_ids = shard.token_ids.to(torch.int32)
        name = f"states-{number:05d}.safetensors"
        save_file({TOKEN_IDS: token_ids, **arrays}, folder / name)
        digest = digest_of(folder / name)
        shards.append({"rows": len(shard.lengths), "files": {name: digest}})
        lengths += shard.lengths
        known_tokens.append(shard.token_ids.unique())
    _write_rows(folder, rows, lengths)
    _write_embedding(folder, source, torch.cat(known_tokens).unique())
    return {
        "model": source.name,
        "revision": source.revision,
        "blocks": source.n_layers,
        **_save_tokenizer(source.tokenizer, folder),
        "vocabulary": source.vocabulary,
        "bos": source.bos_each_row,
        "dtype": _dtype_name(dtype),
        "layout": "flat",
        "hooks": widths,
        "rows": _file_entry(folder, ROWS),
        "embedding": _file_entry(folder, EMBEDDING),
        "shards": shards,
    }


def _write_embedding(folder: Path, source: StateSource, vocabulary: Tensor) -> None:
    """Write a file with what enters block 0 of a model for each of some tokens.

    Args:
        folder: The folder of states.
        source: The model.
        vocabulary: The token ids, (v,).
    """
    embedding = source.embedded(vocabulary).cpu().contiguous()
    tensors = {TOKEN_IDS: vocabulary.to(torch.int32), "embedding": embedding}
    save_file(tensors, folder / EMBEDDING)


def _dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a dtype, such as float32."""
    return str(dtype).removeprefix("torch.")


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder, which is renamed to `folder` when the body has ended.

    If the body raises an error, the temporary folder is removed. What a killed process left there
    is removed first.

    Raises:
        ConfigError: `folder` is a file, or has something in it.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(
            f"{folder} has something in it: give the name of a new folder, or remove it"
        )
    temporary = _unfinished_path(folder)
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        yield temporary
        if folder.exists():
            folder.rmdir()
        os.replace(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _unfinished_path(path: Path) -> Path:
    """Return where a file or folder is written until it is complete, in the same folder."""
    suffix = UNFINISHED[0]
    begin = path.name.encode()[: LONGEST_FILE_NAME - len(suffix)].decode(errors="ignore")
    return path.with_name(f"{begin}{suffix}")


class _Shard(NamedTuple):
    """Rows one after another: the tokens of all, the length of each, and states at each layer."""

    token_ids: Tensor
    """(tokens,)"""

    lengths: list[int]
    """How many tokens each row has."""

    states: list[Tensor]
    """(tokens, width) for each layer."""


def _shards(
    source: StateSource, rows: Sequence[TextRow], layers: Sequence[Layer], dtype: torch.dtype
) -> Iterator[_Shard]:
    """Yield the states of rows in shards, each of which is stored as a file.

    A model reads `ROWS_PER_PASS` rows at once. A shard ends with the pass in which its states
    reach `LARGEST_SHARD` bytes.
    """
    passes: list[_Shard] = []
    byte_count = 0  # of the states of the present shard
    for first in counted(range(0, len(rows), ROWS_PER_PASS), "batch of rows"):
        one_pass = _run_rows(source, rows[first : first + ROWS_PER_PASS], layers, dtype)
        passes.append(one_pass)
        byte_count += sum(states.nbytes for states in one_pass.states)
        if byte_count >= LARGEST_SHARD:
            yield _joined_shard(passes)
            passes = []
            byte_count = 0
    if passes:
        yield _joined_shard(passes)


def _joined_shard(passes: Sequence[_Shard]) -> _Shard:
    """Return the rows of several passes of a model as one shard, in the same order."""
    lengths: list[int] = []
    for one_pass in passes:
        lengths += one_pass.lengths
    states_of_layers = zip(*(one_pass.states for one_pass in passes), strict=True)
    return _Shard(
        token_ids=torch.cat([one_pass.token_ids for one_pass in passes]),
        lengths=lengths,
        states=[torch.cat(states) for states in states_of_layers],
    )


def _run_rows(
    source: StateSource, rows: Sequence[TextRow], layers: Sequence[Layer], dtype: torch.dtype
) -> _Shard:
    """Return the states of a few rows, which the model reads in one pass, without padding.

    Args:
        source: The model.
        rows: The rows of text.
        layers: The layers.
        dtype: The dtype that states are converted to.

    Raises:
        DataError: A state is not finite in the dtype.
    """
    encoded = []
    for row in rows:
        token_ids, _ = source.encoded(row.text)
        encoded.append(token_ids)
    lengths = [len(token_ids) for token_ids in encoded]
    tokens = torch.zeros(len(rows), max(lengths), dtype=torch.long)
    mask = torch.zeros(len(rows), max(lengths), dtype=torch.long)
    for index, token_ids in enumerate(encoded):
        tokens[index, : len(token_ids)] = torch.tensor(token_ids)
        mask[index, : len(token_ids)] = 1
    with torch.no_grad():
        padded_states = source.residuals(tokens, layers, mask)

    is_token = mask.bool()
    states = []
    for layer, padded in zip(layers, padded_states, strict=True):
        of_tokens = padded[is_token.to(padded.device)].to("cpu", dtype)
        if not of_tokens.isfinite().all():
            raise DataError(
                f"a state of {source.name} at {hook_of(layer)} is not finite in "
                f"{_dtype_name(dtype)}: write states of a wider dtype"
            )
        states.append(of_tokens)
    return _Shard(tokens[is_token], lengths, states)


@dataclass(frozen=True)
class SentPrompt:
    """The tokens of a row of text that another program reads."""

    token_ids: Sequence[int]

    document: int | str
    """The number or the name of the document that the row is of."""

    text: str


def write_prompt_file(path: Path, prompts: Sequence[SentPrompt]) -> None:
    """Write prompts to a file with a line of JSON for each.

    The user sends `prompt_token_ids` of each line to another program, such as vLLM. The file
    appears when it is complete.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _unfinished_path(path)
    with temporary.open("w", encoding="utf-8") as file:
        for prompt in prompts:
            record = {
                "prompt_token_ids": list(prompt.token_ids),
                "document": prompt.document,
                "text": prompt.text,
            }
            file.write(json.dumps(record) + "\n")
    os.replace(temporary, path)


def read_prompt_file(path: Path) -> list[SentPrompt]:
    """Return the prompts of a file that `write_prompt_file` wrote.

    Raises:
        DataError: The file cannot be read as text, or a line is no prompt.
    """
    try:
        text = regular(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise DataError(f"prompts={path} cannot be read: {one_line(error)}") from error
    prompts = []
    for number, line in enumerate(text.removesuffix("\n").split("\n"), 1):
        try:
            record = json.loads(line)
            prompt = SentPrompt(record["prompt_token_ids"], record["document"], record["text"])
            # Unequal if an id is no whole number, such as 1.5 or "1".
            whole_numbers = [int(token_id) for token_id in prompt.token_ids]
            is_prompt = whole_numbers == prompt.token_ids and isinstance(prompt.text, str)
        except (ValueError, KeyError, TypeError, RecursionError):
            is_prompt = False
        if not is_prompt:
            raise DataError(f"{path} line {number} is no prompt of thinkalike.write_prompts")
        prompts.append(prompt)
    return prompts


class _Layout(NamedTuple):
    """The width of the states at each hook point, and how rows of text lie in the arrays."""

    widths: dict[str, int]
    """By the name of the hook point."""

    name: str
    """The layout as an index calls it: "flat", "padded", "vllm" or "vllm_layers_first"."""


def index_folder(
    folder: Path,
    *,
    model: str,
    blocks: int,
    tokenizer: Tokenizer | None,
    bos: bool,
    revision: str,
    layers: Sequence[int] | None,
    prompts: Sequence[SentPrompt] | None,
    documents: Sequence[int | str] | None,
) -> None:
    """Write the index of a folder in which another program has written states, and check it.

    Args:
        folder: The folder.
        model: The name of the model.
        blocks: How many blocks the model has.
        tokenizer: The tokenizer of the model, which is saved in the folder; None: it is not known.
        bos: Whether the model expects rows to begin with BOS.
        revision: Which version of the model it is.
        layers: Of files of vLLM: the numbers of layers as it counts them, in the order that was
            asked for. None for any other file.
        prompts: Of files of vLLM: what was sent; None: it is not known.
        documents: The document of each row; None: it is not known, or the prompts say it.

    Raises:
        ConfigError: An argument does not fit the files.
        DataError: A file is damaged or still being written, or the folder has no states.
    """
    shards = _files_in(folder)
    first_arrays = _arrays_in(shards[0])
    is_of_vllm = HIDDEN_STATES in first_arrays
    rows: list[TextRow] | None = None
    if is_of_vllm:
        if layers is None:
            raise ConfigError(
                f"layers is missing: {folder} has files of vLLM, which do not say what was asked "
                "for"
            )
        layout = _layout_of_vllm(first_arrays, layers, blocks, shards[0][0])
        if prompts is not None:
            shards, rows = _files_of_prompts(folder, shards, prompts)
        row_counts = [1] * len(shards)
    else:
        if layers is not None or prompts is not None:
            raise ConfigError(
                f"layers and prompts are for files of vLLM; those in {folder} name their hook "
                "points"
            )
        layout = _layout_of_hooks(first_arrays, folder)
        row_counts = [_row_count(files, layout, folder) for files in shards]
    if documents is not None:
        rows = _with_documents(folder, rows, documents, sum(row_counts))
    dtype = _stored_dtype(first_arrays, layout)
    entries = []
    for row_count, files in zip(row_counts, counted(shards, "file"), strict=True):
        digests = {path.relative_to(folder).as_posix(): digest_of(path) for path in files}
        entries.append({"rows": row_count, "files": digests})
    with _restored_on_error(folder, (ROWS, INDEX)):  # an index that lies is worse than none
        if rows is not None:
            _write_rows(folder, rows)
        rows_entry = None
        # Without prompts the order of rows is that of the names of vLLM's files, which a file of
        # rows that an earlier call left cannot know.
        is_row_file_of_these = rows is not None or not is_of_vllm
        if is_row_file_of_these and (folder / ROWS).is_file():
            rows_entry = _file_entry(folder, ROWS)
        _write_index(
            folder,
            model=model,
            revision=revision,
            blocks=blocks,
            **_save_tokenizer(tokenizer, folder),
            bos=bos,
            dtype=dtype,
            layout=layout.name,
            hooks=layout.widths,
            rows=rows_entry,
            shards=entries,
        )
        StoredRows(folder)


@contextmanager
def _restored_on_error(folder: Path, names: Sequence[str]) -> Iterator[None]:
    """Give files in a folder their former content if the body ends in an error.

    Files that did not exist are removed.
    """
    contents: dict[Path, bytes | None] = {}
    for name in names:
        path = folder / name
        contents[path] = path.read_bytes() if path.is_file() else None
    try:
        yield
    except BaseException:
        for path, content in contents.items():
            if content is None:
                path.unlink(missing_ok=True)
            else:
                path.write_bytes(content)
        raise


def _arrays_in(files: Sequence[Path]) -> dict[str, StoredArray]:
    """Return the arrays of all files of a shard by name; a later file replaces equal names."""
    arrays: dict[str, StoredArray] = {}
    for path in files:
        arrays.update(arrays_of(path))
    return arrays


def _with_documents(
    folder: Path,
    rows: Sequence[TextRow] | None,
    documents: Sequence[int | str],
    row_count: int,
) -> list[TextRow]:
    """Return rows of text with these documents in place of their own.

    Args:
        folder: The folder, for the error.
        rows: The rows; None: their text is not known, and stays empty.
        documents: The document of each row.
        row_count: How many rows the folder has.

    Raises:
        ConfigError: There are more or fewer documents than rows.
    """
    if len(documents) != row_count:
        raise ConfigError(
            f"documents has {len(documents)} entries, and {folder} has {row_count} rows"
        )
    texts = [""] * len(documents)
    if rows:
        texts = [row.text for row in rows]
    return [TextRow(text, document) for text, document in zip(texts, documents, strict=True)]


def _files_in(folder: Path) -> list[list[Path]]:
    """Return the files with states in a folder, grouped by shard; a shard has whole rows.

    All .npy files of one (sub)folder are a shard, and any other file is a shard by itself. Shards
    are in the natural order of their paths. Subfolders are searched as well.

    Raises:
        ConfigError: The path is no folder.
        DataError: A file is still being written, or there are no files with states.
    """
    if not folder.is_dir():
        raise ConfigError(f"{folder} is no folder: give the one in which the states are")
    for path in sorted(folder.iterdir()):
        if path.name.endswith(UNFINISHED) or is_being_written(path):
            raise DataError(
                f"{path} is still being written: wait for the program that writes it, or remove it"
            )
    single_files = []
    arrays_of_folders: dict[Path, list[Path]] = {}
    for path in folder.rglob("*"):
        if not path.is_file() or path.name == EMBEDDING:
            continue
        if path.name.endswith((".safetensors", ".safetensors.zst", ".arrow")):
            single_files.append(path)
        elif path.suffix == ".npy":
            arrays_of_folders.setdefault(path.parent, []).append(path)
    shards = [[path] for path in single_files]
    shards += [sorted(paths) for paths in arrays_of_folders.values()]
    if not shards:
        raise DataError(f"{folder} has no states: no .safetensors, .npy or .arrow file is in it")
    return sorted(shards, key=lambda files: natural_order(files[0].relative_to(folder).as_posix()))


def _layout_of_vllm(
    arrays: Mapping[str, StoredArray], layers: Sequence[int], blocks: int, path: Path
) -> _Layout:
    """Return the hook points of the layers that vLLM was asked for, and the order of the axes.

    vLLM's layer i is what enters block i, which is the residual stream after block i - 1. Its
    layer `blocks` is the output of the last block, before the final norm.

    Args:
        arrays: The arrays of a file.
        layers: The layers as vLLM counts them, in the order that was asked for.
        blocks: The number of blocks of the model.
        path: The file.

    Raises:
        ConfigError: A layer does not exist, or comes twice.
        DataError: The file has no token ids, or states of another shape.
    """
    for layer in layers:
        if not 0 <= layer <= blocks:
            raise ConfigError(
                f"layers has {layer}, and vLLM counts those of {blocks} blocks from 0 to {blocks}"
            )
    if len(set(layers)) < len(layers):
        raise ConfigError(
            f"layers={list(layers)} has a layer twice: give those that vLLM was asked for, in "
            "order"
        )
    _check_has_token_ids(arrays, path)
    token_count = int(arrays[TOKEN_IDS].shape[0])
    shape = tuple(arrays[HIDDEN_STATES].shape)
    if shape[:2] == (token_count, len(layers)):
        name = "vllm"
    elif shape[:2] == (len(layers), token_count):
        name = "vllm_layers_first"
    else:
        sizes = " x ".join(str(size) for size in shape)
        raise DataError(
            f"{path}: {HIDDEN_STATES} has the shape {sizes}, not {token_count} tokens x "
            f"{len(layers)} layers x width: give the layers that vLLM was asked for"
        )
    width = int(shape[2])
    hook_points = [hook_of(EMBED if layer == 0 else layer - 1) for layer in layers]
    return _Layout(dict.fromkeys(hook_points, width), name)


def _check_has_token_ids(arrays: Mapping[str, StoredArray], path: Path) -> None:
    """Raise a DataError if a file of vLLM has no token ids."""
    if TOKEN_IDS not in arrays:
        raise DataError(
            f"{path} has no {TOKEN_IDS}: it is no file of vLLM's extract_hidden_states"
        )


def _files_of_prompts(
    folder: Path, shards: Sequence[list[Path]], prompts: Sequence[SentPrompt]
) -> tuple[list[list[Path]], list[TextRow]]:
    """Match files of states with the prompts that were sent, by their token ids.

    Prompts with the same tokens share a file, and count as the first of them.

    Args:
        folder: The folder, for errors.
        shards: The files of each shard, one file each.
        prompts: The prompts that were sent.

    Returns:
        The files in the order of the prompts, and the text and document of each.

    Raises:
        DataError: A file belongs to no prompt, or a prompt has no file.
    """
    files_by_ids: dict[tuple[int, ...], list[Path]] = {}
    for files in shards:
        arrays = arrays_of(files[0])
        _check_has_token_ids(arrays, files[0])
        token_ids = tuple(arrays[TOKEN_IDS].whole().tolist())
        files_by_ids.setdefault(token_ids, files)

    prompts_by_ids: dict[tuple[int, ...], SentPrompt] = {}
    missing = []
    for prompt in prompts:
        token_ids = tuple(prompt.token_ids)
        prompts_by_ids.setdefault(token_ids, prompt)
        if token_ids not in files_by_ids:
            missing.append(prompt)
    for token_ids, files in files_by_ids.items():
        if token_ids not in prompts_by_ids:
            raise DataError(
                f"{folder / files[0].name} has token ids that no prompt has: give the prompts "
                "that were sent"
            )
    if missing:
        raise DataError(
            f"{folder} lacks {len(missing)} of {len(prompts)} prompts, such as "
            f"{short(repr(missing[0].text))}: wait until all are written, or send these again"
        )
    ordered_files = [files_by_ids[token_ids] for token_ids in prompts_by_ids]
    rows = [TextRow(prompt.text, prompt.document) for prompt in prompts_by_ids.values()]
    return ordered_files, rows


def _layout_of_hooks(arrays: Mapping[str, StoredArray], folder: Path) -> _Layout:
    """Return the width of the states at each hook point, and the layout of their arrays.

    Arrays with three axes have padded rows, (rows, context, width). Those with two have the tokens
    of all rows end to end, (tokens, width).

    Args:
        arrays: The arrays of a file by name. Those without the name of a hook point are ignored.
        folder: The folder, for errors.

    Raises:
        DataError: No array has the name of a hook point, or their numbers of axes differ.
    """
    shapes = {name: array.shape for name, array in arrays.items() if HOOK.fullmatch(name)}
    dimensions = {len(shape) for shape in shapes.values()}
    if not shapes:
        raise DataError(
            f"{folder} has the arrays {listed(sorted(arrays))}, and none of a hook point of the "
            "residual stream: name them as blocks.5.hook_resid_post"
        )
    if dimensions in ({2}, {3}):
        widths = {name: int(shape[-1]) for name, shape in shapes.items()}
        return _Layout(widths, "padded" if dimensions == {3} else "flat")
    raise DataError(
        f"{folder}: hook points must be (rows, context, width) or (tokens, width), all of them "
        "alike"
    )


def _row_count(files: Sequence[Path], layout: _Layout, folder: Path) -> int:
    """Return how many rows of text the files of a shard have.

    Raises:
        ConfigError: The tokens of all rows lie end to end, so that nothing tells where rows end.
        DataError: The files have no states at a known hook point.
    """
    if layout.name != "padded":
        raise ConfigError(
            f"{folder} has rows one after another: write (rows, context, width), or the index "
            "itself with the tokens of each row in rows.jsonl"
        )
    arrays = _arrays_in(files)
    for hook_point in layout.widths:
        if hook_point in arrays:
            return int(arrays[hook_point].shape[0])
    raise DataError(f"{files[0]} has none of the hook points {listed(list(layout.widths))}")


def _stored_dtype(arrays: Mapping[str, StoredArray], layout: _Layout) -> str:
    """Return the name of the dtype of stored states, such as "float32".

    Args:
        arrays: The arrays of a shard by name.
        layout: Its hook points.

    Raises:
        DataError: States of this dtype cannot be read.
    """
    name = HIDDEN_STATES
    if name not in arrays:
        name = next(iter(layout.widths))
    dtype = arrays[name].part(0, 1).dtype
    if dtype not in DTYPES.values():
        raise DataError(f"states are {_dtype_name(dtype)}: write one of {', '.join(DTYPES)}")
    return _dtype_name(dtype)


def _write_rows(folder: Path, rows: Sequence[TextRow], lengths: Sequence[int] = ()) -> None:
    """Write the file `ROWS` with a line of JSON for each row: its document, length and text.

    Args:
        folder: The folder of states.
        rows: The rows; one whose text is not known has the text "", which is not written.
        lengths: How many tokens each row has; if empty, no lengths are written.
    """
    with (folder / ROWS).open("w", encoding="utf-8") as file:
        for number, row in enumerate(rows):
            line: dict[str, int | str] = {"document": row.document}
            if lengths:
                line["tokens"] = lengths[number]
            if row.text:
                line["text"] = row.text
            file.write(json.dumps(line) + "\n")


def _save_tokenizer(tokenizer: Tokenizer | None, folder: Path) -> dict[str, str]:
    """Save a tokenizer in a folder of states, and return what the index of the folder says of it.

    Without a tokenizer, nothing is saved, and the index says nothing.
    """
    if tokenizer is None:
        return {}
    tokenizer.save_pretrained(folder)
    return {"tokenizer": ".", "tokenizer_fingerprint": tokenizer_fingerprint(tokenizer)}


def _file_entry(folder: Path, name: str) -> dict[str, str]:
    """Return the entry of the index for a file: its name in the folder and its SHA-256."""
    return {"file": name, "sha256": digest_of(folder / name)}


def _write_index(folder: Path, **entries: object) -> None:
    """Write the index of a folder of states as JSON, with the entries that are not None.

    The file is replaced in one step, so that it is never half written.
    """
    content: dict[str, object] = {"format": FORMAT}
    for name, value in entries.items():
        if value is not None:
            content[name] = value
    temporary = folder / f"{INDEX}.partial"
    temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    os.replace(temporary, folder / INDEX)
