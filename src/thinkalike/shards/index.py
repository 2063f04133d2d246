"""The index of a folder of states, `states.json`: whose states they are and where they lie.

    {
      "format": 1,
      "model": "meta-llama/Llama-3.1-70B",
      "revision": "main",
      "blocks": 80,
      "tokenizer": ".",
      "tokenizer_fingerprint": "0123456789abcdef",
      "vocabulary": 128256,
      "bos": true,
      "dtype": "bfloat16",
      "layout": "flat",
      "hooks": {"blocks.20.hook_resid_post": 8192, "blocks.40.hook_resid_post": 8192},
      "rows": {"file": "rows.jsonl", "sha256": "..."},
      "shards": [{"rows": 500, "files": {"states-00000.safetensors": "<SHA-256>"}}],
      "parameters": 70553706496,
      "copies": {"4": {"file": "copies/4bits/states.json", "sha256": "..."}}
    }

Hook points have the names of TransformerLens, which say where a state was taken:
`blocks.5.hook_resid_post` is the stream after block 5, `blocks.0.hook_resid_pre` that before the
first block, and `ln_final.hook_normalized` what the last norm gives. Numbers beside them are
widths. The arrays of
a shard are those of all its files together: tensors of a .safetensors file, columns of an .arrow
file, and a .npy file by its name. A layout says how rows of text lie in them:

- padded: `token_ids` (rows, context), and each hook point (rows, context, width).
- flat: the rows one after another, `token_ids` (tokens,), and each hook point (tokens, width).
- vllm: one row a shard, `token_ids` (tokens,), and `hidden_states` (tokens, hook points, width),
  in the order of `hooks`. In vllm_layers_first the axes of hook points and tokens are exchanged.

`rows.jsonl` has a line for each row: {"document": ..., "tokens": ..., "text": ...}. Rows of one
document belong together in intervals. `tokens` is the length of the row, which the layout flat
needs, and `text` is what was tokenised.

`copies` lists changed copies of the model, which the ruler compares it with: "2", "3", ... are
rounded to so many bits, and "untrained" has new initial weights. Each is a folder of states of the
same rows inside the folder, and the digest of its index accounts for all of its files.
`parameters` is the number of weights of the model.

Everything but format, model, blocks, dtype, layout, hooks and shards may be left out.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Literal, TypeGuard, TypeVar, cast, get_args

from thinkalike.digests import json_object, remembered_digest
from thinkalike.errors import DataError, one_line, short
from thinkalike.files import is_there, read_bytes

INDEX = "states.json"
FORMAT = 1

# The names of the entries of an index.
ENTRIES = {
    "format",
    "model",
    "revision",
    "tokenizer",
    "tokenizer_fingerprint",
    "vocabulary",
    "blocks",
    "dtype",
    "layout",
    "bos",
    "hooks",
    "rows",
    "embedding",
    "shards",
    "parameters",
    "copies",
}

# The most bytes of an index; a million files of vLLM take half of it.
LARGEST_INDEX = 2**28

Choice = TypeVar("Choice", bound=str)

Layout = Literal["padded", "flat", "vllm", "vllm_layers_first"]
DType = Literal["float64", "float32", "bfloat16", "float16"]

# The endings of files of states.
ENDINGS = (".safetensors", ".safetensors.zst", ".npy", ".arrow")

# The array of token ids, ...
TOKEN_IDS = "token_ids"
# ... and that in which vLLM writes the states at all hook points.
HIDDEN_STATES = "hidden_states"

# The names of TransformerLens's hook points: within a block or after it; the embedding; the output
# of the last norm.
HOOK = re.compile(
    r"blocks\.(?P<layer>\d{1,9})\.(?P<inside>hook_resid_pre|hook_resid_mid|hook_resid_post|hook_attn_out|hook_mlp_out"
    r"|attn\.hook_z|mlp\.hook_post)|hook_embed|ln_final\.hook_normalized"
)
SHA256 = re.compile(r"[0-9a-f]{64}")
REWRITE = "write the folder again, or its index by thinkalike.index_states"


@dataclass(frozen=True)
class ListedFile:
    """A file of the folder, and what it must contain."""

    name: str
    sha256: str


@dataclass(frozen=True)
class ListedShard:
    """Files with the arrays of so many rows."""

    rows: int
    files: Sequence[ListedFile]


@dataclass(frozen=True)
class Index:
    """What `states.json` says; see the beginning of this module.

    Attributes:
        folder: Where it lies.
        blocks: The number of blocks of the model, whether or not states of all of them are here.
        hooks: The width at each hook point, by its name.
        bos: Whether the model expects rows to begin with BOS.
        vocabulary: One more than the largest token id; 0: it is not known.
        rows: The file with a line for each row; None: there is none.
        embedding: A file with `token_ids` (v,) and `embedding` (v, width): what enters block 0 for
            each of these tokens alone; None: there is none.
        parameters: The number of weights of the model; 0: it is not known.
        copies: The index of the folder of each changed copy of the model, by the name of the copy.
        digest: The SHA-256 of the content of the index, which has the digests of all files.
    """

    folder: Path
    model: str
    blocks: int
    dtype: DType
    layout: Layout
    hooks: Mapping[str, int]
    shards: Sequence[ListedShard]
    revision: str = ""
    tokenizer: str = ""
    tokenizer_fingerprint: str = ""
    vocabulary: int = 0
    bos: bool = False
    rows: ListedFile | None = None
    embedding: ListedFile | None = None
    parameters: int = 0
    copies: Mapping[str, ListedFile] = field(default_factory=dict)
    digest: str = field(default="", compare=False)

    @property
    def path(self) -> Path:
        """The path of the index itself."""
        return self.folder / INDEX

    def files(self) -> list[ListedFile]:
        """Return all files that the index lists."""
        beside = [file for file in (self.rows, self.embedding) if file is not None]
        beside += self.copies.values()
        return [*beside, *(file for shard in self.shards for file in shard.files)]


def holds_states(path: str | Path | None) -> bool:
    """Return whether a path is a folder of states."""
    return path is not None and is_there(Path(path) / INDEX)


def states_fingerprint(folder: str | Path) -> str:
    """Return 16 digits of a digest of everything that decides the states of a folder."""
    return read_index(folder).digest[:16]


def read_index(folder: str | Path) -> Index:
    """Read and check `states.json` of a folder, and none of the files that it lists.

    Raises:
        DataError: The folder has no index, or something in it is missing or impossible.
    """
    path = Path(folder) / INDEX
    if not path.is_file():
        is_empty = path.parent.is_dir() and not any(path.parent.iterdir())
        problem = f"has no {INDEX}"
        if is_empty:
            problem = "is empty"
        raise DataError(
            f"{folder} {problem}: write states into it by thinkalike.write_states or "
            "thinkalike.index_states"
        )
    try:
        content = json_object(read_bytes(path, LARGEST_INDEX), path.name)
    except (ValueError, OSError) as error:
        raise DataError(f"{path} is no index of states ({one_line(error)}); {REWRITE}") from error
    return _Reader(path, content).index()


class _Reader:
    """Takes checked entries out of the content of an index.

    All methods raise a DataError for an entry that is missing or impossible.

    Args:
        path: The path of the index.
        content: Its content, as JSON has it.
    """

    def __init__(self, path: Path, content: Mapping[str, Any]):
        self.path = path
        self.content = content

    def index(self) -> Index:
        """Return the index, with defaults for the entries that may be left out."""
        stated_format = self.content.get("format")
        if not _is_count(stated_format, least=1) or stated_format != FORMAT:
            raise self.wrong(
                "format",
                stated_format,
                f"must be {FORMAT}, the only one that is known",
            )
        unknown = sorted(self.content.keys() - ENTRIES)
        if unknown:
            raise self.wrong(unknown[0], self.content[unknown[0]], "is no entry of an index")
        layout = self.choice("layout", get_args(Layout))
        hooks = self.hooks(layout)
        vocabulary = 0
        if "vocabulary" in self.content:
            vocabulary = self.count("vocabulary", least=1)
        parameters = 0
        if "parameters" in self.content:
            parameters = self.count("parameters", least=1)
        content_as_text = json.dumps(self.content, sort_keys=True)
        if layout.startswith("vllm"):  # the order of hook points is that of the states in a file
            content_as_text += json.dumps(list(hooks))
        return Index(
            folder=self.path.parent,
            model=self.text("model"),
            blocks=self.count("blocks", least=1),
            dtype=self.choice("dtype", get_args(DType)),
            layout=layout,
            hooks=hooks,
            shards=self.shards(layout),
            revision=self.text("revision", is_needed=False),
            tokenizer=self.text("tokenizer", is_needed=False),
            tokenizer_fingerprint=self.text("tokenizer_fingerprint", is_needed=False),
            vocabulary=vocabulary,
            bos=self.truth("bos"),
            rows=self.file("rows"),
            embedding=self.file("embedding"),
            parameters=parameters,
            copies=self.copies(),
            digest=hashlib.sha256(content_as_text.encode()).hexdigest(),
        )

    def wrong(self, name: str, value: object, problem: str) -> DataError:
        """Return the error for an entry, given its value and what is wrong with it."""
        return DataError(f"{self.path}: {name}={short(value)} {problem}; {REWRITE}")

    def text(self, name: str, is_needed: bool = True) -> str:
        """Return an entry that is a text; "" if it is missing and not needed."""
        value = self.content.get(name)
        if value is None and not is_needed:
            return ""
        is_text = isinstance(value, str) and value.isprintable()
        if not is_text or (is_needed and not value):
            raise self.wrong(name, value, "must be a text")
        return cast(str, value)

    def truth(self, name: str) -> bool:
        """Return an entry that is true or false; false if there is none."""
        value = self.content.get(name, False)
        if not isinstance(value, bool):
            raise self.wrong(name, value, "must be true or false")
        return value

    def count(self, name: str, least: int) -> int:
        """Return an entry that is a whole number of at least `least`."""
        value = self.content.get(name)
        if not _is_count(value, least):
            raise self.wrong(name, value, f"must be a whole number of at least {least}")
        return value

    def choice(self, name: str, choices: Sequence[Choice]) -> Choice:
        """Return an entry that is one of several texts."""
        value = self.content.get(name)
        for choice in choices:
            if value == choice:
                return choice
        raise self.wrong(name, value, f"must be one of {', '.join(choices)}")

    def hooks(self, layout: Layout) -> dict[str, int]:
        """Return the width at each hook point, by its name."""
        hooks = self.content.get("hooks")
        if not isinstance(hooks, dict) or not hooks:
            raise self.wrong("hooks", hooks, "must have the width at each hook point, by its name")
        blocks = self.count("blocks", least=1)
        name_of_place: dict[tuple[int, str], str] = {}
        for name, width in hooks.items():
            match = HOOK.fullmatch(name)
            if match is None:
                raise self.wrong(
                    "hooks",
                    name,
                    "is no hook point of the residual stream, as blocks.5.hook_resid_post",
                )
            if match["layer"] and int(match["layer"]) >= blocks:
                raise self.wrong("hooks", name, f"is beyond the last of {blocks} blocks")
            if match["layer"]:  # a number has several spellings, such as 1 and 01
                first = name_of_place.setdefault((int(match["layer"]), match["inside"]), name)
                if first != name:
                    raise self.wrong("hooks", name, f"is the same hook point as {first}")
            if not _is_count(width, least=1):
                raise self.wrong(
                    f"hooks[{name}]", width, "must be a width, a whole number of at least 1"
                )
        if layout.startswith("vllm") and len(set(hooks.values())) > 1:
            raise self.wrong("hooks", hooks, "must have one width in files of vLLM")
        return hooks

    def file(self, name: str) -> ListedFile | None:
        """Return the file that an entry lists; None if the entry is missing."""
        entry = self.content.get(name)
        if entry is None:
            return None
        if not isinstance(entry, dict):
            raise self.wrong(name, entry, 'must be {"file": NAME, "sha256": DIGEST}')
        return self.listed_file(name, entry.get("file"), entry.get("sha256"))

    def listed_file(self, entry: str, name: object, digest: object) -> ListedFile:
        """Return a file of the folder.

        Args:
            entry: The entry that lists it, for errors.
            name: Its path in the folder, which must not lead out of it.
            digest: Its SHA-256 in hexadecimal digits.
        """
        if not isinstance(name, str) or not _is_inside(name):
            raise self.wrong(entry, name, "must be the name of a file inside the folder")
        if not isinstance(digest, str) or not SHA256.fullmatch(digest):
            raise self.wrong(
                f"{entry}: {name}", digest, "must be a SHA-256, 64 digits of 0-9 and a-f"
            )
        return ListedFile(name, digest)

    def copies(self) -> dict[str, ListedFile]:
        """Return the index of the folder of each changed copy of the model, by its name."""
        entries = self.content.get("copies", {})
        if not isinstance(entries, dict):
            raise self.wrong(
                "copies", entries, 'must be {NAME: {"file": "copies/.../states.json", ...}}'
            )
        copies = {}
        for name, entry in entries.items():
            place = f"copies[{name}]"
            if not isinstance(entry, dict):
                raise self.wrong(place, entry, 'must be {"file": NAME, "sha256": DIGEST}')
            file = self.listed_file(place, entry.get("file"), entry.get("sha256"))
            if PurePosixPath(file.name).name != INDEX:
                raise self.wrong(place, file.name, f"must end in {INDEX}, the index of a folder")
            copies[name] = file
        return copies

    def shards(self, layout: Layout) -> list[ListedShard]:
        """Return the shards in their order; those of vLLM have one row each."""
        entries = self.content.get("shards")
        if not isinstance(entries, list) or not entries:
            raise self.wrong(
                "shards", entries, 'must list [{"rows": COUNT, "files": {NAME: SHA-256}}]'
            )
        shards = []
        for number, entry in enumerate(entries):
            place = f"shards[{number}]"
            files = None
            row_count = None
            if isinstance(entry, dict):
                files = entry.get("files")
                row_count = entry.get("rows")
            if not isinstance(files, dict) or not files or not _is_count(row_count, least=1):
                raise self.wrong(place, entry, 'must be {"rows": COUNT, "files": {NAME: SHA-256}}')
            if layout.startswith("vllm") and row_count != 1:
                raise self.wrong(
                    f"{place}.rows",
                    row_count,
                    "must be 1, as vLLM writes a file for each prompt",
                )
            listed = [self.listed_file(place, name, digest) for name, digest in files.items()]
            for file in listed:
                if not file.name.endswith(ENDINGS):
                    raise self.wrong(place, file.name, f"must end in one of {', '.join(ENDINGS)}")
            shards.append(ListedShard(row_count, listed))
        return shards


def _is_count(value: object, least: int) -> TypeGuard[int]:
    """Return whether a value is a whole number from `least` on that may be a size."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < 2**48


