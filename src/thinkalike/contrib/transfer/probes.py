"""measure=probes: linear probes of linguistic features, carried from one model to another (Chen et al. 2025).

python analyze.py measure=probes model=gpt2-mini model@target=gpt2-mini-s1 'layers=[[2,2]]'
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isnan, nan
from pathlib import Path
from typing import Any

import pandas as pd
from torch.nn.utils.rnn import pad_sequence

from thinkalike.config import AnalyzeConfig, ranged
from thinkalike.contrib import figures
from thinkalike.contrib.transfer import maps as fitting
from thinkalike.contrib.transfer import probing
from thinkalike.contrib.transfer.maps import OfMaps, TransferConfig, named
from thinkalike.contrib.transfer.measures import STEPS
from thinkalike.contrib.transfer.probing import SPLITS, Probing, Task, means_of, rows_of, tasks_of
from thinkalike.data.stimuli import Stimuli
from thinkalike.data.tables import read_stimuli
from thinkalike.errors import one_of
from thinkalike.instruments.of_stimuli import sentence_passes, stimuli_facts
from thinkalike.instruments.stitching.fitting import shared_text
from thinkalike.job import Outcome, Work
from thinkalike.models.parts import fresh
from thinkalike.models.shapes import Passes, Shapes
from thinkalike.processes import counted
from thinkalike.screen import Column, Table, few, number_column, show_table, show_text, text_column
from thinkalike.states.stimuli import stimulus_states, stimulus_states_of
from thinkalike.store import Headline, Result

log = logging.getLogger(__name__)


@dataclass
class ProbesConfig(TransferConfig):
    """The settings of probes and of their controls."""

    kind: str = "probes"
    alphas: list[float] = ranged(lambda: [0.1, 1.0, 10.0, 100.0, 1000.0], above=0, most=1e9)  # ridge penalties
    folds: int = ranged(5, least=2, most=10**4)  # of the stimuli
    inner_folds: int = ranged(3, least=2, most=10**4)  # of the others, on which the penalty is chosen
    splits: list[str] = field(default_factory=lambda: list(SPLITS))  # what is held out together: sentence, word
    least: int = ranged(20, least=2, most=10**9)  # stimuli of a level that is told apart
    draws: int = ranged(5, least=1, most=10**4)  # of random maps
    untrained: bool = True  # whether the target is also taken as it was before training

    def __post_init__(self) -> None:
        super().__post_init__()
        for split in self.splits:
            one_of("measure.splits", split, SPLITS)


class CarriedProbes(
    OfMaps, kind="probes", version=3, reads=("model", "target", "layers", "data", "measure", "stimuli", "seed")
):
    """Carries probes of `model` to `model@target` and back, through maps that are fitted on text.

    Leaves a row per layer pair, feature, split and condition in table.csv, and the maps' unexplained variance in
    maps.csv.
    """

    def inputs(self, config: AnalyzeConfig) -> Mapping[str, Any]:
        stimuli = read_stimuli(config.stimuli)
        _tasks(config, stimuli)  # so that errors come before anything is loaded
        return {"stimuli": stimuli, **super().inputs(config)}

    def passes(self, config: AnalyzeConfig, shapes: Shapes) -> Sequence[Passes]:
        """Return the passes over sentences and text, over text also of an untrained target; fits are left out."""
        text = super().passes(config, shapes)
        again = [replace(each, phase="untrained target") for each in text] if config.measure.untrained else []  # type: ignore[attr-defined]
        return [*sentence_passes(config, shapes), *text, *again]

    def run(self, config: AnalyzeConfig, work: Work) -> Outcome:
        measure: Any = config.measure
        stimuli: Stimuli = work.inputs["stimuli"]
        with work.phase("loading"):
            source, target, pairs = fitting.models_and_pairs(config)
            corpus = shared_text(config.data, source, target, measure.fit_tokens)
        with work.phase("states"):
            kept = stimulus_states_of(config, stimuli, embed=False, loaded=(source, target))
        with work.phase("maps"):
            maps = fitting.fitted_maps(source, target, pairs, corpus, measure.ridge)
            fits = Probing(measure, config.seed, kept[0].states, kept[-1].states, maps)
            if measure.untrained:
                model = fresh(target, config.seed)
                back = fitting.fitted_maps(source, model, pairs, corpus, measure.ridge)
                fits = replace(fits, untrained=stimulus_states(model, stimuli), back=back)
        rows, replicates = [], []
        for pair in counted(pairs, "layer pair"):
            for task in counted(_tasks(config, stimuli), "task"):
                judged, converged = fits.judged(task, pair)
                about = named(source, target, pair)
                rows += [about | row | {"converged": converged} for row in rows_of(task, stimuli, judged)]
                replicates += [each.replicates for each in judged.values()]
        table = pd.DataFrame(rows)
        if features := ", ".join(dict.fromkeys(table[~table["converged"]]["feature"])):
            log.warning("warning: probes of %s did not converge in %d steps; raise measure.alphas", features, STEPS)
        return Outcome(
            table,
            {**means_of(table), "stimuli": float(len(stimuli))},
            {"replicates": pad_sequence(replicates, batch_first=True, padding_value=nan).numpy()},
            {"maps": fitting.unexplained_table(source, target, maps)},
            models=[side.origin for side in kept],
            facts={**stimuli_facts(stimuli), "data": {"name": config.data.name, **corpus.facts()}},
            blank=probing.BLANK,
        )

    def draw(self, result: Result, folder: Path) -> None:
        figures.carried_probes(result.table, folder)

    def headlines(self, result: Result) -> list[Headline]:
        """Return means over features: carried probes' share of native accuracy above chance, and both accuracies."""
        names = ("mean_share_above_chance", "mean_carried_accuracy", "mean_native_accuracy")
        return [Headline(name, result.scalars[name]) for name in names if name in result.scalars]

    def show(self, result: Result) -> None:
        """Print the accuracies of each feature at the layers where its own probe is best, and means over features."""
        table, stimuli = result.table, result.provenance["stimuli"]
        first, splits = table.iloc[0], list(table["split"].unique())
        left = result.tables["maps"]
        title = f"{first['source']} → {first['target']}, {stimuli['count']} stimuli of {Path(stimuli['source']).name}: "
        show_table(_table(f"{title}{ACCURACY}, held-out {splits[0]}s", table))
        for split in splits:
            means = table[table["split"] == split].groupby("condition")[["accuracy", "chance"]].mean()
            carried, native = (means.loc[name] for name in (probing.CARRIED, probing.NATIVE))
            show_text(
                f"On held-out {split}s, carried probes are right on {carried['accuracy']:.2f} on average, probes of "
                f"the target itself on {native['accuracy']:.2f}, and chance is {native['chance']:.2f}."
            )
        ends = f"{left['phi'].min():.2f} to {left['phi'].max():.2f}"
        show_text(f"The maps leave {ends} of held-out text unexplained. {LEGEND}")


