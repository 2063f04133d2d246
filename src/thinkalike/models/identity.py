"""What tells a model in memory from another: what it gives for fixed tokens, and its traits."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from thinkalike.models.description import Description, Trait, bytes_of
from thinkalike.models.module_facts import relative_error, sample_tokens
from thinkalike.models.survey import explaining_pass_errors
from thinkalike.models.traits import described_traits

if TYPE_CHECKING:
    from thinkalike.models.frozen import FrozenModel

# The most tokens of the long row: enough that a change of late positions shows.
LONG_ROW = 512

# The fewest tokens of the long row of a large model.
SHORT_ROW = 64

# About the most multiplications of the long row.
MULTIPLICATIONS = 2**36


def sample_digest(model: FrozenModel) -> str:
    """Return the SHA-256 of what a model gives for fixed tokens, as 16 hexadecimal digits.

    It is of the bits of the output for two short rows, and of the states after the last block for
    a row as long as `LONG_ROW`, the context or the size of the model allows. One thread computes
    them: sums of several threads round differently.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        outputs = _sample_outputs(model, model.context)
    finally:
        torch.set_num_threads(threads)
    digest = hashlib.sha256()
    for output in outputs:
        digest.update(bytes_of(output))
    return digest.hexdigest()[:16]


def output_distance(first: FrozenModel, second: FrozenModel) -> float:
    """Return the largest difference of what two models of one shape give for fixed tokens.

    It is the larger one of their last states and of their outputs, each relative to the largest
    absolute entry of what the first model gives. The outputs must have the same shape.
    """
    context = min(first.context, second.context)
    first_outputs = _sample_outputs(first, context)
    second_outputs = _sample_outputs(second, context)
    distances = []
    for first_output, second_output in zip(first_outputs, second_outputs, strict=True):
        distance = relative_error(second_output.cpu().float(), first_output.cpu().float())
        distances.append(distance)
    return max(distances)


@torch.no_grad()
def _sample_outputs(model: FrozenModel, context: int) -> tuple[Tensor, Tensor]:
    """Return the states after the last block for one long row, and the output for two short ones.

    The tokens of the rows are the same each time.

    Args:
        model: The model.
        context: How many tokens a row has at most.
    """
    affordable = MULTIPLICATIONS // max(model.parameters(), 1)  # one for each weight and token
    longest = min(LONG_ROW, max(affordable, SHORT_ROW))
    long_row = sample_tokens(model.vocabulary, context, rows=1, at_most=longest)
    short_rows = sample_tokens(model.vocabulary, context)
    with explaining_pass_errors(model.name):
        return model.head(long_row, model.n_layers - 1), model.full(short_rows)


class Identity(NamedTuple):
    """What tells a model from another with the same weights and settings.

    Attributes:
        digest: The `sample_digest`.
        traits: The sorted traits.
        is_complete: Whether no other model can have this identity. It is False where the model
            runs code that is of no installed package, since that can read anything.
    """

    digest: str
    traits: list[tuple[Trait, str]]
    is_complete: bool


def identity_of(model: FrozenModel) -> Identity:
    """Return the identity of a model in memory.

    What a pass changes, such as the number in which a hook counts its calls or the list to which
    it appends, is state and identifies nothing. All that stands beside it, such as a factor in the
    same dictionary, does.
    """
    before = Description(model.module)
    traits_before = described_traits(model.module, before)
    digest = sample_digest(model)
    after = Description(model.module)
    traits_after = described_traits(model.module, after)

    steady = Description(model.module, before.changed_by(after))
    traits = described_traits(model.module, steady)
    # An attribute that a pass adds is state as well.
    lasting = traits_before.keys() & traits_after.keys()
    lasting_traits = sorted((trait, text) for trait, text in traits.items() if trait in lasting)
    return Identity(digest, lasting_traits, steady.is_complete)
