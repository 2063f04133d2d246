"""The results store: one folder for each finished job, `<store>/<kind>/<key>/`.

A result's folder appears only when it is complete. While its job runs, `<key>.partial/` holds the
states from which the job can resume, and a lock that ends with the process, so that two processes
never work on the same job. A manifest with the digests of all files is written last, so that later
damage is noticed. Nothing in a result is ever executed: its files are tables, JSON, YAML,
safetensors and pictures.
"""

from thinkalike.store.checkpoints import newest_state as newest_state
from thinkalike.store.checkpoints import read_state as read_state
from thinkalike.store.checkpoints import write_state as write_state
from thinkalike.store.headline import Headline as Headline
from thinkalike.store.headline import first_scalar as first_scalar
from thinkalike.store.job import StoredJob as StoredJob
from thinkalike.store.manifest import damage as damage
from thinkalike.store.manifest import is_sealed as is_sealed
from thinkalike.store.manifest import seal as seal
from thinkalike.store.record import ModelFacts as ModelFacts
from thinkalike.store.record import Provenance as Provenance
from thinkalike.store.record import ResultRecord as ResultRecord
from thinkalike.store.result import Result as Result
from thinkalike.store.result import ResultInstrument as ResultInstrument
from thinkalike.store.result import TemporaryResult as TemporaryResult
from thinkalike.store.result import make_new_folder as make_new_folder
from thinkalike.store.result import open_result as open_result
from thinkalike.store.result import write_content as write_content
from thinkalike.store.tensor_file import TensorFile as TensorFile
from thinkalike.store.tensor_file import TensorReader as TensorReader
