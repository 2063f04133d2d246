"""Fit something between or inside language models.

python train.py                                     gelu-3l-mini into solu-3l-mini: offline, about three minutes
python train.py model=solu-3l stitch=linear         a real model, stitched to itself: the baseline
"""

from thinkalike.cli import train as main

if __name__ == "__main__":  # @hydra.main, which the completion of some shells looks for in a script
    main()
