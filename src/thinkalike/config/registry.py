"""The one list of instruments: what `task=` and `measure=` can be, and the module that holds each.

They are strings because configuration stands below what it configures; a module is imported when it is needed.
"""

TASKS = {
    "stitch": "thinkalike.instruments.stitching.instrument",
    "pretrain": "thinkalike.instruments.pretraining",
    "nli": "thinkalike.instruments.finetuning",
}
MEASURES = {
    "loss": "thinkalike.instruments.loss",
    "asymmetry": "thinkalike.instruments.asymmetry",
    "cka": "thinkalike.instruments.cka",
    "mknn": "thinkalike.instruments.mknn",
    "r2": "thinkalike.instruments.r2",
    "mlem": "thinkalike.instruments.mlem",
    "rsa": "thinkalike.instruments.rsa",
    "population": "thinkalike.instruments.population",
    "court": "thinkalike.court.job",
}
KINDS = {"stitching": TASKS["stitch"], "pretraining": TASKS["pretrain"], "nli": TASKS["nli"], **MEASURES}  # of results
