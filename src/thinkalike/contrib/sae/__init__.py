"""task=sae: sparse autoencoders, from whatever start, and what one that comes from another model saves."""
