"""Further measures of layer pairs: SVCCA, soft matching, sets of nearest neighbours, and outputs."""
