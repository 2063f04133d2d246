"""measure=rsa: how similar the distances of stimuli are in every two layers."""
