"""Users' own stimuli: tables (.csv, .tsv, .parquet), CoNLL-U files, and recorded activations (.npz, .safetensors).

Rows are counted from 1, below the header. An empty cell or NaN says that a feature does not apply.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from safetensors.torch import load_file
from torch import Tensor

from thinkalike.data.stimuli import Kinds, Stimuli, duplicates, natural
from thinkalike.errors import DataError, nearest

Names = Sequence[str] | None  # None: all that there are
Span = tuple[int, int]

ROLES = ("text", "word", "start", "stop", "id")

# -------------------------------------------------------------------------------------------------------------- tables


def read_table(
    path: str | Path,
    *,
    features: Names = None,
    kinds: Kinds | None = None,
    columns: Mapping[str, str | None] | None = None,
) -> Stimuli:
    """Stimuli of a table: in each row a word of a text, or a whole text, and its features.

    Args:
        features: columns; none given: all that have no role.
        kinds: see `Stimuli`.
        columns: the column of a role that is called otherwise; None: there is none. Roles are `text`; `word`, which is
            looked for in the text, or `start` and `stop`, its characters from 0; `id`, which stands in for a text.

    Raises:
        DataError: the file cannot be read, a column is not there, a word is not in its text or is there twice, or a
            feature has one level.
    """
    frame = _frame(Path(path))
    roles = _roles(path, frame, columns or {})
    cells = {role: ["" if pd.isna(cell) else str(cell) for cell in frame[name]] for role, name in roles.items()}
    ids = cells.get("id", [str(row) for row in range(1, len(frame) + 1)])
    texts = cells.get("text", ids)
    spans = [
        _span(f"{path} row {row + 1}", text, {role: column[row] for role, column in cells.items()})
        for row, text in enumerate(texts)
    ]
    words = [text[start:stop] for text, (start, stop) in zip(texts, spans, strict=True)]
    sentence, distinct = pd.factorize(np.array(texts, dtype=object))
    names = _chosen(path, features, [name for name in frame.columns if name not in roles.values()])
    table = frame[names].apply(_values, path=path)
    return _varied(Stimuli(list(distinct), sentence, spans, words, table, kinds or {}, ids, str(path)))


def _frame(path: Path) -> pd.DataFrame:
    frame = _read(path, {".csv": _separated, ".tsv": _separated, ".parquet": pd.read_parquet})
    if frame.empty:
        raise DataError(f"{path} is empty: it has no rows below a header")
    return frame


def _read(path: Path, readers: Mapping[str, Callable[[Path], Any]]) -> Any:
    if path.suffix not in readers:
        raise DataError(f"{path} is none of {', '.join(readers)}")
    try:
        return readers[path.suffix](path)
    except DataError:
        raise
    except Exception as error:  # missing, damaged, in another encoding: each library has errors of its own
        reason = next(iter(str(error).splitlines()), "")
        raise DataError(f"cannot read {path}: {type(error).__name__}: {reason}") from error


def _separated(path: Path) -> pd.DataFrame:
    """All cells as they are written: pandas' own reader takes words such as `null` and `NA` for missing."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = [row for row in csv.reader(file, delimiter="\t" if path.suffix == ".tsv" else ",", strict=True) if row]
    header, rows = (rows or [[]])[0], rows[1:]
    if twice := duplicates(header):
        raise DataError(f"{path}: the column {twice[0]} is there more than once; rename one")
    for number, row in enumerate(rows, 1):
        if len(row) != len(header):
            raise DataError(f"{path} row {number} has {len(row)} cells, the header {len(header)}; quote all commas")
    return pd.DataFrame(rows, columns=header, dtype=object)


def _roles(path: str | Path, frame: pd.DataFrame, columns: Mapping[str, str | None]) -> dict[str, str]:
    there = list(map(str, frame.columns))
    for role, name in {"text": "text", **columns}.items():
        if role not in ROLES:
            raise DataError(f"columns has no role {role}; {nearest(role, ROLES)}")
        if name is not None and name not in there:
            raise DataError(f"{path} has no column {name}; {nearest(name, there)}; or columns={{'{role}': None}}")
    found = {role: name for role in ROLES if (name := columns.get(role, role)) in there}
    if "text" not in found:
        found = {role: name for role, name in found.items() if role == "id"}
    if ("start" in found) != ("stop" in found):
        raise DataError(f"{path} has only one of the columns start and stop; a span needs both")
    return found


