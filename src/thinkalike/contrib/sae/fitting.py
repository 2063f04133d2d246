"""How the autoencoders of a job are trained: every start at every rate with every seed, in one pass over the text."""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike.contrib.sae.config import SAEConfig
from thinkalike.contrib.sae.measures import SparseAutoencoder
from thinkalike.contrib.sae.setting import Setting
from thinkalike.contrib.sae.training import SAEFit, SAETraining, SplicedLosses, spliced_losses, spread_by_document
from thinkalike.contrib.subjects.measures import random_effects
from thinkalike.evaluation.columns import interval_columns
from thinkalike.measures.bootstrap import bootstrap_interval, documents_and_seeds_interval
from thinkalike.measures.estimates import Estimate
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.operations import operations
from thinkalike.training.run import Run, fit

log = logging.getLogger(__name__)

NOTHING = Estimate(*(torch.tensor(math.nan),) * 3)  # blank cells


@dataclass(frozen=True)
class Fitted:
    """What became of the autoencoders of a job, by look, start, rate and seed.

    Where there are several rates, the best of a start is chosen on every other document of the report, and judged on
    the others.
    """

    errors: Tensor  # (looks, starts, rates, seeds, documents), see `SAETraining`
    spread: Tensor  # (documents) Σ‖h - μ‖²
    active: Tensor  # (looks, starts, rates, seeds)
    dead: Tensor
    began: list[SparseAutoencoder]  # by start, rate and seed
    ended: list[SparseAutoencoder]

    def best_rate(self, start: int, look: int = -1) -> int:
        """Return the number of the rate with the least error at a look, on average over seeds."""
        every = 2 if self.errors.shape[2] > 1 else 1
        return int(self.errors[look, start, ..., ::every].sum(-1).mean(-1).argmin())

    @property
    def judged(self) -> tuple[Tensor, Tensor]:
        """The errors and the spread of the documents that no rate was chosen on."""
        kept = slice(1, None, 2) if self.errors.shape[2] > 1 else slice(None)
        return self.errors[..., kept], self.spread[kept]

    def place(self, start: int, rate: int, seed: int) -> int:
        """Return the number of an autoencoder in `began` and `ended`."""
        _, _, rates, seeds = self.active.shape
        return (start * rates + rate) * seeds + seed


def fitted(setting: Setting, run: Run, loggers: Sequence[Any]) -> Fitted:
    """Train all autoencoders of a job, from every start, at every rate, with every seed."""
    config, rows = setting.config, setting.corpus.fit.tokens
    fits = [
        SAEFit(setting.begins(start, seed), factor, seed)
        for start in config.starts
        for factor in config.factors
        for seed in setting.seeds
    ]
    module = SAETraining(setting.model, fits, config, setting.mean, setting.scale, setting.report)
    log.info("%d autoencoders of %d latents, %d steps", len(fits), config.width, config.steps)
    if (times := setting.tokens_seen[-1] / setting.corpus.counts["fit_tokens"]) > 1.01:
        log.warning("warning: training reads the fit tokens %.1f times over: there are no more", times)
    if config.steps:
        with setting.model.compiled(run.trainer.compile), setting.model.cast(run.trainer.precision == "bf16-mixed"):
            fit(module, module.data(rows), run, loggers)
    module.to(setting.model.device)
    module.look(len(config.looks) - 1)
    shape = len(config.looks), len(config.starts), len(config.factors), config.seeds
    return Fitted(
        module.errors.cpu().double().view(*shape, -1),
        spread_by_document(setting.report, module.errors.shape[-1]),
        module.active.cpu().view(shape),
        module.dead.cpu().view(shape),
        began=[each.begins for each in fits],
        ended=module.trained(),
    )


# The FLOPs of a start and of each token of its training. That of training a source beforehand is not counted.

EIGEN = 9.0  # d³ for eigenvalues and eigenvectors of a symmetric matrix (Golub & Van Loan 2013, section 8.3)


class Site(NamedTuple):
    """The width of a site, and the operations of one token of the frozen model up to it."""

    width: int
    passing: float


def of_maps(n: int | float, source: int, target: int) -> float:
    """Return 2 n (d² + d e + e²) for the products of the states of n tokens."""
    return 2.0 * n * float(source**2 + target**2 + source * target)


def of_solution(d: int, e: int) -> float:
    """Return what the map of least squares from width d to width e takes, given its moments."""
    return EIGEN * d**3 + 4.0 * d * d * e


