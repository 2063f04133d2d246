"""task=stitch: fit φ at every chosen layer pair of two frozen models, and report its penalty (Brown et al. 2023)."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thinkalike import figures
from thinkalike.config import TrainConfig
from thinkalike.errors import listed
from thinkalike.job import Instrument, Outcome, Work
from thinkalike.models.families import check_stitchable
from thinkalike.processes import check_processes
from thinkalike.screen import ROWS, Table, few, number_column, show_table, show_text, span, text_column
from thinkalike.store import Headline, Result

if TYPE_CHECKING:
    import pandas as pd
    from torch import Tensor

    from thinkalike.instruments.stitching.fitting import ClosedForms
    from thinkalike.instruments.stitching.setting import Setting
    from thinkalike.models.shapes import Passes, Shapes
    from thinkalike.training.run import Run

log = logging.getLogger(__name__)

WRAPS = 16  # letters of a verdict that takes two lines of the table
SHOWN = {
    "no map": "identity_penalty", "token": "token_mean_penalty", "R² →": "cca_beyond", "R² ←": "cca_back_beyond"
}  # fmt: skip
PAIR, ENDS = ("source_layer", "target_layer"), ("penalty_low", "penalty_high")
ASYMMETRIES = {"asymmetry": "nats per token", "asymmetry_bits_per_byte": "bits per byte"}


def _at(table: pd.DataFrame) -> str:
    """Return the layer pairs of a table in words: "0→0, 1→1"."""
    return listed([f"{layer}→{depth}" for layer, depth in zip(*(table[name] for name in PAIR), strict=True)])


def _layers(table: pd.DataFrame) -> str:
    """Return which layers of the source are stitched, and to which of the target if those are others."""
    layers, depths = table["source_layer"].tolist(), table["target_layer"].tolist()
    if len(layers) == 1:
        return f"Layer {layers[0]}" + (f", before block {depths[0] + 1}," if layers != depths else "")
    if layers == depths:
        in_a_row = layers == list(range(layers[0], layers[-1] + 1))
        return f"Layers {layers[0]} to {layers[-1]}" if in_a_row else f"Layers {', '.join(map(str, layers))}"
    return f"Layers {min(layers)} to {max(layers)}, in {len(layers)} pairs,"


def _range(table: pd.DataFrame, column: str) -> str:
    """Return the least and the greatest number of a column, once if they are equal when rounded."""
    ends = [f"{value:.2g}" for value in (table[column].min(), table[column].max())]
    return " to ".join(dict.fromkeys(ends))


def _verdicts(table: pd.DataFrame) -> str:
    """Return the verdicts with their numbers of layer pairs."""
    counts = table["verdict"].value_counts(sort=False)
    return ", ".join(
        f"{verdict} at {count} of {len(table)}" if len(counts) > 1 else str(verdict)
        for verdict, count in counts.items()
    )


def sentence(table: pd.DataFrame) -> str:
    """Return the cost of the stitches of one direction, beside that of controls, and their verdicts, as a sentence."""
    first = table.iloc[0]
    is_itself = first["source"] == first["target"]
    target = "itself" if is_itself else str(first["target"])
    who = f"{_layers(table)} of {first['source']} {'feeds' if len(table) == 1 else 'feed'} {target}"
    beside = {"identity_penalty": "without a map", "floor_penalty": f"for {target} into itself"}
    known = [name for name in beside if name in table and not is_itself]
    against = " and ".join(f"{_range(table, name)} {beside[name]}" for name in known)
    cost = f"{_range(table, 'penalty')} nats per token{', against ' if against else ''}{against}"
    return f"{who} at a cost of {cost}: {_verdicts(table)}."


def _show_direction(table: pd.DataFrame, rows: Sequence[int]) -> None:
    """Print the penalties of one direction beside those of no map and of the tokens alone, and what is shared."""
    own, first = table.iloc[[*rows]], table.iloc[0]
    unit = f"nats per token{f' of {first.target}' if 'penalty_bits_per_byte' in table else ''}"
    title = f"{first['source']} → {first['target']}: extra loss, {unit}; R² beyond the tokens"
    pairs, ends = (zip(*(own[name] for name in names), strict=True) for names in (PAIR, ENDS))
    columns = [
        number_column("layer", [f"{layer}→{depth}" for layer, depth in pairs]),
        number_column("stitch", own["penalty"], ".2f"),
        number_column("95 % interval", [f"{low:.2f} to {high:.2f}" for low, high in ends], follows=True),
        *(number_column(label, own[column], ".2f") for label, column in SHOWN.items() if column in own),
        text_column("verdict", own["verdict"]),
    ]
    show_table(Table(title, columns))
    show_text(sentence(table))
    if "left_to_gain" in table:
        gain = max(table["left_to_gain"].max(), 0.0)
        show_text(f"Training three times longer would gain at most about {gain:.2f} nats.")


def _show_asymmetry(table: pd.DataFrame) -> None:
    """Say where one direction costs most beyond the other, given the table of the first direction."""
    for name, unit in ASYMMETRIES.items():
        if name in table:
            most = table.iloc[int(table[name].abs().argmax())]
            value, low, high = (float(most[f"{name}{end}"]) for end in ("", "_low", "_high"))
            more, less, text = most["source"], most["target"], span(value, low, high, ".3f")
            if value < 0:
                more, less, text = less, more, span(-value, -high, -low, ".3f")
            at = _at(table.loc[[most.name]])
            show_text(f"The directions differ most at {at}, where {more} into {less} costs {text} {unit} more.")


def _joined(parts: Mapping[str, Mapping[str, Any]], mark: str) -> dict[str, Any]:
    """Return the entries of all parts, with the name of the part and the mark before their own name."""
    return {f"{part}{mark}{key}" if part else key: each for part, own in parts.items() for key, each in own.items()}


def _ends_of_mean(arrays: Mapping[str, Any]) -> tuple[float, float]:
    """Return the ends of the interval of the mean penalty over layer pairs, over documents and seeds."""
    import torch

    from thinkalike.measures.bootstrapping import documents_and_seeds_interval

    fits = [each for name, each in arrays.items() if name == "stitch" or name.startswith("seed_")]
    by_seed = torch.stack([torch.from_numpy(each - arrays["target"]).mean(0) for each in fits])
    _, low, high = documents_and_seeds_interval(by_seed, torch.from_numpy(arrays["tokens"]))
    return float(low), float(high)


@dataclass
class _Stitched:
    """One direction of a job: its table, and the stitches and sums that the result keeps."""

    forms: ClosedForms
    table: pd.DataFrame
    weights: dict[str, Tensor]
    arrays: dict[str, Any]
    sums: dict[str, Tensor]  # by document, among the arrays
    rows_used: float  # share of the rows in the measures beyond the tokens
    speed: dict[str, float]  # of the training of the first seed


def _stitched(setting: Setting, run: Run, loggers: Sequence[Any], work: Work) -> _Stitched:
    """Fit the stitches of one direction with every seed, and report on them."""
    import pandas as pd

    from thinkalike.instruments.stitching.fitting import ClosedForms, compared, fitted, reported
    from thinkalike.instruments.stitching.table import (
        document_bytes,
        penalties,
        verdicts,
        warn_of_far_states,
        warn_of_little_shared,
    )
    from thinkalike.models.frozen import randomised

    config = setting.config
    with work.phase("likeness"):
        alike = compared(setting)  # first, as it may find that there is too little text
    with work.phase("controls"):
        source = randomised(setting.source, setting.seed) if config.controls else None
        untrained = ClosedForms(replace(setting, source=source)) if source else None
    forms, again = ClosedForms(setting, alike.moments), {}
    with work.phase("fit"):
        first = fitted(forms, run, loggers, untrained)
        alone = replace(setting, config=replace(config, floor=False, lr_multiples=[]))
        for more in range(1, config.seeds if config.trained else 1):
            part = f"{run.part}-seed-{more}" if run.part else f"seed-{more}"
            own = ClosedForms(replace(alone, seed=setting.seed + more), alike.moments)
            again[f"seed_{more}"] = fitted(own, replace(run, part=part))
    with work.phase("report"):
        maps = {name: each.maps for name, each in again.items()}
        sums = reported(forms, first, untrained, maps, alike.means) | document_bytes(setting.corpus)
    table = pd.concat([penalties(setting, sums), pd.DataFrame(alike.likeness.columns())], axis=1)
    table = table.assign(**verdicts(setting, table, alike.likeness.rows_used))
    warn_of_far_states(table)
    warn_of_little_shared(table)
    weights = _joined({"": first.weights} | {name: each.weights for name, each in again.items()}, ".")
    arrays = first.arrays | {name: values.numpy() for name, values in sums.items()}
    return _Stitched(forms, table, weights, arrays, sums, alike.likeness.rows_used, first.speed)


def _add_unexplained(there: _Stitched, back: _Stitched) -> None:
    """Add to both tables what each map, and the way there and back, leave unexplained of the report's states.

    `unexplained` is the share of the variance of the target's states that the map leaves, and
    `round_trip_unexplained` that of the source's states that the map and then the map back leave, with 95 % intervals
    over documents; variance is about the mean of the rows that were fitted on.
    """
    from thinkalike.instruments.stitching.fitting import unexplained

    for name, values in unexplained(there.forms, there.weights, back.weights).items():
        table = back.table if "_back" in name else there.table
        table[name.replace("_back", "")] = values


def _add_asymmetries(onward: _Stitched, back: _Stitched) -> None:
    """Add to the tables of both directions how much more each costs than the other."""
    from thinkalike.evaluation.language import ends_of
    from thinkalike.instruments.stitching.table import asymmetries
    from thinkalike.measures.estimates import Estimate

    found = asymmetries(onward.sums, back.sums)
    if not found:
        log.warning("warning: there is no asymmetry, as the two directions report on different tokens")
    for name, (value, low, high) in found.items():
        onward.table = onward.table.assign(**ends_of(name, Estimate(value, low, high)))
        back.table = back.table.assign(**ends_of(name, Estimate(-value, -high, -low)))


class Stitching(
    Instrument,
    kind="stitching",
    version=11,
    config=TrainConfig,
    reads=("model", "target", "data", "layers", "stitch", "trainer", "seed"),
):
    """Stitches `model` to `target` at `layers`; leaves table, stitches, learning curves and figure."""

    def inputs(self, config: TrainConfig) -> Mapping[str, Any]:
        check_processes(config.trainer, config.target.device)
        check_stitchable(config.model, config.target, config.layers, "task=stitch")
        return super().inputs(config)

    def passes(self, config: TrainConfig, shapes: Shapes) -> list[Passes]:
        from thinkalike.instruments.stitching.setting import passes

        return passes(config, shapes)

    def holds(self, config: TrainConfig, shapes: Shapes) -> float:
        from thinkalike.instruments.stitching.setting import held

        return held(config, shapes)

    def run(self, config: TrainConfig, work: Work) -> Outcome:
        import pandas as pd
        import torch

        from thinkalike.evaluation.language import document_numbers
        from thinkalike.instruments.stitching.setting import load_setting
        from thinkalike.instruments.stitching.table import alignment_scalars
        from thinkalike.stitches.stitch import write_stitches
        from thinkalike.training.run import Run, loggers_of

        with work.phase("loading"):
            setting = load_setting(config)
        source, target, corpus, stitch = setting.source, setting.target, setting.corpus, config.stitch
        run = Run(work.job.partial, target.device, config.trainer, work.tracker)
        done = {"": _stitched(setting, run, loggers_of(run), work)}
        if stitch.both:
            done["back"] = _stitched(setting.reversed(config.data), replace(run, part="back"), (), work)
            _add_asymmetries(*done.values())
            if stitch.kind == "least_squares":
                with work.phase("report"):
                    _add_unexplained(*done.values())
        if weights := _joined({way: each.weights for way, each in done.items()}, "."):
            shape = {"widths": (source.d_model, target.d_model), "rank": stitch.rank} if stitch.trained else {}
            write_stitches(work.job.aside, weights, setting.layer_pairs, stitch.kind, stitch.norm, **shape)
        first, table = done[""], pd.concat([each.table for each in done.values()], ignore_index=True)
        scalars = {"mean_penalty": float(table["penalty"].mean()), "worst_penalty": float(table["penalty"].max())}
        scalars |= {"rows_used": first.rows_used, **document_numbers(torch.from_numpy(first.arrays["tokens"]))}
        return Outcome(
            table,
            scalars | alignment_scalars(corpus),
            _joined({way: each.arrays for way, each in done.items()}, "_"),
            models=[source.describe(), target.describe()],
            facts={"data": {"name": config.data.name, **corpus.facts()}, "training": first.speed},
        )

    def draw(self, result: Result, folder: Path) -> None:
        """Draw a map where every source layer was stitched to every target layer, else a line, for each direction."""
        ways = result.table.groupby(["source", "target"], sort=False)
        for name, ((source, target), table) in zip(("penalty", "penalty_back"), ways, strict=False):
            cells = table.pivot(index="source_layer", columns="target_layer", values="penalty")
            if len(cells.columns) > 1 and len(cells) > 1 and cells.notna().all(axis=None):
                figures.penalty_map(cells, f"{source} into {target}", folder, name)
            else:
                figures.penalties(table, folder, name)

    def headlines(self, result: Result) -> list[Headline]:
        """Return the mean penalty over layer pairs and the worst one, in nats per token."""
        table, scalars = result.table, result.scalars
        worst = table.iloc[int(table["penalty"].argmax())]
        both_ways = len(table) > len(result.arrays["stitch"])  # whose documents are not the same
        ends = () if both_ways else _ends_of_mean(result.arrays)
        return [
            Headline("mean_penalty", scalars["mean_penalty"], *ends),
            Headline.with_ends("worst_penalty", *worst[["penalty", *ENDS]], at=_at(table.loc[[worst.name]])),
        ]

    def show(self, result: Result) -> None:
        """Print a table for each direction, what it says in sentences, and where the rest is."""
        directions = [table for _, table in result.table.groupby(["source", "target"], sort=False)]
        for table in directions:
            most = 6 if len(directions) > 1 else ROWS if table["verdict"].map(len).max() < WRAPS else ROWS // 2
            _show_direction(table, few(len(table), most))
        _show_asymmetry(directions[0])
