"""measure=probes: linear probes of linguistic features, carried from one model to another (Chen et al. 2025).

python analyze.py measure=probes model=gpt2-mini model@target=gpt2-mini-s1 'layers=[[2,2]]'
"""

from __future__ import annotations

import logging
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isnan, nan
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from thinkalike.config import AnalyzeConfig, setting
from thinkalike.contrib import figures
from thinkalike.contrib.transfer import maps as fitting
from thinkalike.contrib.transfer import measures
from thinkalike.contrib.transfer.maps import OfMaps, PairMap, TransferConfig, named
from thinkalike.contrib.transfer.measures import STEPS, CrossFitted
from thinkalike.data.stimuli import Stimuli
from thinkalike.data.tables import read_stimuli
from thinkalike.errors import ConfigError, DataError, one_of
from thinkalike.evaluation.columns import interval_columns
from thinkalike.instruments.of_stimuli import sentence_passes, stimuli_facts
from thinkalike.instruments.probing_tasks import SPLITS, Task, tasks_of
from thinkalike.instruments.stitching.fitting import shared_text
from thinkalike.job import Outcome, Work
from thinkalike.measures.accuracy import Accuracy, balanced_accuracies
from thinkalike.measures.estimates import interval_around
from thinkalike.measures.moments import LayerPair
from thinkalike.measures.seeds import seeded
from thinkalike.models.shapes import Passes, Shapes
from thinkalike.models.sites import ONCE
from thinkalike.models.variants import fresh
from thinkalike.processes import counted
from thinkalike.screen import Column, Table, few, number_column, show_table, show_text, text_column
from thinkalike.states.stimuli import stimulus_states, stimulus_states_of, with_own_states
from thinkalike.store import Headline, Result

log = logging.getLogger(__name__)

NATIVE_SOURCE, NATIVE, CARRIED, BACK = "native in source", "native in target", "source to target", "target to source"
REFITTED, RANDOM, IDENTITY = "refitted", "random map", "identity"
SHUFFLED, UNTRAINED, UNTRAINED_CARRIED = "shuffled labels", "untrained target", "source to untrained"
SHARE_OF = {CARRIED: NATIVE, BACK: NATIVE_SOURCE, REFITTED: NATIVE, RANDOM: NATIVE, IDENTITY: NATIVE}

States = Sequence[Float[Tensor, "n _"]]  # of all stimuli, by layer


@dataclass(frozen=True, eq=False)
class Probing:
    """Fits probes of the layers of both sides, each once, and tests them on the stimuli of other folds."""

    measure: Any
    seed: int
    source: States
    target: States
    maps: Mapping[LayerPair, PairMap]
    untrained: States = ()  # of an untrained target, if there is one
    back: Mapping[LayerPair, PairMap] = field(default_factory=dict)  # between the source and that
    fitted: dict[tuple[str, int, str, str], CrossFitted] = field(default_factory=dict)

    def judged(self, task: Task, pair: LayerPair) -> tuple[dict[str, Accuracy], bool]:
        """Return the accuracies of a layer pair by condition, and whether all fits converged."""
        (layer, depth), maps = pair, self.maps[pair]
        a, b = self.source[layer][task.rows].double(), self.target[depth][task.rows].double()
        mine, own = self._native("source", layer, a, task), self._native("target", depth, b, task)
        read = maps.psi(b)
        again = self._fit(read, task, self.measure.alphas)
        right = {
            NATIVE_SOURCE: mine.right(a, task.labels),
            NATIVE: own.right(b, task.labels),
            CARRIED: mine.through(maps.psi).right(b, task.labels),
            BACK: own.through(maps.phi).right(a, task.labels),
            REFITTED: again.right(read, task.labels),
            RANDOM: self._turned(mine, maps, b, task),
        }
        if a.shape == b.shape:
            right[IDENTITY] = mine.right(b, task.labels)
        fits = [mine, own, again]
        if self.untrained:
            c = self.untrained[depth][task.rows].double()
            fresh = self._native("untrained", depth, c, task)
            right[UNTRAINED] = fresh.right(c, task.labels)
            right[UNTRAINED_CARRIED] = mine.through(self.back[pair].psi).right(c, task.labels)
            fits.append(fresh)
        shuffled = task.labels[torch.randperm(len(task.labels), generator=seeded(self.seed))]
        chance = self._fit(b, task, [statistics.median_high(own.alphas)], shuffled)
        judged = self._accuracies(task, right, task.labels)
        judged |= self._accuracies(task, {SHUFFLED: chance.right(b, shuffled)}, shuffled)
        return judged, all(fit.converged for fit in (*fits, chance))

    def _native(self, side: str, layer: int, states: Tensor, task: Task) -> CrossFitted:
        key = (side, layer, task.feature, task.split)
        if key not in self.fitted:
            self.fitted[key] = self._fit(states, task, self.measure.alphas)
        return self.fitted[key]

    def _fit(self, states: Tensor, task: Task, alphas: list[float], labels: Tensor | None = None) -> CrossFitted:
        labels = task.labels if labels is None else labels
        how = (task.fold_of, task.groups, alphas, self.measure.inner_folds, self.seed)
        return measures.cross_fitted(states, labels, len(task.levels), *how)

    def _turned(self, probes: CrossFitted, maps: PairMap, states: Tensor, task: Task) -> Float[Tensor, " n"]:
        """Return the share of random maps through which the answer to each stimulus is right."""
        generator = seeded(self.seed)
        turned = (measures.turned_at_random(maps.psi, maps.target_mean, generator) for _ in range(self.measure.draws))
        right = [probes.through(mapping).right(states, task.labels) for mapping in turned]
        return torch.stack(right).double().mean(0)

    def _accuracies(self, task: Task, right: dict[str, Tensor], labels: Tensor) -> dict[str, Accuracy]:
        rows = torch.stack([each.double() for each in right.values()])
        found = balanced_accuracies(rows, labels, task.sentences, len(task.levels))
        return dict(zip(right, found, strict=True))


