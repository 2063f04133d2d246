"""What a checkpoint states is bounded by what it holds, before anything is built for it.

A few bytes of a strange config.json can ask for ten million blocks. Nothing here imports torch or
transformers.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from zipfile import BadZipFile, ZipFile

from thinkalike.digests import read_json
from thinkalike.errors import ModelError
from thinkalike.models.pattern_matching import check_patterns

# Names of numbers of modules, as config.json and GGUF files spell them: num_hidden_layers,
# llama.block_count.
DEPTH = re.compile(r"(layers?|blocks?|stages?|depths?)(_count)?$")
BREADTH = re.compile(r"(heads?|experts?|groups?)(_count(_kv)?)?$")
CLASSES = re.compile(r"labels?$")

# The largest number of each kind; no published model comes near.
LARGEST_PLAUSIBLE = {DEPTH: 2**12, BREADTH: 2**12, CLASSES: 2**20}

# The blocks that a model may have beyond its tensors: in some all blocks share their weights.
MOST_SHARED_BLOCKS = 256

# The most numbers that may be drawn anew, such as buffers: they take a gigabyte, and seconds.
MOST_DRAWN_NUMBERS = 2**28

# The names of files of weights.
WEIGHTS = ("*.safetensors", "*.bin", "*.ckpt")

# The fewest bytes that a tensor takes in a pickled file.
SMALLEST_TENSOR = 64

# The most bytes of a header that safetensors reads.
LARGEST_HEADER = 10**8


def check_counts(
    stated: Mapping[str, object], place: Path, count_tensors: Callable[[], int | None]
) -> None:
    """Raise a ModelError if a checkpoint states a size that no model has, or too many blocks.

    It has too many if there are more than tensors of weights. A small number of blocks always
    passes, as blocks may share their weights.

    Args:
        stated: Its settings.
        place: Its folder or GGUF file, which the message names.
        count_tensors: Counts the tensors of its weights, or returns None if there are no weights.
            It is called for few checkpoints.
    """
    for name, count in _whole_numbers(stated):
        kind_of_number = _kind_of_number(name)
        if kind_of_number is None or count <= MOST_SHARED_BLOCKS:
            continue
        if count > LARGEST_PLAUSIBLE[kind_of_number]:
            raise ModelError(
                f"{place} states {name}={count}, and no model has as many; give the checkpoint's "
                "own file"
            )
        if kind_of_number is not DEPTH:
            continue
        tensor_count = count_tensors()
        if tensor_count is not None and count > max(tensor_count, MOST_SHARED_BLOCKS):
            raise ModelError(
                f"{place} states {name}={count}, and its weights are {tensor_count} tensors; give "
                "the checkpoint's own file"
            )


def _kind_of_number(name: str) -> re.Pattern[str] | None:
    """Return which of the kinds of `LARGEST_PLAUSIBLE` a number is by its name, None if none."""
    for kind in LARGEST_PLAUSIBLE:
        if kind.search(name):
            return kind
    return None


def _whole_numbers(value: object, name: str = "") -> Iterator[tuple[str, int]]:
    """Yield all whole numbers of a configuration with their names.

    A number in a list has the name of the list.
    """
    if isinstance(value, Mapping):
        for inner_name, inner in value.items():
            yield from _whole_numbers(inner, str(inner_name))
    elif isinstance(value, list | tuple):
        for entry in value:
            yield from _whole_numbers(entry, name)
    elif isinstance(value, int) and not isinstance(value, bool):
        yield name, value


def tensors_held(folder: Path) -> int | None:
    """Return how many tensors the weights of a folder have, or None if there are no weights."""
    files = _weight_files(folder)
    if not files:
        return None
    return sum(_tensors_in(file) for file in files)


def _weight_files(folder: Path) -> list[Path]:
    """Return the files of weights in a folder, by the patterns of `WEIGHTS`."""
    files: list[Path] = []
    for pattern in WEIGHTS:
        files += folder.glob(pattern)
    return files


def _tensors_in(path: Path) -> int:
    """Return how many tensors a file of weights has at most.

    It is 0 if the file is damaged, which its reader reports.
    """
    with contextlib.suppress(OSError, ValueError, BadZipFile, RecursionError):
        if path.suffix == ".safetensors":
            with path.open("rb") as file:
                # The format: the length of the header in 8 bytes, then the header as JSON.
                length = int.from_bytes(file.read(8), "little")
                if length > LARGEST_HEADER:
                    return 0
                return len(json.loads(file.read(length)))
        # torch writes an archive with a file for the numbers of each tensor.
        with ZipFile(path) as archive:
            return sum("/data/" in name for name in archive.namelist())
    # Older versions of torch wrote a plain pickle, which is no archive.
    with contextlib.suppress(OSError):
        return path.stat().st_size // SMALLEST_TENSOR
    return 0


def bytes_held(place: Path) -> int:
    """Return the bytes of the weights of a folder or a file.

    It is 0 if there are no weights, or only the hub has them.
    """
    files = [place] if place.is_file() else _weight_files(place)
    return sum(file.stat().st_size for file in files if file.is_file())


def check_claimed_size(numbers: int, checkpoint: Path) -> None:
    """Raise a ModelError if a checkpoint states more numbers than it can hold.

    A number takes at least a bit. Libraries may draw some modules anew, which have at most
    `MOST_DRAWN_NUMBERS` numbers.

    Args:
        numbers: How many numbers the sizes in the checkpoint's files add up to.
        checkpoint: The checkpoint's folder or file.
    """
    size = bytes_held(checkpoint)  # 0: nothing is known, and nothing is checked
    if size and numbers > max(8 * size, MOST_DRAWN_NUMBERS):
        raise ModelError(
            f"{checkpoint} states sizes of {numbers:,} numbers, "
            f"and its weights have {size:,} bytes; "
            "give the whole checkpoint with its own config.json"
        )


def check_adapter(
    folder: Path, shapes: Collection[tuple[int, ...]], names: Collection[str]
) -> None:
    """Raise a ModelError for an adapter whose settings ask for endless ranks or matching.

    Args:
        folder: Its folder.
        shapes: The shapes of its tensors.
        names: The names of the modules of its base.

    Raises:
        ModelError: A rank is larger than any size of its tensors, a pattern takes too long to
            match, or the settings are no JSON object.
    """
    path = folder / "adapter_config.json"
    try:
        settings = read_json(path)
    except ValueError as error:
        raise ModelError(f"{path} is no JSON object ({error})") from None

    for name, value in settings.items():
        # As a text, "false" counts as true.
        if isinstance(value, str) and value.lower() in ("true", "false"):
            raise ModelError(f"{path} states {name} as the text {value!r}; write {value.lower()}")

    ranks = [settings.get("r")]
    rank_pattern = settings.get("rank_pattern")
    if isinstance(rank_pattern, dict):
        ranks += rank_pattern.values()
    largest_size = max((size for shape in shapes for size in shape), default=0)
    for rank in ranks:
        if isinstance(rank, int) and rank > largest_size:
            raise ModelError(
                f"{path} states the rank {rank}, and its weights have {largest_size} rows"
            )
    patterns = set(_patterns_in(settings))
    check_patterns(sorted(patterns), names, str(path))


def _patterns_in(settings: Mapping[str, object]) -> Iterator[str]:
    """Yield the regular expressions of the settings of an adapter of peft."""
    for name, value in settings.items():
        if name.endswith("_pattern"):
            # One, a list of several, or a dictionary of ranks whose keys are patterns.
            if isinstance(value, str):
                yield value
            elif isinstance(value, Mapping | list):
                for entry in value:
                    if isinstance(entry, str):
                        yield entry
        elif name.endswith(("_modules", "_parameters")) and isinstance(value, str):
            yield value
