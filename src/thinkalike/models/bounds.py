"""What a checkpoint states is bounded by what it holds, before anything is built, allocated or matched for it.

A few bytes of a strange config.json can ask for ten million blocks, and a pattern of an adapter for years of matching.
Nothing here imports torch or transformers.
"""

from __future__ import annotations

import base64
import contextlib
import json
import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from re._parser import parse as sre_parse  # type: ignore[import-not-found]
from typing import Any, NamedTuple
from zipfile import BadZipFile, ZipFile

from thinkalike.digests import read_json
from thinkalike.errors import ModelError

# Names of numbers of modules, as config.json and GGUF files spell them: num_hidden_layers, llama.block_count.
DEPTH = re.compile(r"(layers?|blocks?|stages?|depths?)(_count)?$")
BREADTH = re.compile(r"(heads?|experts?|groups?)(_count(_kv)?)?$")
CLASSES = re.compile(r"labels?$")
SHARING = (
    256  # blocks that a model may have beyond its tensors: some share the weights of all blocks
)
MOST = {DEPTH: 2**12, BREADTH: 2**12, CLASSES: 2**20}  # no model comes near

DRAWN = 2**28  # numbers that may be drawn anew, such as buffers: a gigabyte, and seconds
WEIGHTS = ("*.safetensors", "*.bin", "*.ckpt")  # of names of files

MOST_GROWTH = (
    1000  # a text becomes so many times as long; the words for a symbol make it ten times as long
)

SMALLEST = 64  # bytes that a tensor takes at least in a pickled file
HEADER = 10**8  # bytes; safetensors reads no longer header
SECONDS = 5.0  # of matching, where a pattern that people write takes less than a thousandth
MEMORY = 2**30  # bytes of the process that matches

# What runs in a process of its own: Python's matching cannot be interrupted from within, but a process can be ended.
# The three forms are those in which peft matches the patterns of its settings.
MATCHING = f"""
import json, re, sys
try:
    import resource
    resource.setrlimit(resource.RLIMIT_AS, ({MEMORY}, {MEMORY}))
    resource.setrlimit(resource.RLIMIT_CPU, ({SECONDS:.0f}, {SECONDS:.0f}))  # also if nobody is left to end it
except ImportError:
    pass
patterns, names = json.load(sys.stdin)
for pattern in patterns:
    for form in (pattern, rf"(.*\\.)?({{pattern}})$", rf".*\\.{{pattern}}\\.(\\d+)\\."):
        try:
            compiled = re.compile(form)
        except (re.error, OverflowError):
            continue
        for name in names:
            compiled.fullmatch(name)
            compiled.match(name)
"""


def check_counts(
    stated: Mapping[str, Any], place: Path, tensors: Callable[[], int | None]
) -> None:
    """Raise a ModelError if a checkpoint states more blocks than its weights have tensors, or more parts than any has.

    Args:
        stated: its settings.
        place: its folder or GGUF file, which the message names.
        tensors: counts the tensors of its weights, or returns None where there are none; few checkpoints need it.
    """
    for name, count in _counts(stated):
        kind = next((kind for kind in MOST if kind.search(name)), None)
        if kind is None or count <= SHARING:
            continue
        if count > MOST[kind]:
            raise ModelError(
                f"{place} states {name}={count}, and no model has as many; give the checkpoint's own file"
            )
        held = tensors() if kind is DEPTH else None
        if held is not None and count > max(held, SHARING):
            raise ModelError(
                f"{place} states {name}={count}, and its weights are {held} tensors; give the checkpoint's own file"
            )


def _counts(stated: Any, name: str = "") -> Iterator[tuple[str, int]]:
    """Yield all whole numbers of a configuration, each with its name, or with that of the list in which it stands."""
    if isinstance(stated, Mapping):
        for inner, value in stated.items():
            yield from _counts(value, str(inner))
    elif isinstance(stated, list | tuple):
        for value in stated:
            yield from _counts(value, name)
    elif isinstance(stated, int) and not isinstance(stated, bool):
        yield name, stated


