"""similarity=true: whether the states of stitched layers are similar.

The cost of a stitch does not say that. A tail may find what it needs in states that are mostly
different, so a stitch is cheap where states are similar, and also in places where they are not.
States are similar if a linear map predicts them beyond the word, its position and linear mixing of
the earlier tokens, as `measure=ruler` has it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

import numpy as np
import pandas as pd
from jaxtyping import Float

from thinkalike.config import DataConfig
from thinkalike.errors import DataError
from thinkalike.instruments.ruler.calibration_points import MIXING, greatest_at_each_pair
from thinkalike.instruments.ruler.screen import is_above_local_mixing
from thinkalike.instruments.ruler.table import similarity_columns
from thinkalike.instruments.ruler.words import (
    WORDS,
    comparison_at_words,
    fewest_words_for_r2,
    log_left_out_words,
)
from thinkalike.instruments.stitching.setting import StitchSetting
from thinkalike.memory import free_cached_memory
from thinkalike.screen import range_text

log = logging.getLogger(__name__)

RESIDUAL_R2 = "residual_r2"
"""The column of residual R², the mean of both directions."""

NAMES_IN_DETAILS = {
    "value": RESIDUAL_R2,
    "low": f"{RESIDUAL_R2}_low",
    "high": f"{RESIDUAL_R2}_high",
    "value_forward": f"{RESIDUAL_R2}_forward",
    "value_backward": f"{RESIDUAL_R2}_backward",
}
"""What the details of a stitch call columns of a ruler, in which R² is the value."""

SWAPPED = {
    f"{RESIDUAL_R2}_forward": f"{RESIDUAL_R2}_backward",
    f"{RESIDUAL_R2}_backward": f"{RESIDUAL_R2}_forward",
}
"""What the columns of single directions are called in the table of the opposite direction."""


def words_for_similarity(widths: Iterable[int]) -> int:
    """Return how many words of text are read to compare states by R².

    They are `WORDS`, or more for wide models, whose linear maps have more parameters to fit.

    Args:
        widths: The widths of the models.
    """
    return max(WORDS, fewest_words_for_r2(widths))


def columns_of_similarity(
    setting: StitchSetting, data: DataConfig
) -> dict[str, Float[np.ndarray, " pairs"]]:
    """Return columns of the residual R² of the stitched layers, and of the local-mixing control.

    The columns have a value for each layer pair. They are computed as by `measure=ruler` (here
    "the ruler"), which also compares a model with calibration points: things of known similarity,
    such as copies with rounded weights. Only one calibration point is used here, the control.

    Residual R² is what a linear map between the states of both models predicts beyond the word,
    its position and linear mixing of earlier tokens. The control is the residual R² of either
    model with untrained networks that only mix tokens. At each layer pair, it is averaged over
    both directions of prediction, and then the greatest mean is taken over these networks and
    both models.

    If the text has too few words there are no columns, and a warning says so.

    Args:
        setting: The models and their layer pairs.
        data: The text.
    """
    models = [setting.source, setting.target]
    words = words_for_similarity(model.d_model for model in models)
    layers = [setting.source_layers, setting.target_layers]
    try:
        comparison = comparison_at_words(data, models, layers, words, remedy="give more text")
    except DataError as error:
        log.warning("warning: the result does not say whether states are similar, as %s", error)
        return {}
    log_left_out_words(comparison, remedy="")

    controls = []
    for side, model in enumerate(models):  # side 0 is the source, and side 1 the target
        # The similarity to this calibration point is already the greatest over the networks.
        states_of_mixing = comparison.calibration_states(side, MIXING)
        controls.append(comparison.similarity_to_point(side, MIXING, states_of_mixing))
        free_cached_memory(model.device)
    columns_of_ruler = similarity_columns(comparison.similarity_of_models(), controls)
    columns = {}
    for name, values in columns_of_ruler.items():
        columns[NAMES_IN_DETAILS.get(name, name)] = values.numpy()
    # This takes, at each pair, the model whose mean of both directions is greatest. It returns
    # the value in either direction, so that the mean is taken again below.
    greatest_control = greatest_at_each_pair(controls)  # (pair, direction, replicate)
    # Replicate 0 is the value of all documents. Further ones leave out a part of them.
    columns["local_mixing"] = greatest_control.mean(1)[:, 0].numpy()
    return columns


def with_similarity(
    details: pd.DataFrame,
    columns: Mapping[str, Float[np.ndarray, " pairs"]],
    *,
    is_back: bool = False,
) -> pd.DataFrame:
    """Return the details of stitches in one direction, with columns on the similarity of states.

    Stitches from source to target and those back have tables of their own. The R² of the states of
    both layers is the same for both, but what is "forward" in one is "backward" in the other.

    Args:
        details: The details of the stitches.
        columns: The columns by the names that they have for stitches from source to target.
        is_back: Whether the stitches are from target to source.
    """
    if not is_back:
        return details.assign(**columns)
    swapped = {SWAPPED.get(name, name): values for name, values in columns.items()}
    return details.assign(**swapped)


def sentence_of_similarity(details: pd.DataFrame) -> str:
    """Return in a sentence whether the states of stitched layers are similar.

    Args:
        details: The details of one direction, with the columns of residual R².
    """
    first = details.iloc[0]
    is_above = is_above_local_mixing(details)
    if is_above.all():
        verdict = "above"
    elif not is_above.any():
        verdict = "not above"
    else:
        verdict = f"at {is_above.sum()} of {len(details)} layer pairs above"
    residual_r2 = details[RESIDUAL_R2]
    control = details["local_mixing"]
    return (
        f"Residual R² of the stitched layers of {first['source']} and {first['target']} is "
        f"{range_text(residual_r2.min(), residual_r2.max(), '.2f')}, {verdict} the local-mixing "
        f"control ({range_text(control.min(), control.max(), '.2f')})."
    )
