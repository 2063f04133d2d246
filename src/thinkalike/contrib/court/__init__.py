"""Sources of known similarity to a target, on which every measure of similarity is tested."""
