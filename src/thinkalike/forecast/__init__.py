"""What a job will take, told before it starts: `dry_run=true` at either door, and the page docs/scale.md."""

from thinkalike.forecast.plan import GPUS, SHARE, Forecast, Planned, forecast, hours_on
from thinkalike.forecast.screen import show

__all__ = ["GPUS", "SHARE", "Forecast", "Planned", "forecast", "hours_on", "show"]
