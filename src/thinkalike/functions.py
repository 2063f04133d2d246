"""A function for each instrument: what its command does, of models, text and stimuli as a notebook has them.

- A model is a name, ORG/NAME, a folder, a model that `load_model` gave, a `TransformerBridge`, or a pair (model of
  transformers, tokenizer). `mlem`, `rsa` and `compare` also take arrays, (stimuli, width), one or by names of layers.
- `texts` is the name of a data set, a file, or a list or column of strings or of records with a `field`.
- `stimuli` is a name, a file, or a DataFrame.
- The other keywords are the settings of the same names of a command line, with their defaults; None leaves one to it.
- `store` is the folder in which results are kept and found again, as those of commands; without it the result is in
  memory, until `result.save(FOLDER)` writes it.

Each function makes its job, of the class that declares its keywords in `thinkalike.jobs`, and runs it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, Protocol, overload, runtime_checkable

from torch import Tensor

from thinkalike.arguments import takes_arrays
from thinkalike.errors import ConfigError
from thinkalike.global_state import isolated
from thinkalike.inputs import is_model
from thinkalike.jobs import Compare, Diff, Job, Lineage, Mlem, Rsa, Stitch, Trajectory, plain_setting, run
from thinkalike.measures.distances.rsa import rsa_of_models
from thinkalike.store import Result

P = ParamSpec("P")
Q = ParamSpec("Q")


def function_of(job: Callable[P, Job]) -> Callable[P, Result]:
    """Return the function that runs a job of a class; its signature, defaults and docstring are those of the class."""

    def function(*args: P.args, **kwargs: P.kwargs) -> Result:
        return run(job(*args, **kwargs))

    _declare(function, job, [*inspect.signature(job).parameters.values()])
    return function


def _declare(function: Any, job: Any, parameters: list[inspect.Parameter]) -> None:
    """Give a function the name, the docstring and the signature of a job, which help and editors show."""
    function.__name__ = job.__name__.lower()
    function.__qualname__ = function.__name__
    function.__doc__ = inspect.getdoc(job)
    function.__signature__ = inspect.Signature(parameters, return_annotation="Result")


stitch = function_of(Stitch)
"""Run a job of `thinkalike.jobs.Stitch`, which declares the arguments."""
compare = function_of(Compare)
"""Run a job of `thinkalike.jobs.Compare`, which declares the arguments."""
mlem = function_of(Mlem)
"""Run a job of `thinkalike.jobs.Mlem`, which declares the arguments."""
diff = function_of(Diff)
"""Run a job of `thinkalike.jobs.Diff`, which declares the arguments."""
lineage = function_of(Lineage)
"""Run a job of `thinkalike.jobs.Lineage`, which declares the arguments."""
trajectory = function_of(Trajectory)
"""Run a job of `thinkalike.jobs.Trajectory`, which declares the arguments."""


@runtime_checkable
class RsaFunction(Protocol[Q]):
    """Of arrays a matrix, and of models or arrays on stimuli a result."""

    @overload
    def __call__(
        self,
        models: Any,
        others: Any = None,
        distance: str = "euclidean",
        comparator: str = "spearman",
        *,
        stimuli: None = None,
    ) -> Tensor: ...
    @overload
    def __call__(self, *args: Q.args, **kwargs: Q.kwargs) -> Result: ...


def _rsa_function(job: Callable[Q, Job]) -> RsaFunction[Q]:
    declared = inspect.signature(job).parameters

    def function(
        models: Any,
        others: Any = None,
        distance: str = "euclidean",
        comparator: str = "spearman",
        *,
        stimuli: Any = None,
        **settings: Any,
    ) -> Any:
        if stimuli is None:
            if any(map(is_model, models if isinstance(models, list | tuple) else [models])):
                raise ConfigError("rsa of models needs stimuli: a DataFrame, a file, or a name such as 'controlled'")
            for name, value in settings.items():
                if name not in declared:
                    raise TypeError(f"rsa() got an unexpected keyword argument '{name}'")
                if plain_setting(name, value) != declared[name].default:
                    raise ConfigError(f"{name}= has no effect on rsa of arrays without stimuli; leave it out")
            with isolated():
                return takes_arrays(rsa_of_models)(models, others, distance, comparator)
        if others is not None:
            raise ConfigError("rsa on stimuli takes one list of models, and no others")
        of_stimuli: Any = job
        return run(of_stimuli(models, stimuli=stimuli, distance=distance, comparator=comparator, **settings))

    first = [*inspect.signature(function).parameters.values()][:-1]
    names = {parameter.name for parameter in first}
    further = [parameter for parameter in declared.values() if parameter.name not in names]
    _declare(function, job, [*first, *further])
    return function  # type: ignore[return-value]


rsa = _rsa_function(Rsa)
"""Run a job of `thinkalike.jobs.Rsa`, which declares the arguments; of arrays without stimuli, give their matrix."""
