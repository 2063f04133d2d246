"""States: activations of models, or recordings of users, at the same tokens, words, pairs or stimuli."""
