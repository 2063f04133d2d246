"""How the φ of every layer pair is had: trained beside what it is compared with, or in closed form."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor, nn

from thinkalike.evaluation.language import BITS, bits_columns, bytes_by_document, ends_of, readable_bytes, with_ends
from thinkalike.evaluation.stitches import Maps, Reader
from thinkalike.evaluation.token_means import BigramMeans
from thinkalike.instruments.stitching.setting import Setting
from thinkalike.measures.bootstrapping import documents_and_seeds_interval
from thinkalike.measures.stitch import Stitch
from thinkalike.models.controls import randomised
from thinkalike.models.frozen import FrozenModel
from thinkalike.training.run import Run, fit
from thinkalike.training.steps import peak_rate
from thinkalike.training.stitching import Fit, StitchTraining

log = logging.getLogger(__name__)

TOKENS_PER_PARAMETER = 20  # of φ; with fewer fit tokens than that it overfits


@dataclass(frozen=True)
class Fitted:
    """The φ of every layer pair, and what was trained beside it.

    Attributes:
        maps: the φs.
        late: the φs as they were when the last fifth of the steps began.
        rates: the φs of other rates, by their multiple of the rate.
        floor: of the target into itself, by layer pair.
        untrained: of the source's never-trained twin.
        weights, arrays: what of the φs is kept, and their learning curves.
        speed: operations of the training, and how fast they were.
    """

    maps: Maps
    late: Maps | None = None
    rates: Mapping[float, Maps] = field(default_factory=dict)
    floor: Maps | None = None
    untrained: Maps | None = None
    weights: dict[str, Tensor] = field(default_factory=dict)
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    speed: dict[str, float] = field(default_factory=dict)

    @property
    def is_own_floor(self) -> bool:
        """Whether the φs are their own floor, as where each goes from a layer of a model to the same one."""
        pairs = zip(self.floor or (), self.maps, strict=False)
        return bool(self.floor) and all(floor is phi for floor, phi in pairs)


def fitted(setting: Setting, run: Run, loggers: Sequence[Any], untrained: Setting | None = None) -> Fitted:
    """Train the φ of every layer pair, or solve for them.

    Args:
        untrained: the same setting with a source that was never trained, whose φs are trained alike.
    """
    config = setting.config
    if not config.trained and config.kind == "identity":
        return Fitted(setting.identity())
    if not config.trained:
        closed = setting.closed_forms(config.kind)
        parts = ("weight", "bias")
        weights = {f"{i}.map.{part}": getattr(phi, part).cpu() for i, phi in enumerate(closed) for part in parts}
        twin = untrained.closed_forms(config.kind) if untrained else None
        return Fitted(closed, weights=weights, untrained=twin)
    beside = _Beside(setting, untrained)
    rows, trainer = setting.corpus.fit, run.trainer
    module = StitchTraining(
        setting.source, setting.target, setting.layer_pairs, rows.tokens, config, setting.seed,
        layout=rows.layout, limits=trainer, beside=beside.fits,
    )  # fmt: skip
    _warn_of_overfitting(module, setting.corpus.counts["fit_tokens"])
    _start(module, setting, untrained)
    log.info(
        "%d stitches, %d steps, peak rate %g",
        len(module.stitches),
        config.steps,
        peak_rate(config, setting.source.d_model),
    )
    with contextlib.ExitStack() as changed:
        for model in dict.fromkeys(each.reads for each in module.fits):
            changed.enter_context(model.compiled(trainer.compile))
        for model in (*dict.fromkeys(each.reads for each in module.fits), setting.target):
            changed.enter_context(model.cast(trainer.precision == "bf16-mixed"))
        changed.enter_context(setting.target.recomputed(trainer.recompute))
        fit(module, run, loggers)
    module.to(setting.target.device).eval()
    return replace(beside.sorted(module), speed=module.speed(setting.target.device, trainer))


class _Beside:
    """What is trained beside the φs: other rates, the target into itself, and a source that was never trained.

    Where a model is stitched to itself, a φ from a layer to the same one is the target into itself already.
    """

    def __init__(self, setting: Setting, untrained: Setting | None):
        config, pairs = setting.config, setting.layer_pairs
        self.pairs, self.rates = pairs, config.rates
        self.fits = [Fit(setting.source, *pair, rate) for rate in config.rates for pair in pairs]
        self.twins = len(pairs) if untrained else 0
        if untrained:
            self.fits += [Fit(untrained.source, *pair) for pair in pairs]
        self.floor = config.floor
        self.own = {
            depth: i for i, (layer, depth) in enumerate(pairs) if setting.source is setting.target and layer == depth
        }
        self.depths = sorted({depth for _, depth in pairs} - set(self.own)) if config.floor else []
        self.fits += [Fit(setting.target, depth, depth) for depth in self.depths]

    def sorted(self, module: StitchTraining) -> Fitted:
        """Return all stitches under their names."""
        count, stitches = len(self.pairs), list(module.stitches)
        own, rest = stitches[:count], stitches[count:]
        rates = {rate: rest[i * count : (i + 1) * count] for i, rate in enumerate(self.rates)}
        rest = rest[len(rates) * count :]
        into_itself = {depth: own[place] for depth, place in self.own.items()}
        into_itself |= dict(zip(self.depths, rest[self.twins :], strict=True))
        state = nn.ModuleList(own).state_dict()
        curves = module.curve.cpu().numpy()
        return Fitted(
            own,
            list(module.late),
            rates,
            [into_itself[depth] for _, depth in self.pairs] if self.floor else None,
            rest[: self.twins] or None,
            {name: weight.cpu().contiguous() for name, weight in state.items()},
            {"curve": curves[:, :count], "curves_beside": curves[:, count:]},
        )


def _start(module: StitchTraining, setting: Setting, untrained: Setting | None) -> None:
    """Let stitches begin with a closed form; the target into itself begins with the identity, which that form is."""
    if setting.config.init == "identity":
        return
    starts: dict[FrozenModel, Sequence[Any]] = {setting.source: setting.starts}
    if untrained:
        starts[untrained.source] = untrained.starts
    places = {pair: place for place, pair in enumerate(setting.layer_pairs)}
    module.start_from(
        [
            (number, starts[each.reads][places[each.layer, each.depth]])
            for number, each in enumerate(module.fits)
            if each.reads in starts and (each.layer, each.depth) in places
        ]
    )


def _warn_of_overfitting(module: StitchTraining, tokens: int) -> None:
    parameters = sum(weight.numel() for weight in module.stitches[0].parameters())
    seen = module.config.steps * module.config.tokens_per_step
    if tokens < TOKENS_PER_PARAMETER * parameters:
        log.warning(
            "warning: %s fit tokens are fewer than %d per parameter of φ (%s): expect overfitting; %s",
            f"{tokens:,}",
            TOKENS_PER_PARAMETER,
            f"{parameters:,}",
            "give more text" if seen > tokens else "raise stitch.steps or stitch.tokens_per_step",
        )
    if seen > 1.01 * tokens:
        log.warning("warning: training reads the fit tokens %.1f times over: there are no more", seen / tokens)


# ------------------------------------------------------------------------------------------------------------- controls


def never_trained(setting: Setting) -> Setting | None:
    """Return the setting of the control `random_source`: a source of the same build that was never trained."""
    if not setting.config.controls:
        return None
    return replace(setting, source=randomised(setting.source, setting.seed))


def reported(setting: Setting, fits: Fitted, untrained: Setting | None, again: Mapping[str, Maps]) -> dict[str, Tensor]:
    """Return sums by document of φ and of all that stands beside it, see `document_sums`.

    Args:
        again: the φs of further seeds, by their names.
    """
    config = setting.config
    maps: dict[str, Maps] = {"stitch": fits.maps, **again}
    if setting.equal_widths:
        maps["identity"] = setting.identity()
    if config.trained and config.init != "identity":
        maps["start"] = setting.starts
    if fits.late:
        maps["late"] = fits.late
    maps |= {f"rate_{rate:g}": phis for rate, phis in fits.rates.items()}
    if config.controls:
        maps |= _controls(setting, fits.maps)
    sums = setting.sums(maps, _readers(setting, fits, untrained))
    return sums | {"floor": sums["stitch"]} if fits.is_own_floor else sums


def _readers(setting: Setting, fits: Fitted, untrained: Setting | None) -> dict[str, Reader]:
    """Return maps of other states: the target's own, mean states of tokens, and an untrained source's."""
    readers: dict[str, Reader] = {}
    if fits.floor and not fits.is_own_floor:
        readers["floor"] = Reader(setting.target, fits.floor, "target")
    width, pairs = setting.target.d_model, setting.layer_pairs
    as_they_are = [Stitch("identity", width, width)] * len(pairs)
    depths = sorted({depth for _, depth in pairs})
    texts = (rows.layout.target_tokens(rows.tokens) for rows in (setting.corpus.fit, setting.corpus.report))
    bigrams = BigramMeans(setting.target, depths, *texts)
    readers["token_mean"] = Reader(bigrams.tokens, as_they_are, "target")
    readers["bigram_mean"] = Reader(bigrams, as_they_are, "target")
    if untrained:
        maps = fits.untrained or untrained.closed_forms("least_squares")
        readers["random_source"] = Reader(untrained.source, maps, "source")
    return readers


def _controls(setting: Setting, phis: Maps) -> dict[str, Maps]:
    """Return closed forms, a mere shift, and φ on the states of other tokens."""
    kinds = ["least_squares", *(["procrustes", "bias"] if setting.equal_widths else [])]
    maps: dict[str, Maps] = {kind: setting.closed_forms(kind) for kind in kinds}
    maps["shuffled"] = [_Shuffled(phi, setting.seed) for phi in phis]
    return maps


class _Shuffled:
    """φ on the states of other tokens of the batch: what is left when the source says nothing of the token."""

    def __init__(self, phi: Any, seed: int):
        self.phi, self.seed = phi, seed

    def __call__(self, state: Tensor) -> Tensor:
        mapped = self.phi(state)
        rows = mapped.flatten(0, 1)
        order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(self.seed))
        return rows[order.to(rows.device)].view_as(mapped)


# ---------------------------------------------------------------------------------------------------------------- table


BESIDE = (
    "identity", "start", "floor", "token_mean", "bigram_mean",
    "least_squares", "procrustes", "bias", "shuffled", "random_source",
)  # fmt: skip
FLAT = 0.005  # nats that a stitch that has converged may still gain in the last fifth of its steps
SPREADS = {
    "kl": "kl",
    "top1": "top1_agreement",
    "distance": "distance",
    "penultimate": "penultimate_distance",
    "norm": "norm_ratio",
}


def penalties(setting: Setting, sums: dict[str, Tensor]) -> pd.DataFrame:
    """Return one row per stitch: losses and penalties in nats per token, and what else `document_sums` sums per token.

    Each has `_low` and `_high`, the ends of its 95 % interval over documents, and, of a penalty with several seeds,
    over seeds.

    Args:
        sums: what `document_sums` and, where tokenizers differ, `document_bytes` give.
    """
    counts, aligned, seeds = sums["tokens"], "target_bytes" in sums, _by_seed(sums)
    columns: dict[str, Any] = {**setting.columns(), "stitch": setting.config.kind}
    columns |= ends_of("stitching_loss", documents_and_seeds_interval(seeds, counts))
    columns |= with_ends("target_loss", sums["target"], counts)
    columns |= with_ends("source_loss", sums["source"], sums.get("source_tokens", counts))
    columns |= ends_of("penalty", documents_and_seeds_interval(seeds - sums["target"], counts))
    for name in BESIDE:
        if name in sums:
            columns |= with_ends(f"{name}_penalty", sums[name] - sums["target"], counts)
    text = readable_bytes(sums["target_bytes"] if aligned else _text_bytes(setting))
    columns |= ends_of("bits_per_byte", documents_and_seeds_interval(seeds * BITS, text.double()))
    for name, column in SPREADS.items():
        columns |= with_ends(column, sums[name], counts)
    return pd.DataFrame(columns | _optimisation(sums) | (bits_columns(sums) if aligned else {}))


def _by_seed(sums: dict[str, Tensor]) -> Float[Tensor, "pairs seeds documents"]:
    """Return the losses of the stitches by document, of each seed."""
    return torch.stack([each for name, each in sums.items() if name == "stitch" or name[:5] == "seed_"], 1)


def _optimisation(sums: dict[str, Tensor]) -> dict[str, Any]:
    """Return what training still gained at its end, and by how much the best of other rates and starts is ahead."""
    if "late" not in sums:
        return {}
    counts, own = sums["tokens"], sums["stitch"]
    columns = with_ends("late_gain", sums["late"] - own, counts)
    columns["converged"] = [abs(gain) <= FLAT for gain in columns["late_gain"]]
    others = torch.stack([each for name, each in sums.items() if name in ("identity", "start") or name[:5] == "rate_"])
    best = others.sum(-1).argmin(0)
    chosen = others[best, torch.arange(len(best))]
    return columns | with_ends("optimisation_gap", own - chosen, counts)


def _text_bytes(setting: Setting) -> Tensor:
    """Return the bytes of the text of each document's predicted tokens."""
    rows = setting.corpus.report
    return bytes_by_document(setting.source.tokenizer, rows.tokens, rows.documents)
