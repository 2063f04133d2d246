"""Arguments as people have them: arrays, tables and lists become tensors in the public functions.

    cka = takes_arrays(cka)          # as `thinkalike.measures` does with all that it exports
    cka(states, pd.read_csv("brain.csv"))

The annotation of an argument says which tensor a function wants. A tensor of that kind stays the
very same object, so that gradients, device and memory are the caller's; other arrays go to the
device of the first tensor.

It also says which numbers: `k: Count` takes neither 5.0 nor True, and a `Level` is between 0 and
1. Python would take True for 1, and torch ends in an error of its own that names no argument. For
an array `Annotated[Float[Tensor, "n"], Within(least=0, fewest=1)]` says which values it holds, and
at least how many; without `Within` it may hold NaN. An annotation that names classes alone, such
as `str`, `RowGroups | None` or a `Callable`, takes nothing else.

All this is checked in the public functions alone. Code inside calls the functions of the modules
themselves.
"""

from thinkalike.arguments.door import checks_arguments, takes_arrays
from thinkalike.arguments.kinds import (
    MOST_REPETITIONS,
    BatchNumber,
    Count,
    Level,
    Repetitions,
    RepetitionsOrNone,
    Seed,
    Size,
    check_choice,
    check_whole_numbers,
)
from thinkalike.arguments.messages import shown
from thinkalike.arguments.numeric import checked_numbers, real_numbers
from thinkalike.arguments.row_labels import check_rows
from thinkalike.arguments.tensors import NAMES, refuse_nan, tensor_of
from thinkalike.ranges import Within

__all__ = [
    "MOST_REPETITIONS",
    "NAMES",
    "BatchNumber",
    "Count",
    "Level",
    "Repetitions",
    "RepetitionsOrNone",
    "Seed",
    "Size",
    "Within",
    "check_choice",
    "check_rows",
    "check_whole_numbers",
    "checked_numbers",
    "checks_arguments",
    "real_numbers",
    "refuse_nan",
    "shown",
    "takes_arrays",
    "tensor_of",
]
