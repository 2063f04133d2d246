"""similarity=true: whether the states of stitched layers are similar, which the cost of a stitch does not say.

A tail may find what it needs in states that are mostly different. So a stitch is cheap where states are similar, and
also where they are not. Similar is what a linear map predicts beyond the word, its position and linear mixing of the
earlier tokens, as `measure=ruler` has it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd
from torch import Tensor

from thinkalike.config import DataConfig
from thinkalike.errors import DataError
from thinkalike.instruments.ruler import (
    MIXING,
    WORDS,
    compare_words,
    fewest_words,
    most,
    say_left_out,
    shared_columns,
    shares_more,
)  # fmt: skip
from thinkalike.instruments.stitching.fitting import Setting
from thinkalike.memory import free_cached_memory

log = logging.getLogger(__name__)

PREFIX = "similarity"
SWAPPED = {f"{PREFIX}_there": f"{PREFIX}_back", f"{PREFIX}_back": f"{PREFIX}_there"}


def words_read(widths: Iterable[int]) -> int:
    """Return how many words are read, where the text has them, for models of these widths."""
    return max(WORDS, fewest_words(widths))


def similarity_of(setting: Setting, data: DataConfig) -> dict[str, Any]:
    """Return columns, for each layer pair, of what both models' states share and what local mixing shares with them.

    If the text has too few words for a number, there are no columns, and a warning says so.
    """
    models = [setting.source, setting.target]
    words = words_read(model.d_model for model in models)
    layers = [[pair[side] for pair in setting.layer_pairs] for side in (0, 1)]
    try:
        compared = compare_words(data, models, layers, words, remedy="give more text")
    except DataError as error:
        log.warning("warning: the result does not say whether states are similar, as %s", error)
        return {}
    say_left_out(compared, remedy="")
    controls: list[Tensor] = []
    for side, model in enumerate(models):
        controls.append(compared.shared(side, MIXING, compared.read(side, MIXING)))
        free_cached_memory(model.device)
    found = shared_columns(compared.value(), controls) | {"mixing": most(controls).mean(1)[:, 0]}
    return {PREFIX if name == "value" else f"{PREFIX}_{name}": values.numpy() for name, values in found.items()}


def with_similarity(details: pd.DataFrame, columns: Mapping[str, Any], *, is_back: bool = False) -> pd.DataFrame:
    """Return the details of one direction with these columns; the directions of maps are swapped in those of `back`."""
    named = {SWAPPED.get(name, name) if is_back else name: values for name, values in columns.items()}
    return details.assign(**named)


def sentence(details: pd.DataFrame) -> str:
    """Return whether states are similar, given the details of one direction that have these columns."""
    first = details.iloc[0]
    shared = _percent(details[PREFIX])
    mixing = _percent(details[f"{PREFIX}_mixing"])
    is_more = shares_more(details, f"{PREFIX}_")
    if is_more.all():
        verdict = "more"
    elif not is_more.any():
        verdict = "no more"
    else:
        verdict = f"more at {is_more.sum()} of {len(details)} layer pairs"
    return (
        f"Beyond the word, its position and its neighbours, the stitched layers of {first['source']} and "
        f"{first['target']} share {shared} of what varies, {verdict} than a network that only mixes neighbouring "
        f"words does ({mixing})."
    )


def _percent(shares: pd.Series) -> str:
    ends = dict.fromkeys(f"{100 * share:.0f}" for share in (shares.min(), shares.max()))
    return f"{' to '.join(ends)} %"
