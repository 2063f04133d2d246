"""measure=ruler: the similarity of two models in bits, on a scale of rounded copies of both."""
