"""How representations form while a model trains: similarity of checkpoints, onset of features."""
