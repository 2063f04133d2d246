"""States that a user hands to a function, in the forms that people have them in.

- an array (rows, width), of several layers (layers, rows, width), or of the one position that a
  cache kept, (rows, 1, width)
- a list of arrays, one for each layer, such as `hidden_states` of transformers
- a dictionary of arrays by the names of layers or hooks
- an `ActivationCache` of TransformerLens, of which the stream after each block is taken
- the path of a file .npy, .npz or .safetensors, or of a folder of .npy files, one for each layer

In lists, caches and under names of hooks an array may be (texts, positions, width): each token is
a row, and the tokens of a text belong together.
"""

from __future__ import annotations

import os
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from jaxtyping import Float
from torch import Tensor

from thinkalike.advice import named_setting
from thinkalike.arguments import tensor_of
from thinkalike.config.recorded import RecordedArrays
from thinkalike.data.recordings import IDS, RUNS, UNNAMED_LAYER, FileContents, contents_of_path
from thinkalike.errors import ConfigError, plain_line, plain_name
from thinkalike.files import is_there
from thinkalike.shards.index import holds_states

WITH_IDS = (".npz", ".safetensors")  # files in which rows can have ids of stimuli
FILES = (*WITH_IDS, ".npy")
CACHE = "ActivationCache"  # the class of TransformerLens, which is not imported for its name
AFTER_BLOCK = ".hook_resid_post"  # the end of the names of the entries that are taken of a cache
OF_HOOK = "hook_"  # is in all names of hooks of TransformerLens
RESERVED = (IDS, RUNS, "__metadata__")  # names in a file of recorded states that are no layers
LONGEST_NAME = 1000  # letters of the name of a layer
LONGEST_IN_MESSAGE = 40  # letters of the name of a layer that a message has
FLOAT32_BYTES = 4
SHAPES = "give states of (rows, width) or (layers, rows, width)"


@dataclass(frozen=True)
class GivenStates:
    """States that were handed over in place of a model.

    Attributes:
        recording: A file that is read by the ids of its stimuli, or arrays in memory.
        positions: The rows of each text, in the order of texts; 1 if rows do not belong together.
        ids: The names of the rows, if a file has them.
    """

    recording: str | RecordedArrays
    positions: int = 1
    ids: Sequence[str] | None = None

    @property
    def argument(self) -> str:
        """What errors call the states."""
        return str(self.recording)


