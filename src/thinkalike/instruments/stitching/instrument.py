"""task=stitch: fit φ at every chosen layer pair of two frozen models, and report its penalty (Brown et al. 2023)."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from thinkalike import figures
from thinkalike.config import SettingValues
from thinkalike.config.parts import AFTER, MIDDLE, PROCESSES, TrainerConfig
from thinkalike.data.splits import tokens_of_report
from thinkalike.errors import ConfigError, listed
from thinkalike.job import Instrument, Outcome, Work
from thinkalike.job.budget_ladder import LADDER
from thinkalike.models.layer_choice import check_stitchable, layers_at_depths, pairs_of_layers
from thinkalike.processes import check_processes
from thinkalike.screen import (
    MOST_ROWS,
    Table,
    few,
    number_column,
    number_of_documents,
    show_table,
    show_text,
    span,
)
from thinkalike.store import Headline, Result
from thinkalike.training.recipe import OF_TRAINING, StitchConfig, StitchJob, fewest_steps, whole_rows

if TYPE_CHECKING:
    import pandas as pd

    from thinkalike.measures.moments import LayerPair
    from thinkalike.models.shapes import Passes, Shape, Shapes

log = logging.getLogger(__name__)

REPORTED = 2**18  # tokens of the report where the data do not state it
SHORT = 128  # tokens of a row where text is little
LITTLE = 2**14  # tokens of a report, below which rows are `SHORT`
STATISTICS = 2**16  # tokens, at most, of closed forms beside a training
MEANS = 2**18  # tokens, at most, that the mean states of tokens are of
LEAST_STEP = 1024  # tokens of a step of training, at least
COPIES = 4  # of six, that are measured: those around the penalties of a job
TRAINED = 2  # passes of a step through frozen weights: forward, and the gradients of states
# settings of a stitch that decide how φ is trained; a budget leaves them as a command line has them
TRAINING = {f"stitch.{name}" for name in ("kind", "norm", "steps", *OF_TRAINING)} | {"stitch"}
BASELINES = {"identity": "identity_penalty", "token mean": "token_mean_penalty"}
ROWS_OF_TWO = 6  # on the screen, of each of two directions
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


def details_of(result: Result) -> pd.DataFrame:
    """Return all columns of a result; results of an older version have them in their one table."""
    return result.tables.get("details", result.table)


def sentence(table: pd.DataFrame) -> str:
    """Return the cost of the stitches of one direction in nats and bits, and that of baselines."""
    first = table.iloc[0]
    is_itself = first["source"] == first["target"]
    target = "itself" if is_itself else str(first["target"])
    who = f"{_layers(table)} of {first['source']} {'feeds' if len(table) == 1 else 'feed'} {target}"
    cost = f"at a cost of {_range(table, 'penalty')} nats per token"
    if "reading" in table:
        cost += f", as much as rounding {target} to {_range(table, 'reading')} bits"
    beside = {"identity_penalty": "without a map", "floor_penalty": f"for {target} into itself"}
    known = [name for name in beside if name in table and not is_itself]
    baselines = [f"{_range(table, name)} {beside[name]}" for name in known]
    if baselines:
        cost += f", against {' and '.join(baselines)}"
    return f"{who} {cost}."


def in_bits(reading: float) -> str:
    """Return a reading in bits, in words where it is at an end of the scale."""
    from thinkalike.measures.ladder import RUNGS

    if reading <= RUNGS[0]:
        return f"below {RUNGS[0]}"
    return f"{RUNGS[-1]} or more" if reading >= RUNGS[-1] else f"{reading:.1f}"


def _gain(left: float) -> str:
    """Return what is left to gain, "?" where there is no bound."""
    return "?" if math.isnan(left) else f"{max(left, 0.0):.2f}"


def _show_direction(table: pd.DataFrame, rows: Sequence[int]) -> None:
    """Print what each stitch of one direction costs, its baselines, and what is left to gain."""
    shown = table.iloc[[*rows]]
    first = table.iloc[0]
    unit = f"nats per token{f' of {first.target}' if 'penalty_bits_per_byte' in table else ''}"
    title = f"{first['source']} → {first['target']}: loss and penalty, {unit}"
    layers = zip(*(shown[name] for name in PAIR), strict=True)
    ends = zip(*(shown[name] for name in ("penalty", *ENDS)), strict=True)
    penalties = [span(value, low, high, ".2f") for value, low, high in ends]
    columns = [
        number_column("layer", [f"{layer}→{depth}" for layer, depth in layers]),
        number_column("loss", shown["stitching_loss"], ".2f"),
        number_column("penalty", penalties),
    ]
    for label, column in BASELINES.items():
        if column in shown:
            columns.append(number_column(label, shown[column], ".2f"))
    if "reading" in shown:
        columns.append(number_column("bits", map(in_bits, shown["reading"])))
    if "left_to_gain" in shown:
        columns.append(number_column("to gain", [_gain(value) for value in shown["left_to_gain"]]))
    show_table(Table(title, columns))
    show_text(sentence(table))
    _show_convergence(table)


def _show_convergence(table: pd.DataFrame) -> None:
    """Say what longer training would gain, or where that is unknown; closed forms gain nothing."""
    if "left_to_gain" not in table:
        return
    is_open = table["left_to_gain"].isna()
    bounded = table[~is_open]
    if len(bounded):
        gain = max(bounded["left_to_gain"].max(), 0.0)
        at = f" at {_at(bounded)}" if is_open.any() else ""
        show_text(f"Training three times longer would gain at most about {gain:.2f} nats{at}.")
    if is_open.any():
        at = _at(table[is_open])
        show_text(f"Not converged at {at}: how much longer training would gain is unknown.")


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


def _ends_of_mean(arrays: Mapping[str, Any]) -> tuple[float, float]:
    """Return the ends of the interval of the mean penalty over layer pairs, over documents and seeds."""
    import torch

    from thinkalike.measures.bootstrap import documents_and_seeds_interval

    fits = [each for name, each in arrays.items() if name == "stitch" or name.startswith("seed_")]
    by_seed = torch.stack([torch.from_numpy(each - arrays["target"]).mean(0) for each in fits])
    _, low, high = documents_and_seeds_interval(by_seed, torch.from_numpy(arrays["tokens"]))
    return float(low), float(high)


def _passes(config: StitchJob, source: Shape, target: Shape, pairs: Sequence[LayerPair]) -> list[Passes]:
    """Return the passes of one direction; each stitch runs the tail of the target."""
    stitch, row = config.stitch, config.data.context or min(source.context, target.context)
    report = tokens_of_report(config.data, config.data.report_tokens or REPORTED, target.vocabulary)
    read = stitch.steps * whole_rows(stitch.tokens_per_step, row)
    fit, steps = min(config.data.fit_tokens or read or report, read or report), read * stitch.trained
    closed = 0 if not stitch.has_closed_forms else fit if stitch.is_closed else min(fit, STATISTICS)
    whole = target.operations.full(row)
    tails = {m: (whole - target.operations.forward(0, m + 1, row)) / whole for _, m in pairs}
    all_tails = sum(tails[m] for _, m in pairs)
    fits = all_tails * (stitch.seeds + len(stitch.lr_multiples) + stitch.controls) + stitch.floor * sum(tails.values())
    of_training = 1 + len(stitch.lr_multiples) + stitch.seeds + stitch.floor
    maps = 2 + 6 * stitch.controls + of_training * stitch.trained
    own = stitch.seeds * (stitch.loss != "cross_entropy") or stitch.floor  # the target's own predictions or states
    found = [
        source.passes("training", steps, row, stitch.seeds + stitch.controls, full=False),
        target.passes("training", steps, row, own + TRAINED * fits),
        source.passes("statistics", closed, row, full=False),
        target.passes("statistics", max(closed, min(fit, MEANS)), row, full=False),
        source.passes("report", report, row, full=False),
        target.passes("report", report, row, 1 + maps * all_tails),
        target.passes("rungs", report, row, COPIES * (config.ruler is not None)),
    ]
    return [each for each in found if each.tokens]


def _sites(result: Result) -> str:
    """Return which models are cut before the MLP of a layer, "" if none is."""
    cut = listed(dict.fromkeys(model["name"] for model in result.provenance["models"] if "site" in model))
    return f"{cut} at {MIDDLE}" if cut else ""


CLOSED_FORM = {"stitch.kind": "least_squares"}


def _less_training(stitch: StitchConfig, share: int, row: int, chosen: Collection[str]) -> dict[str, Any]:
    """Return settings of a part of the training: `fewest_steps` or more, each of a row or more."""
    tokens = stitch.steps * stitch.tokens_per_step // share
    least = fewest_steps(stitch.warmup if "stitch.warmup" in chosen else None)
    steps = min(max(stitch.steps // share, least), stitch.steps)
    return {"stitch.steps": steps, "stitch.tokens_per_step": max(tokens // steps, LEAST_STEP, row)}


class Stitching(
    Instrument[StitchJob],
    kind="stitching",
    version=21,
    config=StitchJob,
    reads=("model", "target", "data", "layers", "stitch", "ruler", "similarity", "trainer", "seed"),
):
    """Stitches `model` to `target` at `layers`; leaves table, stitches, learning curves and figure."""

    takes_sites: ClassVar[bool] = True
    smallest: ClassVar[Mapping[str, Any]] = {
        "stitch.steps": 3,
        "stitch.warmup": 1,
        "stitch.tokens_per_step": 512,
        "data.report_tokens": 4096,
    }

    def inputs(self, config: StitchJob) -> Mapping[str, Any]:
        check_processes(config.trainer, config.target.device)
        check_stitchable(config.model, config.target, config.layers, "task=stitch")
        sites = [config.model.site, config.target.site]
        if other := [site for site in sites if site not in (AFTER, MIDDLE)]:
            raise ConfigError(f"model.site={other[0]} is no place to cut a model: stitch at {AFTER} or {MIDDLE}")
        if MIDDLE in sites and (config.trainer.compile or config.trainer.recompute):
            raise ConfigError(f"trainer.compile and trainer.recompute are of whole blocks: leave them out at {MIDDLE}")
        return super().inputs(config)

    def unread(self, config: StitchJob) -> SettingValues:
        """Without training, of Lightning's settings only those of memory and processes are read."""
        if config.stitch.trained:
            return {}
        of_training = vars(TrainerConfig()).keys() - {"memory", *PROCESSES}
        return {f"trainer.{name}": getattr(TrainerConfig(), name) for name in of_training}

    def passes(self, config: StitchJob, shapes: Shapes) -> list[Passes]:
        source, target = shapes["model"], shapes["target"]
        pairs = pairs_of_layers(config.layers, source.layers, target.layers)
        found = _passes(config, source, target, pairs)
        if config.stitch.both:
            found += _passes(config, target, source, [pair[::-1] for pair in pairs])
        if config.similarity:
            from thinkalike.instruments.ruler import tokens_of_words
            from thinkalike.instruments.stitching.similarity import words_read

            tokens = tokens_of_words(words_read([source.width, target.width]))
            found += [
                shape.passes("similarity", tokens, SHORT, full=False) for shape in dict.fromkeys([source, target])
            ]
        return found

    def smaller(self, config: StitchJob, shapes: Shapes, chosen: Collection[str]) -> Iterator[dict[str, Any]]:
        """Yield fewer layers of equal relative depth, and then closed forms of less and less text.

        Where a command line names the kind of map or its training, that stays, and there are fewer
        steps, but never fewer than `left_to_gain` needs: a φ that has not settled says nothing of
        either model.
        """
        depths = shapes["model"].layers, shapes["target"].layers
        shortest = min(shape.context for shape in shapes.values())
        report = config.data.report_tokens or REPORTED
        names_training = not TRAINING.isdisjoint(chosen)
        for layers, share in LADDER:
            fewer: dict[str, Any] = {"layers": layers_at_depths(layers, *depths)} if layers < max(depths) else {}
            if share > 1:
                row = config.data.context or shortest
                if names_training and config.stitch.trained:
                    fewer |= _less_training(config.stitch, share, row, chosen)
                else:
                    fewer |= {} if names_training else CLOSED_FORM
                    fewer["data.fit_tokens"] = report // share
                fewer["data.report_tokens"] = report // share
            if report // share < LITTLE and shortest > SHORT:
                fewer |= {"data.context": SHORT, "data.aligned": True}  # so that little text is of more documents
            yield fewer

    def holds(self, config: StitchJob, shapes: Shapes) -> float:
        """Return the bytes of the stitches of one direction in training, or of the moments of states."""
        from thinkalike.instruments.stitching.fitting import bytes_of_moments, bytes_trained
        from thinkalike.measures.losses import bytes_of_logits

        source, target = shapes["model"], shapes["target"]
        sizes = source.width, target.width, pairs_of_layers(config.layers, source.layers, target.layers)
        closed = bytes_of_moments(*sizes) + bytes_of_logits(target.vocabulary)
        copies = target.bytes * (config.ruler is not None)
        return max(bytes_trained(config.stitch, *sizes), closed, copies)

    def run(self, config: StitchJob, work: Work) -> Outcome:
        import pandas as pd

        from thinkalike.evaluation.columns import document_counts
        from thinkalike.instruments.stitching.fitting import load_setting
        from thinkalike.instruments.stitching.table import joined, stitched, table_of
        from thinkalike.stitches.stitch import NAME, facts_of_stitches
        from thinkalike.training.run import Run, loggers_of

        with work.phase("loading"):
            setting = load_setting(config)
        source, target, corpus, stitch = setting.source, setting.target, setting.corpus, config.stitch
        partial = work.job.partial if work.job.keeps_states else None
        run = Run(partial, target.device, config.trainer, work.tracker)
        done = {"": stitched(setting, run, loggers_of(run, config.logger.kind), work)}
        if stitch.both:
            from thinkalike.instruments.stitching.directions import add_asymmetries, add_unexplained

            done["back"] = stitched(setting.reversed(config.data), replace(run, part="back"), (), work)
            add_asymmetries(*done.values())
            if stitch.kind == "least_squares":
                with work.phase("report"):
                    add_unexplained(*done.values())
        if config.similarity:
            from thinkalike.instruments.stitching.similarity import similarity_of, with_similarity

            with work.phase("similarity"):
                similarity = similarity_of(setting, config.data)
            for way, direction in done.items():
                direction.details = with_similarity(direction.details, similarity, is_back=way == "back")
        if weights := joined({way: each.weights for way, each in done.items()}, "."):
            widths = None
            rank = None
            if stitch.trained:
                widths = (source.d_model, target.d_model)
                rank = stitch.rank
            facts = facts_of_stitches(setting.layer_pairs, stitch.kind, stitch.norm, widths=widths, rank=rank)
            work.job.add_tensors(NAME, weights, facts)
        details = pd.concat([each.details for each in done.values()], ignore_index=True)
        penalty = details["penalty"]
        scalars = {"mean_penalty": float(penalty.mean()), "worst_penalty": float(penalty.max())}
        scalars |= document_counts(done[""].sums["tokens"])
        if corpus.report.source is not None:  # the tokenizers differ
            scalars |= corpus.alignment()
        return Outcome(
            table_of(details),
            scalars,
            joined({way: each.arrays for way, each in done.items()}, "_"),
            tables={"details": details},
            models=[source.describe(), target.describe()],
            facts={"data": {"name": config.data.name, **corpus.facts()}},
            blank=[name for name in map(str, details) if name.startswith("left_to_gain")],
        )

    def draw(self, result: Result, folder: Path) -> None:
        ways = details_of(result).groupby(["source", "target"], sort=False)
        for name, ((source, target), table) in zip(("penalty", "penalty_back"), ways, strict=False):
            cells = table.pivot(index="source_layer", columns="target_layer", values="penalty")
            read = result.arrays["tokens" if name == "penalty" else "back_tokens"].sum()
            title = f"{source} into {target}\n{read:,.0f} tokens of {result.scalars['documents']:.0f} documents"
            title = f"{title}\n{_sites(result)}".strip()
            if len(cells.columns) > 1 and len(cells) > 1 and cells.notna().all(axis=None):
                figures.penalty_map(cells, title, folder, name)
            else:
                figures.penalties(table, title, folder, name)

    def headlines(self, result: Result) -> list[Headline]:
        table, scalars = result.table, result.scalars
        worst = table.iloc[int(table["penalty"].argmax())]
        both_ways = len(table) > len(result.arrays["stitch"])  # whose documents are not the same
        ends = () if both_ways else _ends_of_mean(result.arrays)
        most = Headline.with_ends("worst_penalty", *worst[["penalty", *ENDS]], at=_at(table.loc[[worst.name]]))
        return [Headline("mean_penalty", scalars["mean_penalty"], *ends), most]

    def show(self, result: Result) -> None:
        by_direction = details_of(result).groupby(["source", "target"], sort=False)
        directions = [table for _, table in by_direction]
        for table in directions:
            _show_direction(table, few(len(table), MOST_ROWS if len(directions) == 1 else ROWS_OF_TWO))
        show_text(f"Intervals are over {number_of_documents(result.scalars)}.")
        if sites := _sites(result):
            show_text(f"Layers end before their MLP: {sites}.")
        _show_asymmetry(directions[0])
        if "similarity" in directions[0]:
            from thinkalike.instruments.stitching.similarity import sentence as similarity_in_words

            show_text(similarity_in_words(directions[0]))
