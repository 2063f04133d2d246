"""The first job: where no word names a model, `train.py` stitches two minis, which shows more than one into itself."""

from __future__ import annotations

from collections.abc import Sequence

from hydra.core.override_parser.overrides_parser import OverridesParser

from thinkalike.config.inputs import HOW_IT_RUNS

TARGET = "model@target=solu-3l-mini"  # of the default model


def with_default_target(door: str, words: Sequence[str]) -> list[str]:
    """Return the words of a command line, with one for the target if they stitch and name neither model.

    Once a model is named, the target is the source unless it is named, too. How the source runs names no model.
    """
    keys = [each.get_key_element().lstrip("+~") for each in OverridesParser.create().parse_overrides(list(words))]
    named = {"model", "model@target"} & {*keys} or any(
        part in ("model", "target") and (part, setting) not in {("model", name) for name in HOW_IT_RUNS}
        for part, _, setting in (key.partition(".") for key in keys if "." in key)
    )
    other_task = any(word.lstrip("+").startswith("task=") and word != "task=stitch" for word in words)
    return [*words] if door != "train" or named or other_task else [*words, TARGET]
