"""Measure language models.

python analyze.py measure=loss model=gelu-3l-mini       held-out loss beside the unigram entropy: offline, seconds
python analyze.py measure=loss model=gpt2 data=pile-10k
"""

from thinkalike.config import AnalyzeConfig, door


@door("analyze")
def main(config: AnalyzeConfig):
    from thinkalike import jobs

    return {"loss": jobs.loss}[config.measure](config)


if __name__ == "__main__":
    main()
