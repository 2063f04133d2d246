"""Further measures of layer pairs: SVCCA, soft matching, and sets of nearest neighbours compared as ReSi does."""