def _span(place: str, text: str, cells: dict[str, str]) -> Span:
    word = cells.get("word")
    if "start" in cells:
        try:
            start, stop = (int(cells[end].removesuffix(".0")) for end in ("start", "stop"))
        except ValueError:
            raise DataError(f"{place}: start={cells['start']}, stop={cells['stop']} are not whole numbers") from None
        if word and text[start:stop] != word:
            raise DataError(f"{place}: at {start}-{stop} is {text[start:stop]!r}, not {word!r}; correct one of them")
        return start, stop
    if word is None:
        return 0, len(text)
    literal = re.escape(word)
    found = list(re.finditer(rf"(?<!\w){literal}(?!\w)", text)) or list(re.finditer(literal, text))
    if not word or len(found) != 1:
        times = len(found) if word else 0
        raise DataError(f"{place}: the word {word!r} is {times} times in {text[:80]!r}; add columns start and stop")
    return found[0].span()


def _values(column: pd.Series, path: str | Path) -> pd.Series:
    """Missing cells as NaN, and written numbers as numbers."""
    if column.map(pd.api.types.is_list_like).any():
        raise DataError(f"{path}: {column.name} holds lists; leave it out of features")
    if isinstance(column.dtype, pd.CategoricalDtype):
        return column
    values = column.mask(column.isin(["", "NaN", "nan"]))
    numbers = pd.to_numeric(values, errors="coerce")
    written = all(isinstance(value, str) for value in values.dropna())
    return numbers if written and numbers.notna().equals(values.notna()) else values


def _chosen(path: str | Path, features: Names, there: list[str]) -> list[str]:
    for name in features or []:
        if name not in there:
            raise DataError(f"{path} has no feature {name}; {nearest(name, there)}")
    return there if features is None else list(features)


def _varied(stimuli: Stimuli) -> Stimuli:
    for name, column in stimuli.features.items():
        if column.nunique(dropna=False) < 2:
            raise DataError(f"{stimuli.source}: {name} has one level only, {column.iloc[0]}; leave it out of features")
    return stimuli


# ------------------------------------------------------------------------------------------------------------- CoNLL-U


def read_conllu(path: str | Path, *, features: Names = None, kinds: Kinds | None = None) -> Stimuli:
    """The words of a CoNLL-U file, with UPOS, all FEATS, and their length and position.

    The text of a sentence is put together from its forms. The words of a multiword token have a part of it each where
    they spell it (don't = do + n't), else all of it (du = de + le). Empty nodes are left out.

    Args:
        features: such as UPOS, Number; none given: all that there are.
        kinds: see `Stimuli`.

    Raises:
        DataError: the file cannot be read or is empty, a line is malformed, or a feature has one level.
    """
    text = _read(Path(path), {".conllu": partial(Path.read_text, encoding="utf-8-sig")})
    found = list(_sentences(path, text.split("\n")))  # splitlines would cut at U+2028, too
    if not found:
        raise DataError(f"{path} is empty: it has no line of a word")
    words, spans, rows = ([x for each in found for x in getattr(each, name)] for name in ("words", "spans", "rows"))
    sentence = np.repeat(np.arange(len(found)), [len(each.words) for each in found])
    ids = [f"{each.name or n}:{place}" for n, each in enumerate(found, 1) for place in range(1, len(each.words) + 1)]
    ends = ["Word length", "Word position"]
    names = ["UPOS", *sorted({name for row in rows for name in row} - {"UPOS", *ends}), *ends]
    table = pd.DataFrame(rows)[_chosen(path, features, names)]
    return _varied(Stimuli([each.text for each in found], sentence, spans, words, table, kinds or {}, ids, str(path)))


def _sentences(path: str | Path, lines: Sequence[str]) -> Iterator[_Sentence]:
    sentence = _Sentence()
    for number, line in enumerate([*lines, ""], 1):
        try:
            if line.startswith("#"):
                key, _, value = line[1:].partition("=")
                sentence.name = value.strip() if key.strip() == "sent_id" else sentence.name
            elif line.strip():
                sentence.add(line.split("\t"))
            else:
                sentence.end()
                if sentence.words:
                    yield sentence
                sentence = _Sentence()
        except ValueError as error:
            raise DataError(f"{path} line {number}: {error}") from None


