"""One HTML page of a store: every result, and for two models the matrices of all measures side by side."""
