"""What a trajectory says on the screen: losses, similarity to the last checkpoint, and onsets."""

from __future__ import annotations

import pandas as pd

from thinkalike.matrices import matrix_of
from thinkalike.screen import Table, number_column, number_of_documents, show_table, show_text
from thinkalike.store import Result

MOST_CHECKPOINTS = 14
"""At most about so many checkpoints are shown."""


def show_steps(result: Result) -> None:
    """Print a table of some checkpoints: loss, similarity to the last one, and speed.

    The similarity is shown for the first, the middle and the last layer.
    """
    losses = result.tables["losses"]
    indices = _evenly_spaced(len(losses))
    columns = [
        number_column("step", losses["step"][indices]),
        number_column("loss", losses["loss"][indices], ".3f"),
    ]
    similarity = matrix_of(
        result.details, index="step", columns="layer", values="similarity_to_last"
    ).iloc[indices]
    layers = similarity.columns
    for layer in sorted({layers[0], layers[len(layers) // 2], layers[-1]}):
        columns.append(number_column(f"layer {layer}", similarity[layer], ".3f"))
    speeds = []
    for speed in result.details.groupby("step")["speed"].mean().iloc[indices]:
        speeds.append("" if pd.isna(speed) else f"{speed:.2f}")
    columns.append(number_column("speed", speeds))
    last = result.provenance["models"][-1]["name"]
    title = f"loss, CKA with {last} by layer, and radians of change per doubling of the step"
    show_table(Table(title, columns))


def _evenly_spaced(count: int) -> list[int]:
    """Return the indices of about `MOST_CHECKPOINTS` checkpoints, with the first and the last."""
    stride = -(-count // MOST_CHECKPOINTS)  # rounded up
    return sorted({*range(0, count, stride), count - 1})


def show_onsets(onsets: pd.DataFrame) -> None:
    """Print from which step on each feature can be read out of some layer, or that it cannot.

    Args:
        onsets: A row for each layer and feature, with its onset: the step from which on the
            feature can be read out of all checkpoints. It is NaN if there is none.
    """
    with_onset = onsets.dropna(subset="onset").sort_values("onset", kind="stable")
    earliest = with_onset.groupby("feature", sort=False).first()
    in_words = []
    for feature, row in earliest.iterrows():
        in_words.append(f"{feature} from step {row['onset']:.0f} in layer {row['layer']:.0f}")
    if in_words:
        show_text(
            f"Onset, from which a feature can be read out to the end: {', '.join(in_words)}."
        )
    never = [name for name in onsets["feature"].unique() if name not in earliest.index]
    if never:
        show_text(f"Cannot be read out of any layer of the last checkpoint: {', '.join(never)}.")


def show_settling(result: Result) -> None:
    """Print by which step the loss and the similarity to the last checkpoint have settled.

    Curves that do not change are left out; if neither does, the sentence says so.
    """
    scalars = result.scalars
    in_words = []
    for name, what in (
        ("loss_settles", "the loss"),
        ("similarity_settles", "the similarity of the layers to the last checkpoint"),
    ):
        if name in scalars:
            in_words.append(f"{what} by step {scalars[name]:.0f}")
    sentence = "Neither the loss nor any layer changes between the checkpoints"
    if in_words:
        settled = "Settled (nine tenths of the way from the first checkpoint to the last)"
        sentence = f"{settled}: {', '.join(in_words)}"
    show_text(f"{sentence}; {number_of_documents(scalars)}.")
