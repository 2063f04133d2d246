"""The frame of measures of layer pairs; those that need more than a declaration are files beside this folder."""