def _is_inside(name: str) -> bool:
    """Return whether a name leads to a file of the folder and nowhere else."""
    path = PurePosixPath(name)
    return bool(name) and name.isprintable() and not path.is_absolute() and ".." not in path.parts


def checked_file(index: Index, file: ListedFile) -> Path:
    """Return the path of a file of a folder, if its content is what the index says.

    Raises:
        DataError: It is missing, still being written, or another one.
    """
    path = index.folder / file.name
    if not path.is_file():
        raise DataError(f"{path} is not there, and {INDEX} lists it: copy it, too, or {REWRITE}")
    if not path.resolve().is_relative_to(index.folder.resolve()):
        raise DataError(f"{path} leads out of the folder: replace the link by the file")
    if is_being_written(path):
        raise DataError(f"{path} is still being written: wait for the program that writes it")
    try:
        digest = remembered_digest(path)
    except OSError as error:
        raise DataError(f"{path} cannot be read ({one_line(error)})") from error
    if digest != file.sha256:
        raise DataError(
            f"{path} is not the file that {INDEX} lists (SHA-256 {digest[:8]}..., not "
            f"{file.sha256[:8]}...): "
            f"it was cut, changed or not fully copied; copy it again, or {REWRITE}"
        )
    return path


def is_being_written(path: Path) -> bool:
    """Return whether another process holds the lock of a file, as vLLM does while it writes."""
    lock = path.with_name(f"{path.name}.lock")
    if not lock.is_file():
        return False
    import fcntl  # which Windows lacks

    with lock.open("rb") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
    return False
