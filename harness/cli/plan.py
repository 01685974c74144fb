# SPDX-License-Identifier: Apache-2.0
"""`harness plan`: estimated memory, time and alternatives of a run, before a launch."""

from __future__ import annotations

from harness.cli.plan_commands import make_command

NO_ARGS_IS_HELP = True
_TEXT = """Estimate memory and time of a run and of its alternatives. Starts nothing and contacts no host.

Without a spec: `harness size`. Exit code 1: nothing fits, neither the run nor an alternative.

Example: harness plan ds_configs/demo.yaml --world-size 2
"""

plan = make_command(
    "plan",
    _TEXT,
    "spec hostfile world_size overrides here allow_local_code tokens epochs prices deadline measured trainer format"
    " long calibration plot html search cheapest longest gpus gpu host_memory network price_file write",
    hidden=True,
)
