"""How often 95 % intervals hold the truth where few documents have most of the rows.

    python benchmarks/unequal_coverage.py                              all cells, one thread, an hour
    python benchmarks/unequal_coverage.py --measures cka loss --runs 20

Every interval of this project is made in one of four ways, and each way has measures here:

- a jackknife that leaves out tenths of the documents: CKA, mutual neighbours, Procrustes distance;
- a jackknife that leaves out tenths of the sentences with all their pairs of words: RSA;
- a bootstrap over documents: loss, penalty of a stitch, KL divergence;
- Student's t over folds of sentences: scores and importances of MLEM.

A cell without intervals says how many documents of equal length its documents are worth (`effective_number`). What is
done is in --out, and is not done again.
"""

from __future__ import annotations

import argparse
import itertools
import math
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from dependence import Records, Scattered, scattered
from layer_pair_coverage import COMMON, MEASURES, ROWS, VOCABULARY
from torch import Tensor

from thinkalike.evaluation.document_means import mean_over_documents
from thinkalike.measures import (
    MLEM,
    Estimate,
    LayerMeans,
    bootstrap_interval,
    effective_number,
    feature_importance,
    rsa,
    rsa_estimate,
)

BATCHES = 4
WIDTH, NOISE, RELATED = 8, 0.7, 0.7  # of the states of a word; of its noise; of the two models' latent variables
SPREAD, SKEW = 0.3, 1.0  # nats
LEVELS = (2, 3, 2)  # of the features of a word; the last is one of its sentence
EFFECTS = (1.5, 1.0, 1.0)
CHUNK = 20


def zipf(documents: int, power: float = 1.0) -> list[float]:
    """Return lengths that fall as a power of the rank."""
    return [rank**-power for rank in range(1, documents + 1)]


def zipf_worth(documents: int, worth: float) -> list[float]:
    """Return lengths that fall as a power of the rank, and are worth this many of equal length."""
    low, high = 0.0, 5.0
    while high - low > 1e-6:
        middle = (low + high) / 2
        is_equal_enough = effective_number(torch.tensor(zipf(documents, middle))) > worth
        low, high = (middle, high) if is_equal_enough else (low, middle)
    return zipf(documents, low)


LAWS: dict[str, list[float]] = {
    "equal": [1.0] * 30,
    "one has half": [29.0] + [1.0] * 29,
    "two have 80 %": [56.0, 56.0] + [1.0] * 28,
    "Zipf": zipf(30),
    "one of 60 words": [60.0] + [6.0] * 39,
    "8 equal": [1.0] * 8,
    "worth 8.5 of 30": zipf_worth(30, 8.5),
}

# ------------------------------------------------------------------------------- tenths of documents are left out


def layer_pair(name: str, shares: Tensor, share: float, seed: int, batches: int = BATCHES) -> Estimate:
    """Return a measure of one layer of each of two models, whose maps are always the same."""
    is_given_token = name.endswith("given token")
    rows = ROWS * batches * (1 + is_given_token)

    def drawn(rows: int, shares: Tensor, share: float, seed: int) -> Scattered:
        chance, maps = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(1)
        return scattered(
            rows,
            len(shares),
            share,
            chance,
            lengths=shares,
            common=COMMON,
            vocabulary=VOCABULARY if is_given_token else 0,
            maps=maps,
        )

    means = LayerMeans(1, 1, MEASURES[name], conditional_on="token" if is_given_token else "none")
    found = drawn(rows, shares, share, seed)
    for part in torch.arange(rows).chunk(batches):
        groups = {"groups": found.tokens[part]} if is_given_token else {}
        means.update([found.source[0][part]], [found.target[0][part]], documents=found.documents[part], **groups)
    return means.compute()


# --------------------------------------------------------------------------------------- sentences with their words


def words_of(shares: Tensor) -> Tensor:
    """Return the sentence of each word, with about 6 words in the mean sentence."""
    counts = (shares / shares.sum() * 6 * len(shares)).round().clamp(min=1).long()
    return torch.arange(len(shares)).repeat_interleave(counts)


def mixed(sentences: Tensor, share: float, width: int, chance: torch.Generator) -> Tensor:
    """Return variables of words, which have this share of their variance from the sentence."""
    of_words = torch.randn(len(sentences), width, generator=chance, dtype=torch.float64)
    of_sentences = torch.randn(int(sentences.max()) + 1, width, generator=chance, dtype=torch.float64)
    return math.sqrt(1 - share) * of_words + math.sqrt(share) * of_sentences[sentences]


def two_models(sentences: Tensor, share: float, seed: int) -> list[Tensor]:
    """Return the states of two models that have a part of their latent variables in common."""
    chance = torch.Generator().manual_seed(seed)
    first = mixed(sentences, share, WIDTH, chance)
    second = math.sqrt(RELATED) * first + math.sqrt(1 - RELATED) * mixed(sentences, share, WIDTH, chance)
    return [first, second]


def similarity(shares: Tensor, share: float, seed: int) -> Estimate:
    """Return the RSA of two models."""
    sentences = words_of(shares)
    models = two_models(sentences, share, seed)
    return rsa_estimate(models, groups=sentences, folds=min(10, len(shares)))[0, 1]


