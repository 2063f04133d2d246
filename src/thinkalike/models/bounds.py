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
    """Raise a ModelError if a checkpoint states an implausibly large size.

    A number of layers, heads, experts or classes is refused if no published model comes near it. A
    number of layers is also refused if it is larger than the number of tensors in the files,
    unless it is at most MOST_SHARED_BLOCKS: so many layers may share their weights. Numbers up to
    that are plausible for everything else, too.

    Args:
        stated: The settings of the checkpoint, such as its config.json.
        place: The folder or GGUF file, for the message.
        count_tensors: Counts the tensors in the files; it returns None if there are no files of
            weights. It is called only if many layers are stated.
    """
    for name, count in _whole_numbers(stated):
        pattern = _pattern_for(name)
        if pattern is None or count <= MOST_SHARED_BLOCKS:
            continue
        if count > LARGEST_PLAUSIBLE[pattern]:
            raise ModelError(
                f"{place} states {name}={count}, and no model has as many; give the checkpoint's "
                "own file"
            )
        if pattern is not DEPTH:
            continue
        tensor_count = count_tensors()
        if tensor_count is not None and count > max(tensor_count, MOST_SHARED_BLOCKS):
            raise ModelError(
                f"{place} states {name}={count}, and its weights are {tensor_count} tensors; give "
                "the checkpoint's own file"
            )


def _pattern_for(name: str) -> re.Pattern[str] | None:
    """Return the pattern in `LARGEST_PLAUSIBLE` that the name of a setting matches, or None.

    The pattern tells whether the setting is a number of layers, of heads or of classes.
    """
    for pattern in LARGEST_PLAUSIBLE:  # a dictionary from the pattern to the largest number
        if pattern.search(name):
            return pattern
    return None


def _whole_numbers(value: object, name: str = "") -> Iterator[tuple[str, int]]:
    """Yield (name, number) for each whole number in a configuration, at any depth.

    The name is that of the innermost entry; a number in a list has the name of the list. True and
    False are not counted as numbers.
    """
    if isinstance(value, Mapping):
        for inner_name, inner in value.items():
            yield from _whole_numbers(inner, str(inner_name))
    elif isinstance(value, list | tuple):
        for entry in value:
            yield from _whole_numbers(entry, name)
    elif isinstance(value, int) and not isinstance(value, bool):
        yield name, value


def most_tensors_in(folder: Path) -> int | None:
    """Return an upper bound on the number of tensors in a folder's files of weights.

    None means that the folder has no such files.
    """
    files = _weight_files(folder)
    if not files:
        return None
    return sum(_most_tensors_in_file(file) for file in files)


def _weight_files(folder: Path) -> list[Path]:
    """Return the files of weights in a folder: .safetensors, .bin and .ckpt."""
    files: list[Path] = []
    for pattern in WEIGHTS:
        files += folder.glob(pattern)
    return files


def _most_tensors_in_file(path: Path) -> int:
    """Return an upper bound on the number of tensors in a file of weights, without reading them.

    It follows from the header of a safetensors file, or the list of files in an archive of torch.
    A file that is neither, perhaps since it is damaged, is bounded by its size. It is 0 for a
    file that cannot be read, or states an impossible length of its header; the reader of the
    weights will report that.
    """
    with contextlib.suppress(OSError, ValueError, BadZipFile, RecursionError):
        if path.suffix == ".safetensors":
            with path.open("rb") as file:
                # A safetensors file begins with the length of its header in 8 bytes, and then has
                # the header as JSON, with an entry for each tensor.
                header_length = int.from_bytes(file.read(8), "little")
                if header_length > LARGEST_HEADER:
                    return 0
                return len(json.loads(file.read(header_length)))
        # torch writes an archive with a file for the numbers of each tensor.
        with ZipFile(path) as archive:
            return sum("/data/" in name for name in archive.namelist())
    # Older versions of torch wrote a plain pickle, which is no archive.
    with contextlib.suppress(OSError):
        return path.stat().st_size // SMALLEST_TENSOR
    return 0


def bytes_of_weight_files(place: Path) -> int:
    """Return the size in bytes of the files of weights in a folder, or of a single file.

    It is 0 if there are none here, as for a repository of the hub.
    """
    files = [place] if place.is_file() else _weight_files(place)
    return sum(file.stat().st_size for file in files if file.is_file())


def check_claimed_size(numbers: int, checkpoint: Path) -> None:
    """Raise a ModelError if a checkpoint states sizes of a model that its files cannot hold.

    A weight takes at least one bit in the files. Up to MOST_DRAWN_NUMBERS weights always pass,
    since libraries may initialise some modules that the files lack. Nothing is checked if there
    are no files of weights.

    Args:
        numbers: How many weights a model of the stated sizes has.
        checkpoint: The checkpoint's folder or file.
    """
    n_bytes = bytes_of_weight_files(checkpoint)
    n_bits = 8 * n_bytes
    if n_bytes and numbers > max(n_bits, MOST_DRAWN_NUMBERS):
        raise ModelError(
            f"{checkpoint} states sizes of {numbers:,} numbers, "
            f"and its weights have {n_bytes:,} bytes; "
            "give the whole checkpoint with its own config.json"
        )


def check_adapter(
    folder: Path, shapes: Collection[tuple[int, ...]], names: Collection[str]
) -> None:
    """Check that the settings of a PEFT adapter do not ask for endless memory or time.

    Args:
        folder: The folder of the adapter.
        shapes: The shapes of the adapter's tensors.
        names: The names of the modules of the base model, which patterns are matched against.

    Raises:
        ModelError: A rank is larger than every axis of the tensors, a regular expression takes too
            long to match, true or false is given as text, or the file is not a JSON object.
    """
    path = folder / "adapter_config.json"
    try:
        settings = read_json(path)
    except ValueError as error:
        raise ModelError(f"{path} is no JSON object ({error})") from None

    for name, value in settings.items():
        # Any non-empty text, even "false", counts as true.
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
    """Yield the regular expressions in the settings of a PEFT adapter.

    They are the values of settings such as "layers_pattern" and "target_modules", if these are
    text, and the keys of "rank_pattern".
    """
    for name, value in settings.items():
        if name.endswith("_pattern"):
            # One pattern, a list of patterns, or a dictionary whose keys are patterns.
            if isinstance(value, str):
                yield value
            elif isinstance(value, Mapping | list):
                for entry in value:
                    if isinstance(entry, str):
                        yield entry
        elif name.endswith(("_modules", "_parameters")) and isinstance(value, str):
            yield value
