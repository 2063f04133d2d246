"""The sites of a model other than the stream after each block, by TransformerLens's names.

`site_search` finds and proves the modules that read or write them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, MutableMapping, Sequence
from typing import TypeVar, cast, get_args

import torch
from torch import Tensor, nn

from thinkalike.advice import named_setting
from thinkalike.config.parts import Site
from thinkalike.errors import ModelError, listed
from thinkalike.models.families import Place
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.hooks import Arguments, NamedArguments, state_in
from thinkalike.models.module_facts import HEADS, config_of_text_model, first_tensor, number_in
from thinkalike.models.site_search import hook_points

# The sites that belong to no block.
SITES_OUTSIDE_BLOCKS = ("embed", "ln_final")

Key = TypeVar("Key")


class Sites:
    """The sites of a model at which its states are taken.

    Attributes:
        hook_points: The hook point of each site that the model has, by site and layer.
        n_layers: The number of blocks.
        n_heads: The number of heads of attention; 1 if the configuration does not say.
        heads: The heads of `z`, each taken alone; [None] means all of them side by side.

    Args:
        model: The model.
        chosen: The names of the sites.
        head: The number of the head of `z` that is taken alone, or "all" of them one by one; None:
            all of them side by side.

    Raises:
        ModelError: The model lacks one of the sites or the head.
    """

    def __init__(self, model: FrozenModel, chosen: Sequence[str], head: int | str | None):
        """Find the model's hook points, and check that it has the chosen ones and the head.

        Args:
            model: The model.
            chosen: The names of the hook points at which states are taken, such as "z".
            head: The attention head to which `z` is limited, or "all" for each head by itself;
                None: the heads are not separated.

        Raises:
            ModelError: The model lacks a hook point in some block, or the head.
        """
        stated_heads = number_of_heads(model)
        self.n_layers = model.n_layers
        self.n_heads = stated_heads or 1  # if it is not known, `z` is taken as a whole
        self.hook_points = hook_points(model, self.n_heads)
        self.chosen = list(chosen)
        self.head = head
        for site in chosen:
            if not self.layers(site):
                raise ModelError(
                    f"{named_setting('model.site', site)} is no site of {model.name}, which has "
                    f"{self._available_sites()}"
                )

        # The heads of which states are taken, one by one; None stands for all heads together.
        self.heads: list[int | None]
        if head is None:
            self.heads = [None]
            return
        if not stated_heads or (head != "all" and int(head) >= stated_heads):
            available = "no known number of heads"
            if stated_heads:
                available = f"heads 0 to {stated_heads - 1}"
            raise ModelError(f"{named_setting('model.head', head)}: {model.name} has {available}")
        self.heads = list(range(self.n_heads)) if head == "all" else [int(head)]

    def layers(self, site: str) -> list[int]:
        """Return the layers of a hook point, such as "z"; none of them if some block lacks it.

        A hook point outside the blocks, such as "embed", has one layer at most: -1 before the
        blocks, or the number of blocks after them.
        """
        layers = self._layers_with(site)
        if site in SITES_OUTSIDE_BLOCKS or len(layers) == self.n_layers:
            return layers
        return []

    def _layers_with(self, site: str) -> list[int]:
        """Return the layers that have a site, even if some block lacks it."""
        return [layer for name, layer in self.hook_points if name == site]

    def _available_sites(self) -> str:
        """Return in words which hook points the model has, as the end of an error message.

        Hook points that can be chosen come first. Those that only some blocks have cannot be
        chosen, and follow with the numbers of these blocks.
        """
        # `self.layers` is empty for a hook point that some block lacks.
        sites_to_choose = [site for site in get_args(Site) if self.layers(site)]
        phrases = [", ".join(sites_to_choose)]
        distinct_sites = dict.fromkeys(site for site, _ in self.hook_points)  # each once, in order
        for site in distinct_sites:
            if not self.layers(site):
                blocks_with_site = self._layers_with(site)
                phrases.append(f"in blocks {listed(blocks_with_site)} alone {site}")
        return "; ".join(phrases)

    def at(self, layers: Iterable[int]) -> list[Place]:
        """Return the chosen hook points in these layers, from the first block to the last.

        The embedding and the last norm belong to no block. If they are chosen, they are included,
        whatever `layers` is. The hook point `z`, the input of the last linear map of attention,
        may be split into its heads.
        """
        blocks = list(layers)
        places = []
        for site in self.chosen:
            heads = self.heads if site == "z" else [None]
            layers_of_site = self.layers(site) if site in SITES_OUTSIDE_BLOCKS else blocks
            for layer in layers_of_site:
                places += [Place(site, int(layer), head) for head in heads]
        return sorted(places, key=int)  # by layer, which a `Place` is as a number

    def captured(
        self,
        place: Place,
        key: Key,
        batch_shape: Sequence[int],
        states: MutableMapping[Key, Tensor],
    ) -> contextlib.AbstractContextManager[object]:
        """Return a context in which every pass writes the states of a hook point to `states[key]`.

        It is the handle of a hook: leaving the context removes the hook.

        Args:
            place: A hook point of one layer, or one head of it.
            key: The key under which the states are stored.
            batch_shape: The shape of the states without their width, (b, t).
            states: Gets the states, (b, t, d). A later pass replaces them.
        """
        module, direction = self.hook_points[place.site, place.layer]

        def store(state: Tensor) -> None:
            """Store a state, or the part of it that belongs to one attention head."""
            states_of_batch = state.reshape(*batch_shape, -1)  # of some modules it is (b * t, d)
            if place.head is not None:
                # (b, t, heads * d), where heads lie side by side, becomes (b, t, d).
                states_of_batch = states_of_batch.chunk(self.n_heads, -1)[place.head]
            # A copy, since Falcon adds to the output of its MLP in place.
            states[key] = states_of_batch.clone()

        def store_input(_: nn.Module, args: Arguments, kwargs: NamedArguments) -> None:
            """Store the state that a module reads, as a hook before it."""
            store(state_in(args, kwargs))

        def store_output(_: nn.Module, args: Arguments, output: object) -> None:
            """Store the state that a module returns, as a hook after it."""
            store(first_tensor(output))

        if direction == "output":
            return module.register_forward_hook(store_output)
        return module.register_forward_pre_hook(store_input, with_kwargs=True)

    def output_of_head(self, place: Place, z: Tensor) -> Tensor:
        """Return what one head adds to the output of its attention, without the bias.

        Args:
            place: The layer and the head. If it names no head, head 0 is taken.
            z: The input of the last linear map of attention, (..., heads * d), where the outputs
                of all heads lie side by side.
        """
        projection = self.hook_points["z", place.layer].module
        head = place.head or 0
        z_of_heads = z.chunk(self.n_heads, -1)
        # The input of the map with zeros in the place of all other heads.
        z_of_head_alone = [torch.zeros_like(z_of_one) for z_of_one in z_of_heads]
        z_of_head_alone[head] = z_of_heads[head]
        # `forward` is called directly, so that no hook of the map runs a second time.
        output_with_bias = projection.forward(torch.cat(z_of_head_alone, -1))
        bias = projection.forward(torch.zeros_like(z))
        return cast(Tensor, output_with_bias - bias)

    def replaced(self, place: Place, state: Tensor) -> contextlib.AbstractContextManager[object]:
        """Return a context in which every pass uses `state` as the output of a module or a head.

        It is the handle of a hook: leaving the context removes the hook.

        Args:
            place: A hook point that is the output of attention or of an MLP, or a head of `z`,
                the input of attention's last linear map.
            state: The new output, in any shape with as many entries. At a head it is what the head
                adds to the output of its attention, as `output_of_head` returns it.

        Raises:
            ValueError: `place` is neither an output nor `z`.
        """
        module, direction = self.hook_points[place.site, place.layer]
        if place.site != "z" and direction != "output":
            raise ValueError(f"{place} is no output of a module")

        def replace_output(_: nn.Module, args: Arguments, output: object) -> object:
            """Return the module's output with `state` in its place, as a hook after it."""
            original = first_tensor(output)
            changed = state.reshape(original.shape).to(original)
            if place.site == "z":  # the module is the linear map that reads z
                output_of_head = self.output_of_head(place, state_in(args, {}))
                changed = original - output_of_head + changed
            return with_first_tensor(output, changed)

        return module.register_forward_hook(replace_output)


def number_of_heads(model: FrozenModel) -> int | None:
    """Return how many heads each attention has; None: the configuration does not say."""
    return number_in(config_of_text_model(model.module), HEADS)


def with_first_tensor(output: object, state: Tensor) -> Tensor | tuple[object, ...]:
    """Return a module's output with `state` in the place of its first tensor.

    If the output is a tensor, `state` is returned. If it is a tuple or list, the result is a tuple
    whose first member is `state` and whose other members are unchanged.
    """
    if isinstance(output, Tensor):
        return state
    return (state, *cast(Sequence[object], output)[1:])
