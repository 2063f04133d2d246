"""Sparse autoencoders that begin as those of another model: what that saves, all FLOPs counted (Chen et al. 2025).

"Transferring linear features across language models with model stitching" (NeurIPS 2025, arXiv
2506.06609). Beside a random start stands a stronger one that needs no other model: random, with the decoder of least
squares on as many tokens as the maps are fitted on.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import pandas as pd
import torch

from thinkalike.contrib import figures
from thinkalike.contrib.papers.claims import Bound, Claim, judged, level_of_each, together
from thinkalike.contrib.papers.experiment import Case, Conclusion, Experiment, Part
from thinkalike.contrib.sae.fitting import BLANK, over_seeds

SEEDS = 5
RATES = "sae.lr_multiples=[2,4]"
LITTLE_TEXT = "data.report_tokens=16384"  # three jobs and their sources within minutes
BUDGETS = (1 / 2, 1)  # of the tokens of a job, at which claims are judged
SHORT = "sae.tokens=163840"


class Transfer(NamedTuple):
    """A source and a target, their layers, the settings of both, and what is claimed."""

    source: str
    source_layer: int
    target: str
    layer: int
    settings: tuple[str, ...]
    claim: str
    bound: Bound  # of the share of FLOPs that is saved against a random start

    @property
    def label(self) -> str:
        return f"{self.source}:{self.source_layer} → {self.target}:{self.layer}"


SAVES = "a transferred start saves more than {limit:.0%} of the FLOPs of a random one"
LESS = "a source of a quarter of the width saves less than {limit:.0%} of the FLOPs of a random start"

TRANSFERS = {
    "mini": [
        Transfer("gpt2-mini", 2, "gpt2-mini-s1", 2, ("sae.map_tokens=2048",), SAVES, Bound("above", 0.35)),
        Transfer("neox-5l-mini", 2, "neox-6l-mini", 2, ("sae.k=16", SHORT), SAVES, Bound("above", 0.15)),
        Transfer("neox-3l-mini", 1, "neox-6l-mini", 2, ("sae.k=16", SHORT), LESS, Bound("below", 0.15)),
    ],
    "paper": [
        Transfer("pythia-70m-deduped", 3, "pythia-160m-deduped", 6, (), SAVES, Bound("above", 0.30)),
        Transfer("gpt2", 6, "gpt2-medium", 12, (), SAVES, Bound("above", 0.30)),
    ],
}
MODELS = {
    scale: list(dict.fromkeys(name for each in transfers for name in (each.source, each.target)))
    for scale, transfers in TRANSFERS.items()
}


def _parts(case: Case) -> list[Part]:
    """Return a job for each transfer, with all starts in it; the autoencoders of its source are made on the way."""
    shared = ["task=sae", "sae.start=transferred", "sae.beside=[random,least_squares]", RATES, f"sae.seeds={SEEDS}"]
    shared += [LITTLE_TEXT] if case.scale == "mini" else []
    words = "sae.layer={0.layer}", "sae.source={0.source}", "sae.source_layer={0.source_layer}"
    return [
        Part(each.label, (each.target,), (*(word.format(each) for word in words), *each.settings, *shared), "train")
        for each in TRANSFERS[case.scale]
    ]


def _sae(case: Case) -> Conclusion:
    transfers, tables = TRANSFERS[case.scale], {}
    for name in ("table", "savings", "break_even", "curves"):
        parts = [case.results[each.label].tables[name].assign(transfer=each.label) for each in transfers]
        tables[name] = pd.concat(parts, ignore_index=True)
    fitted, claims = "it saves FLOPs of a random start with a fitted decoder", []
    for each in transfers:
        claims.append(_saves(case, each, "random", each.claim.format(limit=each.bound.limit), each.bound))
        claims.append(_saves(case, each, "least_squares", fitted, Bound("above")))
    draw = partial(figures.sae_curves, tables["curves"])
    return Conclusion(tables.pop("table"), claims, draw, tables, blank=BLANK)


def _saves(case: Case, transfer: Transfer, against: str, claim: str, bound: Bound) -> Claim:
    result = case.results[transfer.label]
    table = result.tables["savings"].reset_index()
    rows = table[(table["start"] == "transferred") & (table["against"] == against)]
    chosen = rows[rows["tokens"].isin([rows["tokens"].max() * share for share in BUDGETS])]
    saved = torch.from_numpy(result.arrays["saved"])[chosen["index"].tolist()]
    found = over_seeds(saved, level_of_each(len(chosen)))
    said = "; ".join(
        f"{100 * value:+.1f} [{100 * low:+.1f}, {100 * high:+.1f}] % at {tokens:,} tokens"
        for value, low, high, tokens in zip(*(part.tolist() for part in found), chosen["tokens"], strict=True)
    )
    late = " (some seeds never get there)" if (chosen["reached"] < 1).any() else ""
    numbers = f"{said}{late}{together(len(chosen))}"
    return judged(f"{transfer.label}: {claim}", [(bound, found)], numbers, f"{SEEDS} seeds")


EXPERIMENTS = [Experiment("chen2025/sae", _sae, MODELS, _parts)]
