"""How often nulls of RSA and MLEM raise false alarms, and intervals of importance, probes and steering hold the truth.

    python benchmarks/feature_calibration.py mantel     share of p ≤ .05 of RSA where layers have nothing in common
    python benchmarks/feature_calibration.py null       the same of MLEM for features that mean nothing
    python benchmarks/feature_calibration.py folds      coverage of intervals of importance and ρ over folds
    python benchmarks/feature_calibration.py references coverage of intervals of split-half references
    python benchmarks/feature_calibration.py groups     coverage of intervals of probes and steering over groups
    python benchmarks/feature_calibration.py mantel --draws 60

Each prints one table, on one thread, in a minute or two with the default of 10 data sets. States of words are the sum
of an effect of their sentence, which has a given share of the variance, and of noise of their own. Sentences have the
same number of words, or from 1 to one less than twice it.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from thinkalike.contrib.transfer.steering_vectors import jackknifed_mean_effects
from thinkalike.measures import MLEM, feature_importance, mantel, split_half_reference
from thinkalike.measures.accuracy import balanced_accuracies

SHARES, LENGTHS = (0.0, 0.1, 0.3, 0.5), ("equal", "unequal")
PERMUTATIONS, LAYERS, TOGETHER = 19, 24, 3  # p ≤ .05 is 1 of 20; layers, and how many of them share a largest value
NEAR = 1e-9
GROUPS, NATIVE, CARRIED = (8, 16, 40), 0.8416, 0.5244  # quantiles .8 and .7 of the normal distribution


def sentences_of(lengths: str, count: int, words: int, draw: torch.Generator) -> Tensor:
    """Return the sentence of each word."""
    sizes = torch.full((count,), words)
    if lengths == "unequal":
        sizes = torch.randint(1, 2 * words, (count,), generator=draw)
    return torch.arange(count).repeat_interleave(sizes)


def noise(sentences: Tensor, share: float, width: int, draw: torch.Generator) -> Tensor:
    """Return states of variance 1, of which the sentence has this share."""
    shared, own = (torch.randn(len(sentences), width, generator=draw, dtype=torch.float64) for _ in range(2))
    return share**0.5 * shared[sentences] + (1 - share) ** 0.5 * own


def cells(draws: int) -> Iterator[tuple[str, float, Iterator[torch.Generator]]]:
    """Yield lengths, shares, and a generator for each data set, a different one in each cell."""
    for number, (lengths, share) in enumerate((lengths, share) for lengths in LENGTHS for share in SHARES):
        yield lengths, share, (torch.Generator().manual_seed(10**6 * number + k) for k in range(draws))


def of_mantel(draws: int) -> None:
    """Print the share of p ≤ .05 of RSA for each layer pair, and of the largest of nine; 40 sentences of 4 words."""
    print("| lengths | share | a layer pair | the largest of nine | no groups |\n|---|---|---|---|---|")
    for lengths, share, generators in cells(draws):
        found = []
        for draw in generators:
            sentences = sentences_of(lengths, 40, 4, draw)
            sides = [[noise(sentences, share, 8, draw) for _ in range(3)] for _ in range(2)]
            test = mantel(*sides, permutations=PERMUTATIONS, seed=draw.initial_seed(), groups=sentences)
            alone = mantel(*sides, permutations=PERMUTATIONS, seed=draw.initial_seed()).p
            of_pairs, largest, single = (each <= 0.05 + NEAR for each in (test.p, test.p_of_largest, alone))
            found.append(torch.stack([of_pairs.double().mean(), largest.any().double(), single.double().mean()]))
        print(f"| {lengths} | {share:g} | {shown(torch.stack(found).mean(0))} |", flush=True)


def features(sentences: Tensor, draw: torch.Generator) -> Tensor:
    """Return a feature of words that matters, and three that do not: of sentences, of words, mostly of sentences."""
    count, n = int(sentences.max()) + 1, len(sentences)
    relevant, word = (torch.randint(levels, (n,), generator=draw) for levels in (3, 2))
    constant, mostly = (torch.randint(2, (count,), generator=draw)[sentences] for _ in range(2))
    mixed = torch.where(torch.rand(n, generator=draw) < 0.7, mostly, torch.randint(2, (n,), generator=draw))
    return torch.stack([relevant, constant, word, mixed], 1).double()


def layers_of(table: Tensor, sentences: Tensor, share: float, number: int, draw: torch.Generator) -> list[Tensor]:
    """Return layers that know the first feature and nothing else."""
    known = 1.5 * torch.eye(3, 6, dtype=torch.float64)[table[:, 0].long()]
    return [known + noise(sentences, share, 6, draw) for _ in range(number)]


def data_set(lengths: str, count: int, share: float, draw: torch.Generator) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Return the sentence of each word, about three words each, the words' features, and the states of `LAYERS`."""
    sentences = sentences_of(lengths, count, 3, draw)
    table = features(sentences, draw)
    return sentences, table, layers_of(table, sentences, share, LAYERS, draw)


def of_null(draws: int) -> None:
    """Print the share of p ≤ .05 of MLEM, by feature, and of the largest of three layers; 30 sentences of 3 words.

    A data set has 24 layers, which are independent given the features.
    """
    print("| lengths | share | relevant | of sentences | of words | mostly of sentences | any of the last three |")
    print("|---|---|---|---|---|---|---|")
    for lengths, share, generators in cells(draws):
        found = []
        for draw in generators:
            sentences, table, layers = data_set(lengths, 30, share, draw)
            options = {"folds": 2, "permutations": 1, "groups": sentences, "seed": draw.initial_seed()}
            test = feature_importance(MLEM(alpha=1.0), table, layers, null=PERMUTATIONS, **options)
            of_features = (test.p_values() <= 0.05 + NEAR).double().mean(0)
            parts = [slice(first, first + TOGETHER) for first in range(0, LAYERS, TOGETHER)]
            largest = [replace(test, drops=test.drops[p], null=test.null[:, p]).p_of_largest() for p in parts]
            false = torch.tensor([bool((each[:, 1:] <= 0.05 + NEAR).any()) for each in largest])
            found.append(torch.cat([of_features, false.double().mean()[None]]))
        print(f"| {lengths} | {share:g} | {shown(torch.stack(found).mean(0))} |", flush=True)


