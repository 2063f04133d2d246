"""The changed copies of a model that a ruler compares it with: of fewer bits, or untrained.

A model makes them in memory. A folder of states has those that were written with it, since it has
no weights to change.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from thinkalike.measures.bit_readings import BITS_OF_COPIES
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.rounding import rounded_copy
from thinkalike.models.variants import untrained_with_embedding
from thinkalike.states.folder import StateFolder
from thinkalike.states.source import StateSource

UNTRAINED = "untrained"
"""The name of the copy with new initial weights and the model's own embedding."""

TWIN_SEED = 65537
"""The seed of the untrained copy. No model of a user's is likely to have it."""

COPIES = (*(str(bits) for bits in BITS_OF_COPIES), UNTRAINED)
"""The names of all copies that a ruler may need. That of the copy of 4 bits is "4"."""


class Copies(ABC):
    """The changed copies of a model."""

    @abstractmethod
    def copy(self, name: str) -> StateSource:
        """Return a changed copy of the model.

        Args:
            name: The number of bits, as digits, to which the weights are rounded; or `UNTRAINED`
                for the same architecture with new initial weights.
        """

    @property
    @abstractmethod
    def parameters(self) -> int:
        """The number of weights of the model."""

    @abstractmethod
    def check(self) -> None:
        """Check that no stored copy is missing, without reading the states of any."""


class _ComputedCopies(Copies):
    """Copies that are made of the weights of a model."""

    def __init__(self, model: FrozenModel):
        self._model = model

    def copy(self, name: str) -> StateSource:
        """Return a copy of the model in memory, with changed weights.

        Raises:
            ModelError: The weights are quantised, or offloaded.
        """
        if name == UNTRAINED:
            return untrained_with_embedding(self._model, TWIN_SEED)
        return rounded_copy(self._model, int(name))

    @property
    def parameters(self) -> int:
        """The number of weights of the model."""
        return self._model.parameters()

    def check(self) -> None:
        """Do nothing, as copies are made when they are needed."""


class _StoredCopies(Copies):
    """Copies whose states are stored in a folder of states."""

    def __init__(self, folder: StateFolder):
        self._folder = folder

    def copy(self, name: str) -> StateSource:
        """Return the stored states of a copy.

        Raises:
            DataError: A file of the copy is missing, damaged, or not the one that was written.
        """
        return self._folder.copy(name)

    @property
    def parameters(self) -> int:
        """The number of weights of the model that computed the states; 0: it is not known."""
        return self._folder.index.parameters

    def check(self) -> None:
        """Check that the folder has the index of each copy.

        Raises:
            DataError: The index of a copy is missing, or not the one that was written.
        """
        for name in COPIES:
            self._folder.folder_of_copy(name)


def copies_of(source: StateSource) -> Copies | None:
    """Return the changed copies of a model, or those that are stored in a folder of states.

    None means that there are none: the folder was written without them.
    """
    if isinstance(source, FrozenModel):
        return _ComputedCopies(source)
    if isinstance(source, StateFolder) and source.index.copies:
        return _StoredCopies(source)
    return None
