"""What a model computes beyond what its weights and its configuration say.

Two modules with equal weights and settings can still give different logits: rotary frequencies are
buffers that no checkpoint holds, the scale of attention is an attribute, and anyone can replace an
activation, a `forward` or a function of a library. Traits are all of this, as text that says why
two models differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.modules import module as torch_module

from thinkalike.models.description import NO_VALUES, Description, Trait
from thinkalike.models.module_facts import entries_of
from thinkalike.models.patched_libraries import GLOBAL_HOOKS

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Stands for a trait that does not follow from a configuration.
UNKNOWN = "?"


def traits_of(module: nn.Module) -> dict[Trait, str]:
    """Return the traits of a model: what decides its output beside weights and configuration.

    For each module these are its class, attributes, hooks, and buffers that are not persistent.
    For a library they are functions that replace its own (monkey patches). Keys are (path of the
    module or name of the library, name of the trait), and the class has the name "". The values
    describe the traits as text.
    """
    return described_traits(module, Description(module))


def described_traits(module: nn.Module, description: Description) -> dict[Trait, str]:
    """Return the traits of a model: what decides its output beside weights and configuration.

    These are the classes and attributes of its modules, hooks of torch that run around all
    modules, functions of libraries that were replaced (patched), and the kind of attention. Keys
    are (path of a module or name of a library, name of the trait), and the values describe the
    trait as text.

    Args:
        module: The model.
        description: Turns the objects of the model into text. It keeps each text that it makes, so
            that an object that occurs again is not described anew.
    """
    name_of_class = ""  # the class of a module is its trait without a name
    traits: dict[Trait, str] = {}
    for path, submodule in module.named_modules():
        description.owner = path  # the texts that follow belong to this module
        traits[path, name_of_class] = description.class_text(type(submodule))
        for name, text in description.attributes(submodule):
            traits[path, name] = text
    # Hooks that torch runs around the pass of every module belong to no module of the model.
    description.owner = "libraries"
    for name in GLOBAL_HOOKS:
        hooks = getattr(torch_module, name)
        if hooks:
            traits["torch", name] = description.text_of(list(hooks.values()), name)
    return traits | description.patches() | _trait_of_attention(module)


def _trait_of_attention(module: nn.Module) -> dict[Trait, str]:
    """Return one trait: the name of the function that computes attention in a model.

    A function of a user under this name is described with the code that libraries run. The result
    is {} if the configuration names no function.
    """
    name = getattr(getattr(module, "config", None), "_attn_implementation", None)
    if not isinstance(name, str):
        return {}
    return {("", "attention"): name}  # "" is the path of the whole model


def traits_that_differ(first: nn.Module, second: nn.Module) -> dict[Trait, tuple[str, str]]:
    """Return the traits in which two models differ: (text in the first, text in the second).

    A trait decides the output beside weights and configuration, such as an attribute of a module.
    The text "none" stands for a trait that a model lacks. Left out are:

    - modules that only one of the models has, since their weights differ anyway;
    - for a module whose class differs, everything but the class, since its attributes mean
      something else;
    - if the configurations differ, traits that follow from them.
    """
    first_traits = traits_of(first)
    second_traits = traits_of(second)
    first_expected: dict[Trait, str] = {}
    second_expected: dict[Trait, str] = {}
    if entries_of(first) != entries_of(second):
        first_expected = _traits_from_settings(first)
        second_expected = _traits_from_settings(second)

    first_classes = _classes_in(first_traits)
    second_classes = _classes_in(second_traits)
    only_in_one = first_classes.keys() ^ second_classes.keys()
    of_another_class = set()
    for path in first_classes.keys() & second_classes.keys():
        if first_classes[path] != second_classes[path]:
            of_another_class.add(path)

    differing: dict[Trait, tuple[str, str]] = {}
    for trait in sorted(first_traits.keys() | second_traits.keys()):
        path, name = trait
        is_attribute = name != ""
        if path in only_in_one or (is_attribute and path in of_another_class):
            continue
        first_text = first_traits.get(trait, "none")
        second_text = second_traits.get(trait, "none")
        follows_from_settings = _is_expected(first_text, first_expected, trait) and _is_expected(
            second_text, second_expected, trait
        )
        if first_text != second_text and not follows_from_settings:
            differing[trait] = (first_text, second_text)
    return differing


def _classes_in(traits: Mapping[Trait, str]) -> dict[str, str]:
    """Return the text of the class of each module, by its path."""
    return {path: text for (path, name), text in traits.items() if not name}


def _is_expected(text: str, expected: Mapping[Trait, str], trait: Trait) -> bool:
    """Return whether a trait of a model follows from the model's configuration.

    Args:
        text: The text of the trait.
        expected: The traits of a new model of the same configuration. If it lacks this trait, the
            result is false.
        trait: The key of the trait.
    """
    expected_text = expected.get(trait, UNKNOWN)  # UNKNOWN equals the text of no trait
    # The new model has no values. If the trait is a tensor, only that both have it is compared.
    is_tensor = expected_text.endswith(NO_VALUES)
    return text == expected_text or is_tensor


def _traits_from_settings(module: PreTrainedModel) -> dict[Trait, str]:
    """Return the traits of a new model of the same class and configuration.

    Traits describe all that decides what a model does, such as the classes and attributes of its
    modules. Those of the new model are the ones that its configuration explains. Its tensors have
    shapes and no values. The result is {} if a configuration alone cannot build the class.
    """
    try:
        with torch.device("meta"):
            new_model = type(module)(deepcopy(module.config)).eval()
            return traits_of(new_model)
    except Exception:  # a class that needs other arguments may raise any
        return {}