def importance(shares: Tensor, share: float, seed: int) -> Estimate:
    """Return the importance of three features, the last of which is one of whole sentences, (3)."""
    chance, sentences = torch.Generator().manual_seed(seed), words_of(shares)
    count, places = int(sentences.max()) + 1, torch.Generator().manual_seed(1)
    table = torch.stack([torch.randint(size, (len(sentences),), generator=chance) for size in LEVELS], 1)
    table[:, -1] = torch.randint(LEVELS[-1], (count,), generator=chance)[sentences]
    states = mixed(sentences, share, WIDTH, chance)
    for column, size, effect in zip(table.T, LEVELS, EFFECTS, strict=True):
        place = effect * torch.randn(size, WIDTH, generator=places, dtype=torch.float64)
        states = states + place[column]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = MLEM(kinds="nominal", alpha=3.0)
        return feature_importance(model, table, [states], groups=sentences, permutations=2).profile()[0]


# --------------------------------------------------------------------------------- sums of tokens are drawn anew


def nats(kind: str, shares: Tensor, share: float, seed: int) -> Estimate:
    """Return a mean per token: a loss, a difference of two (penalty), or a divergence that is never negative (KL)."""
    chance, documents = np.random.default_rng(seed), words_of(shares)
    of_documents = np.exp(SKEW / 2 * chance.normal(size=int(documents.max()) + 1)) - np.exp(SKEW**2 / 8)
    of_tokens = np.exp(SKEW * chance.normal(size=len(documents))) - np.exp(SKEW**2 / 2)
    apart = math.sqrt(share) * of_documents[documents] / np.sqrt(np.exp(SKEW**2 / 4) * (np.exp(SKEW**2 / 4) - 1))
    apart += math.sqrt(1 - share) * of_tokens / np.sqrt(np.exp(SKEW**2) * (np.exp(SKEW**2) - 1))
    if kind == "penalty":  # a difference of two losses is not skewed
        signs = chance.choice([-1, 1], int(documents.max()) + 1)
        apart *= signs[documents]
    values = torch.from_numpy(apart)
    if kind == "KL":
        return mean_over_documents(values, documents)
    counts = documents.bincount().double()
    return bootstrap_interval(torch.zeros_like(counts).index_add_(0, documents, values), counts)


WAYS: dict[str, Callable[[Tensor, float, int], Estimate]] = {
    **{
        name: (lambda shares, share, seed, name=name: layer_pair(name, shares, share, seed))
        for name in ("cka", "cka given token", "mutual_knn", "procrustes")
    },
    "rsa": similarity,
    "mlem": importance,
    **{
        kind: (lambda shares, share, seed, kind=kind: nats(kind, shares, share, seed))
        for kind in ("loss", "penalty", "KL")
    },
}


def truth_of(name: str, share: float, runs: int, records: Records) -> list[float]:
    """Return the value at very many documents or sentences, in which those of one document are a small share.

    That of importance depends on the number of words, so it is the mean over data sets of as many equal sentences.
    """
    if name in ("loss", "penalty", "KL"):
        return [0.0]
    if name == "mlem":
        values = [run[0] for run in runs_of(name, "equal", share, runs, records)]
        return torch.tensor(values).mean(0).tolist()
    if name == "rsa":
        sentences = words_of(torch.ones(300))
        key = {"measure": name, "share": share, "truth": True}
        drawn = (two_models(sentences, share, -seed) for seed in range(1, 21))
        values = records.of(key, lambda: [float(rsa(models)[0, 1]) for models in drawn])
        return [float(np.mean(values["runs"]))]
    key = {"measure": name, "truth": True}
    return records.of(key, lambda: [float(layer_pair(name, torch.ones(10**6), 0.0, 2, 300).value)])["runs"]


def runs_of(name: str, law: str, share: float, runs: int, records: Records) -> list[list[list[float]]]:
    """Return value, low and high of each data set."""

    def draw(start: int) -> list[list[list[float]]]:
        found = [WAYS[name](torch.tensor(LAWS[law]), share, seed) for seed in range(start, start + CHUNK)]
        return [torch.stack([*each]).reshape(3, -1).tolist() for each in found]

    drawn = []
    for start in range(1, runs + 1, CHUNK):
        key = {"measure": name, "law": law, "share": share, "start": start}
        drawn += records.of(key, lambda start=start: draw(start))["runs"]
    return drawn[:runs]


def show(options: argparse.Namespace) -> None:
    """Print the coverage of each measure, law of lengths and dependence, and how many had no interval."""
    print("| measure | lengths | documents | of equal length |", " | ".join(map(str, options.shares)), "| none |")
    print("|---" * (5 + len(options.shares)), "|", sep="")
    records = Records(options.out)
    for name, law in itertools.product(options.measures, options.laws):
        worth = effective_number(words_of(torch.tensor(LAWS[law])).bincount())
        covered, without = [], []
        for share in options.shares:
            runs = torch.tensor(runs_of(name, law, share, options.runs, records), dtype=torch.float64)
            low, high = runs[:, 1], runs[:, 2]
            truth = torch.tensor(truth_of(name, share, options.runs, records))
            known = high.isfinite()
            held = ((low <= truth) & (truth <= high))[known].double()
            covered.append(f"{100 * float(held.mean()):.0f}" if len(held) else "-")
            without.append(float((~known).double().mean()))
        none = f"{100 * float(np.mean(without)):.0f} %"
        cells = f"| {name} | {law} | {len(LAWS[law])} | {worth:.1f} |"
        print(cells, " | ".join(covered), f"| {none} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measures", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--laws", nargs="+", choices=LAWS, default=list(LAWS))
    parser.add_argument("--shares", nargs="+", type=float, default=[0.0, 0.3], help="of the variance, of documents")
    parser.add_argument("--runs", type=int, default=100, help=f"data sets, rounded up to a multiple of {CHUNK}")
    parser.add_argument("--out", type=Path, default=Path("unequal-coverage.jsonl"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    show(options)


if __name__ == "__main__":
    main()
