"""task=sae: sparse autoencoders of a site, from several starts: what they explain and cost."""

from __future__ import annotations

from collections.abc import Mapping
from math import isnan
from pathlib import Path

from torch import Tensor

from thinkalike.config import ModelConfig
from thinkalike.contrib.sae.config import SAEJob
from thinkalike.contrib.sae.courses import savings_table
from thinkalike.contrib.sae.fitting import fit_all
from thinkalike.contrib.sae.materials import SAEMaterials
from thinkalike.contrib.sae.saelens import save_sae
from thinkalike.contrib.sae.source import seed_folder, source_jobs, source_model, source_result
from thinkalike.contrib.sae.tables import BLANK, curves, curves_of_starts, table_of
from thinkalike.errors import ModelError
from thinkalike.evaluation.columns import document_counts
from thinkalike.job import Instrument, Outcome, Work, fingerprints
from thinkalike.models.families import outline
from thinkalike.models.fingerprints import checkpoint_fingerprint
from thinkalike.models.shapes import Passes, Shapes
from thinkalike.screen import (
    Column,
    Table,
    few,
    number_column,
    number_of_documents,
    show_table,
    show_text,
    span,
    text_column,
)
from thinkalike.store import Headline, Result
from thinkalike.training.curves import loggers_of
from thinkalike.training.run import TrainingRun

SCALARS = ("explained_variance", "loss_recovered", "dead_latents", "active_latents")


