"""What measures of all layer pairs have in common; each of them is a file beside this folder."""

from thinkalike.instruments.layer_pairs.frame import LayerPairs
from thinkalike.instruments.layer_pairs.settings import LayerPairsConfig

__all__ = ["LayerPairs", "LayerPairsConfig"]
