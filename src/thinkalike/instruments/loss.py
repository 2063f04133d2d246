"""measure=loss: a model's own loss on held-out text, beside the unigram entropy of its tokens.

It is the measure that --help composes, so it imports torch only to run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from thinkalike.config import AnalyzeConfig, MeasureConfig, SettingValues
from thinkalike.job import Instrument, Outcome, Work
from thinkalike.job.reductions import halvings
from thinkalike.job.setting_groups import FIT_TEXT, left_in_key
from thinkalike.screen import number_of_documents, number_text, show_text, span
from thinkalike.store import Result

if TYPE_CHECKING:
    from thinkalike.models.shapes import Shapes

FEWEST_TOKENS = 2048  # that a budget leaves

# what the built-in texts are, by the source that data has
BUILT_IN_TEXTS = {
    "stdlib": "the source code of Python's standard library",
    "pydoc": "the reference manual of Python",
    "grammar": "sentences of the large grammar",
}


@dataclass
class LossConfig(MeasureConfig):
    """The loss has no settings of its own."""

    kind: str = "loss"


class LossInstrument(Instrument[AnalyzeConfig], kind="loss", version=2, reads=("model", "data")):
    """Measures the next-token loss of `model` on `data`, in nats per token."""

    of_models: ClassVar[str] = "each"
    smallest: ClassVar[Mapping[str, object]] = {"data.evaluation_tokens": 4096}

    def unread(self, config: AnalyzeConfig) -> SettingValues:
        """Return the setting that this job ignores, the amount of text to fit on.

        It is returned with its value, since the keys of stored results contain it.
        """
        return left_in_key(config, FIT_TEXT)

    def reductions(
        self, config: AnalyzeConfig, shapes: Shapes, chosen: Collection[str]
    ) -> Iterator[dict[str, object]]:
        """Yield settings with ever fewer evaluation tokens, for `budget=`.

        Nothing is yielded if the job sets no number of tokens.
        """
        if config.data.evaluation_tokens:
            for tokens in halvings(config.data.evaluation_tokens, least=FEWEST_TOKENS):
                yield {"data.evaluation_tokens": tokens}

    def bytes_beside_models(self, config: AnalyzeConfig, shapes: Shapes) -> float:
        """Return the bytes of the logits that are in memory at once."""
        from thinkalike.measures.losses import bytes_of_logits

        return bytes_of_logits(shapes["model"].vocabulary)

    def run(self, config: AnalyzeConfig, work: Work) -> Outcome:
        """Compute a model's next-token loss on held-out documents, in a table of one row."""
        import pandas as pd

        from thinkalike.data.corpus import read_corpus
        from thinkalike.data.splits import DEFAULT_EVALUATION_SHARE
        from thinkalike.evaluation.held_out import held_out_loss
        from thinkalike.models.load import load_model

        with work.phase("loading"):
            model = load_model(config.model)
            model.check_context(config.data.context)
            # The loss is always computed on the evaluation share of the documents alone, as the
            # model may have been trained on the other documents of the same text.
            evaluation_share = config.data.evaluation_share or DEFAULT_EVALUATION_SHARE
            corpus = read_corpus(
                replace(config.data, evaluation_share=evaluation_share),
                model.tokenizer,
                model.context,
                bos=model.bos_each_row,
                fit_tokens=0,
            )
        numbers = held_out_loss(model, corpus)
        return Outcome(
            pd.DataFrame([{"model": model.name, **numbers}]),
            numbers,
            models=[model.describe()],
            facts={"data": {"name": config.data.name, **corpus.facts()}},
        )

    def show(self, result: Result) -> None:
        """Print the loss in a sentence."""
        show_loss(result)


def show_loss(result: Result) -> None:
    """Print the loss of a model beside that of predicting each token by its frequency alone."""
    numbers = result.scalars
    loss = span(numbers["loss"], numbers["loss_low"], numbers["loss_high"], ".4f")
    model = result.provenance["models"][0]["name"]
    data = result.config["data"]
    text = data["name"]
    if data.get("source") in BUILT_IN_TEXTS:
        text = f"{text} ({BUILT_IN_TEXTS[data['source']]})"
    show_text(
        f"The loss of {model} on the text {text} is {loss} nats per token over "
        f"{number_of_documents(numbers)}; predicting each token by its frequency alone would give "
        f"{number_text(numbers['unigram_entropy'], '.4f')} (the unigram entropy)."
    )
