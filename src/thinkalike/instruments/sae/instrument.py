"""task=sae: sparse autoencoders of one site, from several starts, and what those explain, recover and cost."""

from __future__ import annotations

from collections.abc import Mapping
from math import isnan
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd

from thinkalike import figures
from thinkalike.config import ModelConfig, TrainConfig
from thinkalike.errors import ModelError
from thinkalike.evaluation.language import document_numbers
from thinkalike.instruments import operations
from thinkalike.instruments.sae.fitting import (
    BLANK,
    break_even_table,
    courses_of,
    curves,
    fitted,
    savings_table,
    table_of,
)
from thinkalike.instruments.sae.setting import (
    Setting,
    seed_folder,
    source_jobs,
    source_layer,
    source_model,
    source_result,
)
from thinkalike.job import Instrument, Outcome, Phase, Shapes, Work, fingerprints
from thinkalike.measures.estimates import span
from thinkalike.measures.sae import save_sae
from thinkalike.models.foresight import outline
from thinkalike.models.places import checkpoint_fingerprint
from thinkalike.screen import Column, Table, number_column, number_of_documents, show_table, text_column
from thinkalike.store import Headline, Result, open_result
from thinkalike.training.run import Run, loggers_of

NUMBERS = ("explained_variance", "loss_recovered", "dead_latents", "active_latents")


class SparseAutoencoders(
    Instrument, kind="sae", version=2, config=TrainConfig, reads=("model", "data", "sae", "trainer", "seed")
):
    """Trains autoencoders of `model` at `sae.layer`; leaves them in the format of SAELens, tables, curves and figure.

    The folder of the result is what SAELens opens: the autoencoder of `sae.start` at its best rate, and in `seed-1`,
    ... those of further seeds.
    """

    makes_inputs: ClassVar[bool] = True

    def inputs(self, config: TrainConfig) -> Mapping[str, Any]:
        if outline(config.model).predicts not in (None, "next"):
            raise ModelError(
                f"{config.model.called} predicts no next token, and task=sae reports the loss of the next token"
            )
        read: dict[str, Any] = {**fingerprints(config, ("model", "data"))}
        if config.sae.source:
            read |= {"source": source_result(config), "source_model": checkpoint_fingerprint(source_model(config))}
        if config.sae.stitch:
            read["stitch"] = open_result(config.sae.stitch)
        return read

    def prepared(self, config: TrainConfig) -> list[TrainConfig]:
        return source_jobs(config)

    def models_of(self, config: TrainConfig) -> dict[str, ModelConfig]:
        return {"model": config.model} | ({"source": source_model(config)} if config.sae.source else {})

    def operations(self, config: TrainConfig, shapes: Shapes) -> list[Phase]:
        return operations.autoencoders(config, shapes, source_layer(config))

    def run(self, config: TrainConfig, work: Work) -> Outcome:
        with work.phase("loading"):
            setting = Setting.of(config, work.inputs)
        run = Run(work.job.partial, setting.model.device, config.trainer, work.tracker)
        with work.phase("fit"):
            made = fitted(setting, run, loggers_of(run))
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
            tables["break_even"] = break_even_table(courses)
        last = table[table["start"] == config.sae.start].iloc[-1]
        numbers = [name for name in NUMBERS if not isnan(last[name])]
        models = [each.describe() for each in (setting.model, setting.source) if each]
        return Outcome(
            table,
            {name: float(last[name]) for name in numbers} | document_numbers(made.judged[1]),
            {name: each.numpy() for name, each in arrays.items()},
            tables,
            models=models,
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
        first = table.iloc[0]
        kind = f"Top{sae['k']}" if sae["activation"] == "topk" else "ReLU"
        title = f"{first['model']}, layer {first['layer']}: {kind} of {sae['width']} latents, {sae['seeds']} seed(s), "
        title += f"95 % intervals over {number_of_documents(result.scalars)} and seeds"
        columns = [
            text_column("start", table["start"]),
            number_column("tokens", table["tokens"], ","),
            Column("rate", [f"{rate:g}" if rate else "" for rate in table["rate"]]),
            number_column("TFLOP", table["flops"] / 1e12, ".3g"),
            _with_ends(table, "explained_variance", ".3f", "explained variance"),
            _with_ends(table, "loss_recovered", ".3f", "loss recovered"),
            number_column("penalty", table["penalty"], "+.3f"),
            number_column("active", table["active_latents"], ".1f"),
            number_column("dead", table["dead_latents"], ".1%"),
        ]
        show_table(Table(title, columns, keys=2))
        if "savings" in result.tables and len(result.tables["savings"]):
            show_table(_savings(result.tables["savings"], result.tables["break_even"]))


SHARES = (1 / 16, 1 / 4, 1 / 2, 1)  # of the tokens of a job: the budgets that are printed


def _savings(savings: pd.DataFrame, even: pd.DataFrame) -> Table:
    """Return the table of savings at the budgets."""
    own = savings[savings["tokens"].isin([savings["tokens"].max() * share for share in SHARES])]
    pairs = own[["start", "against"]].drop_duplicates()
    columns = [text_column(name, pairs[name]) for name in ("start", "against")]
    for tokens in own["tokens"].unique():
        cells = pairs.merge(own[own["tokens"] == tokens])
        columns.append(_with_ends(cells, "saved", "+.1%", f"{tokens:,}"))
    first = pairs.merge(even)["break_even_tokens"]
    columns.append(Column("saves from", ["not here" if pd.isna(count) else f"{count:,.0f} tokens" for count in first]))
    title = "share of all FLOPs saved on the way to what the other start explains after so many tokens"
    return Table(title, columns, keys=2)


def _with_ends(table: pd.DataFrame, name: str, form: str, header: str) -> Column:
    """Return numbers with their intervals, or alone where these have no ends; nothing for a blank cell."""
    cells = []
    for value, low, high in table[[name, f"{name}_low", f"{name}_high"]].to_numpy(float):
        alone = "" if isnan(value) else f"{value:{form}}"
        cells.append(alone if isnan(value) or isnan(low) or isnan(high) else span(value, low, high, form))
    return Column(header, cells)
