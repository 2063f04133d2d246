"""Fit something between or inside language models.

python train.py                                     gelu-3l-mini stitched to itself: offline, about two minutes
python train.py model=solu-3l stitch=linear         the same for a real model
"""

from thinkalike.config import TrainConfig, door


@door("train")
def main(config: TrainConfig):
    from thinkalike import jobs

    return getattr(jobs, config.task)(config)


if __name__ == "__main__":
    main()
