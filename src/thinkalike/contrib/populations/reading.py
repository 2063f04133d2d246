"""From a configuration to pairs of sentences."""

from __future__ import annotations

from functools import lru_cache

from thinkalike.contrib.populations.config import PairsConfig
from thinkalike.contrib.populations.pairs import Pairs, hub_pairs, pairs_in
from thinkalike.contrib.populations.templates import nli_challenge, nli_training
from thinkalike.data.tables import changed_at
from thinkalike.errors import ConfigError

WHOLE = "challenge"  # the name of the whole of a challenge


def read_pairs(config: PairsConfig, side: str) -> Pairs:
    """Return the pairs to fit on, to report on, or of the whole challenge.

    No pair is both fitted and reported on: where files and the hub repeat a pair to fit on, up to case and white space,
    it is left out of the report, and counted in `repeated`.

    Raises:
        ConfigError: source=files, and there is no file for this side.
        DataError: pairs cannot be read, or all of them are also fitted on.
    """
    if config.source == "templates":
        return _from_templates(config, side)
    pairs = _whole(config.source, side, getattr(config, side))
    if side != "fit" and (config.fit or config.source == "hub"):
        pairs = pairs.without(*_fitted(config.source, config.fit, changed_at(config.fit)))
    count = getattr(config, f"{side}_pairs")
    return pairs.sample(min(count, len(pairs)), config.seed) if count else pairs


def _whole(source: str, side: str, path: str | None) -> Pairs:
    """Return all pairs that the hub or a file has for a side."""
    name = "hans" if side == "challenge" else "mnli"
    if source == "hub":
        return hub_pairs(name, "train" if side == "fit" else None)
    if not path:
        raise ConfigError(f"pairs=files needs pairs.{side}=FILE")
    return pairs_in(path, name)


@lru_cache(maxsize=1)
def _fitted(source: str, path: str | None, changed: int | None) -> tuple[frozenset[str], str]:
    """Return the canonical pairs to fit on and their source, read once for all sides and jobs."""
    pairs = _whole(source, "fit", path)
    return frozenset(pairs.canonical()), pairs.source


def _from_templates(config: PairsConfig, side: str) -> Pairs:
    """Fitted and reported pairs are of one draw, in which no pair occurs twice."""
    fit, report = int(config.fit_pairs or 0), int(config.report_pairs or 0)
    if side == "challenge":
        return nli_challenge(int(config.challenge_pairs or 0), config.seed + 1)
    drawn = nli_training(fit + report, config.seed, config.counterexamples, config.lexical)
    return drawn.take(range(fit) if side == "fit" else range(fit, fit + report))


def parts_of(challenge: Pairs) -> dict[str, list[int]]:
    """Return the rows of each heuristic, label, and both, of a challenge, and of all of it."""
    rows: dict[str, list[int]] = {WHOLE: list(range(len(challenge)))}
    for row, (heuristic, place) in enumerate(zip(challenge.heuristics, challenge.labels.tolist(), strict=True)):
        label = challenge.classes[place]
        for name in (heuristic, label, f"{heuristic}, {label}"):
            rows.setdefault(name, []).append(row)
    return rows
