"""What contrib adds to the command line: instruments, model settings, groups and experiments."""

from thinkalike.registry import OF_TEXT, KindEntry, ObjectReference, Registered

STUDIES = Registered(
    tasks=(
        KindEntry("thinkalike.contrib.pretraining.instrument", "MiniPretraining", "pretrain"),
        KindEntry("thinkalike.contrib.populations.finetuning", "ClassifierFinetuning", "nli"),
        KindEntry("thinkalike.contrib.sae.instrument", "SparseAutoencoders", "sae"),
    ),
    measures=(
        KindEntry("thinkalike.contrib.transfer.probes", "CarriedProbes", "probes"),
        KindEntry("thinkalike.contrib.transfer.steering", "Steering", "steering"),
        KindEntry("thinkalike.contrib.populations.population", "Population", "population"),
        KindEntry("thinkalike.contrib.court.job", "Court", "court"),
        KindEntry("thinkalike.contrib.atlas.job", "Atlas", "atlas"),
    ),
    subjects=(
        KindEntry("thinkalike.contrib.subjects.mlem", "SubjectsMLEM", "mlem"),
        KindEntry("thinkalike.contrib.subjects.rsa", "SubjectsRSA", "rsa"),
    ),
    settings={
        "model.populations": ObjectReference(
            "thinkalike.contrib.populations.config", "NumberedModel"
        ),
        "model.pretraining": ObjectReference(
            "thinkalike.contrib.pretraining.settings", "PretrainedModel"
        ),
    },
    conf={"contrib": ObjectReference("thinkalike.contrib", "CONF")},
    experiment=ObjectReference("thinkalike.contrib.papers", "paper_experiment"),
    former_columns={"pretraining": OF_TEXT, "sae": OF_TEXT},
)
