"""What tells a model in memory from another: what it gives for fixed tokens, and its traits."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from thinkalike.errors import ModelError, listed
from thinkalike.models.description import Description, Trait, bytes_of
from thinkalike.models.module_facts import Tokens, largest_relative_error, sample_tokens
from thinkalike.models.patched_libraries import added_to_libraries
from thinkalike.models.survey import explaining_pass_errors
from thinkalike.models.traits import described_traits

if TYPE_CHECKING:
    from thinkalike.models.frozen import FrozenModel

# The most tokens of the long row: enough that a change of late positions shows.
MOST_TOKENS_OF_LONG_ROW = 512

# The fewest tokens of the long row of a large model.
FEWEST_TOKENS_OF_LONG_ROW = 64

# About the most multiplications that a pass of the long row may take.
MOST_MULTIPLICATIONS = 2**36


def sample_digest(model: FrozenModel) -> str:
    """Return a hash of what a model computes for fixed tokens.

    It is the first 16 hexadecimal digits of a SHA-256 over the bits of the last states for one
    long row and of the output for two short rows. A single thread computes these, since sums of
    several threads round differently.
    """
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        outputs = _sample_outputs(model, model.context)
    finally:
        torch.set_num_threads(n_threads)
    digest = hashlib.sha256()
    for output in outputs:
        digest.update(bytes_of(output))
    return digest.hexdigest()[:16]


def note_libraries(model: FrozenModel) -> None:
    """Store in a model the code of users that libraries hold now, and a hash of its outputs.

    A model looks up functions, such as one of attention, in tables of libraries, and a user may
    put another one there under the same name. `check_libraries` later compares with what is stored
    here.
    """
    model.library_code = added_to_libraries()
    model.digest_at_load = sample_digest(model)


def check_libraries(model: FrozenModel) -> None:
    """Raise a ModelError if code of the user in libraries now changes a model's output.

    Such code may be a replaced method of torch or transformers. It is compared with that at load.
    If it is different, the model runs once; the same output is no error, since the code may belong
    to other models, or only watch passes. A model that is no copy of one in memory is not checked.
    """
    code_at_load = model.library_code
    if code_at_load is None:
        return
    code_now = added_to_libraries()
    changed = set()
    for place in code_at_load.keys() | code_now.keys():
        if code_at_load.get(place) is not code_now.get(place):
            changed.add(".".join(place))
    if not changed:
        return
    if sample_digest(model) == model.digest_at_load:
        model.library_code = code_now  # so that the model need not run again for this code
        return
    raise ModelError(
        f"{model.name}: libraries hold other code of your own than when it was loaded "
        f"({listed(sorted(changed))}), and it gives other states with it: load it again, or "
        "put that code back"
    )


def output_distance(first: FrozenModel, second: FrozenModel) -> float:
    """Return how much two models of the same shape differ in what they compute for fixed tokens.

    For a tensor x of the first model and y of the second one, the difference is max |y - x| /
    max |x|. The larger difference of two is returned: that of the states after the last block, and
    that of the outputs.
    """
    context = min(first.context, second.context)
    first_outputs = _sample_outputs(first, context)
    second_outputs = _sample_outputs(second, context)
    pairs = []
    for first_output, second_output in zip(first_outputs, second_outputs, strict=True):
        pairs.append((second_output.cpu().float(), first_output.cpu().float()))
    return largest_relative_error(pairs)


@torch.no_grad()
def _sample_outputs(model: FrozenModel, context: int) -> tuple[Tensor, Tensor]:
    """Return the states after the last block for one long row, and the output for two short ones.

    They tell whether two models compute the same: the token ids are the same in each call. The
    long row shows differences at late positions; it ends before the head, whose logits for so many
    tokens would be costly. The two short rows show differences of the head.

    Args:
        model: The model.
        context: How many tokens a row has at most.
    """
    long_row = long_sample_row(model, context)
    two_short_rows = sample_tokens(model.vocabulary, context)
    with explaining_pass_errors(model.name):
        # `head` runs the blocks up to a layer, here all of them.
        states_after_last_block = model.head(long_row, model.n_layers - 1)
        return states_after_last_block, model.full(two_short_rows)


def long_sample_row(model: FrozenModel, context: int) -> Tokens:
    """Return one row of sample tokens that is long enough for changes of late positions to show.

    It has at most `MOST_TOKENS_OF_LONG_ROW` tokens, or fewer for a large model, and at most
    `context`.
    """
    # A forward pass takes about one multiplication for each weight and token.
    n_weights = model.parameters()
    affordable_tokens = MOST_MULTIPLICATIONS // max(n_weights, 1)
    longest = min(MOST_TOKENS_OF_LONG_ROW, max(affordable_tokens, FEWEST_TOKENS_OF_LONG_ROW))
    return sample_tokens(model.vocabulary, context, rows=1, at_most=longest)


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
    """Return what identifies a model in memory: a hash of its outputs, and its traits.

    A trait is, for example, an attribute of a module, as text. What a forward pass changes, such
    as a number in which a hook counts its calls, is not part of the identity. So the traits are
    described before and after a pass, and then, if any objects differ, once more without these.
    The identity is incomplete if the model runs code that may read what no trait describes.
    """
    before_pass = Description(model.module)
    traits_before_pass = described_traits(model.module, before_pass)
    digest = sample_digest(model)  # runs the model
    after_pass = Description(model.module)
    traits_after_pass = described_traits(model.module, after_pass)

    description = after_pass
    traits = traits_after_pass
    objects_that_change = before_pass.changed_by(after_pass)
    if objects_that_change:
        # In this description, each of them has the same text, whatever it holds.
        description = Description(model.module, objects_that_change)
        traits = described_traits(model.module, description)
    # An attribute that a pass adds or removes is left out as well.
    lasting = traits_before_pass.keys() & traits_after_pass.keys()
    lasting_traits = sorted((trait, text) for trait, text in traits.items() if trait in lasting)
    return Identity(digest, lasting_traits, description.is_complete)
