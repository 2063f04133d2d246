"""One HTML page of a store, with every result and the matrices of all measures side by side."""
