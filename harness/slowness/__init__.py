"""Why a run is slow: what its numbers and its plan say, the settings to try, and what the plan predicts of each.

`diagnose` is the whole of it. One file a cause below `causes/`; `trial` makes the plan of a changed spec. No torch.
"""

from harness.slowness.slowness_report import SlowdownReport, SlownessReport, diagnose_slowness

__all__ = ["SlowdownReport", "SlownessReport", "diagnose_slowness"]
