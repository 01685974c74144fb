# SPDX-License-Identifier: Apache-2.0
"""`harness degrees`: a plan of any degrees of parallelism, as arithmetic."""

from __future__ import annotations

from harness.cli.plan_commands import make_command

NO_ARGS_IS_HELP = True
_TEXT = """Plan any degrees of parallelism as arithmetic, those that `harness launch` cannot start among them: memory by
stage, work, traffic, bubble and time of a step.

Exit code 1: it does not fit.

Example: harness degrees --model llama-3.1-405b --gpus 16384 --gpu H100-80GB --tensor 8 --pipeline 16
"""

degrees = make_command(
    "degrees",
    _TEXT,
    "model offline gpus gpu gpus_per_node network zero_stage max_length batch_tokens tokens prices format tensor"
    " pipeline context expert virtual_stages schedule micro_batch precision checkpointing states gradients"
    " sequence_parallel timeline scaling",
    fixed={"tensor": 1},
)
