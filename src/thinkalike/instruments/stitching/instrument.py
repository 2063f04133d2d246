"""task=stitch: fit φ at every chosen layer pair of two frozen models, and report its penalty.

The method is that of Brown et al. (2023). Lists of results import this module, so it imports torch
and Lightning inside its functions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from thinkalike import figures
from thinkalike.config import SettingValues
from thinkalike.config.parts import AFTER, MIDDLE, PROCESSES, TrainerConfig
from thinkalike.errors import ConfigError
from thinkalike.instruments.layer_note import show_layer_note
from thinkalike.instruments.stitching import forecast
from thinkalike.instruments.stitching.screen import (
    cut_models,
    details_of,
    interval_of_mean_penalty,
    layer_pairs_in_words,
    note_of_columns,
    show_asymmetry,
    show_direction,
)
from thinkalike.instruments.text_name import name_of_text
from thinkalike.job import Instrument, Outcome, Work
from thinkalike.job.inputs import Inputs
from thinkalike.models.layer_choice import check_stitchable
from thinkalike.processes import check_processes
from thinkalike.ranking import ranked_rows
from thinkalike.screen import MOST_ROWS, few, number_of_documents, show_note, show_text
from thinkalike.store import Headline, Result
from thinkalike.training.recipe import StitchJob

if TYPE_CHECKING:
    import pandas as pd

    from thinkalike.instruments.stitching.direction import Direction
    from thinkalike.instruments.stitching.setting import StitchSetting
    from thinkalike.models.shapes import Passes, Shapes

ROWS_OF_TWO = 6
"""The rows on the screen of each of two directions."""

BACK = "back"
"""The name of the direction from the target to the source; the other one has the name ""."""


class Stitching(
    Instrument[StitchJob],
    kind="stitching",
    version=21,
    config=StitchJob,
    reads=(
        "model",
        "target",
        "data",
        "layers",
        "stitch",
        "ruler",
        "similarity",
        "trainer",
        "seed",
    ),
):
    """Stitches `model` to `target` at `layers`."""

    takes_sites: ClassVar[bool] = True
    smallest: ClassVar[Mapping[str, object]] = {
        "stitch.steps": 3,
        "stitch.warmup": 1,
        "stitch.tokens_per_step": 512,
        "data.evaluation_tokens": 4096,
    }

    # ---- the settings of a job

    def inputs(self, config: StitchJob) -> Inputs:
        """Return the fingerprints of models and text, after checks of the settings.

        Raises:
            ConfigError: A model is to be cut where it cannot be, or compiled or recomputed though
                it is cut inside a block.
        """
        check_processes(config.trainer, config.target.device)
        check_stitchable(config.model, config.target, config.layers, "task=stitch")
        sites = [config.model.site, config.target.site]
        for site in sites:
            if site not in (AFTER, MIDDLE):
                raise ConfigError(
                    f"model.site={site} is no place to cut a model: stitch at {AFTER} or {MIDDLE}"
                )
        if MIDDLE in sites and (config.trainer.compile or config.trainer.recompute):
            raise ConfigError(
                "trainer.compile and trainer.recompute are of whole blocks: leave them out at "
                f"{MIDDLE}"
            )
        return super().inputs(config)

    def unread(self, config: StitchJob) -> SettingValues:
        """Return the settings of Lightning that a job without training ignores.

        It reads only those of memory and processes.
        """
        if config.stitch.trained:
            return {}
        defaults = vars(TrainerConfig())
        of_training = defaults.keys() - {"memory", *PROCESSES}
        return {f"trainer.{name}": defaults[name] for name in of_training}

    # ---- what a job will take

    def model_passes(self, config: StitchJob, shapes: Shapes) -> list[Passes]:
        """Return the passes of all directions, and of similarity if it is asked for."""
        return forecast.passes_of_job(config, shapes)

    def reductions(
        self, config: StitchJob, shapes: Shapes, chosen: Collection[str]
    ) -> Iterator[dict[str, object]]:
        """Yield settings that make the job smaller, see `forecast.smaller_jobs`."""
        return forecast.smaller_jobs(config, shapes, chosen)

    def bytes_beside_models(self, config: StitchJob, shapes: Shapes) -> float:
        """Return the bytes of what needs most memory beside the models."""
        return forecast.bytes_needed(config, shapes)

    # ---- the run

    def run(self, config: StitchJob, work: Work) -> Outcome:
        """Train all stitches, in one or both directions, and report their penalties.

        The result has a row for each pair of layers and direction; `details` has all columns.
        """
        import pandas as pd

        from thinkalike.evaluation.columns import document_counts
        from thinkalike.instruments.stitching.direction import with_prefixes
        from thinkalike.instruments.stitching.setting import load_setting
        from thinkalike.instruments.stitching.table import short_table

        with work.phase("loading"):
            setting = load_setting(config)
        directions = _stitch_directions(config, setting, work)
        if config.similarity:
            _add_similarity(config, setting, directions, work)
        _keep_stitches(config, setting, directions, work)

        details_of_directions = [direction.details for direction in directions.values()]
        details = pd.concat(details_of_directions, ignore_index=True)
        scalars = {
            "mean_penalty": float(details["penalty"].mean()),
            "worst_penalty": float(details["penalty"].max()),
            **document_counts(directions[""].sums["tokens"]),
        }
        corpus = setting.corpus
        if corpus.report.source is not None:  # the tokenizers differ
            scalars |= corpus.alignment()
        arrays_of_directions = {name: direction.arrays for name, direction in directions.items()}
        return Outcome(
            short_table(details),
            scalars,
            with_prefixes(arrays_of_directions, "_"),
            tables={"details": details},
            models=[setting.source.describe(), setting.target.describe()],
            facts={"data": {"name": config.data.name, **corpus.facts()}},
            blank=[name for name in details.columns if name.startswith("upper_bound_of_gain")],
        )

    # ---- figures and screen

    def draw(self, result: Result, folder: Path) -> None:
        directions = details_of(result).groupby(["source", "target"], sort=False)
        files = {"penalty": "tokens", "penalty_back": "back_tokens"}
        for (file, tokens), ((source, target), table) in zip(
            files.items(), directions, strict=False
        ):
            count = result.arrays[tokens].sum()
            documents = f"{result.scalars['documents']:.0f} documents"
            about = f"{count:,.0f} tokens of {documents}"
            if cut_models(result):
                about += f"; {cut_models(result)}"
            cells = table.pivot(index="source_layer", columns="target_layer", values="penalty")
            has_all_pairs = cells.notna().all(axis=None)
            if min(cells.shape) > 1 and has_all_pairs:
                figures.penalty_map(cells, str(source), str(target), folder, about, file)
            else:
                about += "\nbars: 95 % intervals over documents"
                figures.penalties(table, folder, about, file)

    def ranked(self, table: pd.DataFrame) -> pd.DataFrame:
        """Return the stitches first that lose least."""
        return ranked_rows(table, "penalty", smallest_first=True)

    def headlines(self, result: Result) -> list[Headline]:
        """Return the mean penalty and the worst one, with the layers that it is of."""
        table = result.details
        mean_penalty = result.scalars["mean_penalty"]
        has_two_directions = len(table) > len(result.arrays["stitch"])
        if has_two_directions:  # whose documents are not the same
            mean = Headline("mean_penalty", mean_penalty)
        else:
            low, high = interval_of_mean_penalty(result.arrays)
            mean = Headline("mean_penalty", mean_penalty, low, high)

        index = int(table["penalty"].argmax())
        row = table.iloc[index]
        worst = Headline.with_ends(
            "worst_penalty",
            row["penalty"],
            row["penalty_low"],
            row["penalty_high"],
            at=layer_pairs_in_words(table.iloc[[index]]),
        )
        return [mean, worst]

    def show(self, result: Result) -> None:
        by_direction = details_of(result).groupby(["source", "target"], sort=False)
        directions = [table for _, table in by_direction]
        rows = MOST_ROWS if len(directions) == 1 else ROWS_OF_TWO
        for table in directions:
            show_direction(table, few(len(table), rows))
        show_note(note_of_columns(directions[0]))
        show_layer_note(result)
        documents = number_of_documents(result.scalars)
        show_text(f"95 % intervals are over {documents}; text: {name_of_text(result)}.")
        if cut_models(result):
            show_text(f"Stitched before the MLP of a layer: {cut_models(result)}.")
        first = directions[0]
        show_asymmetry(first)
        if "residual_r2" in first:
            from thinkalike.instruments.stitching.similarity import sentence_of_similarity

            show_text(sentence_of_similarity(first))


def _stitch_directions(
    config: StitchJob, setting: StitchSetting, work: Work
) -> dict[str, Direction]:
    """Return the directions of a job by name: from source to target, and `BACK` if asked for."""
    from thinkalike.instruments.stitching.direction import stitched
    from thinkalike.training.curves import loggers_of
    from thinkalike.training.run import TrainingRun

    partial = None
    if work.job.keeps_states:
        partial = work.job.partial
    run = TrainingRun(partial, setting.target.device, config.trainer, work.tracker)
    loggers = loggers_of(run, config.logger.kind)
    onward = stitched(setting, run, loggers, work)
    if not config.stitch.both:
        return {"": onward}

    from thinkalike.instruments.stitching.asymmetry import add_asymmetries, add_unexplained

    reversed_setting = setting.reversed(config.data)
    back = stitched(reversed_setting, replace(run, name=BACK), (), work)
    add_asymmetries(onward, back)
    if config.stitch.kind == "least_squares":
        with work.phase("report"):
            add_unexplained(onward, back)
    return {"": onward, BACK: back}


def _add_similarity(
    config: StitchJob, setting: StitchSetting, directions: Mapping[str, Direction], work: Work
) -> None:
    """Add to the details of all directions whether the states of stitched layers are similar."""
    from thinkalike.instruments.stitching.similarity import similarity_of, with_similarity

    with work.phase("similarity"):
        columns = similarity_of(setting, config.data)
    for name, direction in directions.items():
        direction.details = with_similarity(direction.details, columns, is_back=name == BACK)


def _keep_stitches(
    config: StitchJob, setting: StitchSetting, directions: Mapping[str, Direction], work: Work
) -> None:
    """Add the stitches of all directions to the result, if there are any with weights."""
    from thinkalike.instruments.stitching.direction import with_prefixes
    from thinkalike.stitches.stitch import NAME, facts_of_stitches

    weights_of_directions = {name: direction.weights for name, direction in directions.items()}
    weights = with_prefixes(weights_of_directions, ".")
    if not weights:
        return
    stitch = config.stitch
    widths = None
    rank = None
    if stitch.trained:
        widths = (setting.source.d_model, setting.target.d_model)
        rank = stitch.rank
    facts = facts_of_stitches(
        setting.layer_pairs, stitch.kind, stitch.norm, widths=widths, rank=rank
    )
    work.job.add_tensors(NAME, weights, facts)