SHARES = ("share", "share_above_chance")
NO_SHARE = interval_around(torch.tensor(nan), nan)
BLANK = [f"{share}{end}" for share in SHARES for end in ("", "_low", "_high")]  # of conditions without a share
BLANK += ["low", "high", "replicates"]  # of few sentences


def rows_of(task: Task, stimuli: Stimuli, judged: Mapping[str, Accuracy]) -> Iterator[dict[str, Any]]:
    """Yield the columns of each condition: its accuracy, and its share of the native one."""
    words = {stimuli.words[row] for row in task.rows.tolist()}
    sizes = {"stimuli": len(task.rows), "sentences": len(task.sentences.unique()), "words": len(words)}
    for condition, accuracy in judged.items():
        row: dict[str, Any] = {"feature": task.feature, "split": task.split, "condition": condition}
        row |= dict(zip(("accuracy", "low", "high"), map(float, accuracy.interval()), strict=True))
        row["chance"], whole = accuracy.chance, judged.get(SHARE_OF.get(condition, ""))
        for name, above in zip(SHARES, (0.0, accuracy.chance), strict=True):
            row |= interval_columns(name, accuracy.share_of(whole, above) if whole else NO_SHARE)
        yield {**row, "levels": len(task.levels), "effective_parts": accuracy.worth, **sizes}


def means_of(table: pd.DataFrame) -> dict[str, float]:
    """Return means over features and layer pairs, on held-out sentences where there are any."""
    first = table[table["split"] == table["split"].iloc[0]]
    native, carried = (first[first["condition"] == condition] for condition in (NATIVE, CARRIED))
    found = {
        "mean_native_accuracy": native["accuracy"].mean(),
        "mean_carried_accuracy": carried["accuracy"].mean(),
        "mean_share_above_chance": carried["share_above_chance"].mean(),  # NaN where there is no share
    }
    return {name: float(value) for name, value in found.items() if value == value}


@dataclass
class ProbesConfig(TransferConfig):
    """The settings of probes and of their controls."""

    kind: str = "probes"
    # ridge penalties
    alphas: list[float] = setting(lambda: [0.1, 1.0, 10.0, 100.0, 1000.0], above=0, most=1e9)
    folds: int = setting(5, least=2, most=10**4)  # of the stimuli
    # of the others, on which the penalty is chosen
    inner_folds: int = setting(3, least=2, most=10**4)
    splits: list[str] = field(default_factory=lambda: list(SPLITS))  # what is held out together: sentence, word
    least: int = setting(20, least=2, most=10**9)  # stimuli of a level that is told apart
    draws: int = setting(5, least=1, most=10**4)  # of random maps
    untrained: bool = True  # whether the target is also taken as it was before training

    def __post_init__(self) -> None:
        super().__post_init__()
        for split in self.splits:
            one_of("measure.splits", split, SPLITS)


