"""Jobs as objects: each holds what it is of and exactly the settings that it reads; `run` does it.

    job = Compare("gelu-3l-mini", "solu-3l-mini", measure="mutual_knn", neighbours=20)
    result = run(job)                       # in memory
    result = run(job, store="results")      # kept in a folder, and found again there

A field is the setting of the same name of a command line, with its default; None leaves it to the
job. Its part, such as `measure.` or `data.`, follows from the schemas, see
`thinkalike.jobs.configuration.setting_of`. Models, texts, stimuli and arrays of states are given
by name or as objects, see `thinkalike.inputs`.
"""

from thinkalike.jobs.base import Job
from thinkalike.jobs.kinds import (
    Compare,
    Diff,
    Lineage,
    Loss,
    Mlem,
    Rsa,
    Ruler,
    Stitch,
    Trajectory,
)
from thinkalike.jobs.running import run

__all__ = [
    "Compare",
    "Diff",
    "Job",
    "Lineage",
    "Loss",
    "Mlem",
    "Rsa",
    "Ruler",
    "Stitch",
    "Trajectory",
    "run",
]
