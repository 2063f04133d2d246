"""The pairs that a configuration names: to fit on, to report on, and the challenge."""

from __future__ import annotations

from functools import lru_cache
from typing import Literal, NamedTuple

from thinkalike.contrib.populations.config import PairsConfig
from thinkalike.contrib.populations.pair_files import hub_pairs, pairs_in
from thinkalike.contrib.populations.pair_templates import HEURISTICS, nli_challenge, nli_training
from thinkalike.contrib.populations.pairs import HANS_CLASSES, Pairs
from thinkalike.digests import content_key
from thinkalike.errors import ConfigError

PairSplit = Literal["fit", "report", "challenge"]
"""Which pairs: for training, held out, or made to test whether a model relies on a heuristic."""

TOKENS_PER_PAIR = 40  # of MNLI, on average
# How many pairs the published data sets have: training and matched held-out set of MNLI, and HANS.
PUBLISHED_PAIRS = {"fit": 392_702, "report": 9_815, "challenge": 30_000}


class TrainingPairs(NamedTuple):
    """What is needed to recognise copies of the pairs that classifiers are trained on.

    Attributes:
        normalised_texts: Each pair as one normalised text, see `Pairs.canonical`.
        source: What messages call the set of these pairs.
    """

    normalised_texts: frozenset[str]
    source: str


def read_pairs(config: PairsConfig, split: PairSplit) -> Pairs:
    """Return the pairs of sentences of one split: for training, held out, or the challenge set.

    Pairs that are generated from templates are never in two splits. From files or from the
    Hugging Face hub, a pair that also occurs in the pairs for training, up to case and white
    space, is left out of both other splits. (Files may be given without pairs for training; then
    nothing is left out.) If the settings limit the number of pairs, a random sample is returned.

    Args:
        config: Where pairs come from, and how many there are in each split.
        split: "fit" for training, "report" for held-out pairs, or "challenge" for pairs made to
            test whether a classifier relies on a heuristic, such as word overlap.
    """
    if config.source == "templates":
        return _generated_pairs(config, split)

    path = getattr(config, split)
    pairs = _read_all_pairs(config.source, split, path)
    has_training_pairs = config.source == "hub" or bool(config.fit)
    if split != "fit" and has_training_pairs:
        # The function is cached. With the hash of the file, a file that has changed is read again.
        content_hash = content_key(config.fit)
        training = _training_pairs(config.source, config.fit, content_hash)
        pairs = pairs.without(training.normalised_texts, training.source)
    most_pairs = getattr(config, f"{split}_pairs")
    if most_pairs is None:
        return pairs
    return pairs.sample(min(most_pairs, len(pairs)), config.seed)


def _generated_pairs(config: PairsConfig, split: PairSplit) -> Pairs:
    """Return pairs of sentences that are generated from templates, for one of three splits.

    Pairs for training ("fit") and held-out pairs ("report") are the two parts of one draw, in
    which no pair occurs twice. No sentence of the challenge set ("challenge") occurs in them, as a
    hash decides for each sentence whether it may be in the challenge set. The settings say how
    many pairs each split has.
    """
    n_fit = config.fit_pairs
    n_report = config.report_pairs
    n_challenge = config.challenge_pairs
    # `PairsConfig` refuses None, which stands for all pairs, if pairs are generated.
    assert n_fit is not None
    assert n_report is not None
    assert n_challenge is not None
    if split == "challenge":
        # Another seed than that of the other splits, so that the draws are independent.
        return nli_challenge(n_challenge, seed=config.seed + 1)
    # The last two settings are shares of pairs: of counterexamples to the heuristic "same words,
    # therefore entailed", and of pairs from templates of the challenge set.
    drawn = nli_training(n_fit + n_report, config.seed, config.counterexamples, config.lexical)
    if split == "fit":
        return drawn.take(range(n_fit))
    return drawn.take(range(n_fit, n_fit + n_report))


def _read_all_pairs(source: str, split: PairSplit, path: str | None) -> Pairs:
    """Return all pairs of one split, from the Hugging Face hub or from a file.

    Args:
        source: "hub" or "files".
        split: "fit" (training) and "report" (held out) are pairs of MNLI, "challenge" of HANS.
        path: The file, if the source is "files".

    Raises:
        ConfigError: The source is "files", and no file is given.
    """
    data_set = "hans" if split == "challenge" else "mnli"
    if source == "hub":
        hub_split = "train" if split == "fit" else None  # None: the usual split for evaluation
        return hub_pairs(data_set, hub_split)
    if not path:
        raise ConfigError(f"pairs=files needs pairs.{split}=FILE")
    return pairs_in(path, data_set)


@lru_cache(maxsize=1)
def _training_pairs(source: str, path: str | None, content: str) -> TrainingPairs:
    """Return the normalised texts of all sentence pairs of the training split.

    By these, copies of training pairs are recognised in the other splits, each of which needs
    them, so that they are cached.

    Args:
        source: "hub" or "files".
        path: The file, if the source is "files".
        content: A hash of the file's content, or of nothing for the hub. It is only a key of the
            cache, so that a changed file is read again.
    """
    pairs = _read_all_pairs(source, "fit", path)
    return TrainingPairs(frozenset(pairs.normalised_texts()), pairs.source)


def count_tokens(config: PairsConfig, split: PairSplit) -> float:
    """Return about how many tokens the pairs of one split ("fit", "report" or "challenge") have.

    For the challenge set, only pairs of the chosen heuristic and label are counted (or all, if no
    heuristic is chosen). Heuristics and labels are assumed to be equally frequent. If the settings
    do not limit the number of pairs, it is that of the published data, MNLI or HANS.
    """
    n_pairs = getattr(config, f"{split}_pairs") or PUBLISHED_PAIRS[split]
    if split == "challenge" and config.heuristic:
        # The setting limits the number; the published set has no more pairs to choose from.
        n_challenge_pairs = min(n_pairs, PUBLISHED_PAIRS[split])
        tokens = TOKENS_PER_PAIR * n_challenge_pairs / len(HEURISTICS)
        if config.label:
            tokens /= len(HANS_CLASSES)  # the labels of the challenge
        return tokens
    return float(TOKENS_PER_PAIR * n_pairs)
