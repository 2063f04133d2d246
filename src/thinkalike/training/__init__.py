"""Lightning modules for stitches, and the loop that trains them and whatever else is fitted."""
