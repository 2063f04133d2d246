"""task=sae: sparse autoencoders of one site, from several starts, and what those explain, recover and cost."""

from __future__ import annotations

from collections.abc import Mapping
from math import isnan
from pathlib import Path
from typing import Any

from thinkalike import screen
from thinkalike.config import ModelConfig
from thinkalike.contrib import figures
from thinkalike.contrib.sae.config import SAEJob
from thinkalike.contrib.sae.fitting import BLANK, courses_of, curves, fitted, savings_table, table_of
from thinkalike.contrib.sae.saelens import save_sae
from thinkalike.contrib.sae.setting import Setting, seed_folder, source_jobs, source_model, source_result
from thinkalike.errors import ModelError
from thinkalike.evaluation.columns import document_counts
from thinkalike.job import Instrument, Outcome, Work, fingerprints
from thinkalike.models.families import outline
from thinkalike.models.fingerprints import checkpoint_fingerprint
from thinkalike.models.shapes import Passes, Shapes
from thinkalike.store import Headline, Result
from thinkalike.training.run import Run, loggers_of

NUMBERS = ("explained_variance", "loss_recovered", "dead_latents", "active_latents")


class SparseAutoencoders(
    Instrument[SAEJob], kind="sae", version=2, config=SAEJob, reads=("model", "data", "sae", "trainer", "seed")
):
    """Trains autoencoders of `model` at `sae.layer`; leaves them in the format of SAELens, tables, curves and figure.

    The folder of the result is what SAELens opens: the autoencoder of `sae.start` at its best rate, and in `seed-1`,
    ... those of further seeds.
    """

    def inputs(self, config: SAEJob) -> Mapping[str, Any]:
        if outline(config.model).predicts not in (None, "next"):
            raise ModelError(f"{config.model.called} predicts no next token, and task=sae reports the loss of the next")
        source = {"source_model": checkpoint_fingerprint(source_model(config))} if config.sae.source else {}
        return {**fingerprints(config, ("model", "data")), **source}

    def prepare(self, config: SAEJob) -> Mapping[str, Any]:
        """Return the result that has the autoencoders of the source, which are trained first if the store lacks it."""
        return {"source": source_result(config)} if config.sae.source else {}

    def prepared(self, config: SAEJob) -> list[SAEJob]:
        return source_jobs(config)

    def models_of(self, config: SAEJob) -> dict[str, ModelConfig]:
        return {"model": config.model} | ({"source": source_model(config)} if config.sae.source else {})

    def passes(self, config: SAEJob, shapes: Shapes) -> list[Passes]:
        """Return the passes of the model and the source; the products of the autoencoders are left out."""
        sae, model = config.sae, shapes["model"]
        row = config.data.context or min(shape.context for shape in shapes.values())
        tokens, report = float(sae.steps * sae.tokens_per_step), float(config.data.report_tokens or 0)
        starts = [] if set(sae.starts) <= {"random"} else shapes.values()
        return [
            *(shape.passes("starts", float(sae.map_tokens), row, full=False) for shape in starts),
            model.passes("training", tokens, row, full=False),
            model.passes("report", report, row, times=2 + 2 * len(sae.starts) * sae.seeds),
        ]

    def run(self, config: SAEJob, work: Work) -> Outcome:
        with work.phase("loading"):
            setting = Setting.of(config, work.inputs)
        run = Run(work.job.partial, setting.model.device, config.trainer, work.tracker)
        with work.phase("fit"):
            made = fitted(setting, run, loggers_of(run, config.logger.kind))
        with work.phase("report"):
            table, courses = table_of(setting, made), courses_of(setting, made)
        for seed in range(config.sae.seeds):
            save_sae(
                made.ended[made.place(0, made.best_rate(0), seed)].cpu(),
                work.job.aside / seed_folder(seed),
                model_name=setting.model.name,
                hook_name=f"blocks.{config.sae.layer}.hook_resid_post",
                context_size=setting.corpus.fit.context,
                prepend_bos=setting.model.bos_each_row,
            )
        arrays = {"errors": made.errors.float(), "spread": made.spread}
        tables = {"curves": curves(setting, made)}
        if len(courses) > 1:
            tables["savings"], arrays["saved"] = savings_table(courses)
        last = table[table["start"] == config.sae.start].iloc[-1]
        numbers = [name for name in NUMBERS if not isnan(last[name])]
        return Outcome(
            table,
            {name: float(last[name]) for name in numbers} | document_counts(made.judged[1]),
            {name: each.numpy() for name, each in arrays.items()},
            tables,
            models=[each.describe() for each in (setting.model, setting.source) if each],
            facts={"data": {"name": config.data.name, **setting.corpus.facts()}},
            blank=BLANK,
        )

    def draw(self, result: Result, folder: Path) -> None:
        if len(result.tables["curves"]["tokens"].unique()) > 1:
            figures.sae_curves(result.tables["curves"], folder)

    def headlines(self, result: Result) -> list[Headline]:
        """Return what the autoencoder of `sae.start` explains and recovers, with intervals, and its dead latents."""
        last = result.table[result.table["start"] == result.config["sae"]["start"]].iloc[-1]
        ends = [
            Headline.with_ends(name, last[name], last[f"{name}_low"], last[f"{name}_high"])
            for name in ("explained_variance", "loss_recovered")
            if not isnan(last[name])
        ]
        return [*ends, Headline("dead_latents", float(last["dead_latents"]))]

    def show(self, result: Result) -> None:
        table, sae = result.table, result.config["sae"]
        first, rows = table.iloc[0], table.iloc[screen.few(len(table))]
        kind = f"Top{sae['k']}" if sae["activation"] == "topk" else "ReLU"
        title = f"{first['model']}, layer {first['layer']}: {kind} of {sae['width']} latents, {sae['seeds']} seed(s), "
        title += f"95 % intervals over {screen.number_of_documents(result.scalars)} and seeds"
        ends = rows[["explained_variance", "explained_variance_low", "explained_variance_high"]].to_numpy(float)
        explained = [screen.span(value, low, high, ".3f") for value, low, high in ends]
        columns = [
            screen.text_column("start", rows["start"]),
            screen.number_column("tokens", rows["tokens"], ","),
            screen.Column("explained variance", explained),
            screen.number_column("extra loss", rows["penalty"], "+.3f"),
            screen.number_column("active", rows["active_latents"], ".1f"),
            screen.number_column("dead", rows["dead_latents"], ".1%"),
        ]
        screen.show_table(screen.Table(title, columns, keys=2))
        last = table[table["start"] == sae["start"]].iloc[-1]
        screen.show_text(
            f"After {last['tokens']:,} tokens the autoencoder explains {last['explained_variance']:.1%} of the "
            f"variance, and the model loses {last['penalty']:+.3f} nats per token with its output in place of states."
        )
        if (savings := result.tables.get("savings")) is None:
            return
        for row in savings[savings["tokens"] == last["tokens"]].itertuples():
            saved = f"{row.start} saves {screen.span(row.saved, row.saved_low, row.saved_high, '.1%')} of all FLOPs"
            screen.show_text(f"To explain what {row.against} does after {row.tokens:,} tokens, {saved}.")
