# SPDX-License-Identifier: Apache-2.0
"""A job's log -> its first cause: the rank that failed first, its error, and what to change.

Reads the output of any DeepSpeed job, with all ranks mixed. `messages/` has the messages of programs,
`causes/` the causes that are not gates. Reads no machine and no file but the log.
"""

from __future__ import annotations

from harness.diagnosis.diagnose import diagnose
from harness.diagnosis.diagnosis_types import Diagnosis, FailureCause, LogEvent

__all__ = ["Diagnosis", "FailureCause", "LogEvent", "diagnose"]
