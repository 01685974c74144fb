# SPDX-License-Identifier: Apache-2.0
"""Limits of files and answers of others, by kind, in bytes.

Each is at least ten times what programs write. A larger one is refused or cut before anything parses it.
"""

from __future__ import annotations

CONFIGURATION = 8_000_000
"""A run spec, a DeepSpeed JSON, an accelerate YAML, a file of another program."""
HOSTFILE = 4_000_000
"""About 200,000 hosts."""
MODEL_CONFIG = 16 << 20
"""`config.json` of a model folder."""
TOKENIZER = 64 << 20
"""`tokenizer.json`, and the other files of a tokenizer."""
RUN_FILE = 64 << 20
"""One file of a run directory that is read whole; `metrics.jsonl` is read line by line."""
RUN_LINE = 16 << 20
"""A line of `metrics.jsonl`; one of `ranks` with 100,000 ranks has five million."""
METRICS, METRICS_LINES = 2 << 30, 10_000_000
"""Of `metrics.jsonl`, which a report holds in memory."""
VERDICT = 1 << 20
HOST_ANSWER = 8 << 20
"""The output of a host to one question of `preflight`; of more the end counts."""
AGENT_LINE = 1 << 20
"""A heartbeat of a host during a run."""

FINDINGS = 1000
"""Findings of one kind in one file; the others are counted."""