def _tasks(config: AnalyzeConfig, stimuli: Stimuli) -> list[Task]:
    measure: Any = config.measure
    return list(tasks_of(stimuli, measure.splits, measure.folds, measure.least, config.seed))


ACCURACY = "balanced accuracy of probes"
SHOWN = {"native": probing.NATIVE, "carried": probing.CARRIED, "random": probing.RANDOM, "untrained": probing.UNTRAINED}
LEGEND = (
    "Native probes are fitted in the target, carried ones in the source and read through ψ, random ones through maps "
    "of ψ's spectrum, untrained ones in an untrained target; share is that of native above chance."
)


def _table(title: str, table: pd.DataFrame) -> Table:
    """Return a row for each feature of the first split, at the layers where its native probe is best."""
    rows = table[table["split"] == table["split"].iloc[0]]
    native = rows[rows["condition"] == probing.NATIVE]
    best = native.loc[native.groupby("feature", sort=False)["accuracy"].idxmax()]
    chosen = best.iloc[few(len(best), 12)][["feature", "source_layer", "target_layer"]]
    own = {label: chosen.merge(rows[rows["condition"] == name]) for label, name in SHOWN.items()}
    carried = own["carried"]
    layers = [f"{row.source_layer}→{row.target_layer}" for row in carried.itertuples()]
    columns = [text_column("feature", carried["feature"]), Column("layer", layers)]
    columns.append(number_column("chance", carried["chance"], ".2f"))
    for label, each in own.items():
        if len(each):
            columns.append(number_column(label, each["accuracy"], ".2f"))
        if label == "carried":
            shares = ["" if isnan(share) else f"{share:.2f}" for share in carried["share_above_chance"]]
            columns.append(Column("share", shares, follows=True))
    return Table(title, columns)
