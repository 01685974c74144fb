# SPDX-License-Identifier: Apache-2.0
"""`logging`: lines of metrics.jsonl, and DeepSpeed's own log."""

from typing import Literal

from harness.spec.sections.section import Positive, Section


class LoggingSpec(Section):
    """Logs of a run."""

    logging_steps: Positive = 1
    """Write a line of metrics.jsonl every N steps."""
    deepspeed_level: Literal["debug", "info", "warning", "error"] = "warning"
    """Log level of DeepSpeed's own logger."""
