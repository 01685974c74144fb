"""A job's log -> its first cause: which rank failed first, at what, and what to change.

Reads what any DeepSpeed job printed, ours or not, with all ranks mixed. Knows gates by their upstream messages
(`upstream`) and other causes by `causes/`; looks at no machine and at no file but the log.
"""

from __future__ import annotations

from harness.diagnosis.diagnose import diagnose
from harness.diagnosis.diagnosis_types import Diagnosis, FailureCause, LogEvent

__all__ = ["Diagnosis", "FailureCause", "LogEvent", "diagnose"]
