"""task=stitch: fit φ at every chosen layer pair of two frozen models, and report what it costs."""
