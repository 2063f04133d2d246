"""How representations form while a model trains: likeness of checkpoints, onset of features."""
