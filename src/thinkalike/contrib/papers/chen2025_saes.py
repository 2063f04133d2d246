"""Sparse autoencoders that begin as those of another model: what that saves, all FLOPs counted.

Beside a random start stands a stronger one that needs no second model: random, with the decoder of
least squares on as many tokens as the maps are fitted on.

Source: Chen, Merullo, Stolfo & Pavlick 2025 (arXiv 2506.06609). Where the paper gives no number,
the claims name thresholds of this project.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import pandas as pd
import torch

from thinkalike.contrib.figures.saes import draw_sae_curves
from thinkalike.contrib.papers.claims import (
    ABOVE_ZERO,
    Bound,
    Claim,
    bonferroni_level,
    bonferroni_note,
    judged_claim,
)
from thinkalike.contrib.papers.experiment import Conclusion, Experiment, ExperimentRun, InnerJob
from thinkalike.contrib.sae.tables import BLANK
from thinkalike.contrib.subjects.random_effects import random_effects

N_SEEDS = 5
ARGUMENTS = (
    "task=sae",
    "sae.start=transferred",
    "sae.beside=[random,least_squares]",
    "sae.lr_multiples=[2,4]",
    f"sae.seeds={N_SEEDS}",
)
MINI_ARGUMENTS = ("data.evaluation_tokens=16384",)  # three jobs and their sources within minutes
FEWER_TOKENS = "sae.tokens=163840"
SHARES_OF_TOKENS = (1 / 2, 1)  # of a job, at which claims are judged


class Transfer(NamedTuple):
    """A source and a target, their layers, and what is claimed.

    Attributes:
        source, source_layer: The model whose autoencoders are carried over, and its layer.
        target, layer: The model that gets them, and its layer.
        settings: Further arguments of task=sae, for both models.
        claim: What is claimed; {limit} in it stands for the limit of the bound.
        bound: Where the share of FLOPs must be that is saved against a random start.
    """

    source: str
    source_layer: int
    target: str
    layer: int
    settings: tuple[str, ...]
    claim: str
    bound: Bound

    @property
    def label(self) -> str:
        """What its job and its claims are called."""
        return f"{self.source}:{self.source_layer} → {self.target}:{self.layer}"


SAVES = "a transferred start saves more than {limit:.0%} of the FLOPs of a random one"
SAVES_LESS = (
    "a source of a quarter of the width saves less than {limit:.0%} of the FLOPs of a random start"
)

TRANSFERS = {
    "mini": [
        Transfer(
            "gpt2-mini",
            2,
            "gpt2-mini-s1",
            2,
            ("sae.map_tokens=2048",),
            SAVES,
            Bound("above", 0.35),
        ),
        Transfer(
            "neox-5l-mini",
            2,
            "neox-6l-mini",
            2,
            ("sae.k=16", FEWER_TOKENS),
            SAVES,
            Bound("above", 0.15),
        ),
        Transfer(
            "neox-3l-mini",
            1,
            "neox-6l-mini",
            2,
            ("sae.k=16", FEWER_TOKENS),
            SAVES_LESS,
            Bound("below", 0.15),
        ),
    ],
    "paper": [
        Transfer(
            "pythia-70m-deduped", 3, "pythia-160m-deduped", 6, (), SAVES, Bound("above", 0.30)
        ),
        Transfer("gpt2", 6, "gpt2-medium", 12, (), SAVES, Bound("above", 0.30)),
    ],
}


def _models_of_transfers(transfers: list[Transfer]) -> list[str]:
    """Return the names of all sources and targets, each once, in the order of the transfers."""
    names: list[str] = []
    for transfer in transfers:
        for name in (transfer.source, transfer.target):
            if name not in names:
                names.append(name)
    return names


MODELS = {scale: _models_of_transfers(transfers) for scale, transfers in TRANSFERS.items()}


def _training_jobs(experiment: ExperimentRun) -> list[InnerJob]:
    """Return one training job for each transfer of sparse autoencoders from source to target.

    A job trains autoencoders of the target from every kind of first weights ("start"):
    transferred, random and least squares. It also trains the source's autoencoders, if they are
    not stored yet.
    """
    jobs = []
    for transfer in TRANSFERS[experiment.scale]:
        arguments = [
            f"sae.layer={transfer.layer}",
            f"sae.source={transfer.source}",
            f"sae.source_layer={transfer.source_layer}",
            *transfer.settings,
            *ARGUMENTS,  # the starts, learning rates and seeds
        ]
        if experiment.scale == "mini":
            arguments += MINI_ARGUMENTS
        job = InnerJob(
            label=transfer.label,
            models=(transfer.target,),
            arguments=tuple(arguments),
            entry_point="train",
        )
        jobs.append(job)
    return jobs


def _conclude(experiment: ExperimentRun) -> Conclusion:
    """Judge two claims about each transfer of sparse autoencoders: how many FLOPs it saves.

    A transferred autoencoder starts training with the weights of another model's autoencoder. It
    is compared with two other kinds of first weights (starts): random ones, for which each
    transfer has its claim and bound, and better ones: a random encoder with a decoder that is
    fitted by least squares, of which it must save any FLOPs at all.
    """
    claims = []
    for transfer in TRANSFERS[experiment.scale]:
        # The text of the claim has {limit} in place of the bound's limit.
        claim = transfer.claim.format(limit=transfer.bound.limit)
        claims.append(
            _claim_that_start_saves(experiment, transfer, "random", claim, transfer.bound)
        )
        claim = "it saves FLOPs of a random start with a fitted decoder"
        claims.append(
            _claim_that_start_saves(experiment, transfer, "least_squares", claim, ABOVE_ZERO)
        )
    curves = _joined_tables(experiment, "curves")
    return Conclusion(
        _joined_tables(experiment, "table"),
        claims,
        partial(draw_sae_curves, curves),
        tables={"savings": _joined_tables(experiment, "savings"), "curves": curves},
        blank=BLANK,  # columns with empty cells
    )


def _joined_tables(experiment: ExperimentRun, name: str) -> pd.DataFrame:
    """Return the tables of one name of all results, with a column `transfer`.

    There is a result for each transfer of sparse autoencoders from a source to a target model.
    """
    tables = []
    for transfer in TRANSFERS[experiment.scale]:
        table = experiment.results[transfer.label].tables[name]
        tables.append(table.assign(transfer=transfer.label))
    return pd.concat(tables, ignore_index=True)


def _claim_that_start_saves(
    experiment: ExperimentRun, transfer: Transfer, against: str, claim: str, bound: Bound
) -> Claim:
    """Judge a claim about the training that a transferred start of an autoencoder saves.

    A sparse autoencoder whose training starts from one of another model (transferred) is compared
    with one that starts otherwise. The latter is trained on half of its tokens, or on all of them.
    The share that is saved is 1 minus the FLOPs until the former explains as much variance as the
    latter does then, divided by the FLOPs of the latter. Intervals are over seeds.

    Args:
        experiment: The experiment with its results.
        transfer: The source, the target and their layers.
        against: The other start: "random" or "least_squares".
        claim: The claim in words.
        bound: The share of FLOPs that must be saved for the claim to hold.
    """
    result = experiment.results[transfer.label]
    # Row i of the table belongs to row i of the array "saved" (rows, seeds), which reset_index()
    # keeps in the column "index".
    table = result.tables["savings"].reset_index()
    is_compared = (table["start"] == "transferred") & (table["against"] == against)
    rows = table[is_compared]
    token_budgets = [rows["tokens"].max() * share for share in SHARES_OF_TOKENS]
    rows = rows[rows["tokens"].isin(token_budgets)]  # one for each budget
    count = len(rows)

    saved_by_seed = torch.from_numpy(result.arrays["saved"])[rows["index"].tolist()]
    saved = random_effects(saved_by_seed, level=bonferroni_level(count))  # one for each budget
    savings_in_words = []
    for index, tokens in enumerate(rows["tokens"]):
        value, low, high = (100 * float(number) for number in saved[index])
        savings_in_words.append(f"{value:+.1f} [{low:+.1f}, {high:+.1f}] % at {tokens:,} tokens")
    finding = "; ".join(savings_in_words)
    if (rows["reached"] < 1).any():  # the share of seeds that explain as much variance at all
        finding += " (some seeds never get there)"
    return judged_claim(
        f"{transfer.label}: {claim}",
        [(bound, saved)],
        finding=f"{finding}{bonferroni_note(count)}",
        units=f"{N_SEEDS} seeds",
    )


EXPERIMENTS = [
    Experiment("chen2025/sae", _conclude, MODELS, _training_jobs),
]
