"""Where classifiers that generalize part from those that do not: figures 2, 7 and 8 of Brown et al. 2023.

At mini scale the answer is planted: forks of two parents, taught apart from one block on, and the null that the paper
lacks, forks of two parents that differ in nothing but the seed.

A cut is the last layer of the source in an identity stitch, -1 its embedding. Early are the cuts with at most half of
the source's blocks; late those with more than three quarters, but not all of them: at the last cut only pooler and
classes are the target's.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike.config.compose import compose_inner_job
from thinkalike.contrib import figures
from thinkalike.contrib.papers.claims import Bound, Claim, judged, level_of_each, over_models, together, untestable
from thinkalike.contrib.papers.experiment import Case, Conclusion, Experiment, Part
from thinkalike.contrib.populations import measures as populations
from thinkalike.contrib.populations.config import PopulationConfig, PopulationJob
from thinkalike.measures.estimates import Estimate, interval_around, student_t
from thinkalike.measures.kernel_alignment import arc_length
from thinkalike.store import Result

SMALL = 0.02  # of an accuracy: what "almost no penalty" may cost
ALIKE = 0.02  # of CKA: by how much it may tell groups apart where it should not
PARTED = 0.02  # of CKA or accuracy: by how much groups differ that have parted, and not only begun to
THIRD = 1 / 3  # of the flips between strategies: fewer than that are flips of chance
LEAST_GAP = 0.1  # of an accuracy: by how much the groups differ at least
LEAST_INDEX = 0.5  # of the adjusted Rand index: from there on clusters are the groups


def _parts(case: Case, side: str) -> list[Part]:
    return [Part(side, changes=changes_of(case, side))]


def _figure2(case: Case) -> Conclusion:
    """Identity stitches and CKA within and between the groups, on the pairs that classifiers were made for."""
    population = Population.of(case, "report")
    claims = [*stitching_claims(population, "on held-out pairs"), late_layers_part(population)]
    claims += cluster_claims(population)
    tables = _stitches(population, "") | _likeness(population, "")
    if population.config.null:
        null = population.null
        tables |= _stitches(null, ", null") | _likeness(null, ", null")
        last = null.grouped(null.likeness[..., -1:]).difference
        claim = "the null: CKA in the last layer does not tell two parents of one strategy apart"
        numbers = f"within minus between {last[0]:+.3f}; {_parting(null.likeness, null, 'layer', 0)}"
        claims.append(judged(claim, [(Bound("within", ALIKE), last)], numbers, null.units))
    return _by_depth(tables, claims)


def _figure7(case: Case) -> Conclusion:
    """The same identity stitches on the challenge."""
    population = Population.of(case, "challenge")
    claims = [gap_claim(population), *stitching_claims(population, "on the challenge")]
    tables = _stitches(population, ", challenge")
    if population.config.null:
        tables |= _stitches(population.null, ", challenge, null")
        claims.append(null_flips_less(population))
    return _by_depth(tables, claims)


def _by_depth(tables: dict[str, pd.DataFrame], claims: list[Claim]) -> Conclusion:
    table = pd.concat([part.assign(panel=title) for title, part in tables.items()], ignore_index=True)
    return Conclusion(table, claims, partial(figures.groups_by_depth, tables))


def _stitches(population: Population, ending: str) -> dict[str, pd.DataFrame]:
    """Return what identity stitches cost and flip, by title of a panel."""
    penalties, flips = (population.grouped(each, examples=True) for each in (population.penalties, population.flips))
    axis = "last layer of the source"
    return {
        f"identity stitches{ending}": _by_pair(penalties, population, -1, "accuracy_penalty", axis),
        f"flipped predictions{ending}": _by_pair(flips, population, -1, "flips", axis),
    }


def _likeness(population: Population, ending: str) -> dict[str, pd.DataFrame]:
    means = population.grouped(population.likeness)
    return {f"CKA{ending}": _by_pair(means, population, 0, "value", "layer")}


def _figure8(case: Case) -> Conclusion:
    """Distances between the models from CKA of all layers."""
    population = Population.of(case, "report")
    ends = itertools.product(population.groups.items(), repeat=2)
    rows = [(source, target, a, b, " and ".join(sorted((a, b)))) for (source, a), (target, b) in ends]
    table = pd.DataFrame(rows, columns=["source", "target", "group_of_source", "group_of_target", "pair"])
    table = table.assign(value=population.distances.flatten().numpy())
    apart = population.grouped(population.distances[..., None]).difference
    numbers = f"mean distance within minus between {apart[0]:+.3f}"
    bounds = [(Bound("below"), apart)]
    claim = judged("models of one group are nearer to each other than models of two", bounds, numbers, population.units)
    return Conclusion(table, [claim, *cluster_claims(population)], partial(figures.distances, table))


def _by_pair(means: populations.Grouped, population: Population, first: int, column: str, axis: str) -> pd.DataFrame:
    rows = []
    for (a, source), (b, target) in itertools.product(enumerate(population.names), repeat=2):
        for place in range(means.cells.value.shape[-1]):
            rows.append((f"{source} into {target}", place + first, *map(float, means.cells[a, b, place])))
    table = pd.DataFrame(rows, columns=["pair", "place", "mean", "low", "high"])
    return table.assign(column=column, axis=axis)


MODELS: dict[str, list[str]] = {"paper": [], "mini": []}  # a population names them
EXPERIMENTS = [
    Experiment("brown2023/figure2", _figure2, MODELS, partial(_parts, side="report"), "population"),
    Experiment("brown2023/figure7", _figure7, MODELS, partial(_parts, side="challenge"), "population"),
    Experiment("brown2023/figure8", _figure8, MODELS, partial(_parts, side="report"), "population"),
]


def changes_of(case: Case, side: str) -> dict[str, Any]:
    """Return what a population's job takes: at the paper's scale the defaults give way to the paper's own.

    At mini scale CKA is of [CLS] unless a word says otherwise: of the last block nobody reads the other tokens.
    """
    config: Any = case.config
    measure: Any = replace(config.measure, side=side)  # type: ignore[call-arg]
    if config.scale == "mini" and measure.tokens is None:
        measure = replace(measure, tokens="cls")
    changes: dict[str, Any] = {"measure": measure}
    if config.scale != "mini":
        paper = compose_inner_job("analyze", ["measure=population", "pairs=mnli", "population=feather-berts"])
        assert isinstance(paper, PopulationJob)
        changes["pairs"] = paper.pairs if config.pairs.source == "templates" else config.pairs
        changes["population"] = paper.population if config.population.name == "planted" else config.population
    return changes


@dataclass(frozen=True)
class Population:
    """The result of a job on a population, as tensors over those of its models whose groups are wanted."""

    result: Result
    config: PopulationConfig
    wanted: tuple[str, ...] = ()

    @classmethod
    def of(cls, case: Case, side: str) -> Population:
        """Return the population of a case, without the second group of a null."""
        job: Any = case.config
        config = changes_of(case, side).get("population") or job.population
        whole = cls(case.results[side], config)
        left_out = config.null[1:] if config.null else []
        return replace(whole, wanted=tuple(name for name in whole.names if name not in left_out))

    @property
    def null(self) -> Population:
        return replace(self, wanted=tuple(self.config.null or ()))

    @cached_property
    def _all(self) -> dict[str, str]:
        rows = self.result.table.drop_duplicates("source")
        return dict(zip(rows["source"], rows["group_of_source"], strict=True))

    @cached_property
    def groups(self) -> dict[str, str]:
        return {name: group for name, group in self._all.items() if not self.wanted or group in self.wanted}

    @property
    def names(self) -> list[str]:
        return list(dict.fromkeys(self.groups.values()))

    @property
    def units(self) -> str:
        sizes = [list(self.groups.values()).count(group) for group in self.names]
        return f"{len(self.groups)} models in groups of {' and '.join(map(str, sizes))}"

    @property
    def examples(self) -> str:
        return f"{self.units}, {self.penalties.shape[-1]} pairs of texts"

    def _array(self, name: str) -> Tensor:
        places = torch.tensor([place for place, model in enumerate(self._all) if model in self.groups])
        return torch.from_numpy(self.result.arrays[name])[places[:, None], places]

    @cached_property
    def own(self) -> Float[Tensor, "m n"]:
        """Which pairs of texts each model gets right by itself."""
        correct = self._array("correct").double()
        return correct.diagonal()[0].T

    @cached_property
    def penalties(self) -> Float[Tensor, "m m c n"]:
        """Accuracy of the target minus that of the stitched model, of each pair of texts: -1, 0 or 1."""
        return populations.population_penalties(self._array("correct").double())

    @cached_property
    def flips(self) -> Float[Tensor, "m m c n"]:
        """Whether the stitched model predicts another class than the target, of each pair of texts."""
        return populations.flips(self._array("predicted"))

    @cached_property
    def likeness(self) -> Float[Tensor, "m m l"]:
        return self._array("cka")

    @cached_property
    def distances(self) -> Float[Tensor, "m m"]:
        """√Σ arccos²(CKA) over layers (equation 2)."""
        return populations.symmetric(arc_length(self.likeness)).fill_diagonal_(0)

    def grouped(self, values: Float[Tensor, "m m *s"], **options: Any) -> populations.Grouped:
        return populations.grouped(values, list(self.groups.values()), **options)


def gap_claim(population: Population) -> Claim:
    """Say whether one group is right more often, by an interval over models and pairs of texts (Welch's)."""
    kinds = list(population.groups.values())
    parts = [population.own[[kind == name for kind in kinds]] for name in population.names]
    spread = sum(part.mean(1).var() / len(part) for part in parts)
    spread = spread + (parts[0].mean(0) - parts[1].mean(0)).var() / parts[0].shape[1]
    half = student_t(0.95, min(map(len, parts)) - 1) * spread.sqrt()
    gap = interval_around(parts[0].mean() - parts[1].mean(), half)
    means = " and ".join(f"{float(part.mean()):.3f}" for part in parts)
    numbers = f"mean accuracy {means}, difference {gap:+.3f}"
    bound = Bound("above", LEAST_GAP)
    return judged("the two groups differ on the challenge", [(bound, gap)], numbers, population.examples)


def stitching_claims(population: Population, where: str) -> list[Claim]:
    """Return the claims about stitches; each direction is judged by itself, as signed accuracies may cancel."""
    blocks, count = population.penalties.shape[2] - 1, len(population.names)
    early = [cut for cut in range(blocks + 1) if cut <= blocks / 2]
    late = [cut for cut in range(blocks + 1) if 0.75 * blocks < cut < blocks]
    squares = [(group, other) for group in range(count) for other in range(count)]
    own, apart = ([pair for pair in squares if len(set(pair)) == number] for number in (1, 2))
    small, above, penalties, flips = Bound("below", SMALL), Bound("above"), population.penalties, population.flips
    cheap = f"stitches at early cuts cost almost nothing {where}"
    claims = [_by_direction(cheap, population, small, penalties, "cells", squares, early)]
    for claim, bound, values, kind, directions in (
        ("late stitches between the groups cost more than within", above, penalties, "directed", apart),
        ("late stitches between the groups flip more predictions than within", above, flips, "directed", apart),
        ("late stitches within a group cost almost nothing", small, penalties, "cells", own),
    ):
        name = f"{claim} {where}"
        if late:
            claims.append(_by_direction(name, population, bound, values, kind, directions, late))
        else:
            claims.append(untestable(name, "no cut is late in models of fewer than 5 blocks"))
    return claims


def _by_direction(
    claim: str,
    population: Population,
    bound: Bound,
    values: Float[Tensor, "m m c n"],
    kind: str,
    directions: Sequence[tuple[int, int]],
    cuts: Sequence[int],
) -> Claim:
    """Return a claim about the means, or the differences from the targets' own group, of some directions at cuts."""
    count, names = len(directions) * len(cuts), population.names
    means = getattr(population.grouped(values, examples=True, level=level_of_each(count)), kind)
    numbers = "; ".join(f"{names[a]} into {names[b]} {_places(means[a, b], cuts, -1)}" for a, b in directions)
    if kind == "directed":
        numbers += f"; {_parting(-values.mean(-1), population, 'cut', -1)}"
    estimates = [(bound, means[a, b][list(cuts)]) for a, b in directions]
    return judged(claim, estimates, f"{numbers}{together(count)}", population.examples)


def null_flips_less(population: Population) -> Claim:
    """Say whether parents of one strategy flip less than a third of what two strategies do, at the last cut but one."""
    whole = replace(population, wanted=())
    flipped, kinds = whole.flips[:, :, -2].mean(-1), list(whole.groups.values())
    claim = "the null: parents of one strategy flip under a third of what two strategies flip on the challenge"
    if min(Counter(kinds).values()) < 3:
        return untestable(claim, "an interval leaves out a model at a time, so groups must have three")
    first, second = population.names[0], list(population.config.null or [])

    def excess(kept: list[int]) -> float:
        groups = [kinds[model] for model in kept]
        means = populations.grouped(flipped[kept][:, kept, None], groups).cells.value[..., 0]
        names = list(dict.fromkeys(groups))
        one, other, strategy = (names.index(name) for name in [*second, first])
        return float(populations.symmetric(means)[one, other] - THIRD * populations.symmetric(means)[strategy, one])

    value = over_models(excess, range(len(kinds)))
    numbers = f"flips between {' and '.join(second)} minus a third of those between {first} and {second[0]}"
    return judged(claim, [(Bound("below"), value)], f"{numbers}: {value:+.3f}", whole.examples)


def _places(estimate: Estimate, places: Sequence[int], first: int) -> str:
    """Return the numbers at some places of the last axis, which begins with the cut or layer `first`."""
    return ", ".join(f"{place + first}: {estimate[place]:+.3f}" for place in places)


def late_layers_part(population: Population) -> Claim:
    """Say whether CKA tells the groups apart in the last quarter of the layers, and not in the first half."""
    layers = population.likeness.shape[-1]
    early, late = list(range(layers // 2)), list(range(layers - max(layers // 4, 1), layers))
    count = len(early) + len(late)
    apart = population.grouped(population.likeness, level=level_of_each(count)).difference
    numbers = f"within minus between {_places(apart, range(layers), 0)}{together(count)}"
    numbers += f"; {_parting(population.likeness, population, 'layer', 0)}"
    bounds = [(Bound("above"), apart[late]), (Bound("within", ALIKE), apart[early])]
    return judged("CKA tells the groups apart in late layers, and not in early ones", bounds, numbers, population.units)


def _parting(values: Float[Tensor, "m m l"], population: Population, place: str, first: int) -> str:
    """Return where groups part: the first place that shows it, and the first of more than a little."""
    apart = population.grouped(values, level=level_of_each(values.shape[-1])).difference
    onsets = populations.onset(apart), populations.onset(apart, PARTED)
    begins = ["none" if at is None else str(at + first) for at in onsets]
    return f"the first {place} that shows a difference is {begins[0]}, one of more than {PARTED} {begins[1]}"


def cluster_claims(population: Population) -> list[Claim]:
    """Return what the paper left undone: groups from flips alone, and from distances alone."""
    flipped, config = population.flips.mean(-1), population.config
    late = max(int(0.75 * (flipped.shape[-1] - 1)), 0)
    costs = populations.symmetric(flipped[..., late:-1].mean(-1)).fill_diagonal_(0)
    known: dict[str, list[Any]] = {"the groups": list(population.groups.values())}
    if config.cluster:
        before = "" if config.members == "local" else f"{config.members}-"
        inside = {f"{before}{number}" for number in config.cluster}
        known["the published cluster"] = [name in inside for name in population.groups]
    claims, count = [], len(population.names)
    for what, matrix in (("flipped predictions", costs), ("CKA distances", population.distances)):

        def index(kept: list[int], groups: Sequence[Any], matrix: Tensor = matrix) -> float:
            clusters = populations.cluster(matrix[kept][:, kept], count)
            return populations.adjusted_rand_index(clusters, [groups[model] for model in kept])

        clusters, numbers = populations.cluster(matrix, count), []
        found = {name: over_models(partial(index, groups=each), range(len(each))) for name, each in known.items()}
        for name, value in found.items():
            p = populations.adjusted_rand_index_p(clusters, known[name])
            numbers.append(f"adjusted Rand index with {name} {value:.2f}, p = {p:.4f}")
        bounds = [(Bound("above", LEAST_INDEX), found["the groups"])]
        claim = f"clusters from {what} alone are the groups"
        claims.append(judged(claim, bounds, ", ".join(numbers), population.units))
    return claims