def of_folds(draws: int) -> None:
    """Print how often intervals of MLEM over five folds hold the mean over data sets; 40 sentences of 3 words.

    The features are those of `of_null`, of which the first matters. A data set has 24 layers, see there. Intervals of
    features that have weight 0 in all folds are [0, 0]: they are not counted, and the last column has their share.
    """
    names = "ρ | relevant | of sentences | of words | mostly of sentences | [0, 0] of the last three"
    print(f"| lengths | share | {names} |\n" + "|---" * 8 + "|")
    for lengths, share, generators in cells(draws):
        found = []
        for draw in generators:
            sentences, table, layers = data_set(lengths, 40, share, draw)
            test = feature_importance(MLEM(alpha=1.0), table, layers, permutations=2, groups=sentences)
            ends = zip(test.score(), test.profile(), strict=True)
            found.append(torch.stack([torch.cat([score[:, None], profile], 1) for score, profile in ends]))
        value, low, high = torch.stack(found, 1)
        truth = value.mean((0, 1))
        empty = low == high
        held = ((low <= truth) & (truth <= high)).double().where(~empty, torch.nan).flatten(0, 1).nanmean(0)
        unknown = empty[..., 2:].double().mean()[None]
        print(f"| {lengths} | {share:g} | {shown(torch.cat([held, unknown]))} |", flush=True)


def of_references(draws: int) -> None:
    """Print how often intervals of split-half references hold the mean over data sets; 40 sentences of 8 words.

    Each of three layers knows the first feature and the third; tails are those of Student's t of 5 degrees of freedom.
    """
    print("| lengths | share | normal | heavy tails |\n" + "|---" * 4 + "|")
    for lengths, share, generators in cells(draws):
        found = []
        for draw in generators:
            sentences = sentences_of(lengths, 40, 8, draw)
            table = features(sentences, draw)[:, [0, 2]]
            layers = layers_of(table, sentences, share, 3, draw)
            known = 4 * table[:, 1:] * torch.eye(6, dtype=torch.float64)[5]
            stretched = [layer * tails(len(layer), draw) for layer in layers]
            both = [layer + known for layer in (*layers, *stretched)]
            ends = split_half_reference(table, both, groups=sentences, splits=2, seed=draw.initial_seed())
            found.append(torch.stack([*ends]).unflatten(1, (2, 3)))
        value, low, high = torch.stack(found, 1)
        truth = value.mean((0, 2))[:, None]
        held = ((low <= truth) & (truth <= high)).double()
        print(f"| {lengths} | {share:g} | {shown(held.mean((0, 2)))} |", flush=True)


def tails(n: int, draw: torch.Generator) -> Tensor:
    """Return factors √(5 / χ²₅), which make Student's t of 5 degrees of freedom of normal numbers."""
    return (5 / torch.randn(n, 5, generator=draw, dtype=torch.float64).square().sum(1, keepdim=True)).sqrt()


def of_groups(draws: int) -> None:
    """Print how often intervals of probes and steering vectors hold the truth, with few sentences of 4 words.

    Native answers are right in .8 of the words and carried ones, which depend on them, in .7; labels are of words or of
    sentences. Vectors do .6 of the natural effect. Ten times as many data sets as asked for.
    """
    print("| sentences | lengths | share | accuracy | of sentences' labels | share of native | effect | share |")
    print("|---" * 8 + "|")
    truth = torch.tensor([0.7, 0.7, 2 / 3, 6.0, 0.6], dtype=torch.float64)
    for count, (lengths, share, generators) in ((count, each) for count in GROUPS for each in cells(10 * draws)):
        found = []
        for draw in generators:
            sentences = sentences_of(lengths, count, 4, draw)
            own, other, natural, effect = noise(sentences, share, 4, draw).T
            right = torch.stack([own < NATIVE, 0.8 * own + 0.6 * other < CARRIED])
            of_words = torch.arange(len(sentences)) % 2
            native, carried = balanced_accuracies(right, of_words, sentences, 2)
            of_labels = balanced_accuracies(right, sentences % 2, sentences, 2)[1]
            steered, unsteered = jackknifed_mean_effects(
                (6 + 1.8 * natural + 2 * effect)[None], 10 + 3 * natural, sentences
            )
            estimates = [carried.interval(), of_labels.interval(), carried.share_of(native, above=0.5)]
            estimates += [steered.interval()[0], steered.share_of(unsteered)[0]]
            found.append(torch.stack([torch.stack([*each]) for each in estimates], 1))
        _, low, high = torch.stack(found, 1)
        held = ((low <= truth) & (truth <= high)).double().where(~low.isnan(), torch.nan)
        print(f"| {count} | {lengths} | {share:g} | {shown(held.nanmean(0))} |", flush=True)


def shown(shares: Tensor) -> str:
    """Return the cells of a row."""
    return " | ".join(f"{share:.3f}" for share in shares.tolist())


TABLES: dict[str, Callable[[int], None]] = {
    "mantel": of_mantel, "null": of_null, "folds": of_folds, "references": of_references, "groups": of_groups
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=TABLES)
    parser.add_argument("--draws", type=int, default=10, help="data sets")
    options = parser.parse_args()
    torch.set_num_threads(1)
    TABLES[options.table](options.draws)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
