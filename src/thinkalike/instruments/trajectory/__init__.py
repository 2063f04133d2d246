"""How representations form while a model trains: likeness of checkpoints, and the onset of features."""
