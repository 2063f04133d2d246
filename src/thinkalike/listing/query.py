"""Which results a user asks for: `kind=cka,mknn model=gelu-3l-mini since=7d sort=mean_cka`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

from thinkalike.errors import ConfigError, StoreError, nearest
from thinkalike.listing.found import Entry, Found

KEYS = ("store", "kind", "model", "since", "sort")
FLAGS = ("--csv", "--json")
UNITS = {"h": timedelta(hours=1), "d": timedelta(days=1), "w": timedelta(weeks=1)}
ORDERS = {
    "date": lambda entry: entry.date.timestamp(),
    "duration": lambda entry: entry.seconds,
    "models": lambda entry: entry.models,
    "kind": lambda entry: entry.kind,
}


@dataclass(frozen=True)
class Query:
    """Which results of which store, in what order, and in which form.

    Attributes:
        kinds, models: any of these; all where there are none.
        since: when the oldest was finished.
        order: one of `ORDERS`, or the name of a headline number.
        form: text | csv | json.
    """

    store: Path = Path("results")
    kinds: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    since: datetime | None = None
    order: str = "date"
    form: str = "text"

    @classmethod
    def parsed(cls, words: Sequence[str]) -> Query:
        """Read the words of a command line.

        Raises:
            ConfigError: a word is not known, is said twice, or cannot be read.
        """
        said: dict[str, str] = {}
        for word in words:
            key, mark, value = ("form", "=", word[2:]) if word in FLAGS else word.partition("=")
            if not mark:
                key, value = "store", word
            if word.startswith("-") and word not in FLAGS:
                raise ConfigError(f"{word} is not known; {nearest(word, FLAGS)}")
            if key not in (*KEYS, "form"):
                raise ConfigError(f"'{key}' is not a setting of results; {nearest(key, KEYS)}")
            if key in said or not value:
                raise ConfigError(f"{word} must be said once, and with a value: thinkalike results [STORE] kind=cka")
            said[key] = value
        return cls(
            Path(said.get("store", "results")).expanduser(),
            _names(said.get("kind", "")),
            _names(said.get("model", "")),
            moment(said["since"]) if "since" in said else None,
            said.get("sort", "date"),
            said.get("form", "text"),
        )


def moment(text: str, now: datetime | None = None) -> datetime:
    """Return the moment that a text means: a date such as 2026-11-01, or so many hours, days or weeks ago, as 7d.

    A date without a time zone is in UTC.

    Raises:
        ConfigError: it means none.
    """
    try:
        if ago := re.fullmatch(r"(\d+)([hdw])", text):
            return (now or datetime.now(timezone.utc)) - int(ago[1]) * UNITS[ago[2]]
        date = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise ConfigError(f"since={text} is no date; give one, such as 2026-11-01, or 12h, 7d or 2w") from None
    return date if date.tzinfo else date.replace(tzinfo=timezone.utc)


def selected(found: Found, query: Query) -> list[Entry]:
    """Return the results that a user asks for, in the order that was asked for.

    Raises:
        ConfigError: a kind or a model is in no result, or nothing is called as the order is.
        StoreError: the store holds no results, or none that were asked for.
    """
    entries = found.entries
    if not entries:
        waiting = f", and {len(found.unfinished)} unfinished" if found.unfinished else ""
        raise StoreError(f"the store {found.store} holds no finished results{waiting}; python train.py makes one")
    _check("kind", query.kinds, {entry.kind for entry in entries}, found)
    _check("model", query.models, {model for entry in entries for model in entry.models}, found)
    chosen = [entry for entry in entries if _asked_for(entry, query)]
    if not chosen:
        raise StoreError(f"no result of {found.store} is all that was asked for; leave out kind=, model= or since=")
    if query.order in ORDERS:
        return sorted(chosen, key=ORDERS[query.order])
    names = {each.name for entry in chosen for each in entry.headlines}
    if query.order not in names:
        raise ConfigError(f"sort={query.order} is not known; {nearest(query.order, {*ORDERS, *names})}")
    return sorted(chosen, key=lambda entry: _number(entry, query.order))


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.split(",") if name)


def _asked_for(entry: Entry, query: Query) -> bool:
    kind = not query.kinds or entry.kind in query.kinds
    model = not query.models or bool(set(query.models) & set(entry.models))
    return kind and model and (query.since is None or entry.date >= query.since)


def _check(key: str, given: Iterable[str], there: set[str], found: Found) -> None:
    for value in given:
        if value not in there:
            raise ConfigError(f"{key}={value} is in no result of {found.store}; {nearest(value, there)}")


def _number(entry: Entry, name: str) -> tuple[bool, float]:
    """Return what sorts by a headline number, those that lack it first."""
    numbers = {each.name: each.value for each in entry.headlines}
    return name in numbers, numbers.get(name, 0.0)
