"""The atlas: all pairs of several models by all measures of layer pairs, and how far the measures agree."""