def of_start(start: str, config: SAEConfig, seen: float, own: Site, source: Site | None = None) -> float:
    """Return the operations of a start before any training; `seen` is the share of tokens whose states are read."""
    read, d, f = float(config.map_tokens), own.width, config.width
    if start == "least_squares":
        return read * own.passing + 2.0 * seen * read * d * f + of_maps(seen * read, f, d) + of_solution(f, d)
    if start == "random" or source is None:
        return 0.0
    e = source.width
    carrying = 4.0 * d * e * f + 2.0 * e * (d + f)  # through maps to the other width and back: weights and biases
    gathering = read * (own.passing + source.passing) + of_maps(seen * read, e, d)
    return gathering + of_solution(e, d) + of_solution(d, e) + carrying


def of_token(config: SAEConfig, seen: float, own: Site) -> float:
    """Return the operations of one token of training: the frozen model's and the autoencoder's.

    The latter are 10 d f: two products forward, and gradients of both maps and of the latents. A latent that is looked
    after because it may be dead takes 6 d.
    """
    revived = config.revived if config.dead_after and config.activation == "topk" else 0
    return own.passing + seen * own.width * (10.0 * config.width + 6.0 * revived)


@dataclass(frozen=True)
class Course:
    """What the autoencoders of a start explain as they read, and what that takes."""

    start: str
    tokens: Sequence[int]  # how many had been read at each look, from 0
    explained: Float[Tensor, "looks seeds"]  # at the rate that is best at that look
    fixed: float  # operations before training
    each: float  # operations of each token

    def operations(self, tokens: Float[Tensor, "*b"]) -> Float[Tensor, "*b"]:
        """Return the operations of training on this many tokens, including the preparation."""
        return self.fixed + self.each * tokens

    def spent(self, tokens: int) -> float:
        return float(self.operations(torch.tensor(float(tokens))))

    def reaches(self, goals: Float[Tensor, "looks seeds"]) -> Float[Tensor, "looks seeds"]:
        """Return the tokens after which each seed first explains as much as its goals; infinite where it never does.

        Between two looks the curve is taken as a line over the logarithm of the tokens, from 0 to the first as a line
        over tokens. It lies above such lines, so that a start needs a little less than is said here.
        """
        curve, tokens = self.explained.double(), torch.tensor(self.tokens, dtype=torch.float64)
        found = torch.full(goals.shape, math.inf, dtype=torch.float64)
        for place in range(len(tokens) - 1, 0, -1):
            first, last = curve[place - 1], curve[place]
            share = ((goals - first) / (last - first)).clamp(0, 1)
            line = tokens[place - 1] * (tokens[place] / tokens[place - 1]) ** share if place > 1 else share * tokens[1]
            found = torch.where((goals <= last) & (goals > first), line, found)
        return torch.where(goals <= curve[0], 0.0, found)


def savings(course: Course, against: Course) -> Float[Tensor, "looks seeds"]:
    """Return which share of the other's operations a start saves at each look after the first, on the way to its goal.

    1 - operations of the start / operations of the other. Where a start never gets there it is 1 - all of its
    operations / those of the other, which is more than it saves.
    """
    needed = course.reaches(against.explained.double()).clamp(max=float(course.tokens[-1]))
    budget = torch.tensor(against.tokens, dtype=torch.float64)[:, None]
    return (1 - course.operations(needed) / against.operations(budget))[1:]


def savings_table(courses: Sequence[Course]) -> tuple[pd.DataFrame, Float[Tensor, "rows seeds"]]:
    """Return what each start saves against each before it in the list, one row for each look after the first.

    `reached` is the share of seeds that got to the other's figure at all; `saved` counts too much for the others.
    Beside the table of means over seeds comes the share that each seed saves, row by row.
    """
    pairs = [(course, against) for against, course in itertools.combinations(courses, 2)]
    by_seed = [savings(course, against) for course, against in pairs]
    tables = [
        pd.DataFrame(
            {
                "start": course.start,
                "against": against.start,
                "tokens": against.tokens[1:],
                "explained_variance": against.explained[1:].mean(-1).tolist(),
                "flops": against.operations(torch.tensor(against.tokens[1:]).double()).tolist(),
                **interval_columns("saved", random_effects(saved)),
                "reached": course.reaches(against.explained.double()).isfinite()[1:].double().mean(-1).tolist(),
                "seeds": saved.shape[1],
            }
        )
        for (course, against), saved in zip(pairs, by_seed, strict=True)
    ]
    return pd.concat(tables, ignore_index=True), torch.cat(by_seed)


BLANK = [f"loss_recovered{end}" for end in ("", "_low", "_high")]  # an empty cell: there is no loss to recover


