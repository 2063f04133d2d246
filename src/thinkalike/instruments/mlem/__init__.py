"""measure=mlem: which features explain the distances of stimuli in each layer."""
