"""What contrib adds to the command line: instruments, model settings, groups and experiments."""

from thinkalike.registry import Entry, Place, Registered

STUDIES = Registered(
    tasks=(
        Entry("thinkalike.contrib.pretraining.instrument", "MiniPretraining", "pretrain"),
        Entry("thinkalike.contrib.populations.finetuning", "ClassifierFinetuning", "nli"),
        Entry("thinkalike.contrib.sae.instrument", "SparseAutoencoders", "sae"),
    ),
    measures=(
        Entry("thinkalike.contrib.transfer.probes", "CarriedProbes", "probes"),
        Entry("thinkalike.contrib.transfer.steering", "Steering", "steering"),
        Entry("thinkalike.contrib.populations.population", "Population", "population"),
        Entry("thinkalike.contrib.court.job", "Court", "court"),
        Entry("thinkalike.contrib.atlas.job", "Atlas", "atlas"),
    ),
    subjects=(
        Entry("thinkalike.contrib.subjects.mlem", "SubjectsMLEM", "mlem"),
        Entry("thinkalike.contrib.subjects.rsa", "SubjectsRSA", "rsa"),
    ),
    settings={
        "model.populations": Place("thinkalike.contrib.populations.config", "NumberedModel"),
        "model.pretraining": Place("thinkalike.contrib.pretraining.settings", "PretrainedModel"),
    },
    conf={"contrib": Place("thinkalike.contrib", "CONF")},
    experiment=Place("thinkalike.contrib.papers", "experiment_named"),
)
