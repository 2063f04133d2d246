"""What differs between two models besides their weights, before any text is read."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

import pandas as pd

from thinkalike.digests import tokenizer_facts
from thinkalike.instruments.diff.ranges import blocks_in_words
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.identity import output_distance
from thinkalike.models.module_facts import TOLERANCE, entries_of
from thinkalike.models.traits import traits_that_differ

LONGEST_VALUE = 80
"""Of a list or table with a longer text its length and digest are shown."""

DIGITS_OF_DIGEST = 6

COLUMNS = ["setting", "base", "changed"]


def settings_that_differ(base: FrozenModel, changed: FrozenModel) -> pd.DataFrame:
    """Return a row for each setting that differs between two models, with both values as text.

    Settings are entries of the models' configurations, parts of their tokenizers, and the special
    tokens that they put around a text. The classes, attributes and buffers of modules count as
    settings, too, although no checkpoint file holds them. A setting that one model lacks has the
    value "none".
    """
    settings_of_base = _settings_of(base)
    settings_of_changed = _settings_of(changed)
    rows = []
    for name in sorted(settings_of_base.keys() | settings_of_changed.keys()):
        before = settings_of_base.get(name)
        after = settings_of_changed.get(name)
        if before != after:
            rows.append(
                {
                    "setting": name,
                    "base": _setting_in_words(before),
                    "changed": _setting_in_words(after),
                }
            )
    rows += _rows_of_traits(base, changed)  # classes, attributes and buffers of modules
    return pd.DataFrame(rows, columns=COLUMNS)


def _settings_of(model: FrozenModel) -> Mapping[str, object]:
    """Return the settings of a model by name.

    They are the entries of its configuration, the parts of its tokenizer as `tokenizer.NAME`, and
    as `marks` the special tokens that it puts around a text.
    """
    settings = {**entries_of(model.module), "marks": model.special_token_pattern()}
    for name, fact in tokenizer_facts(model.tokenizer).items():
        settings[f"tokenizer.{name}"] = fact
    return settings


def row_of_differing_forward_pass(base: FrozenModel, changed: FrozenModel) -> pd.DataFrame:
    """Return a table with one row, named "forward pass", if the outputs of two models differ.

    Both models read the same few fixed tokens. The row has the largest difference of their outputs
    relative to the largest output of the base. The table is empty if the outputs are the same up
    to rounding.
    """
    error = output_distance(base, changed)
    # Equal weights at different addresses may be summed in a different order. Such rounding is far
    # below the tolerance for two implementations of one model.
    rounding = TOLERANCE[base.dtype] / 10
    is_same = error <= rounding
    rows = []
    if not is_same:  # also if the error is NaN
        rows.append(
            {
                "setting": "forward pass",
                "base": "0",  # the difference of the base from itself
                "changed": f"{error:.1e} of the largest logit",
            }
        )
    return pd.DataFrame(rows, columns=COLUMNS)


def _rows_of_traits(base: FrozenModel, changed: FrozenModel) -> list[dict[str, str]]:
    """Return a row for each trait of modules that differs: a class, an attribute or a buffer.

    Traits that differ in the same way in several blocks are one row. `traits_that_differ` leaves
    out traits that follow from an entry of the configuration where the configurations differ:
    that entry has a row of its own.
    """
    # Group 1 is the number of the block, group 2 the path inside the block.
    path_in_block = re.compile(rf"{re.escape(base.family.blocks)}\.(\d+)\.?(.*)")
    layers_of_trait: dict[tuple[str, str, str], list[int]] = {}
    rows: list[dict[str, str]] = []
    for (path, name), values in traits_that_differ(base.module, changed.module).items():
        before, after = values
        match = path_in_block.fullmatch(path)
        if match:
            trait = _trait_name(match[2], name)
            layers_of_trait.setdefault((trait, before, after), []).append(int(match[1]))
        else:
            rows.append({"setting": _trait_name(path, name), "base": before, "changed": after})
    for (trait, before, after), layers in layers_of_trait.items():
        setting = f"{trait} of {blocks_in_words(layers)}"
        rows.append({"setting": setting, "base": before, "changed": after})
    return rows


def _trait_name(path: str, name: str) -> str:
    """Return what a message calls an attribute in which two models differ: "mlp.act_fn".

    Args:
        path: The path of the attribute's module within its block, or "" for the block itself.
        name: The name of the attribute. It is "" for the class of the module, which is called
            by the path alone, or "class" if that is "", too.
    """
    names = [text for text in (path, name) if text]
    return ".".join(names) or "class"


def _setting_in_words(value: object) -> str:
    """Return a value as text; a long list or dictionary as its length and the start of its hash.

    None is written as "none", because pandas would read an empty cell of a stored table as NaN.
    """
    if value is None:
        return "none"
    text = repr(value)
    if len(text) > LONGEST_VALUE and isinstance(value, list | dict):
        digest = hashlib.sha256(text.encode()).hexdigest()
        return f"{len(value)} entries ({digest[:DIGITS_OF_DIGEST]})"
    return text
