"""What a trajectory says on the screen: losses, similarity to the last checkpoint, and onsets."""

from __future__ import annotations

import pandas as pd

from thinkalike.instruments.text_name import name_of_text
from thinkalike.matrices import matrix_of
from thinkalike.screen import (
    Table,
    capitalised,
    number_column,
    number_of_documents,
    number_text,
    show_note,
    show_table,
    show_text,
    with_share,
)
from thinkalike.store import Result

MOST_CHECKPOINTS = 14
"""At most about so many checkpoints are shown."""


def show_steps(result: Result) -> None:
    """Print a table of some checkpoints: loss, similarity to the last one, and speed.

    The similarity is shown for the first, the middle and the last layer. The speed says how far
    states turn from one checkpoint to the next: arccos of their CKA, divided by how often the step
    doubles in between, mean over layers. The first checkpoint has none.
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
    shown_layers = sorted({layers[0], layers[len(layers) // 2], layers[-1]})
    for layer in shown_layers:
        columns.append(number_column(f"layer {layer}", similarity[layer], ".3f"))
    speeds = []
    for speed in result.details.groupby("step")["speed"].mean().iloc[indices]:
        speeds.append("" if pd.isna(speed) else number_text(speed, ".2f"))
    columns.append(number_column("speed", speeds))
    last = result.provenance["models"][-1]["name"]
    title = (
        f"Loss in nats per token, CKA with {last} by layer, and speed in radians per doubling of "
        "the step"
    )
    counts = {
        "checkpoints": (len(indices), len(losses)),
        "layers": (len(shown_layers), len(layers)),
    }
    show_table(Table(with_share(title, counts), columns))
    show_note(
        "CKA is computed after the mean state of each token and position is removed. Speed: "
        "arccos of the CKA with the checkpoint before, divided by how often the step doubles in "
        "between, mean over layers."
    )


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
    probe = (
        "linear probes tell its levels apart in held-out words or sentences, to the end and "
        "better than probes of permuted labels do"
    )
    with_onset = onsets.dropna(subset="onset").sort_values("onset", kind="stable")
    earliest = with_onset.groupby("feature", sort=False).first()
    in_words = []
    for feature, row in earliest.iterrows():
        in_words.append(f"{feature} from step {row['onset']:.0f} in layer {row['layer']:.0f}")
    if in_words:
        untrained = ""
        if (earliest["onset"] == 0).any():
            untrained = "; at step 0 nothing has been learnt yet"
        show_text(
            f"Onset of a feature, the step from which on {probe}: {', '.join(in_words)}"
            f"{untrained}."
        )
    never = [name for name in onsets["feature"].unique() if name not in earliest.index]
    if never:
        show_text(f"No such probe of any layer of the last checkpoint does: {', '.join(never)}.")


def show_settling(result: Result) -> None:
    """Print by which step the loss and the similarity to the last checkpoint have settled.

    Curves that do not change are left out; if neither does, the sentence says so.
    """
    scalars = result.scalars
    clauses = []
    if "loss_settles" in scalars:
        loss = result.tables["losses"]["loss"]
        first = number_text(loss.iloc[0], ".3f")
        last = number_text(loss.iloc[-1], ".3f")
        verb = "falls" if loss.iloc[-1] < loss.iloc[0] else "rises"
        clauses.append(
            f"the loss {verb} from {first} to {last} nats per token, nine tenths of the way by "
            f"step {scalars['loss_settles']:.0f}"
        )
    if "similarity_settles" in scalars:
        clauses.append(
            "nine tenths of the change of the similarity of the layers to the last checkpoint "
            f"are reached by step {scalars['similarity_settles']:.0f}"
        )
    sentence = "neither the loss nor any layer changes between the checkpoints"
    if clauses:
        sentence = "; ".join(clauses)
    show_text(
        f"{capitalised(sentence)}. Text: {name_of_text(result)}, {number_of_documents(scalars)}."
    )
