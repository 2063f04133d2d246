"""Lightning modules for stitches, language models, classifiers and autoencoders, and the loop that trains them."""
