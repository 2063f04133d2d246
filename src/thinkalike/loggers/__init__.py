"""Where jobs of both doors are logged: W&B, TensorBoard, or nowhere but in the result's own folder."""

from thinkalike.loggers.tracker import About, Tracker
from thinkalike.loggers.tracking import publish_page, publish_table, tracked

__all__ = ["About", "Tracker", "publish_page", "publish_table", "tracked"]
