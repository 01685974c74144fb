# SPDX-License-Identifier: Apache-2.0
"""Changes between releases that depend on the configuration alone, and that neither a gate nor a row of a key has.

`behavior_changes.txt` says what changes; the conditions here, by name, which configurations it is about.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

from harness.entry_file import read_entries
from harness.findings import Severity
from harness.gates.context import Context


class BehaviorChange(NamedTuple):
    """One change, with the fields of the file. `sets` are DeepSpeed's keys that keep the old behavior (None: remove the
    key). `applies` is the condition on a configuration.
    """

    name: str
    release: str
    until: str
    key: str
    severity: Severity
    is_bug_fix: bool
    message: str
    note: str
    cite: str
    fix: str
    sets: Mapping[str, Any]
    applies: Callable[[Context], bool]


def _offloads(ctx: Context, section: str = "offload_optimizer") -> bool:
    return ctx.offload_device(section) not in ("", "none")


def _accumulation_steps(ctx: Context) -> int:
    return ctx.run.batch.accumulation or 1


def _uses_muon(ctx: Context) -> bool:
    return ctx.optimizer.name == "muon"


_FP16_NAMES = ("fp16", "float16", "half", "torch.float16")
_CONDITIONS: Mapping[str, Callable[[Context], bool]] = {
    "autotp-at-stage-3-allowed": lambda ctx: ctx.stage == 3 and ctx.tensor_parallel_size > 1,
    "buffers-pinned-on-request": lambda ctx: (
        ctx.stage in (1, 2)
        and ctx.offload_device("offload_optimizer") == "cpu"
        and not ctx.has_key("zero_optimization.offload_optimizer.pin_memory")
    ),
    "fp32-accumulation-of-bf16-refused-at-stage-0": lambda ctx: (
        ctx.stage == 0 and ctx.is_enabled("bf16") and ctx.ds("data_types.grad_accum_dtype") in ("fp32", "float32")
    ),
    "bf16-checkpoints-at-stage-0-load": lambda ctx: ctx.stage == 0 and ctx.is_enabled("bf16"),
    "bf16-gradient-norm-at-stage-0": lambda ctx: ctx.stage == 0 and ctx.is_enabled("bf16"),
    "autocast-fp16-scaled-at-stage-0": lambda ctx: (
        ctx.stage == 0 and ctx.is_enabled("torch_autocast") and str(ctx.ds("torch_autocast.dtype")) in _FP16_NAMES
    ),
    "muon-is-deepspeeds-own": _uses_muon,
    "muon-at-stage-3": lambda ctx: _uses_muon(ctx) and ctx.stage == 3,
    "muon-trains-otherwise": _uses_muon,
    "one-bit-optimizers-gone": lambda ctx: ctx.optimizer.name in ("onebitadam", "onebitlamb", "zerooneadam"),
    "offload-accumulates-at-stage-2": lambda ctx: ctx.stage == 2 and _offloads(ctx) and _accumulation_steps(ctx) > 1,
    "offload-keeps-every-backward": lambda ctx: (
        ctx.stage in (1, 2) and ctx.offload_device("offload_optimizer") == "cpu" and _accumulation_steps(ctx) > 1
    ),
    "bf16-accumulation-does-not-leak": lambda ctx: (
        ctx.stage == 1 and ctx.is_enabled("bf16") and _accumulation_steps(ctx) > 1
    ),
    "bf16-states-on-the-host": lambda ctx: ctx.ds("bf16.bf16_optimizer_states") is True and _offloads(ctx),
    "zenflow-without-topk-ratio": lambda ctx: (
        ctx.has_key("zero_optimization.zenflow") and ctx.ds("zero_optimization.zenflow.topk_ratio") in (None, "auto")
    ),
    "universal-checkpoints-of-autotp": lambda ctx: (
        ctx.ds("checkpoint.load_universal") is True and ctx.tensor_parallel_size > 1 and ctx.stage < 3
    ),
    "universal-checkpoints-of-autotp-at-stage-3": lambda ctx: (
        ctx.ds("checkpoint.load_universal") is True and ctx.tensor_parallel_size > 1 and ctx.stage == 3
    ),
    "unmanaged-accumulation-with-offload": lambda ctx: (
        ctx.ds("managed_gradient_accumulation") is False and _offloads(ctx)
    ),
    "schedule-starts-at-its-first-rate": lambda ctx: (
        ctx.ds("scheduler.type") in ("WarmupLR", "WarmupDecayLR") and ctx.ds("scheduler.params.warmup_min_lr", 0) == 0
    ),
    "collectives-time-out-earlier": lambda ctx: ctx.run.kind != "spec",
    "slow-zero-2-steps": lambda ctx: ctx.stage == 2,
    "gradients-reduced-in-one-bucket": lambda ctx: (
        ctx.stage in (1, 2) and not ctx.has_key("zero_optimization.use_multi_rank_bucket_allreduce")
    ),
    "no-sync-refused": lambda ctx: ctx.stage >= 2 and _accumulation_steps(ctx) > 1,
    "two-devices-under-zero-3": lambda ctx: ctx.stage == 3 and _offloads(ctx, "offload_param"),
}
"""Every change of the file -> the configurations that it is about."""


def _read_changes() -> Iterator[BehaviorChange]:
    for name, fields in read_entries(Path(__file__).with_suffix(".txt")).items():
        severity = fields.get("severity", "warning")
        yield BehaviorChange(
            name,
            fields["release"],
            fields.get("until", ""),
            fields.get("key", ""),
            "info" if severity == "bug fix" else cast("Severity", severity),
            severity == "bug fix",
            fields["message"],
            fields["note"],
            fields["cite"],
            fields.get("fix", ""),
            json.loads(fields.get("sets", "{}")),
            _CONDITIONS[name],
        )


BEHAVIOR_CHANGES = tuple(_read_changes())
