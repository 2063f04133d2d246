"""Which results of a store a user asks for, and in what order."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from thinkalike.errors import ConfigError, StoreError, checked_path, in_home, nearest, one_of
from thinkalike.files import is_folder
from thinkalike.listing.differing import with_differing
from thinkalike.listing.store_content import ListedResult, StoreContent

KEYS = ("store", "kind", "model", "sort")
DEFAULT_STORE = "results"


def nan_last(number: float) -> tuple[bool, float]:
    """Return a sort key that puts NaN last, which is neither less nor more than any number."""
    if math.isnan(number):
        return True, 0.0
    return False, number


# the key of an entry by which results are sorted
ORDERS: dict[str, Callable[[ListedResult], str | list[str] | datetime | tuple[bool, float]]] = {
    "date": lambda entry: entry.date,
    "duration": lambda entry: nan_last(entry.seconds),
    "models": lambda entry: entry.models,
    "kind": lambda entry: entry.result.kind,
}


@dataclass(frozen=True)
class Query:
    """Which results of which store, and in what order.

    Attributes:
        store: the folder of the store.
        kinds: the kinds of jobs; empty for all.
        models: results of any of these models; empty for all.
        order: one of `ORDERS`, or the name of a headline number.
    """

    store: Path = Path(DEFAULT_STORE)
    kinds: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    order: str = "date"

    @classmethod
    def parsed(cls, words: Sequence[str]) -> Query:
        """Return the query of a command line; a word without a key is the store."""
        stores, settings = stores_and_settings(words)
        values = _filters_by_key(settings)

        if "store" in values:
            stores = list(dict.fromkeys([*stores, values["store"]]))
        if len(stores) > 1:
            raise ConfigError(
                f"{stores[0]} and {stores[1]} are two stores; name one here "
                "(thinkalike report STORE STORE shows several)"
            )
        store = DEFAULT_STORE
        if stores:
            store = stores[0]
        return cls(
            store=in_home(checked_path("store", store)),
            kinds=_listed_values(values, "kind"),
            models=_listed_values(values, "model"),
            order=values.get("sort", "date"),
        )


def _filters_by_key(settings: Sequence[str]) -> dict[str, str]:
    """Return the values of settings such as `kind=cka` by their keys."""
    values: dict[str, str] = {}
    for setting in settings:
        key, _, value = setting.partition("=")
        if key not in KEYS:
            raise ConfigError(f"'{key}' is not a setting of this command; {nearest(key, KEYS)}")
        if not value:
            raise ConfigError(f"{key}= has no value; give one, or leave it out")
        first_value = values.setdefault(key, value)
        if value != first_value:
            remedy = "leave one of them out"
            if key in ("kind", "model"):
                remedy = f"give {key}={first_value},{value}"
            raise ConfigError(f"{key}={first_value} and {key}={value} are given; {remedy}")
    return values


def _listed_values(values: dict[str, str], key: str) -> tuple[str, ...]:
    """Return the values that `kind=cka,r2` lists."""
    items = values.get(key, "").split(",")
    return tuple(item for item in items if item)


def stores_and_settings(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the folders that a command line names, each once, and its settings `key=value`.

    A folder may be called a=b.
    """
    stores: list[str] = []
    settings: list[str] = []
    for word in words:
        key, equals_sign, _ = word.partition("=")
        if not equals_sign or (key not in KEYS and is_folder(in_home(word))):
            stores.append(word)
        else:
            settings.append(word)
    return list(dict.fromkeys(stores)), settings


def selected(content: StoreContent, query: Query) -> list[ListedResult]:
    """Return the results that a query asks for, in its order, with the settings that differ.

    A result whose configuration cannot be read is added to `content.skipped`.

    Raises:
        ConfigError: no result is of such a kind or model, or the order is unknown.
        StoreError: there are no such results.
    """
    known_models = {name for entry in content.entries for name in entry.models}
    whole_value = ",".join(query.models)
    if whole_value in known_models:  # the name of one model, which has commas
        query = replace(query, models=(whole_value,))
    _check_known(content, query)
    requested = [entry for entry in content.entries if _matches(entry, query)]
    readable = with_differing(requested, content.skipped)
    if not readable:
        raise StoreError(_nothing_found(content, is_excluded=not requested))
    return _in_order(readable, query.order)


def _check_known(content: StoreContent, query: Query) -> None:
    """Check that each kind and each model of a query is that of some result."""
    if not content.entries:
        return
    known_kinds = {entry.result.kind for entry in content.entries}
    known_models = {name for entry in content.entries for name in entry.models}
    _check_in_store(content.store, "kind", query.kinds, known_kinds)
    _check_in_store(content.store, "model", query.models, known_models)


def _check_in_store(
    store: Path, key: str, values: Collection[str], known: Collection[str]
) -> None:
    for value in values:
        if value not in known:
            raise ConfigError(f"{key}={value} is in no result of {store}; {nearest(value, known)}")


def _matches(entry: ListedResult, query: Query) -> bool:
    if query.kinds and entry.result.kind not in query.kinds:
        return False
    return not query.models or not set(query.models).isdisjoint(entry.models)


def _nothing_found(content: StoreContent, is_excluded: bool) -> str:
    """Return the message that a store has no results as requested.

    Args:
        is_excluded: whether the query excludes all results, and not their damage.
    """
    message = f"the store {content.store} holds no such finished results"
    if content.unfinished:
        message += f", and {len(content.unfinished)} unfinished"
    if content.entries and is_excluded:
        remedy = "leave out kind= or model="
    elif content.skipped:
        remedy = content.skipped[0]
    else:
        remedy = "run a job first"
    return f"{message}; {remedy}"


def _in_order(entries: Sequence[ListedResult], order: str) -> list[ListedResult]:
    """Return results by one of `ORDERS`, or by a headline number; those without it come first."""
    if order in ORDERS:
        return sorted(entries, key=ORDERS[order])  # type: ignore[arg-type]  # one order has keys of one type
    headline_names = {headline.name for entry in entries for headline in entry.headlines}
    one_of("sort", order, {*ORDERS, *headline_names})
    return sorted(entries, key=lambda entry: nan_last(entry.numbers.get(order, -math.inf)))