@dataclass
class _Sentence:
    """What the lines so far say; its methods raise ValueErrors that say what is wrong with a line."""

    name: str = ""
    text: str = ""
    words: list[str] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)
    multiword: list[tuple[int, int, Span]] = field(default_factory=list)  # first word, last word, characters

    def add(self, cells: list[str]) -> None:
        if len(cells) != 10:
            raise ValueError(f"{len(cells)} columns, not 10; between columns stands one tab")
        number, form, upos, feats, misc = (cells[column] for column in (0, 1, 3, 5, 9))
        if re.fullmatch(r"\d+\.\d+", number):  # an empty node
            return
        due, covered = len(self.words) + 1, self.multiword[-1][1] if self.multiword else 0
        first, dash, last = number.partition("-")
        if first != str(due) or (dash and not (last.isdecimal() and covered < due < int(last))):
            raise ValueError(f"the ID {number} where {due} is due; an empty line stands between sentences")
        if not form:
            raise ValueError("there is no FORM")
        span = len(self.text), len(self.text) + len(form)
        if due > covered:
            self.text += form if "SpaceAfter=No" in misc.split("|") else form + " "
        if dash:
            self.multiword.append((due, int(last), span))
            return
        self.words.append(form)
        self.spans.append(span if due > covered else self.multiword[-1][2])
        ours = {"UPOS": None if upos == "_" else upos, "Word length": len(form), "Word position": due - 1}
        self.rows.append(_feats(feats) | ours)

    def end(self) -> None:
        for first, last, (start, stop) in self.multiword:
            if len(self.words) < last:
                raise ValueError(f"the sentence ends within the multiword token {first}-{last}")
            forms = self.words[first - 1 : last]
            if "".join(forms) == self.text[start:stop]:
                self.spans[first - 1 : last] = pairwise(accumulate(map(len, forms), initial=start))
        self.text = self.text.rstrip(" ")


def _feats(cell: str) -> dict[str, str]:
    if cell != "_" and not re.fullmatch(r"[^=|]+=[^=|]+(\|[^=|]+=[^=|]+)*", cell):
        raise ValueError(f"FEATS {cell!r} are not Name=Value|Name=Value, or _")
    return dict(re.findall(r"([^=|]+)=([^=|]+)", cell))


# --------------------------------------------------------------------------------------------------------- activations


def read_arrays(path: str | Path, stimuli: Stimuli) -> dict[str, Float[Tensor, "n _"]]:
    """Recorded activations of stimuli, row by row: layers by name in natural order ("2" before "10").

    Args:
        path: one array of layers x stimuli x width, or one of stimuli x width per layer; integers become float64.

    Raises:
        DataError: the file cannot be read, its arrays have another shape or number of rows, or a value is not finite.
    """
    arrays = _read(Path(path), {".npz": _npz, ".safetensors": load_file})
    if not arrays:
        raise DataError(f"{path} is empty: it has no arrays")
    if len(arrays) == 1 and (whole := next(iter(arrays.values()))).ndim == 3:
        arrays = {str(number): layer for number, layer in enumerate(whole)}
    return {name: _layer(f"{path}: {name}", arrays[name], stimuli) for name in sorted(arrays, key=natural)}


def _npz(path: Path) -> dict[str, Tensor]:
    with np.load(path) as file:
        return {name: torch.from_numpy(file[name]) for name in file.files}


def _layer(place: str, array: Tensor, stimuli: Stimuli) -> Tensor:
    if array.ndim != 2 or not array.numel() or array.is_complex():
        raise DataError(
            f"{place} is {array.dtype} of shape {tuple(array.shape)}; give real numbers, as one array of "
            "layers x stimuli x width or one of stimuli x width per layer"
        )
    if len(array) != len(stimuli):
        raise DataError(f"{place} has {len(array)} rows, but {stimuli.source} {len(stimuli)}; one for each is needed")
    if not array.isfinite().all():
        row, column = (~array.isfinite()).nonzero()[0].tolist()
        raise DataError(f"{place} is {array[row, column]} in row {row + 1}, column {column + 1}; leave the row out")
    return array if array.is_floating_point() else array.double()
