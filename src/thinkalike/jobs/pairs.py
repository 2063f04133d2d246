"""Pairs for classifiers: what a configuration says of them, and what a model gets right."""

from __future__ import annotations

from thinkalike.config import PairsConfig
from thinkalike.data import Pairs, hub_pairs, nli_challenge, nli_training, read_hans, read_mnli
from thinkalike.errors import ConfigError

WHOLE = "challenge"  # the name of all of it


def read_pairs(config: PairsConfig, side: str) -> Pairs:
    """The pairs to fit on, to report on, or of the challenge: the whole of it, whichever part is reported on.

    Raises:
        ConfigError: source=files, and there is no file for this side.
        DataError: pairs cannot be had or read.
    """
    count = getattr(config, f"{side}_pairs")
    if config.source == "templates":
        return _templates(config, side)
    if config.source == "files":
        path = getattr(config, side)
        if not path:
            raise ConfigError(f"pairs=files needs pairs.{side}=FILE")
        found = read_hans(path) if side == "challenge" else read_mnli(path)
    else:
        found = hub_pairs(*{"fit": ("mnli", "train"), "report": ("mnli",), "challenge": ("hans",)}[side])
    return found.sample(min(count, len(found)), config.seed) if count else found


def _templates(config: PairsConfig, side: str) -> Pairs:
    """Fitted and reported pairs are of one draw, in which no pair is there twice."""
    fit, report = int(config.fit_pairs or 0), int(config.report_pairs or 0)
    if side == "challenge":
        return nli_challenge(int(config.challenge_pairs or 0), config.seed + 1)
    drawn = nli_training(fit + report, config.seed, config.counterexamples)
    return drawn.take(range(fit) if side == "fit" else range(fit, fit + report))


def asked(config: PairsConfig, challenge: Pairs) -> Pairs:
    """The part of the challenge that is reported on.

    Raises:
        DataError: there is no such part.
    """
    return challenge.select(config.label, config.heuristic)


def part_name(config: PairsConfig) -> str:
    """What `parts_of` calls the part of the challenge that is reported on."""
    return ", ".join(filter(None, (config.heuristic, config.label))) or WHOLE


def parts_of(challenge: Pairs) -> dict[str, list[int]]:
    """The rows of each heuristic, label, and both, of a challenge, and of all of it."""
    found: dict[str, list[int]] = {WHOLE: list(range(len(challenge)))}
    for row, (heuristic, place) in enumerate(zip(challenge.heuristics, challenge.labels.tolist(), strict=True)):
        label = challenge.classes[place]
        for name in (heuristic, label, f"{heuristic}, {label}"):
            found.setdefault(name, []).append(row)
    return found
