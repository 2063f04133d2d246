"""The atlas: all pairs of several models by all measures, and how far the measures agree."""
