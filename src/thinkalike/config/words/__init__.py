"""The words of a command line: how they are read, what is wrong with them, and whose configurations they name."""
