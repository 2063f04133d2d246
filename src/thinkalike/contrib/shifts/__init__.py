"""How far the states of a changed model are from those of the model that it was made of, layer by layer."""
