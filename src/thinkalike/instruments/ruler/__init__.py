"""measure=ruler: the likeness of two models in bits, on a ruler of rounded copies of both."""