def tensors_held(folder: Path) -> int | None:
    """Return how many tensors the weights of a folder have, or None where there are no weights."""
    files = [path for ending in WEIGHTS for path in folder.glob(ending)]
    return sum(map(_tensors_in, files)) if files else None


def _tensors_in(path: Path) -> int:
    """Return how many tensors a file of weights has at most; none if it is damaged, which its reader reports."""
    with contextlib.suppress(OSError, ValueError, BadZipFile, RecursionError):
        if path.suffix == ".safetensors":
            with path.open("rb") as file:
                length = int.from_bytes(file.read(8), "little")
                return len(json.loads(file.read(length))) if length <= HEADER else 0
        with ZipFile(path) as archive:
            return sum("/data/" in name for name in archive.namelist())
    with contextlib.suppress(OSError):
        return path.stat().st_size // SMALLEST  # a pickled file of older versions of torch
    return 0


def bytes_held(place: Path) -> int:
    """Return the bytes of the weights of a folder or a file; 0 where there are none, or only the hub has them."""
    files = (
        [place] if place.is_file() else [path for ending in WEIGHTS for path in place.glob(ending)]
    )
    return sum(path.stat().st_size for path in files if path.is_file())


def check_size(numbers: int, place: Path) -> None:
    """Raise a ModelError if a model of so many numbers is stated by a checkpoint that cannot hold as many.

    A number takes at least a bit, and where some parts are drawn anew by the library, at most `DRAWN` of them.
    """
    held = bytes_held(place)
    if held and numbers > max(8 * held, DRAWN):
        raise ModelError(
            f"{place} states sizes of {numbers:,} numbers, and its weights have {held:,} bytes; give the whole "
            "checkpoint with its own config.json"
        )


def check_adapter(
    folder: Path, shapes: Collection[tuple[int, ...]], names: Collection[str]
) -> None:
    """Raise a ModelError for an adapter whose settings ask for ranks or for matching without end.

    Args:
        shapes: those of its tensors.
        names: those of the modules of its base.
    """
    try:
        settings = read_json(folder / "adapter_config.json")
    except ValueError as error:
        raise ModelError(f"{folder}/adapter_config.json is no JSON object ({error})") from None
    widest = max((size for shape in shapes for size in shape), default=0)
    pattern = settings.get("rank_pattern")
    ranks = [settings.get("r"), *(pattern.values() if isinstance(pattern, dict) else ())]
    for rank in ranks:
        if isinstance(rank, int) and rank > widest:
            raise ModelError(
                f"{folder}/adapter_config.json states the rank {rank}, and its weights have {widest} rows"
            )
    check_patterns(sorted(set(_patterns(settings))), names, f"{folder}/adapter_config.json")


def _patterns(settings: Mapping[str, Any]) -> Iterator[str]:
    """Yield the regular expressions of the settings of an adapter of peft."""
    for key, value in settings.items():
        if key.endswith("_pattern"):  # one, several, or those of a dictionary of ranks
            yield from (
                [value]
                if isinstance(value, str)
                else [each for each in value or () if isinstance(each, str)]
            )
        elif key.endswith(("_modules", "_parameters")) and isinstance(value, str):
            yield value


def check_patterns(patterns: Collection[str], names: Collection[str], stated_in: str) -> None:
    """Raise a ModelError if patterns cannot be matched against these names within seconds; see `MATCHING`.

    What is no regular expression is left to the library that reads it.
    """
    if not patterns:
        return
    work = json.dumps([list(patterns), list(names)])
    with contextlib.suppress(subprocess.TimeoutExpired):
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", MATCHING],
            input=work,
            text=True,
            timeout=SECONDS,
            capture_output=True,
        )
        if done.returncode == 0:
            return
    raise ModelError(
        f"{stated_in} has a pattern that cannot be matched within {SECONDS:.0f} seconds ({', '.join(patterns)[:100]}); "
        "list the names of modules instead"
    )


