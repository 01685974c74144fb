# SPDX-License-Identifier: Apache-2.0
"""The causes of a slow run, by its measurements and its plan; settings to try, and the plan's prediction for each.

`diagnose_slowness` is the entry. One module a cause in `causes/`; `plan_prediction` plans a changed spec. No torch.
"""

from harness.slowness.slowness_report import SlowdownReport, SlownessReport, diagnose_slowness

__all__ = ["SlowdownReport", "SlownessReport", "diagnose_slowness"]
