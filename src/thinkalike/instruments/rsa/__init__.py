"""measure=rsa: how alike the distances of stimuli are in every two layers."""
