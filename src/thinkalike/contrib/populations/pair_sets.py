"""The pairs that a configuration names: to fit on, to report on, and the challenge."""

from __future__ import annotations

from functools import lru_cache
from typing import Literal, NamedTuple

from thinkalike.contrib.populations.config import PairsConfig
from thinkalike.contrib.populations.pair_files import hub_pairs, pairs_in
from thinkalike.contrib.populations.pair_templates import HEURISTICS, nli_challenge, nli_training
from thinkalike.contrib.populations.pairs import HANS, Pairs
from thinkalike.digests import content_key
from thinkalike.errors import ConfigError

Side = Literal["fit", "report", "challenge"]

TOKENS_PER_PAIR = 40  # of MNLI, on average
PUBLISHED_PAIRS = {"fit": 392_702, "report": 9_815, "challenge": 30_000}  # of MNLI and HANS


class FitPairs(NamedTuple):
    """The pairs to fit on, in the form in which copies are recognised, and where they are from."""

    canonical: frozenset[str]
    source: str


def read_pairs(config: PairsConfig, side: Side) -> Pairs:
    """Return the pairs of sentences of one side: for training, held out, or the challenge.

    Pairs of files or of the hub are left out of the other sides if they also occur, up to case and
    white space, in the pairs for training. (Files may be given without pairs for training.)

    Args:
        config: Where pairs come from, and how many there are of each side.
        side: "fit" for training, "report" for held-out pairs, "challenge" for all pairs of the
            challenge.
    """
    if config.source == "templates":
        return _from_templates(config, side)

    pairs = _read_whole(config.source, side, getattr(config, side))
    if side != "fit" and (config.fit or config.source == "hub"):
        fit_pairs = _fit_pairs(config.source, config.fit, content_key(config.fit))
        pairs = pairs.without(fit_pairs.canonical, fit_pairs.source)
    count = getattr(config, f"{side}_pairs")
    if count is None:
        return pairs
    return pairs.sample(min(count, len(pairs)), config.seed)


def _from_templates(config: PairsConfig, side: Side) -> Pairs:
    """Return pairs that are generated from templates.

    Pairs for training ("fit") and held-out pairs ("report") are the two parts of one draw, in
    which no pair occurs twice. The challenge has sentences that occur in neither.
    """
    n_fit = int(config.fit_pairs or 0)
    n_report = int(config.report_pairs or 0)
    if side == "challenge":
        return nli_challenge(int(config.challenge_pairs or 0), config.seed + 1)
    drawn = nli_training(n_fit + n_report, config.seed, config.counterexamples, config.lexical)
    if side == "fit":
        return drawn.take(range(n_fit))
    return drawn.take(range(n_fit, n_fit + n_report))


def _read_whole(source: str, side: Side, path: str | None) -> Pairs:
    """Return all pairs of one side, from the hub or from a file.

    Args:
        source: "hub" or "files".
        side: "fit" and "report" are pairs of MNLI, "challenge" of HANS.
        path: The file, if the source is "files".

    Raises:
        ConfigError: The source is files, and no file is given.
    """
    name = "hans" if side == "challenge" else "mnli"
    if source == "hub":
        split = "train" if side == "fit" else None
        return hub_pairs(name, split)
    if not path:
        raise ConfigError(f"pairs=files needs pairs.{side}=FILE")
    return pairs_in(path, name)


@lru_cache(maxsize=1)
def _fit_pairs(source: str, path: str | None, content: str) -> FitPairs:
    """Return the pairs to fit on, which are read once for all sides and jobs.

    Args:
        source: "hub" or "files".
        path: The file, if the source is "files".
        content: A key of the file's content. It is unused except as a key of the cache, so that a
            changed file is read again.
    """
    pairs = _read_whole(source, "fit", path)
    return FitPairs(frozenset(pairs.canonical()), pairs.source)


def count_tokens(config: PairsConfig, side: Side) -> float:
    """Return about how many tokens the pairs of one side ("fit", "report" or "challenge") have.

    For the challenge, only pairs of the chosen heuristic and label are counted. Heuristics and
    labels are assumed to be equally frequent.
    """
    n_pairs = getattr(config, f"{side}_pairs") or PUBLISHED_PAIRS[side]
    if side == "challenge" and config.heuristic:
        tokens = TOKENS_PER_PAIR * min(n_pairs, PUBLISHED_PAIRS[side]) / len(HEURISTICS)
        if config.label:
            tokens /= len(HANS)
        return tokens
    return float(TOKENS_PER_PAIR * n_pairs)
