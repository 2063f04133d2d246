"""measure=transfer_maps: closed-form maps between two models in both directions, and what is lost on the way."""
