"""A function for each instrument: what its command does, for models, text and stimuli in Python.

- A model is a name, ORG/NAME, a folder, a model that `load_model` gave, a `TransformerBridge`, or
  a pair (model of transformers, tokenizer). `mlem`, `rsa` and `compare` also take arrays,
  (stimuli, width), one or by names of layers.
- `texts` is the name of a data set, a file, or a list or column of strings or of records with a
  `field`.
- `stimuli` is a name, a file, or a DataFrame.
- All other keywords are the command-line settings of the same name. None means "use the default".
- `store` is the folder in which results are kept and found again, as those of commands; without
  it the result is in memory, until `result.save(FOLDER)` writes it.

Each function makes its job, of the class that declares its keywords in `thinkalike.jobs`, and runs
it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import ParamSpec, Protocol, overload, runtime_checkable

from torch import Tensor

from thinkalike.arguments import takes_arrays
from thinkalike.errors import ConfigError
from thinkalike.global_state import isolated
from thinkalike.inputs import is_model
from thinkalike.jobs import (
    Compare,
    Diff,
    Job,
    Lineage,
    Loss,
    Mlem,
    Rsa,
    Ruler,
    Stitch,
    Trajectory,
    run,
)
from thinkalike.jobs.plain_values import checked_plain
from thinkalike.measures.distances.rsa import rsa_of_models
from thinkalike.store import Result

P = ParamSpec("P")
Q = ParamSpec("Q")


def function_of(job: Callable[P, Job]) -> Callable[P, Result]:
    """Return the function that runs a job of a class.

    Its signature, defaults and docstring are those of the class.
    """

    def function(*args: P.args, **kwargs: P.kwargs) -> Result:
        return run(job(*args, **kwargs))

    parameters = list(inspect.signature(job).parameters.values())
    _declare(function, job, parameters)
    return function


def _declare(
    function: Callable[..., object],
    job: Callable[..., Job],
    parameters: Sequence[inspect.Parameter],
) -> None:
    """Give a function the name, the docstring and the signature that help and editors show."""
    name = job.__name__.lower()
    signature = inspect.Signature(parameters, return_annotation="Result")
    vars(function)["__signature__"] = signature
    function.__name__ = name
    function.__qualname__ = name
    function.__doc__ = inspect.getdoc(job)


stitch = function_of(Stitch)
"""Run a job of `thinkalike.jobs.Stitch`, which declares the arguments."""
compare = function_of(Compare)
"""Run a job of `thinkalike.jobs.Compare`, which declares the arguments."""
ruler = function_of(Ruler)
"""Run a job of `thinkalike.jobs.Ruler`, which declares the arguments."""
loss = function_of(Loss)
"""Run a job of `thinkalike.jobs.Loss`, which declares the arguments."""
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
    """Gives a matrix for arrays, and a result for models or arrays on stimuli."""

    @overload
    def __call__(
        self,
        models: object,
        others: object = None,
        distance: str = "euclidean",
        comparator: str = "spearman",
        *,
        stimuli: None = None,
    ) -> Tensor: ...
    @overload
    def __call__(self, *args: Q.args, **kwargs: Q.kwargs) -> Result: ...


def _rsa_function(job: Callable[Q, Job]) -> RsaFunction[Q]:
    """Return `rsa`, which without stimuli compares arrays, and with them runs a job."""
    declared = inspect.signature(job).parameters
    make_job: Callable[..., Job] = job

    def function(
        models: object,
        others: object = None,
        distance: str = "euclidean",
        comparator: str = "spearman",
        *,
        stimuli: object = None,
        **settings: object,
    ) -> Tensor | Result:
        if stimuli is None:
            _check_of_arrays(models, settings, declared)
            with isolated():
                return takes_arrays(rsa_of_models)(models, others, distance, comparator)
        if others is not None:
            raise ConfigError("rsa on stimuli takes one list of models, and no others")
        options = {"distance": distance, "comparator": comparator, **settings}
        return run(make_job(models, stimuli=stimuli, **options))

    of_function = list(inspect.signature(function).parameters.values())[:-1]
    names = {parameter.name for parameter in of_function}
    further = [parameter for name, parameter in declared.items() if name not in names]
    _declare(function, job, [*of_function, *further])
    return function  # type: ignore[return-value]


def _check_of_arrays(
    models: object,
    settings: Mapping[str, object],
    declared: Mapping[str, inspect.Parameter],
) -> None:
    """Check that `rsa` without stimuli compares arrays, and has no settings of a job.

    Args:
        declared: The parameters of the job.
    """
    sides = models if isinstance(models, list | tuple) else [models]
    if any(is_model(side) for side in sides):
        raise ConfigError("rsa of models needs stimuli: a DataFrame, a file, or a name such as 'controlled'")
    for name, value in settings.items():
        if name not in declared:
            raise TypeError(f"rsa() got an unexpected keyword argument '{name}'")
        if checked_plain(name, value) != declared[name].default:
            raise ConfigError(f"{name}= has no effect on rsa of arrays without stimuli; leave it out")


rsa = _rsa_function(Rsa)
"""Run a job of `thinkalike.jobs.Rsa`, which declares the arguments.

Without stimuli, give the matrix of arrays.
"""
