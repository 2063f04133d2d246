"""The sites between which a stitch maps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from thinkalike.config.parts import AFTER, MIDDLE
from thinkalike.errors import StitchError
from thinkalike.models.frozen import FrozenModel


@dataclass(frozen=True)
class Site:
    """The residual stream of a model after one of its blocks, or between attention and MLP of one.

    Attributes:
        model: the name of the model.
        revision: the revision that was loaded.
        layer: the number of the block.
        fingerprint: that of the weights, see `FrozenModel.fingerprint`; it identifies the model.
        dtype: that of the weights; the fingerprint depends on it.
        settings: a digest of the configuration, see `FrozenModel.settings`; older sites have none.
        site: AFTER or MIDDLE.
        layers: how many blocks the model has; 0 for older sites, which do not say it.
    """

    model: str
    revision: str
    layer: int
    fingerprint: str
    dtype: str
    settings: str = ""
    site: str = AFTER
    layers: int = 0

    def __post_init__(self) -> None:
        """Raise a StitchError if a field, which may come from any file, is impossible.

        The number of blocks may be 0, which stands for unknown; then the layer can be any.
        """
        texts = (self.model, self.revision, self.fingerprint, self.dtype, self.settings)
        has_texts = all(isinstance(text, str) for text in texts)
        has_numbers = _is_natural_number(self.layer) and _is_natural_number(self.layers)
        if not has_texts or not has_numbers or self.site not in (AFTER, MIDDLE):
            raise StitchError(
                f"{self!r} is no site: its layer must be a number from 0 on, and all else text"
            )
        if self.layers:
            self.check_layer(self.model, self.layers)

    @classmethod
    def of(cls, model: Mapping[str, object], layer: int) -> Site:
        """Return the site of a model at one of its blocks.

        Args:
            model: The description of the model, as `FrozenModel.describe` returns it and results
                store it. It says whether the site is after the block or between its attention
                and its MLP.
            layer: The number of the block.
        """
        # Older results do not have the last three entries: "" and 0 stand for unknown.
        return cls(
            model=str(model["name"]),
            revision=str(model["revision"]),
            layer=layer,
            fingerprint=str(model["weights"]),
            dtype=str(model["dtype"]),
            settings=str(model.get("settings", "")),
            site=str(model.get("site", AFTER)),
            layers=int(str(model.get("layers", 0))),
        )

    def __str__(self) -> str:
        """Return the name of the site, such as "gpt2:3" for the stream after block 3."""
        if self.site == AFTER:
            return f"{self.model}:{self.layer}"
        return f"{self.model}:{self.layer}.{self.site}"

    def is_same_as(self, other: Site) -> bool:
        """Return whether two sites are the same place in models of the same weights.

        A place is a block, and after it or between its attention and its MLP. The names of the
        models are not compared.
        """
        if self.fingerprint != other.fingerprint:
            return False
        return self.layer == other.layer and self.site == other.site

    def cut(self, model: FrozenModel) -> FrozenModel:
        """Return a view of a model whose layers are places like this site.

        For a site after a block this is the model itself. For one between the attention and the
        MLP of a block, it is a view whose states of a layer are read and replaced there.
        """
        if self.site == AFTER:
            return model
        from thinkalike.models.middle import MiddleModel  # imported here, as few stitches need it

        return MiddleModel(model)

    def check_layer(self, name: str, layers: int) -> None:
        """Raise a StitchError if a model has no block of the number of this site.

        Args:
            name: The name of the model, for the error.
            layers: How many blocks the model has.
        """
        if self.layer >= layers:
            raise StitchError(
                f"the stitch has layer {self.layer} of {name}, which has layers 0 to {layers - 1}"
            )

    def check_model(self, model: FrozenModel) -> None:
        """Raise a StitchError unless a model has the weights and settings of this site's model.

        Settings are those of its config.json. A site that an older version wrote has none, and
        only weights are compared then.
        """
        fingerprint = model.fingerprint()
        dtype = str(model.dtype).removeprefix("torch.")
        if fingerprint != self.fingerprint:
            raise StitchError(
                f"{model.name} has the weights {fingerprint} in {dtype}, but the stitch was made "
                f"with {self.model} of {self.fingerprint} in {self.dtype}: "
                "load that model, or give check=False"
            )
        if self.settings not in ("", model.settings()):
            raise StitchError(
                f"{model.name} has the weights of {self.model}, with which the stitch was made, "
                "but other settings in its config.json: load that model, or give check=False"
            )


def _is_natural_number(number: object) -> bool:
    """Return whether a value, which may come from any file, is a number from 0 on."""
    return type(number) is int and number >= 0
