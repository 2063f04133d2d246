"""Whose code does an object run, however it is wrapped?"""

import contextlib
import functools
import sys
import types

import pytest
import torch
from transformers.utils.deprecation import deprecate_kwarg

from thinkalike.code_text import added_entries, functions_reached, is_installed, is_of_user


def of_user(*args):
    """A function of no installed package."""
    return args


def of_library():
    return torch.nn.functional.cosine_embedding_loss


WRAPPERS = {
    "itself": lambda function: function,
    "no_grad": torch.no_grad(),
    "inference_mode": torch.inference_mode(),
    "autocast": torch.autocast("cpu"),
    "compiler.disable": torch.compiler.disable,
    "lru_cache": functools.lru_cache,
    "partial": functools.partial,
    "partial of no_grad": lambda function: functools.partial(torch.no_grad()(function)),
    "keyword of a partial": lambda function: functools.partial(torch.relu, hook=function),
    "partialmethod": lambda function: functools.partialmethod(function, 1),
    "context": contextlib.contextmanager,
    "deprecate_kwarg": deprecate_kwarg("old", version="9.9"),
    "staticmethod": staticmethod,
    "classmethod": classmethod,
    "property": property,
    "setter": lambda function: property(None, function),
    "cached_property": functools.cached_property,
    "method": lambda function: types.MethodType(torch.no_grad()(function), 1),
    "five decorators": lambda function: functools.reduce(lambda inner, _: torch.no_grad()(inner), range(5), function),
    "singledispatch": functools.singledispatch,
}


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS.keys())
def test_a_wrapper_of_a_library_runs_the_code_that_it_wraps(wrap):
    assert is_of_user(wrap(of_user))
    assert of_user in functions_reached(wrap(of_user)) or wrap is WRAPPERS["singledispatch"]
    assert not is_of_user(wrap(of_library())), "control"


@pytest.mark.parametrize("wrap", [torch.no_grad(), functools.lru_cache, lambda f: functools.partialmethod(f, 1)])
def test_a_wrapped_function_that_is_put_into_a_class_is_added_to_it(wrap, monkeypatch):
    assert not list(added_entries(torch.nn.LayerNorm)), "control"
    monkeypatch.setattr(torch.nn.LayerNorm, "forward", wrap(of_user))
    ((owner, name, _),) = added_entries(torch.nn.LayerNorm)
    assert (owner, name) == (torch.nn.LayerNorm, "forward")


class AnswersNothing:
    """Like the stand-ins of transformers for classes whose library is missing."""

    def __getattribute__(self, name):
        raise ImportError(f"{name} needs a library")


def test_an_object_that_refuses_to_be_asked_is_told_by_its_class(monkeypatch):
    assert is_of_user(AnswersNothing())
    monkeypatch.setattr(torch.nn.LayerNorm, "placeholder", AnswersNothing(), raising=False)
    assert [name for _, name, _ in added_entries(torch.nn.LayerNorm)] == []


@pytest.mark.parametrize(("folder", "is_library"), [("site-packages", True), ("dist-packages", True), ("mine", False)])
def test_packages_are_installed_wherever_their_folder_is(folder, is_library, tmp_path, monkeypatch):
    """Such as those of `pip install --user`, of a cluster's PYTHONPATH, or of an outer environment."""
    (tmp_path / folder).mkdir()
    name = f"of_{folder.replace('-', '_')}"
    (tmp_path / folder / f"{name}.py").write_text("def function(): ...")
    monkeypatch.syspath_prepend(tmp_path / folder)
    module = __import__(name)
    try:
        assert is_installed(name) is is_library
        assert is_of_user(module.function) is not is_library
    finally:
        del sys.modules[name]
