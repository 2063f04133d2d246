"""logger=tensorboard: event files in the folder of the result, for `tensorboard --logdir results`."""

from __future__ import annotations

import json
import re

from thinkalike.config import LoggerConfig
from thinkalike.loggers.tracker import About, Tracker, pictures_of, summary_of
from thinkalike.store import Result


class TensorBoardTracker(Tracker):
    """Writes scalars, figures, and settings and table as text, into a folder that is called as the run.

    Raises:
        ConfigError: the package tensorboard is not there.
    """

    def __init__(self, config: LoggerConfig, about: About):
        super().__init__(config, about)
        config.check_package()
        self.folder = about.folder / re.sub(r"[^\w.=+-]+", "_", about.name)

    def publish(self, result: Result) -> None:
        import numpy as np
        from PIL import Image
        from torch.utils.tensorboard import SummaryWriter

        with SummaryWriter(str(self.folder)) as writer:
            for name, value in summary_of(result).items():
                writer.add_scalar(f"result/{name}", value)
            for name, path in pictures_of(result).items():
                with Image.open(path) as picture:
                    writer.add_image(f"figures/{name}", np.asarray(picture.convert("RGB")), dataformats="HWC")
            writer.add_text("settings", f"```\n{json.dumps(dict(self.about.settings), indent=1, default=str)}\n```")
            for name, table in result.tables.items():
                writer.add_text(name, f"```\n{table.to_string(index=False, max_rows=1000)}\n```")
