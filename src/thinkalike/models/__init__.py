"""Models: from a name in the configuration to a FrozenModel."""
