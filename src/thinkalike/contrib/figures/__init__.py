"""The figures of contrib, a module for each study. They import matplotlib: it takes a second."""
