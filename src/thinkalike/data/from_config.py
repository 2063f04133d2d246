"""From a configuration to data: rows of tokens, pairs of sentences, stimuli."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from functools import lru_cache
from pathlib import Path

from thinkalike.config import PairsConfig, StimuliConfig
from thinkalike.data.conllu import read_conllu
from thinkalike.data.pairs import Pairs, hub_pairs, pairs_in
from thinkalike.data.stimuli import Stimuli, chosen, controlled_stimuli, crossed_stimuli
from thinkalike.data.tables import read_table
from thinkalike.data.templates import nli_challenge, nli_training
from thinkalike.errors import ConfigError

WHOLE = "challenge"  # the name of the whole of a challenge


def read_stimuli(config: StimuliConfig) -> Stimuli:
    """Return the stimuli that a configuration describes; the last ones are kept as long as their file stays as it is.

    Raises:
        DataError: a file is missing, damaged or lacks something, or there are too few stimuli for the sample.
    """
    return _stimuli(json.dumps(asdict(config)), _changed(config.path))


@lru_cache(maxsize=2)
def _stimuli(settings: str, _: int | None) -> Stimuli:
    config = StimuliConfig(**json.loads(settings))
    if config.kind in ("controlled", "crossed"):
        is_crossed, count = config.kind == "crossed", config.sentences or 400
        stimuli = crossed_stimuli() if is_crossed else controlled_stimuli(count, config.seed, config.grammar)
        names = chosen(stimuli.source, config.features, stimuli.names)
        stimuli = replace(stimuli, features=stimuli.features[names], kinds=config.kinds or {})
    elif config.kind == "conllu":
        stimuli = read_conllu(str(config.path), features=config.features, kinds=config.kinds)
    else:
        stimuli = read_table(str(config.path), features=config.features, kinds=config.kinds, columns=config.columns)
    return stimuli.sample(config.sample, config.seed, config.balance) if config.sample else stimuli


def _changed(path: str | None) -> int | None:
    """Return when a file was last changed, in ns, if there is one."""
    return Path(path).stat().st_mtime_ns if path and Path(path).exists() else None


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
        pairs = pairs.without(*_fitted(config.source, config.fit, _changed(config.fit)))
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