class CarriedProbes(
    OfMaps, kind="probes", version=4, reads=("model", "target", "layers", "data", "measure", "stimuli", "seed")
):
    """Carries probes of `model` to `model@target` and back, through maps that are fitted on text."""

    takes_sites: ClassVar[bool] = True

    def inputs(self, config: AnalyzeConfig) -> Mapping[str, Any]:
        stimuli = read_stimuli(config.stimuli)
        for model in (config.model, config.target):
            if not isinstance(model.site, str) or model.site in ONCE or model.head == "all":
                raise ConfigError("probes are of one place in each block: give one model.site, and one model.head of z")
        _tasks(config, stimuli)  # so that errors come before anything is loaded
        return {"stimuli": stimuli, **super().inputs(config)}

    def passes(self, config: AnalyzeConfig, shapes: Shapes) -> Sequence[Passes]:
        """Return the passes over sentences and text, over text also of an untrained target; fits are left out."""
        text = super().passes(config, shapes)
        again = [replace(each, phase="untrained target") for each in text] if config.measure.untrained else []  # type: ignore[attr-defined]
        return [*sentence_passes(config, shapes), *text, *again]

    def run(self, config: AnalyzeConfig, work: Work) -> Outcome:
        measure = config.measure_as(ProbesConfig)
        stimuli: Stimuli = work.input("stimuli", Stimuli)
        with work.phase("loading"):
            source, target, pairs = fitting.models_and_pairs(config)
            corpus = shared_text(config.data, source, target, measure.fit_tokens)
        with work.phase("states"):
            kept = stimulus_states_of(config, stimuli, embed=False, loaded=(source, target))
            if not with_own_states(stimuli, kept).all():
                raise DataError(f"{stimuli.source}: probes need a state of every stimulus: leave those rows out")
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
            blank=BLANK,
        )

    def draw(self, result: Result, folder: Path) -> None:
        figures.carried_probes(result.table, folder)

    def headlines(self, result: Result) -> list[Headline]:
        """Return means over features: carried probes' share of native accuracy above chance, and both accuracies."""
        names = ("mean_share_above_chance", "mean_carried_accuracy", "mean_native_accuracy")
        return [Headline(name, result.scalars[name]) for name in names if name in result.scalars]

    def show(self, result: Result) -> None:
        table, stimuli = result.table, result.provenance["stimuli"]
        first, splits = table.iloc[0], list(table["split"].unique())
        left = result.tables["maps"]
        title = f"{first['source']} → {first['target']}, {stimuli['count']} stimuli of {Path(stimuli['source']).name}: "
        show_table(_table(f"{title}balanced accuracy of probes, held-out {splits[0]}s", table))
        for split in splits:
            means = table[table["split"] == split].groupby("condition")[["accuracy", "chance"]].mean()
            carried, native = (means.loc[name] for name in (CARRIED, NATIVE))
            show_text(
                f"On held-out {split}s, carried probes are right on {carried['accuracy']:.2f} on average, probes of "
                f"the target itself on {native['accuracy']:.2f}, and chance is {native['chance']:.2f}."
            )
        ends = f"{left['phi'].min():.2f} to {left['phi'].max():.2f}"
        show_text(f"The maps leave {ends} of held-out text unexplained. {LEGEND}")


def _tasks(config: AnalyzeConfig, stimuli: Stimuli) -> list[Task]:
    measure = config.measure_as(ProbesConfig)
    return list(tasks_of(stimuli, measure.splits, measure.folds, measure.least, config.seed))


SHOWN = {"native": NATIVE, "carried": CARRIED, "random": RANDOM, "untrained": UNTRAINED}
LEGEND = (
    "Native probes are fitted in the target, carried ones in the source and read through ψ, random ones through maps "
    "of ψ's spectrum, untrained ones in an untrained target; share is that of native above chance."
)


def _table(title: str, table: pd.DataFrame) -> Table:
    """Return a row for each feature of the first split, at the layers where its native probe is best."""
    rows = table[table["split"] == table["split"].iloc[0]]
    native = rows[rows["condition"] == NATIVE]
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
