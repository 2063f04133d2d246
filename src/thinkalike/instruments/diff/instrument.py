"""measure=diff: what a change did to a model.

It says whether predictions changed, where the change enters, on what text, in which directions,
and within which margin.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import ClassVar, NamedTuple

import pandas as pd
from jaxtyping import Int
from torch import Tensor

from thinkalike import figures
from thinkalike.advice import named_setting
from thinkalike.config import AnalyzeConfig, ModelConfig, SettingValues, model_named
from thinkalike.data.alignment import check_same_tokens
from thinkalike.errors import ConfigError
from thinkalike.evaluation.changes import BatchStates
from thinkalike.evaluation.exchanges import (
    FEW_HEADS,
    ExchangesDone,
    PartChanges,
    exchange_outputs,
    exchange_parts,
)
from thinkalike.files import is_there
from thinkalike.instruments.diff.differing_settings import (
    row_of_differing_forward_pass,
    settings_that_differ,
)
from thinkalike.instruments.diff.directions import rows_of_directions
from thinkalike.instruments.diff.edits import edits_of
from thinkalike.instruments.diff.null import (
    RUNS,
    NullModels,
    null_models,
    run_null,
    seconds_of_random_changes,
)
from thinkalike.instruments.diff.observations import Observations
from thinkalike.instruments.diff.outcome import outcome_of_diff, outcome_of_equal_models
from thinkalike.instruments.diff.screen import screen_lines
from thinkalike.instruments.diff.settings import DiffConfig
from thinkalike.instruments.diff.taught import add_what_was_taught, tokens_of_amplified_text
from thinkalike.instruments.diff.unread_tokens import numbers_after_unread_tokens
from thinkalike.instruments.random_rows import TOKENS_PER_ROW, read_random_rows
from thinkalike.job import Instrument, Outcome, Work
from thinkalike.job.inputs import Input, Inputs
from thinkalike.job.reductions import halvings
from thinkalike.job.setting_groups import REPORT_TEXT, left_in_key
from thinkalike.models.families import pick_device
from thinkalike.models.fingerprints import checkpoint_fingerprint
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.load import load_model, load_models
from thinkalike.models.parts import (
    Part,
    changed_parts,
    check_same_structure,
    give_same_ties_and_vocabulary,
    weight_that_cannot_be_subtracted,
)
from thinkalike.models.shapes import Passes, Shapes
from thinkalike.ranking import ranked_rows
from thinkalike.screen import show_text
from thinkalike.states.contrasts import CONTRASTS, Contrasts, grammar_contrasts, read_contrasts
from thinkalike.store import Headline, Result

log = logging.getLogger(__name__)

FORK_TOKENS = 2**18
"""Forks are trained on at most so many tokens."""

MOST_PARTS_EXCHANGED = 16
"""At most so many parts of blocks are exchanged."""

FEWEST_TOKENS = 512
"""A budget leaves at least so many tokens."""

FEWEST_TOKENS_PER_PART = 128
"""A budget leaves at least so many tokens on which modules are exchanged."""

TOKENS_OF_CONTRAST = 8
"""About how many tokens a text of a pair has."""


class Differences(NamedTuple):
    """What differs between two models before any text is read."""

    parts: list[Part]
    """The parts whose weights differ."""

    weights: pd.DataFrame
    """A row for each tensor that differs, with what was done to it."""

    settings: pd.DataFrame
    """A row for each setting that differs."""

    tokens: Sequence[int]
    """The tokens whose row of the embedding differs."""


class DiffInstrument(
    Instrument[AnalyzeConfig],
    kind="diff",
    version=10,
    reads=("model", "target", "data", "measure"),
):
    """Says what the change from `model` to `model@target` did."""

    of_models: ClassVar[str] = "pairs"
    smallest: ClassVar[Mapping[str, object]] = {"measure.tokens": 4096}

    def unread(self, config: AnalyzeConfig) -> SettingValues:
        """Return the settings that this job ignores, with the values that enter its hash.

        The setting `data.evaluation_tokens` is ignored, as `measure.tokens` says how much text is
        read. Its value stays in the hash all the same, so that results of earlier versions are
        found. The setting `data.fit_tokens` is ignored, and None in the hash, unless the null is
        the continued-training control, as only this control is trained on text.
        """
        unread = left_in_key(config, REPORT_TEXT)
        if config.measure_as(DiffConfig).null != "continued_training":
            unread["data.fit_tokens"] = None
        return unread

    def inputs(self, config: AnalyzeConfig) -> Inputs:
        """Return what decides the numbers besides settings, by name, for the hash of the job.

        These are both models and the text. If the settings name them, they are also the pairs of
        texts that a file holds (`measure.path`), and a third model that may have been mixed in
        (`measure.other`).
        """
        measure = config.measure_as(DiffConfig)
        inputs: dict[str, Input] = {}
        if measure.path:
            inputs["contrasts"] = read_contrasts(measure.path)
        if measure.other:
            inputs["other"] = checkpoint_fingerprint(_other_model(measure.other))
        return {**inputs, **super().inputs(config)}

    def model_passes(self, config: AnalyzeConfig, shapes: Shapes) -> Sequence[Passes]:
        """Return the forward passes, to estimate the job's time.

        These are passes of both models over the text, passes with exchanged modules and of the
        models of the null, and passes that write amplified text. Those with exchanged modules are
        counted as if each of them began at the first block.
        """
        measure = config.measure_as(DiffConfig)
        base = shapes["model"]
        row_length = config.data.context or TOKENS_PER_ROW
        passes = []
        for shape in dict.fromkeys(shapes.values()):
            passes.append(shape.passes("both models", float(measure.tokens), row_length))

        runs = RUNS
        if measure.null == "random_change":
            runs = 2 * RUNS  # `RUNS` with moved entries, and as many with random signs
        attention_and_mlps = 2 * base.layers
        parts_exchanged = attention_and_mlps
        if measure.null != "continued_training":  # which exchanges all that differ
            parts_exchanged = min(attention_and_mlps, MOST_PARTS_EXCHANGED)
        outputs = min(measure.outputs, attention_and_mlps)
        outputs_and_heads = 0
        if outputs:  # as many heads, or all of few
            outputs_and_heads = outputs + max(outputs, FEW_HEADS)
        if measure.taught == "only":
            parts_exchanged = outputs_and_heads = 0
        # Every module and output is exchanged twice: put into the base and into the changed model.
        passes_of_exchanges = 2 * (parts_exchanged + outputs_and_heads)
        tokens = float(measure.tokens_per_part * (passes_of_exchanges + runs))
        if measure.contrast and measure.taught != "only":
            texts = 2 * measure.pairs  # the two texts of each pair
            models = RUNS + 2  # the models of the null, the base and the changed model
            tokens += TOKENS_OF_CONTRAST * texts * models
        passes.append(base.passes("parts and null", tokens, row_length))
        if measure.taught:
            tokens_of_text = float(tokens_of_amplified_text())
            passes.append(base.passes("amplified text", tokens_of_text, row_length))
        return passes

    def seconds_beside_passes(self, config: AnalyzeConfig, shapes: Shapes) -> float:
        """Return the seconds that a CPU takes to change weights at random.

        Random changes are what the change of the model is compared with. The estimate is 0 for a
        GPU, which takes next to no time, and for a job without random changes. It is not known yet
        which weights differ, so all are counted.
        """
        measure = config.measure_as(DiffConfig)
        if measure.null != "random_change" or pick_device(config.model.device) != "cpu":
            return 0.0
        return seconds_of_random_changes(shapes["model"].parameters)

    def reductions(
        self, config: AnalyzeConfig, shapes: Shapes, chosen: Collection[str]
    ) -> Iterator[dict[str, object]]:
        """Yield settings that take ever less time: half of the tokens, a quarter, and so on.

        The effects of single modules are measured on the first `tokens_per_part` of these tokens,
        so that this setting is never larger than `tokens`. If one of the two settings was given,
        the other alone is reduced.
        """
        measure = config.measure_as(DiffConfig)
        most_per_part = min(measure.tokens_per_part, measure.tokens)
        if "measure.tokens" in chosen:
            for tokens_per_part in halvings(most_per_part, least=FEWEST_TOKENS_PER_PART):
                yield {"measure.tokens_per_part": tokens_per_part}
            return
        fewest = FEWEST_TOKENS
        if "measure.tokens_per_part" in chosen:
            fewest = max(fewest, most_per_part)
        for tokens in halvings(measure.tokens, least=fewest):
            tokens_per_part = min(measure.tokens_per_part, tokens)
            yield {"measure.tokens": tokens, "measure.tokens_per_part": tokens_per_part}

    def run(self, config: AnalyzeConfig, work: Work) -> Outcome:
        """Compare a model with a changed copy: weights first, then outputs and layers on text.

        Where no weight and no setting differs, nothing is run.
        """
        measure = config.measure_as(DiffConfig)
        with work.phase("loading"):
            base, changed = load_models(config.model, config.target)
            described = [base.describe(), changed.describe()]
            for sentence in give_same_ties_and_vocabulary(base, changed):
                log.warning(sentence)
            check_same_structure(base, changed)
            base.check_context(config.data.context)
            changed.check_context(config.data.context)
        with work.phase("weights"):
            differences = _differences(config, base, changed)
        if not differences.parts and differences.settings.empty:
            return replace(outcome_of_equal_models(base, measure.margin), models=described)

        with work.phase("text"):
            fit_tokens = FORK_TOKENS if measure.null == "continued_training" else 0
            text = read_random_rows(config, measure.tokens, base, fit_tokens)
            check_same_tokens(base, changed, text.rows.tokens)
        contrasts: Contrasts | None = work.optional_input("contrasts", Contrasts)
        if measure.contrast in CONTRASTS and measure.taught != "only":
            contrasts = grammar_contrasts(
                measure.contrast, base.tokenizer, measure.pairs, size="large"
            )
        rows_per_part = max(measure.tokens_per_part // text.rows.context, 1)
        observed = Observations(
            base,
            changed,
            text.rows,
            min(rows_per_part, len(text.rows)),
            measure.margin,
            contrasts=contrasts,
            difference_tables={"weights": differences.weights, "settings": differences.settings},
            changed_tokens=differences.tokens,
        )
        _run_models_and_null(observed, measure, differences.parts, text.fit, work)

        facts: dict[str, object] = {"data": text.facts}
        if contrasts:
            facts["contrasts"] = {
                "source": contrasts.source,
                "fingerprint": contrasts.fingerprint(),
            }
        return replace(outcome_of_diff(observed), models=described, facts=facts)

    def draw(self, result: Result, folder: Path) -> None:
        """Draw the effects by module and layer, unless no module was exchanged.

        Equal models have no figure.
        """
        are_equal = "layers" not in result.tables
        if not are_equal and result.config["measure"].get("taught") != "only":
            # A third model may follow, if one was mixed in.
            base, changed = (model["name"] for model in result.provenance["models"][:2])
            documents = result.scalars["documents"]
            subtitle = f"bars: 95 % intervals over {documents:.0f} documents"
            names = f"{base} → {changed}"
            figures.changes(result.details, result.tables["layers"], folder, names, subtitle)

    def ranked(self, table: pd.DataFrame) -> pd.DataFrame:
        """Return the modules first whose exchange has the largest effect on predictions."""
        return ranked_rows(table, "mean_effect")

    def headlines(self, result: Result) -> Sequence[Headline]:
        """Return three headlines: KL, the share of flipped predictions, and the change of loss."""
        scalars = result.scalars
        headlines = []
        for name in ("kl", "flips", "loss_change"):
            value = scalars.get(name, math.nan)
            low = scalars.get(f"{name}_low", math.nan)
            high = scalars.get(f"{name}_high", math.nan)
            headlines.append(Headline.with_ends(name, value, low, high))
        return headlines

    def show(self, result: Result) -> None:
        """Print the answers of a diff, one after the other."""
        for line in screen_lines(result):
            show_text(line)


def _other_model(name: str) -> ModelConfig:
    """Return the configuration of the model that `measure.other` names.

    Args:
        name: A folder or the name of a model.

    Raises:
        ConfigError: There is no such model; the message names the setting `measure.other`.
    """
    if is_there(name):  # a file or folder
        name = str(Path(name).absolute())
    try:
        return model_named(name, {})  # with no further settings
    except ConfigError as error:
        # The message names the setting "model=", as in 'model="NAME" is not known', but the user
        # has set `measure.other`. With an empty text for the value (`like=""`), `named_setting`
        # returns the name of this setting and "=", which here replaces "model=".
        argument = named_setting("measure.other", like="")
        raise ConfigError(str(error).replace("model=", argument, 1)) from None


def _differences(config: AnalyzeConfig, base: FrozenModel, changed: FrozenModel) -> Differences:
    """Return what differs between two models: modules, tensors, settings and embedded tokens.

    The third model of the settings, if any, is loaded to recognise weights that are a mixture of
    the base and of it. If neither weights nor settings differ, both models are run on a few
    tokens, and a difference of their outputs counts as a setting.
    """
    measure = config.measure_as(DiffConfig)
    settings = settings_that_differ(base, changed)
    mixed_in = None
    if measure.other:
        mixed_in = load_model(replace(_other_model(measure.other), dtype=config.model.dtype))
    weights, tokens = edits_of(base, changed, mixed_in)
    parts = changed_parts(base, changed)
    if not parts and settings.empty:
        settings = row_of_differing_forward_pass(base, changed)
    return Differences(parts, weights, settings, tokens)


def _run_models_and_null(
    observed: Observations,
    measure: DiffConfig,
    parts: Sequence[Part],
    fit: Int[Tensor, "rows t"],
    work: Work,
) -> None:
    """Run both models on the text, exchange modules and outputs between them, and run the null.

    What is observed is added to `observed`. There is no null if a weight that differs cannot be
    changed at random, for instance because it is packed.

    Args:
        observed: The observations, so far without any of text.
        measure: The settings of the diff.
        parts: The modules whose weights differ.
        fit: The rows of text on which the continued-training control is trained.
        work: The context of the running job, which saves what was done so that a job can resume.
    """
    base = observed.base
    changed = observed.changed
    with work.phase("both models"):
        batches = observed.read()
    with work.phase("changed tokens"):
        observed.unread_token_numbers = numbers_after_unread_tokens(
            base, changed, observed.rows, observed.changed_tokens
        )
    if measure.taught == "only":
        observed.parts = {part: PartChanges(None, None, None) for part in parts}
    else:
        _exchange_parts_and_outputs(observed, measure, parts, batches, work)

    models: NullModels | None = None
    packed_weight = weight_that_cannot_be_subtracted(base, changed)
    if packed_weight:
        reasons = "is packed, of two shapes, in one model alone or less precise in the base"
        log.warning("%s %s: so it has no null", packed_weight, reasons)
    elif parts:
        with work.phase("null"):
            models = null_models(measure, base, changed, parts, fit)
            run_null(observed, models, batches, work, bool(measure.taught))
    if parts and measure.taught:
        with work.phase("what was taught"):
            add_what_was_taught(observed, batches, models)


def _exchange_parts_and_outputs(
    observed: Observations,
    measure: DiffConfig,
    parts: Sequence[Part],
    batches: Sequence[BatchStates],
    work: Work,
) -> None:
    """Exchange modules and outputs between both models, and add what that does to `observed`.

    If more than `MOST_PARTS_EXCHANGED` modules of blocks differ, only those with most effect are
    exchanged on all of this text. With `null=continued_training`, all are. Outputs are exchanged
    only where some prediction changed.

    Args:
        observed: The observations of both models on the text.
        measure: The settings of the diff.
        parts: The modules whose weights differ. If there are none, only outputs are exchanged.
        batches: The first rows of text, with the states of both models.
        work: The context of the running job, which saves the exchanges of modules so far.
    """
    base = observed.base
    changed = observed.changed
    if parts:
        with work.phase("parts"):
            most_parts = MOST_PARTS_EXCHANGED
            if measure.null == "continued_training":
                most_parts = len(parts)
            observed.parts = exchange_parts(
                base,
                changed,
                parts,
                batches,
                most_parts,
                _resumed_exchanges(work),
                partial(work.keep, "parts"),
            )
            observed.directions = rows_of_directions(observed, batches)
    with work.phase("outputs"):
        if observed.kl_of_first_rows().any():
            observed.outputs = exchange_outputs(base, changed, batches, measure.outputs)


def _resumed_exchanges(work: Work) -> ExchangesDone | None:
    """Return the exchanges of modules that a stopped run of the job saved; None: there are none.

    `tried` has the names of the modules that are exchanged on all of the text. The other entries
    have values at each token, by the name of the module: how far it moves the states (`entering`),
    the KL that is left without its change (`without`), and the KL of its change alone (`alone`).

    Raises:
        StoreError: The state lacks an entry, or has one of another type.
    """
    state = work.resume("parts")
    if state is None:
        return None
    return {
        "tried": state.entry("tried", list),
        "entering": state.entry("entering", dict),
        "without": state.entry("without", dict),
        "alone": state.entry("alone", dict),
    }
