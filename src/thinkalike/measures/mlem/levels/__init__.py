"""Encoding models in which every two levels of a nominal feature are as far apart as the states make them."""
