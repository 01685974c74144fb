# SPDX-License-Identifier: Apache-2.0
"""`harness size`: what a model needs, and what fits on GPUs, before there is a run spec."""

from __future__ import annotations

from harness.cli.plan_commands import make_command

NO_ARGS_IS_HELP = True
_TEXT = """Plan a model on GPUs without a run spec: the fastest settings that fit, the fewest or the cheapest GPUs, the
longest sequence, the largest model. Starts nothing and contacts no host.

Exit code 1: nothing fits.

Example: harness size --model llama-3.1-70b --gpus 8 --gpu H100-80GB
"""

size = make_command(
    "size",
    _TEXT,
    "model offline lora qlora params gpus gpu gpus_per_node host_memory nvme network gradients zero_stage max_length"
    " batch_tokens overrides tokens epochs prices deadline measured format long calibration plot html min_gpus cheapest"
    " longest largest_model price_file write table non_state_peak precision states",
)
