"""Measure language models, and reproduce the papers' figures.

python analyze.py measure=loss model=gelu-3l-mini               held-out loss: offline, seconds
python analyze.py measure=mlem model=gpt2-mini                  which features explain each layer: offline, seconds
python analyze.py experiment=brown2023/figure1 scale=mini       a figure and its claims: offline, minutes
"""

from thinkalike.cli import analyze as main

if __name__ == "__main__":  # @hydra.main, which the completion of some shells looks for in a script
    main()