def courses_of(setting: Setting, made: Fitted) -> list[Course]:
    """Return what each start explains as it reads, those that are compared with first."""
    config, (errors, spread) = setting.config, made.judged
    explained = 1 - errors.sum(-1) / spread.sum()
    row, found = setting.corpus.fit.context, []
    seen = 1 - config.skip_first_tokens / row

    def site(model: FrozenModel, layer: int) -> Site:
        return Site(model.d_model, operations(model).forward(0, layer + 1, row))

    own = site(setting.model, config.layer)
    source = site(setting.source, int(setting.made.config["sae"]["layer"])) if setting.source and setting.made else None
    for start in ("random", "least_squares", "transferred"):
        if start in config.starts:
            number = config.starts.index(start)
            curve = [each[number, made.best_rate(number, look)] for look, each in enumerate(explained)]
            costs = of_start(start, config, seen, own, source), of_token(config, seen, own)
            found.append(Course(start, setting.tokens_seen, torch.stack(curve), *costs))
    return found


def curves(setting: Setting, made: Fitted) -> pd.DataFrame:
    """Return what every autoencoder explains at each look, with 95 % intervals over documents."""
    config = setting.config
    explained = _explained(bootstrap_interval(*made.judged))
    course = {each.start: each for each in courses_of(setting, made)}
    rates = [config.lr * factor for factor in config.factors]
    each = itertools.product(setting.tokens_seen, config.starts, rates, setting.seeds)
    names = pd.DataFrame(list(each), columns=["tokens", "start", "rate", "seed"])
    names["flops"] = [course[start].spent(count) for count, start in names[["tokens", "start"]].to_numpy()]
    numbers = interval_columns("explained_variance", Estimate(*(part.flatten() for part in explained)))
    beside = {"active_latents": made.active, "dead_latents": made.dead}
    return names.assign(**numbers, **{name: each.flatten().tolist() for name, each in beside.items()})


def table_of(setting: Setting, made: Fitted) -> pd.DataFrame:
    """Return one row for each start before training, and one after it at the rate that is best there.

    Intervals are of 95 %, over documents and seeds. Those of `loss_recovered` are of the spliced loss alone: what the
    ablation costs is taken as known.
    """
    config, rows = setting.config, []
    looks = [0, len(config.looks) - 1] if config.steps else [0]
    course = {each.start: each for each in courses_of(setting, made)}
    chosen = [(number, look, made.best_rate(number, look)) for number in range(len(config.starts)) for look in looks]
    saes = [
        (made.ended if look or not config.steps else made.began)[made.place(number, rate, seed)]
        for number, look, rate in chosen
        for seed in range(config.seeds)
    ]
    errors, spread = made.judged
    report, skip = setting.corpus.report, config.skip_first_tokens
    losses = spliced_losses(setting.model, config.layer, saes, setting.mean, report, skip)
    spliced = losses.spliced.unflatten(0, (len(chosen), config.seeds))
    for (number, look, rate), own in zip(chosen, spliced, strict=True):
        tokens = setting.tokens_seen[look]
        explained = _explained(documents_and_seeds_interval(errors[look, number, rate], spread))
        rows.append(
            {
                "model": setting.model.name,
                "layer": config.layer,
                "start": config.starts[number],
                "rate": config.lr * config.factors[rate] if look else 0.0,
                "tokens": tokens,
                "flops": course[config.starts[number]].spent(tokens),
                **interval_columns("explained_variance", explained),
                **_recovered(losses, own),
                "active_latents": float(made.active[look, number, rate].mean()),
                "dead_latents": float(made.dead[look, number, rate].mean()),
            }
        )
    return pd.DataFrame(rows)


def _recovered(losses: SplicedLosses, spliced: Tensor) -> dict[str, Any]:
    """Return the loss with ĥ in place of the states, its penalty, and the share of the ablation's that it recovers.

    Where the ablation costs the model nothing there is nothing to recover, and the cells are blank.
    """
    counts = losses.tokens
    clean, ablated = (each.sum() / counts.sum() for each in (losses.clean, losses.ablated))
    penalty = documents_and_seeds_interval(spliced - losses.clean, counts)
    value, low, high = ((ablated - (clean + each)) / (ablated - clean) for each in penalty)
    recovered = Estimate(value, high, low)  # it falls as the penalty rises
    return {
        "clean_loss": float(clean),
        "ablated_loss": float(ablated),
        **interval_columns("penalty", penalty),
        **interval_columns("loss_recovered", recovered if ablated > clean else NOTHING),
    }


def _explained(missed: Estimate) -> Estimate:
    value, low, high = missed
    return Estimate(1 - value, 1 - high, 1 - low)
