"""task=sae: sparse autoencoders from several starts, and what a start from another model saves."""
