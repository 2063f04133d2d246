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
from thinkalike.advice import named_setting
from thinkalike.config import SettingValues
from thinkalike.config.parts import AFTER, MIDDLE, PROCESSES, TrainerConfig
from thinkalike.errors import ConfigError
from thinkalike.instruments.layer_note import show_layer_note
from thinkalike.instruments.stitching import forecast
from thinkalike.instruments.stitching.screen import (
    details_of,
    interval_of_mean_penalty,
    layer_pairs_in_words,
    meaning_of_columns,
    models_cut_inside_blocks,
    show_asymmetry,
    show_penalties_of_direction,
    text_and_losses,
)
from thinkalike.instruments.text_name import name_of_text
from thinkalike.job import Instrument, Outcome, Work
from thinkalike.job.inputs import Inputs
from thinkalike.matrices import matrix_of
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
    version=22,
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
        """Check the settings, and return what decides the numbers, by name, for the job's key.

        Raises:
            ConfigError: A model cannot be cut at the hook point asked for, or it is cut inside a
                block and also compiled or recomputed, which works with whole blocks only.
        """
        check_processes(config.trainer, config.target.device)
        check_stitchable(
            config.model, config.target, config.layers, named_setting("task", "stitch")
        )
        sites = [config.model.site, config.target.site]
        for site in sites:
            if site not in (AFTER, MIDDLE):
                raise ConfigError(
                    f"{named_setting('model.site', site)} is no place to cut a model: stitch at "
                    f"{AFTER} or {MIDDLE}"
                )
        if MIDDLE in sites and (config.trainer.compile or config.trainer.recompute):
            raise ConfigError(
                f"{named_setting('trainer.compile')} and {named_setting('trainer.recompute')} "
                f"are of whole blocks: leave them out at {MIDDLE}"
            )
        return super().inputs(config)

    def unread(self, config: StitchJob) -> SettingValues:
        """Return the settings that this job ignores, with the values that enter its hash.

        If nothing is trained, these are the trainer's settings, except memory and processes, which
        such a job reads, too.
        """
        if config.stitch.trained:
            return {}
        defaults = vars(TrainerConfig())
        names_of_training = defaults.keys() - {"memory", *PROCESSES}
        return {f"trainer.{name}": defaults[name] for name in names_of_training}

    # ---- what a job will take

    def model_passes(self, config: StitchJob, shapes: Shapes) -> list[Passes]:
        """Return the passes of the models, to estimate time; see `forecast.passes_of_job`."""
        return forecast.passes_of_job(config, shapes)

    def reductions(
        self, config: StitchJob, shapes: Shapes, chosen: Collection[str]
    ) -> Iterator[dict[str, object]]:
        """Yield settings that take ever less time, see `forecast.settings_of_smaller_jobs`."""
        return forecast.settings_of_smaller_jobs(config, shapes, chosen)

    def bytes_beside_models(self, config: StitchJob, shapes: Shapes) -> float:
        """Return the bytes that the job needs besides the models."""
        return forecast.most_bytes_of_phase(config, shapes)

    # ---- the run

    def run(self, config: StitchJob, work: Work) -> Outcome:
        """Fit all stitches, in one or both directions, and compute their penalties.

        The table has a row for each layer pair and direction. The table `details` has the same
        rows with further columns.
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
            _add_columns_of_similarity(config, setting, directions, work)
        _store_stitches(config, setting, directions, work)

        details_of_directions = [direction.details for direction in directions.values()]
        details = pd.concat(details_of_directions, ignore_index=True)
        scalars = {
            "mean_penalty": float(details["penalty"].mean()),
            "worst_penalty": float(details["penalty"].max()),
            # The direction from source to target has the name "".
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
        """Draw the penalties of each direction: a map if all layers are paired, else bars."""
        table_by_direction = details_of(result).groupby(["source", "target"], sort=False)
        # For each direction, the name of its figure, and the array of its documents' token counts.
        # A result of one direction has only the first.
        array_by_file = {"penalty": "tokens", "penalty_back": "back_tokens"}
        for (file, array), ((source, target), table) in zip(
            array_by_file.items(), table_by_direction, strict=False
        ):
            tokens = result.arrays[array].sum()
            documents = f"{result.scalars['documents']:.0f} documents"
            subtitle = f"{tokens:,.0f} tokens of {documents}"
            if models_cut_inside_blocks(result):
                subtitle += f"; {models_cut_inside_blocks(result)}"
            penalties = matrix_of(
                table, index="source_layer", columns="target_layer", values="penalty"
            )
            has_all_pairs = penalties.notna().all(axis=None)
            if min(penalties.shape) > 1 and has_all_pairs:
                figures.penalty_map(penalties, str(source), str(target), folder, subtitle, file)
            else:
                subtitle += "\nbars: 95 % intervals over documents"
                figures.penalties(table, folder, subtitle, file)

    def ranked(self, table: pd.DataFrame) -> pd.DataFrame:
        """Return the stitches first that lose least."""
        return ranked_rows(table, "penalty", smallest_first=True)

    def headlines(self, result: Result) -> list[Headline]:
        """Return the mean penalty of all stitches, and the worst one with its layers.

        The mean has no interval if there are two directions, as their documents differ.
        """
        table = result.details
        mean_penalty = result.scalars["mean_penalty"]
        # The array has only the layer pairs of the first direction.
        has_two_directions = len(table) > len(result.arrays["stitch"])
        if has_two_directions:
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
        """Print what the stitches of each direction cost, and what the columns mean.

        The asymmetry of two directions and the similarity of states follow if they are known.
        """
        by_direction = details_of(result).groupby(["source", "target"], sort=False)
        directions = [table for _, table in by_direction]
        rows = MOST_ROWS if len(directions) == 1 else ROWS_OF_TWO
        stitch = result.config.get("stitch") or {}
        about_job = text_and_losses(directions[0], stitch, result.provenance.get("data"))
        for table in directions:
            show_penalties_of_direction(table, few(len(table), rows), about_job)
            about_job = ""  # the reverse is of the same text and models
        show_note(meaning_of_columns(directions[0]))
        show_layer_note(result)
        documents = number_of_documents(result.scalars)
        show_text(f"95 % intervals are over {documents}; text: {name_of_text(result)}.")
        if models_cut_inside_blocks(result):
            show_text(f"Stitched before the MLP of a layer: {models_cut_inside_blocks(result)}.")
        first = directions[0]
        show_asymmetry(first)
        if "residual_r2" in first:
            from thinkalike.instruments.stitching.similarity import sentence_of_similarity

            show_text(sentence_of_similarity(first))


def _stitch_directions(
    config: StitchJob, setting: StitchSetting, work: Work
) -> dict[str, Direction]:
    """Fit the stitches of a job, and return its directions by name.

    The direction from source to target has the name "", and the reverse, which is fitted only if
    the job asks for both, has the name `BACK`.

    Args:
        config: The job.
        setting: The models, their layer pairs and the text.
        work: The context of the running job.
    """
    from thinkalike.instruments.stitching.direction import stitches_of_direction
    from thinkalike.training.curves import loggers_of
    from thinkalike.training.run import TrainingRun

    checkpoint_folder = None  # of the state of training, from which a stopped job resumes
    if work.job.keeps_states:
        checkpoint_folder = work.job.partial
    run = TrainingRun(checkpoint_folder, setting.target.device, config.trainer, work.tracker)
    loggers = loggers_of(run, config.logger.kind)
    onward = stitches_of_direction(setting, run, loggers, work)
    if not config.stitch.both:
        return {"": onward}

    from thinkalike.instruments.stitching.asymmetry import add_asymmetries, add_unexplained

    reversed_setting = setting.reversed(config.data)
    # The learning curves of a job are those of the direction from source to target alone.
    back = stitches_of_direction(reversed_setting, replace(run, name=BACK), loggers=(), work=work)
    add_asymmetries(onward, back)
    if config.stitch.kind == "least_squares":
        with work.phase("report"):
            add_unexplained(onward, back)
    return {"": onward, BACK: back}


def _add_columns_of_similarity(
    config: StitchJob, setting: StitchSetting, directions: Mapping[str, Direction], work: Work
) -> None:
    """Add columns of residual R² of the stitched layers to the details of all directions.

    Residual R² (after word, position and earlier tokens are regressed out) says whether the states
    are similar, which the cost of a stitch does not.

    Args:
        config: The job, which names the text.
        setting: The models and their layer pairs.
        directions: The directions by name, whose `details` are replaced.
        work: The context of the running job.
    """
    from thinkalike.instruments.stitching.similarity import columns_of_similarity, with_similarity

    with work.phase("similarity"):
        columns = columns_of_similarity(setting, config.data)
    for name, direction in directions.items():
        direction.details = with_similarity(direction.details, columns, is_back=name == BACK)


def _store_stitches(
    config: StitchJob, setting: StitchSetting, directions: Mapping[str, Direction], work: Work
) -> None:
    """Store the weights of all stitches in the folder of the result; the identity has none.

    Args:
        config: The job.
        setting: The models and their layer pairs.
        directions: The directions by name, with their stitches.
        work: The context of the running job, whose folder gets the weights.
    """
    from thinkalike.instruments.stitching.direction import with_prefixes
    from thinkalike.stitches.stitch import NAME, facts_of_stitches

    weights_of_directions = {name: direction.weights for name, direction in directions.items()}
    weights = with_prefixes(weights_of_directions, ".")
    if not weights:
        return
    stitch = config.stitch
    widths = None
    rank = None
    if stitch.trained:  # needed to make the modules of the maps when the weights are loaded
        widths = (setting.source.d_model, setting.target.d_model)
        rank = stitch.rank
    facts = facts_of_stitches(
        setting.layer_pairs, stitch.kind, stitch.norm, widths=widths, rank=rank
    )
    work.job.add_tensors(NAME, weights, facts)
