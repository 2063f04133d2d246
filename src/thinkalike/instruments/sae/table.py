"""The tables of a job of autoencoders: what each start explains, recovers and costs, before training and after it."""

from __future__ import annotations

from typing import Any

import pandas as pd
import torch
from torch import Tensor

from thinkalike.evaluation import SplicedLosses, ends_of, spliced_losses
from thinkalike.instruments.operations.saes import Site, of_start, of_token
from thinkalike.instruments.sae.fitting import Fitted
from thinkalike.instruments.sae.savings import Course
from thinkalike.instruments.sae.setting import Setting
from thinkalike.measures import Estimate, bootstrap_interval, documents_and_seeds_interval, loss_recovered
from thinkalike.models import FrozenModel, operations

BLANK = [  # an empty cell: a start does not break even; there is no loss to recover
    f"{name}{end}" for name in ("break_even_tokens", "loss_recovered") for end in ("", "_low", "_high")
]


def tokens_seen(setting: Setting) -> list[int]:
    """Return how many tokens had been read at each look."""
    return [look * setting.config.tokens_per_step for look in setting.config.looks]


def courses_of(setting: Setting, made: Fitted) -> list[Course]:
    """Return what each start explains as it reads, those that are compared with first."""
    config, (errors, spread) = setting.config, made.judged
    explained = 1 - errors.sum(-1) / spread.sum()
    order = [start for start in ("random", "least_squares", "transferred") if start in config.starts]
    seen, own, source = _sites(setting)
    return [
        Course(
            start,
            tokens_seen(setting),
            torch.stack([each[number, made.best_rate(number, look)] for look, each in enumerate(explained)]),
            of_start(start, config, seen, own, source),
            of_token(config, seen, own),
        )
        for start in order
        for number in [config.starts.index(start)]
    ]


def curves(setting: Setting, made: Fitted) -> pd.DataFrame:
    """Return what every autoencoder explains at each look, with 95 % intervals over documents."""
    config = setting.config
    explained = _explained(bootstrap_interval(*made.judged))
    course = {each.start: each for each in courses_of(setting, made)}
    names = pd.MultiIndex.from_product(
        [tokens_seen(setting), config.starts, [config.lr * factor for factor in config.factors], setting.seeds],
        names=["tokens", "start", "rate", "seed"],
    ).to_frame(index=False)
    names["flops"] = [
        float(course[start].operations(torch.tensor(float(tokens))))
        for start, tokens in zip(names["start"], names["tokens"], strict=True)
    ]
    numbers = ends_of("explained_variance", Estimate(*(part.flatten() for part in explained)))
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
        tokens = tokens_seen(setting)[look]
        explained = _explained(documents_and_seeds_interval(errors[look, number, rate], spread))
        rows.append(
            {
                "model": setting.model.name,
                "layer": config.layer,
                "start": config.starts[number],
                "rate": config.lr * config.factors[rate] if look else 0.0,
                "tokens": tokens,
                "flops": float(course[config.starts[number]].operations(torch.tensor(float(tokens)))),
                **ends_of("explained_variance", explained),
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
    value, low, high = (loss_recovered(clean, ablated, clean + each) for each in penalty)
    recovered = Estimate(value, high, low)  # it falls as the penalty rises
    nothing = Estimate(*(torch.tensor(torch.nan),) * 3)
    return {
        "clean_loss": float(clean),
        "ablated_loss": float(ablated),
        **ends_of("penalty", penalty),
        **ends_of("loss_recovered", recovered if ablated > clean else nothing),
    }


def _explained(missed: Estimate) -> Estimate:
    """Return the share of the variance that is explained, given that which is not."""
    value, low, high = missed
    return Estimate(1 - value, 1 - high, 1 - low)


def _sites(setting: Setting) -> tuple[float, Site, Site | None]:
    """Return the share of a row's tokens whose states are read, and the sites of the model and of the source."""
    config, row = setting.config, setting.corpus.fit.context

    def site(model: FrozenModel, layer: int) -> Site:
        return Site.of(operations(model), model.d_model, layer, row)

    other = site(setting.source, int(setting.made.config["sae"]["layer"])) if setting.source and setting.made else None
    return 1 - config.skip_first_tokens / row, site(setting.model, config.layer), other
