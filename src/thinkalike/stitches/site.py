"""Where a stitch begins or ends: a layer of one model, known by the fingerprint of its weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from thinkalike.errors import StitchError
from thinkalike.models import FrozenModel


@dataclass(frozen=True)
class Site:
    """The residual stream of a model after one of its blocks.

    Attributes:
        model: The everyday name of the model, for people.
        revision: What was loaded under that name.
        layer: The number of the block.
        fingerprint: Of the weights, see `FrozenModel.fingerprint`; this is what tells one model from another.
        dtype: The one that the weights have, which the fingerprint depends on.
    """

    model: str
    revision: str
    layer: int
    fingerprint: str
    dtype: str

    @classmethod
    def of(cls, described: Mapping[str, Any], layer: int) -> Site:
        """Return the site of a model that `FrozenModel.describe` describes, as the provenance of results does."""
        names = {"model": "name", "revision": "revision", "fingerprint": "weights", "dtype": "dtype"}
        return cls(layer=layer, **{own: str(described[theirs]) for own, theirs in names.items()})

    def __str__(self) -> str:
        return f"{self.model}:{self.layer}"

    def is_same(self, other: Site) -> bool:
        """Return whether both are the same layer of the same weights, whatever the model is called."""
        return (self.fingerprint, self.layer) == (other.fingerprint, other.layer)

    def check_model(self, model: FrozenModel) -> None:
        """Check that a model is the one of this site.

        Raises:
            StitchError: Its weights have another fingerprint.
        """
        found, dtype = model.fingerprint(), str(model.dtype).removeprefix("torch.")
        if found != self.fingerprint:
            raise StitchError(
                f"{model.name} has the weights {found} in {dtype}, but the stitch was made with {self.model} of "
                f"{self.fingerprint} in {self.dtype}: load that model, or give check=False"
            )
