"""What a paper claims, and the end of every experiment: verdicts printed, and kept beside table and figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console
from rich.table import Table

from thinkalike.config import AnalyzeConfig
from thinkalike.jobs.steps import settings_of
from thinkalike.store import Job, key_of


@dataclass(frozen=True)
class Claim:
    """What a paper says, whether it is so here (None: not testable here), and the numbers."""

    claim: str
    holds: bool | None
    numbers: str

    @property
    def verdict(self) -> str:
        return {True: "holds", False: "does not hold", None: "not testable here"}[self.holds]


def conclude(
    config: AnalyzeConfig,
    parts: Mapping[str, Path],
    table: pd.DataFrame,
    claims: Sequence[Claim],
    draw: Callable[[pd.DataFrame, Path], Any],
) -> Path:
    """Print the claims, and keep them with the table and the figures of the results that they rest on.

    Args:
        parts: what each result is called, and its folder, of which the name counts.
        draw: draws figures of the table into a folder.
    """
    settings = settings_of(config)
    names = {label: folder.name for label, folder in parts.items()}
    job = Job(config.store, str(config.experiment).replace("/", "-"), key_of(settings, names), settings)
    _show(f"{config.experiment}, scale {config.scale}", claims)
    if job.done and not config.force:
        return job.folder
    with job.running():
        draw(table, job.out() / "figures")
        verdicts = pd.DataFrame([{**asdict(claim), "verdict": claim.verdict} for claim in claims])
        verdicts.drop(columns="holds").to_csv(job.out() / "claims.csv", index=False)
        holding = sum(claim.holds is True for claim in claims)
        scalars = {"claims": float(len(claims)), "claims_that_hold": float(holding)}
        return job.finish(scalars, table, {"parts": names})


def _show(title: str, claims: Sequence[Claim]) -> None:
    printed = Table(title=title, show_lines=True)
    for column in ("claim", "verdict", "numbers"):
        printed.add_column(column)
    for claim in claims:
        printed.add_row(claim.claim, claim.verdict, claim.numbers)
    Console(width=max(Console().width, 140)).print(printed)
