"""Fit something between or inside language models.

python train.py                                     gelu-3l-mini stitched to itself: offline, about two minutes
python train.py model=solu-3l stitch=linear         the same for a real model
"""

from thinkalike.cli import train as main

if __name__ == "__main__":
    main()
