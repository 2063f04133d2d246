"""`python -m thinkalike ...` is `thinkalike ...`."""

from thinkalike.cli import main

if __name__ == "__main__":
    main()
