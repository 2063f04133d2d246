"""A metric-learning encoding model whose loss has gradients, in its weights and in the states."""