def is_file_of_states(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is that of arrays: a file of them, or a folder of .npy files."""
    if Path(path).suffix in FILES:
        return True
    folder = Path(path)
    if not is_there(folder) or not folder.is_dir():
        return False
    is_of_model = is_there(folder / "config.json") or holds_states(folder)
    return not is_of_model and any(folder.glob("*.npy"))


def is_states(side: object) -> bool:
    """Return whether an object can be states: a path, arrays, or arrays of several layers."""
    if isinstance(side, list | tuple):
        return bool(side) and all(hasattr(layer, "__array__") for layer in side)
    is_of_layers = isinstance(side, Mapping) or type(side).__name__ == CACHE
    return is_of_layers or isinstance(side, str | os.PathLike) or hasattr(side, "__array__")


def states_given(side: object, argument: str, number: int, has_stimuli: bool) -> GivenStates:
    """Return the states that an argument stands for.

    Args:
        side: Anything for which `is_states` is true.
        argument: The name of the argument, which errors have.
        number: Which of the sides that are states it is, from 1, by which tables call arrays.
        has_stimuli: Whether stimuli are given, whose ids the rows of a file may have.
    """
    if isinstance(side, str | os.PathLike):
        if has_stimuli and Path(side).suffix in WITH_IDS:
            return GivenStates(os.fspath(side))
        contents = contents_of_path(Path(side))
        ids = _ids_of(contents, os.fspath(side))
        name_in_tables = plain_name(Path(side).stem)
        return _in_memory(contents.arrays.items(), name_in_tables, argument, ids, path=os.fspath(side))

    name_in_tables = "arrays" if number == 1 else f"arrays{number}"
    if type(side).__name__ == CACHE:
        entries = _entries_after_blocks(side, argument)
        return _in_memory(entries.items(), name_in_tables, argument)
    if isinstance(side, Mapping):
        return _in_memory(side.items(), name_in_tables, argument)
    if isinstance(side, list | tuple):
        return _in_memory(enumerate(side), name_in_tables, argument, is_list=True)
    layer = _with_rows(_float_states(side, argument), argument)
    return GivenStates(RecordedArrays(name_in_tables, argument, {UNNAMED_LAYER: layer}))


def _in_memory(
    layers: Iterable[tuple[object, object]],
    name_in_tables: str,
    argument: str,
    ids: Sequence[str] | None = None,
    is_list: bool = False,
    path: str | None = None,
) -> GivenStates:
    """Return arrays by the names of layers.

    Args:
        layers: The name and the states of each.
        is_list: Whether the names are the numbers of a list.
        path: The file or folder that they were read from.
    """
    tensors: dict[str, Tensor] = {}
    for name, states in layers:
        place = f"{argument}[{name!r}]"
        _check_layer_name(name, tensors, argument, place)
        tensors[str(name)] = _with_rows(_float_states(states, place), place)
    if not tensors:
        raise ConfigError(f"{argument} has no layers: give an array for each, by its name")

    # One array of three dimensions may have all layers; several, or that of a hook, have texts.
    (first_name, *further_names) = tensors
    are_of_texts = bool(further_names) or is_list or OF_HOOK in first_name
    positions = 1
    if are_of_texts:
        positions = _common_positions(tensors, argument)
        tensors = {name: _tokens_as_rows(states) for name, states in tensors.items()}
    return GivenStates(RecordedArrays(name_in_tables, argument, tensors, path), positions, ids)


def _entries_after_blocks(cache: object, argument: str) -> dict[str, object]:
    """Return the states after each block of a cache of TransformerLens, by the names of hooks."""
    entries: Mapping[str, object] = getattr(cache, "cache_dict", {})
    after_blocks = {}
    for name, states in entries.items():
        if name.endswith(AFTER_BLOCK):
            after_blocks[name] = states
    if not after_blocks:
        raise ConfigError(
            f"{argument} is a cache without entries blocks.*{AFTER_BLOCK}: give those that are to "
            f"be compared as a dictionary, {{name: cache[name] for name in names}}"
        )
    return after_blocks


def _check_layer_name(name: object, earlier: Container[str], argument: str, place: str) -> None:
    """Check that a layer has a name of its own.

    Args:
        earlier: The names of the layers before it.
        argument: The name of the argument.
        place: The argument with the name of the layer.
    """
    is_name = isinstance(name, str | int) and not isinstance(name, bool)
    if not is_name or str(name) in ("", *RESERVED) or str(name) in earlier:
        raise ConfigError(f"{place}: a layer has a name or a number of its own, but none of {', '.join(RESERVED)}")
    written = str(name)
    if plain_line(written) != written or len(written) > LONGEST_NAME:
        raise ConfigError(
            f"{argument}[{written[:LONGEST_IN_MESSAGE]!r}]: the name of a layer has at most "
            f"{LONGEST_NAME} letters, and no line breaks, control characters or halves of "
            "surrogate pairs"
        )


def _float_states(states: object, place: str) -> Tensor:
    try:
        tensor = tensor_of(states, Float, place).detach().cpu()
    except ValueError as error:
        raise ConfigError(error) from None
    if tensor.dtype.itemsize < FLOAT32_BYTES:  # NumPy has no bfloat16
        return tensor.float()
    return tensor


def _with_rows(tensor: Tensor, place: str) -> Tensor:
    """Return states of at least one row, without an axis of the single position that was kept."""
    if tensor.ndim < 2 or not tensor.numel():
        raise ConfigError(f"{place} has shape {tuple(tensor.shape)}: {SHAPES}")
    has_one_position = tensor.ndim == 3 and tensor.shape[1] == 1
    if has_one_position:
        return tensor[:, 0]
    return tensor


def _common_positions(tensors: Mapping[str, Tensor], argument: str) -> int:
    """Return the positions of each text, which all layers have; 1 if layers are (rows, width)."""
    shapes = {}
    for name, states in tensors.items():
        if states.ndim > 3:
            raise ConfigError(
                f"{argument}[{name!r}] has shape {tuple(states.shape)}: give states of "
                "(rows, width), or of (texts, positions, width); heads side by side by .flatten(2)"
            )
        shapes[name] = tuple(states.shape[:-1])
    different = list(dict.fromkeys(shapes.values()))
    if len(different) > 1 and any(len(shape) > 1 for shape in different):
        raise ConfigError(
            f"{argument} has layers of {different[0]} and of {different[1]} rows: all layers have "
            "the same texts and positions"
        )
    if len(different[0]) == 1:
        return 1
    return different[0][1]


def _tokens_as_rows(states: Tensor) -> Tensor:
    """Return states (texts, positions, width) as (rows, width), and such of rows as they are."""
    if states.ndim == 2:
        return states
    return states.flatten(0, 1)


def _ids_of(contents: FileContents, path: str) -> list[str] | None:
    """Return the names of the rows of a file; None if it has none, or says that rows are in order."""
    if contents.runs is not None:
        raise ConfigError(f"stimuli is missing: {path} has several runs, whose rows belong to stimuli by ids")
    if contents.ids is None or contents.ids.ndim == 0:
        return None
    return [str(row_id) for row_id in contents.ids.tolist()]


def numbered_rows(states: Sequence[GivenStates]) -> pd.DataFrame:
    """Return stimuli that stand for the rows of arrays, whose order alone is known.

    The rows of a text are its sentence: intervals take them together.
    """
    first = states[0]
    for other in states[1:]:
        if other.positions != first.positions:
            raise ConfigError(
                f"{first.argument} has texts of {first.positions} positions and {other.argument} "
                f"of {other.positions}: rows are paired by their order"
            )
        have_ids = first.ids is not None and other.ids is not None
        if have_ids and first.ids != other.ids:
            raise ConfigError(
                f"{first.argument} and {other.argument} have rows of other ids: give "
                f"{named_setting('stimuli', like='')}, a table that has these ids"
            )

    assert isinstance(first.recording, RecordedArrays), "a file is read for its rows"
    layer = next(iter(first.recording.layers.values()))
    count = layer.shape[-2]
    if count < 2:
        raise ConfigError(f"{first.argument} has 1 row, and nothing to compare it with: give at least 4")
    numbers = np.arange(count)
    if first.positions == 1:
        return pd.DataFrame({"text": list(map(str, numbers)), "row": numbers / count})
    sentence = numbers // first.positions
    word = [f"{text}.{row}" for row, text in enumerate(sentence)]
    return pd.DataFrame({"sentence": sentence, "word": word, "row": numbers / count})
