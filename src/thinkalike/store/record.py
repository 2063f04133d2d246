"""The JSON and YAML files of a result, which are checked completely before anyone uses them.

A stored result may come from anywhere, so everything that lists, pages and instruments rely on is
checked once, here.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NotRequired, TypedDict, TypeGuard, cast

from thinkalike.digests import json_object
from thinkalike.errors import StoreError, flat, one_line, short
from thinkalike.files import ForeignFileError, read_bytes

# The most bytes of a manifest, a record or a configuration; those of large jobs have 2**17.
MOST_JSON_BYTES = 2**22

# The most headline numbers of a result; large jobs have twenty.
MOST_HEADLINES = 1000

# The most settings of a result, by dotted names; a whole configuration has about 200.
MOST_SETTINGS = 2000

# The most scalars of a result.
MOST_SCALARS = 5000

# The largest integer of a result: a float holds no integer above 1.8e308.
LARGEST_NUMBER = 1e300


class ModelFacts(TypedDict, total=False):
    """What a provenance says of a model or a recording; see `FrozenModel.describe`."""

    name: str
    family: str
    revision: str
    weights: str
    settings: str
    tokenizer: str
    marks: str
    layers: str
    dtype: str
    device: str
    site: str


class StimuliFacts(TypedDict, total=False):
    """What the provenance of a result says of its stimuli; see `of_stimuli.stimuli_facts`."""

    source: str
    count: int
    fingerprint: str
    confounded_with_words: list[str]


class PluginFacts(TypedDict):
    """A file of the user that a job ran: the typed name, and the digest of its content."""

    name: str
    sha256: str


class Provenance(TypedDict, total=False):
    """How a result was made. Results of earlier versions lack some of these entries."""

    seed: int
    models: list[ModelFacts]
    stimuli: StimuliFacts
    contrasts: StimuliFacts
    subjects: list[str]
    plugins: list[PluginFacts]
    inputs: dict[str, str]
    warnings: list[str]
    phases: dict[str, float]
    wall_seconds: float
    date: str
    command: str
    host: str
    versions: dict[str, str]
    git_commit: str
    threads: int
    peak_memory_bytes: int
    peak_gpu_bytes: int


class HeadlineRecord(TypedDict):
    """A `Headline` as result.json holds it."""

    name: str
    value: float
    low: NotRequired[float | None]
    high: NotRequired[float | None]
    of: NotRequired[int | None]
    at: NotRequired[str]


class ResultRecord(TypedDict):
    """The content of result.json, once it is checked.

    Attributes:
        kind: the kind of the job, such as stitching or cka.
        key: the hash of everything that can change the numbers.
        scalars: numbers of the whole result.
        settings: the settings that entered the key, nested as in the configuration.
        headlines: the most important numbers; older results have none.
        text_columns: the columns of each table that hold texts; older results have none.
    """

    kind: str
    key: str
    scalars: dict[str, float]
    # the values of settings are JSON of any form
    settings: dict[str, Any]
    provenance: Provenance
    headlines: NotRequired[list[HeadlineRecord]]
    text_columns: NotRequired[dict[str, list[str]]]


@contextlib.contextmanager
def errors_naming(file: Path) -> Iterator[None]:
    """Turn every error that a damaged or hostile file causes into a StoreError naming it."""
    try:
        yield
    except StoreError:
        raise
    except Exception as error:
        reason = one_line(error).removeprefix(f"{file} ") or type(error).__name__
        raise StoreError(f"{file} cannot be read ({reason})") from error


def read_json_of_result(file: Path) -> dict[str, object]:
    """Return the JSON object of a file of a result; every text in it can be encoded.

    Raises:
        OSError: The file is missing or cannot be read.
        ValueError: It is too large, or no JSON object.
    """
    content = read_bytes(file, MOST_JSON_BYTES, follow=False)
    value = json_object(content, file.name)

    # JSON can hold half of a surrogate pair, which neither files nor tables can.
    may_have_surrogates = b"\\ud" in content.lower()
    if may_have_surrogates:
        text = json.dumps(value, ensure_ascii=False)
        encodable: dict[str, object] = json.loads(text.encode(errors="replace"))
        return encodable
    return value


def checked_record(record: Mapping[str, object]) -> ResultRecord:
    """Return the content of result.json, of the types that everyone who reads it relies on.

    Raises:
        ForeignFileError: an entry is missing, or of another type or size.
    """
    for name in ("kind", "key"):
        if not isinstance(record.get(name), str):
            raise ForeignFileError(f"its {name} is not text")

    scalars = _json_object(record, "scalars")
    settings = _json_object(record, "settings")
    provenance = _json_object(record, "provenance")

    if not all(value is None or is_number(value) for value in scalars.values()):
        raise ForeignFileError("one of its scalars is not a number")
    # Lists have a column for each setting and each scalar.
    _check_count("settings", len(by_dotted_name(settings)), MOST_SETTINGS)
    _check_count("scalars", len(scalars), MOST_SCALARS)
    _check_headlines(record.get("headlines", []))
    _check_text_columns(_json_object(record, "text_columns"))
    _check_provenance(provenance)

    checked = {**record, "scalars": scalars, "settings": settings, "provenance": provenance}
    return cast(ResultRecord, checked)


def _json_object(record: Mapping[str, object], name: str) -> dict[str, object]:
    """Return the JSON object that a record has under this name; an empty one if it has none."""
    value = record.get(name, {})
    if not isinstance(value, dict):
        raise ForeignFileError(f"its {name} are not a JSON object")
    return value


def _check_count(name: str, count: int, most: int) -> None:
    """Raise a ForeignFileError if a record has too many entries of a name."""
    if count > most:
        raise ForeignFileError(f"it has {count:,} {name}, and at most {most:,} are allowed")


def _check_headlines(headlines: object) -> None:
    """Raise a ForeignFileError unless headlines are a list of names with numbers."""
    if not isinstance(headlines, list) or not all(map(_is_headline, headlines)):
        raise ForeignFileError("its headlines are not a list of names with numbers")
    _check_count("headlines", len(headlines), MOST_HEADLINES)


def _check_text_columns(text_columns: Mapping[str, object]) -> None:
    """Raise a ForeignFileError unless the value of each table is a list of names."""
    for names in text_columns.values():
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise ForeignFileError("its text_columns are not lists of names")


def _check_provenance(provenance: Mapping[str, object]) -> None:
    """Raise a ForeignFileError if an entry of the provenance is of a wrong type."""
    models = provenance.get("models", [])
    if not isinstance(models, list) or not all(map(_has_name, models)):
        raise ForeignFileError("its models are not a list of JSON objects with names")
    phases = provenance.get("phases", {})
    if not isinstance(phases, dict) or not all(map(is_number, phases.values())):
        raise ForeignFileError("its phases are not numbers")
    if not isinstance(provenance.get("versions", {}), dict):
        raise ForeignFileError("its versions are not a JSON object")
    for name in ("warnings", "subjects"):
        texts = provenance.get(name, [])
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise ForeignFileError(f"its {name} are not a list of texts")
    if "date" in provenance and not _is_date(provenance["date"]):
        raise ForeignFileError(f"its date {short(provenance['date'])} is not a date")


def _has_name(model: object) -> bool:
    """Return whether a value is a JSON object with a name."""
    return isinstance(model, dict) and "name" in model


def _is_headline(entry: object) -> bool:
    """Return whether an entry of result.json has the fields of a `HeadlineRecord`."""
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
        return False
    if not is_number(entry.get("value")):
        return False
    for end in ("low", "high"):
        if entry.get(end) is not None and not is_number(entry[end]):
            return False
    total = entry.get("of")
    if total is not None and not (is_number(total) and float(total).is_integer()):
        return False
    return isinstance(entry.get("at", ""), str)


def _is_date(value: object) -> bool:
    """Return whether a value is a date in ISO format, by which lists can sort."""
    if not isinstance(value, str):
        return False
    try:
        date = datetime.fromisoformat(value)
        if date.tzinfo is not None:
            date.astimezone(UTC)  # fails at the end of the calendar
    except (ValueError, OverflowError):
        return False
    return True


def is_number(value: object) -> TypeGuard[int | float]:
    """Return whether a value is a number that a float can hold; a truth value is not a number.

    NaN and infinity are numbers.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    if isinstance(value, int):
        return abs(value) < LARGEST_NUMBER
    return True


