"""What functions are given: arrays of every sort, which become tensors here."""

from thinkalike.arguments.annotations import takes_arrays
from thinkalike.arguments.rows import check_rows
from thinkalike.arguments.values import Array, refuse_nan, seeded, tensor_of

__all__ = ["Array", "check_rows", "refuse_nan", "seeded", "takes_arrays", "tensor_of"]
