"""The rows of a batch of states: which tokens count, and what a row is."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator

import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from thinkalike.arguments import check_choice

FLATTEN = ("token", "sample", "mean")  # what a row is, see `rows_of`

ROW_IN_MESSAGE = re.compile(r"\brow (\d+)\b")


@contextlib.contextmanager
def naming_rows(name_of_row: Callable[[int], str]) -> Iterator[None]:
    """Name rows in what a measure raises within the context as the caller knows them.

    A measure counts the rows that it is given from 0, as in "row 3 is zero". These may be a choice
    of the caller's rows, in another order.

    Args:
        name_of_row: Returns what errors call a row, given its number among the rows of the
            measure; it raises an IndexError if the measure has no such row.

    Raises:
        ValueError: A ValueError was raised within the context.
    """

    def renamed(match: re.Match[str]) -> str:
        try:
            return name_of_row(int(match[1]))
        except IndexError:  # the number is not that of a row of states
            return match[0]

    try:
        yield
    except ValueError as error:
        reason = str(error)
        with_names = ROW_IN_MESSAGE.sub(renamed, reason)
        if with_names == reason:
            raise
        raise ValueError(with_names) from error


def rows_of(
    states: Shaped[Tensor, "*b n d"],
    flatten: str,
    mask: Shaped[Tensor, " ..."] | None = None,
    places: Int[Tensor, " kept"] | None = None,
) -> Shaped[Tensor, "m e"]:
    """Return the states of a batch of sequences as rows; states that are rows already stay so.

    Args:
        states: (b, t, d), or with more axes than t; or rows, (n, d).
        flatten: "token": every token is a row; "sample": a sequence laid out flat, (b, t d);
            "mean": the mean of its tokens.
        mask: The tokens that count, of the states' shape without d; "sample" cannot do with
            sequences of several lengths.
        places: The flat indices at which the mask is True. They are the same for all layers of a
            batch; None: they are computed from the mask.

    Raises:
        ValueError: The mask or the places do not fit the states, or the mask drops tokens of
            flatten="sample".
    """
    check_choice("flatten", flatten, FLATTEN)
    if mask is not None:
        if mask.shape != states.shape[:-1]:
            raise ValueError(
                f"a mask of shape {tuple(mask.shape)} does not fit states of shape "
                f"{tuple(states.shape)}"
            )
        if places is None:
            places = indices_where(mask)

    if flatten == "token" or states.ndim == 2:
        rows = states.flatten(0, -2)
        if places is None:
            return rows
        try:
            return rows.index_select(0, places)
        except (IndexError, RuntimeError) as error:
            raise ValueError(
                f"places holds numbers that are not below {len(rows)}, the number of tokens"
            ) from error

    if flatten == "sample":
        if mask is not None and places is not None and len(places) < mask.numel():
            raise ValueError(
                "flatten=sample takes whole sequences: use flatten=mean where a mask drops tokens"
            )
        return states.flatten(1)

    tokens = states.flatten(1, -2)  # (b, t, d)
    if mask is None:
        return tokens.mean(1)
    counts = mask.flatten(1)
    return tokens.masked_fill(~counts[..., None], 0).sum(1) / counts.sum(1, keepdim=True)


def indices_where(mask: Shaped[Tensor, " ..."]) -> Int[Tensor, " kept"]:
    """Return the flat indices at which a mask is True, in rising order: the tokens that count.

    Layers are then indexed by these numbers and not by the mask, which would make the CPU wait for
    a GPU each time.

    Raises:
        ValueError: The mask does not hold True and False.
    """
    if mask.dtype != torch.bool:
        raise ValueError(
            f"mask holds {mask.dtype}, which would choose rows by number: "
            "give True and False, as mask > 0"
        )
    return mask.flatten().nonzero().squeeze(1)


def labels_of_rows(
    labels: Int[Tensor, " ..."],
    mask: Shaped[Tensor, " ..."] | None,
    states: Shaped[Tensor, " ..."],
    name: str,
) -> Int[Tensor, " n"]:
    """Return the label of each token that counts, such as its id or document, as flat rows.

    They are in the order of the rows that `rows_of` returns, and on the device of the states.

    Args:
        labels: A label for each token, of the states' shape without the width.
        mask: Which tokens count; None: all of them.
        states: The states of one layer.
        name: What errors call the labels.

    Raises:
        ValueError: Labels do not fit the states.
    """
    if labels.shape != states.shape[:-1]:
        raise ValueError(
            f"{name} of shape {tuple(labels.shape)} do not fit states of shape "
            f"{tuple(states.shape)}"
        )
    as_states = labels.to(states.device)[..., None]  # of width 1
    return rows_of(as_states, "token", mask).squeeze(1)