def by_dotted_name(settings: Mapping[str, object]) -> dict[str, object]:
    """Return nested settings by their dotted names: {"data.context": 64} for {"data": {...}}.

    Raises:
        ForeignFileError: two settings have the same dotted name.
    """
    by_name = flat(settings)
    if len(by_name) < _count_of_values(settings):
        raise ForeignFileError(
            "two of its settings have the same dotted name, as {a: {b: 1}, a.b: 2} has"
        )
    return by_name


def _count_of_values(settings: Mapping[str, object]) -> int:
    """Return how many values nested settings have, not counting the mappings that hold them."""
    count = 0
    for value in settings.values():
        if isinstance(value, Mapping):
            count += _count_of_values(value)
        else:
            count += 1
    return count


def check_writable(value: object) -> None:
    """Check that a configuration consists of types that every list of results can write.

    YAML also has dates, sets, bytes, keys that are lists, and integers of any length.

    Raises:
        ForeignFileError: some value or name is of another type.
    """
    if isinstance(value, dict):
        for name, member in value.items():
            if not isinstance(name, str):
                name_type = type(name).__name__
                raise ForeignFileError(f"one of its names is of type {name_type}, not text")
            check_writable(member)
    elif isinstance(value, list):
        for member in value:
            check_writable(member)
    elif not (value is None or isinstance(value, bool | str) or is_number(value)):
        value_type = type(value).__name__
        raise ForeignFileError(
            f"one of its values is of type {value_type}, not text, a truth value or a number"
        )