def check_growth(file: Path) -> None:
    """Raise a ModelError if the replacements of a tokenizer.json may make a text `MOST_GROWTH` times as long.

    Replacements of a sequence multiply, so that four of a thousand letters each ask for a million million bytes.
    """
    try:
        stated = read_json(file)
        growths = {
            part: _growth(_replacements(stated.get(part))) for part in ("normalizer", "decoder")
        }
    except ValueError as error:
        raise ModelError(f"{file} is no JSON object ({error})") from None
    for part, growth in growths.items():
        if growth > MOST_GROWTH:
            raise ModelError(
                f"{file}: the replacements of its {part} may make a text {growth:.3g} times as long; give the "
                "checkpoint's own tokenizer.json"
            )


class _Replacement(NamedTuple):
    """What a normaliser or a decoder puts in the place of what it finds."""

    content: str
    pattern: (
        str | None
    )  # the text that it looks for; None: a regular expression, which may find anything
    shortest: int  # letters that it replaces at least

    @property
    def growth(self) -> float:
        """How many times as long a text becomes at most."""
        if not self.shortest:  # the content goes between all letters
            return 1.0 + len(self.content)
        return max(1.0, len(self.content) / self.shortest)

    def may_find(self, contents: Collection[str]) -> bool:
        """Return whether it may find something in what replacements before it wrote."""
        return self.pattern is None or any(
            set(self.pattern) & set(content) for content in contents
        )


def _replacements(stated: Any) -> Iterator[_Replacement]:
    """Yield the replacements of a normaliser or a decoder, and of all that it is a sequence of, in their order."""
    if isinstance(stated, list):
        for step in stated:
            yield from _replacements(step)
    if not isinstance(stated, Mapping):
        return
    content, pattern = stated.get("content"), stated.get("pattern")
    if (
        stated.get("type") == "Replace"
        and isinstance(content, str)
        and isinstance(pattern, Mapping)
    ):
        literal, expression = pattern.get("String"), pattern.get("Regex")
        if isinstance(literal, str):
            yield _Replacement(content, literal, len(literal))
        elif isinstance(expression, str):
            yield _Replacement(content, None, _shortest_match(expression))
    elif stated.get("type") == "Precompiled":
        yield _Replacement(_longest_of_charsmap(stated.get("precompiled_charsmap")), None, 1)
    elif stated.get("type") == "Prepend" and isinstance(stated.get("prepend"), str):
        yield _Replacement(stated["prepend"], "", 0)
    for inner in ("normalizers", "decoders"):
        yield from _replacements(stated.get(inner))


def _longest_of_charsmap(charsmap: Any) -> str:
    """Return the longest text that a map of characters of SentencePiece puts in the place of one.

    Behind a trie, whose length comes first, all texts stand one after the other, each with a NUL at its end.
    """
    try:
        content = base64.b64decode(charsmap)
    except (TypeError, ValueError):  # which the library that reads it reports
        return ""
    texts = content[4 + int.from_bytes(content[:4], "little") :].split(b"\0")
    return max(texts, key=len).decode(errors="replace")


def _shortest_match(expression: str) -> int:
    """Return how many letters a regular expression matches at least, 0 if it cannot be known."""
    letters = re.sub(
        r"\\[pP]\{[^}]*\}", ".", expression
    )  # classes such as \p{L}, which Python does not know
    with warnings.catch_warnings(), contextlib.suppress(re.error, RecursionError, OverflowError):
        warnings.simplefilter("ignore")  # of what other libraries read otherwise
        return int(sre_parse(letters).getwidth()[0])
    return 0


def _growth(replacements: Iterator[_Replacement]) -> float:
    """Return how many times as long a text may become by replacements one after the other."""
    growth = 1.0
    contents: list[str] = []
    for replacement in replacements:
        # What finds nothing in the contents before it makes other letters longer, and not the same ones again.
        multiplies = replacement.may_find(contents)
        growth = growth * replacement.growth if multiplies else max(growth, replacement.growth)
        contents.append(replacement.content)
    return growth
