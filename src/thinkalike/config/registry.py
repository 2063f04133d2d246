"""The one list of instruments: what `task=` and `measure=` can be, and the module that holds each.

Several that are declared in one module are written as module:kind. They are strings because configuration stands below
what it configures; a module is imported when it is needed.
"""

TASKS = {
    "stitch": "thinkalike.instruments.stitching.instrument",
    "pretrain": "thinkalike.instruments.pretraining",
    "nli": "thinkalike.instruments.finetuning",
    "sae": "thinkalike.instruments.sae.instrument",
}
MEASURES = {
    "loss": "thinkalike.instruments.loss",
    "asymmetry": "thinkalike.instruments.asymmetry",
    "cka": "thinkalike.instruments.cka",
    "mknn": "thinkalike.instruments.mknn",
    "procrustes": "thinkalike.instruments.layer_pairs.declared:procrustes",
    "svcca": "thinkalike.instruments.layer_pairs.declared:svcca",
    "soft_matching": "thinkalike.instruments.layer_pairs.declared:soft_matching",
    "dcor": "thinkalike.instruments.layer_pairs.declared:dcor",
    "token_rsa": "thinkalike.instruments.layer_pairs.declared:token_rsa",
    "jaccard": "thinkalike.instruments.layer_pairs.declared:jaccard",
    "second_order_cosine": "thinkalike.instruments.layer_pairs.declared:second_order_cosine",
    "jsd": "thinkalike.instruments.layer_pairs.outputs:jsd",
    "disagreement": "thinkalike.instruments.layer_pairs.outputs:disagreement",
    "r2": "thinkalike.instruments.r2",
    "transfer_maps": "thinkalike.instruments.transfer_maps.instrument",
    "mlem": "thinkalike.instruments.mlem",
    "rsa": "thinkalike.instruments.rsa",
    "probes": "thinkalike.instruments.transfer.probes",
    "steering": "thinkalike.instruments.transfer.steering",
    "population": "thinkalike.instruments.population",
    "court": "thinkalike.court.job",
    "atlas": "thinkalike.atlas.job",
}
OF_TASKS = {"stitching": TASKS["stitch"], "pretraining": TASKS["pretrain"], "nli": TASKS["nli"], "sae": TASKS["sae"]}
KINDS = OF_TASKS | MEASURES  # of results
PLUGGED = "thinkalike.instruments.layer_pairs.plugged"  # the module of measures that plugins add