class SparseAutoencoders(
    Instrument[SAEJob],
    kind="sae",
    version=2,
    config=SAEJob,
    reads=("model", "data", "sae", "trainer", "seed"),
):
    """Trains autoencoders of `model` at `sae.layer`; leaves them in the format of SAELens.

    SAELens opens the folder of the result: the autoencoder of `sae.start` at its best rate. Those
    of further seeds are in `seed-1`, and so on.
    """

    def inputs(self, config: SAEJob) -> Mapping[str, str]:
        """Return hashes of all that decides the numbers of the result besides the settings.

        They are those of the model, of the text, and of the source model if there is one: a model
        whose autoencoders are mapped to this model.

        Raises:
            ModelError: The model does not predict the next token.
        """
        predicts = outline(config.model).predicts  # None: not known before the model is loaded
        if predicts not in (None, "next"):
            raise ModelError(
                f"{config.model.called} predicts no next token, and task=sae reports the loss of "
                "the next"
            )
        inputs = dict(fingerprints(config, ("model", "data")))
        if config.sae.source:
            inputs["source_model"] = checkpoint_fingerprint(source_model(config))
        return inputs

    def prepare(self, config: SAEJob) -> Mapping[str, Result]:
        """Return the result with the autoencoders of the source model, by the name "source".

        These autoencoders are mapped to the job's model, and training may start from them. If the
        result is not stored, they are trained now. Without a source model, the mapping is empty.
        """
        if not config.sae.source:
            return {}
        return {"source": source_result(config)}

    def prepared_jobs(self, config: SAEJob) -> list[SAEJob]:
        """Return the jobs that train the source's autoencoders, which must run first."""
        return source_jobs(config)

    def models_of(self, config: SAEJob) -> dict[str, ModelConfig]:
        """Return the configurations of the models of a job: "model", and "source" if there is one.

        The source is a model whose autoencoders are mapped to the job's model.
        """
        models = {"model": config.model}
        if config.sae.source:
            models["source"] = source_model(config)
        return models

    def model_passes(self, config: SAEJob, shapes: Shapes) -> list[Passes]:
        """Return the passes through the models, to estimate the job's time.

        A start is a kind of first weights of the autoencoders. If there are others than "random",
        the model and the source model read some text for them. Then the model reads the text for
        training, and the evaluation text several times. The operations of the autoencoders
        themselves are left out.
        """
        sae = config.sae
        model = shapes["model"]
        row_length = config.data.context or min(shape.context for shape in shapes.values())
        passes = []
        if set(sae.starts) != {"random"}:
            for shape in shapes.values():
                passes.append(
                    shape.passes("starts", float(sae.map_tokens), row_length, with_logits=False)
                )
        training_tokens = float(sae.steps * sae.tokens_per_step)
        passes.append(model.passes("training", training_tokens, row_length, with_logits=False))
        # The evaluation text is read by the clean and the ablated model, and with each autoencoder
        # before and after its training.
        n_report_passes = 2 + 2 * len(sae.starts) * sae.seeds
        evaluation_tokens = float(config.data.evaluation_tokens or 0)
        passes.append(model.passes("report", evaluation_tokens, row_length, times=n_report_passes))
        return passes

    def run(self, config: SAEJob, work: Work) -> Outcome:
        """Train autoencoders from all starts, save those of `sae.start`, and report on all.

        A start is how the first weights are made. For each seed, the autoencoder at the best
        learning rate is saved.
        """
        with work.phase("loading"):
            materials = SAEMaterials.of(config, work.optional_input("source", Result))
        run = TrainingRun(work.job.partial, materials.model.device, config.trainer, work.tracker)
        with work.phase("fit"):
            fitted = fit_all(materials, run, loggers_of(run, config.logger.kind))
        with work.phase("report"):
            table = table_of(materials, fitted)
            start_curves = curves_of_starts(materials, fitted)
        best_rate = fitted.best_rate_index(0)
        for seed in range(config.sae.seeds):
            save_sae(
                fitted.after_training[fitted.index(0, best_rate, seed)].cpu(),
                work.job.aside / seed_folder(seed),
                model_name=materials.model.name,
                hook_name=f"blocks.{config.sae.layer}.hook_resid_post",
                context_size=materials.corpus.fit.context,
                prepend_bos=materials.model.bos_each_row,
            )

        arrays: dict[str, Tensor] = {"errors": fitted.errors.float(), "spread": fitted.spread}
        tables = {"curves": curves(materials, fitted)}
        if len(start_curves) > 1:
            tables["savings"], arrays["saved"] = savings_table(start_curves)
        last = table[table["start"] == config.sae.start].iloc[-1]
        scalars = {name: float(last[name]) for name in SCALARS if not isnan(last[name])}
        models = [materials.model]
        if materials.source is not None:
            models.append(materials.source.model)
        return Outcome(
            table,
            scalars | document_counts(fitted.judged.spread),
            {name: values.numpy() for name, values in arrays.items()},
            tables,
            models=[model.describe() for model in models],
            facts={"data": {"name": config.data.name, **materials.corpus.facts()}},
            blank=BLANK,
        )

    def draw(self, result: Result, folder: Path) -> None:
        """Draw explained variance over training, unless there was no training."""
        from thinkalike.contrib.figures.saes import draw_sae_curves  # imports matplotlib

        table = result.tables["curves"]
        n_evaluations = len(table["tokens"].unique())
        if n_evaluations > 1:
            draw_sae_curves(table, folder)

    def headlines(self, result: Result) -> list[Headline]:
        """Return explained variance, recovered loss and share of dead latents, after training.

        They belong to the autoencoder whose first weights were made as `sae.start` says. The
        recovered loss is left out if it is NaN.
        """
        table = result.details
        # The last row of each start is the one after training.
        last = table[table["start"] == result.config["sae"]["start"]].iloc[-1]
        headlines = []
        for name in ("explained_variance", "loss_recovered"):
            if not isnan(last[name]):
                low = last[f"{name}_low"]
                high = last[f"{name}_high"]
                headlines.append(Headline.with_ends(name, last[name], low, high))
        headlines.append(Headline("dead_latents", float(last["dead_latents"])))
        return headlines

    def show(self, result: Result) -> None:
        """Print the table of autoencoders, what the first one explains, and what a start saves.

        A start is how the first weights of an autoencoder are made.
        """
        table = result.details
        sae = result.config["sae"]
        first = table.iloc[0]
        activation = "ReLU"
        if sae["activation"] == "topk":
            activation = f"Top{sae['k']}"
        title = (
            f"{first['model']}, layer {first['layer']}: {activation} of {sae['width']} latents, "
            f"{sae['seeds']} seed(s), 95 % intervals over {number_of_documents(result.scalars)} "
            "and seeds"
        )
        rows = table.iloc[few(len(table))]  # some of the rows if there are too many
        ends = zip(
            rows["explained_variance"],
            rows["explained_variance_low"],
            rows["explained_variance_high"],
            strict=True,
        )
        explained = [span(value, low, high, ".3f") for value, low, high in ends]
        columns = [
            text_column("start", rows["start"]),
            number_column("tokens", rows["tokens"], ","),
            Column("explained variance", explained),
            number_column("extra loss", rows["penalty"], "+.3f"),
            number_column("active", rows["active_latents"], ".1f"),
            number_column("dead", rows["dead_latents"], ".1%"),
        ]
        show_table(Table(title, columns, keys=2))
        last = table[table["start"] == sae["start"]].iloc[-1]
        show_text(
            f"After {last['tokens']:,} tokens the autoencoder explains "
            f"{last['explained_variance']:.1%} of the variance, and the model loses "
            f"{last['penalty']:+.3f} nats per token with its output in place of states."
        )
        if "savings" in result.tables:
            savings = result.tables["savings"]
            for _, row in savings[savings["tokens"] == last["tokens"]].iterrows():
                saved = span(row["saved"], row["saved_low"], row["saved_high"], ".1%")
                show_text(
                    f"To explain what {row['against']} does after {row['tokens']:,} tokens, "
                    f"{row['start']} saves {saved} of all FLOPs."
                )
