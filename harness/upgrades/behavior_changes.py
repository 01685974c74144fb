# SPDX-License-Identifier: Apache-2.0
"""Changes between releases that depend on the configuration alone, and that neither a gate nor a row of a key has.

Each row: the first release with the change, the behavior before and after, the source, and the fix that keeps the old
behavior.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.findings import Severity
from harness.gates.context import Context


@dataclass(frozen=True, slots=True)
class BehaviorChange:
    """One change. `release` is the first with it, `until` the first without it again. `is_bug_fix`: the change only
    fixes a bug. `cite` names DeepSpeed's pull request, or the runs that show it. `sets` are DeepSpeed's keys that keep
    the old behavior (None: remove the key).
    """

    name: str
    release: str
    key: str
    message: str
    note: str
    cite: str
    applies: Callable[[Context], bool] = field(repr=False)
    fix: str = ""
    sets: Mapping[str, Any] = field(default_factory=dict)
    severity: Severity = "warning"
    is_bug_fix: bool = False
    until: str = ""


def _offloads(ctx: Context, section: str = "offload_optimizer") -> bool:
    return ctx.offload_device(section) not in ("", "none")


def _accumulation_steps(ctx: Context) -> int:
    return ctx.run.batch.accumulation or 1


def _uses_muon(ctx: Context) -> bool:
    return ctx.optimizer.name == "muon"


_FP16_NAMES = ("fp16", "float16", "half", "torch.float16")
BEHAVIOR_CHANGES: tuple[BehaviorChange, ...] = (
    BehaviorChange(
        "autotp-at-stage-3-allowed",
        "0.19.4",
        "tensor_parallel.autotp_size",
        "AutoTP with ZeRO stage 3 is refused before and trains from 0.19.4 on",
        "0.16.4 to 0.19.3 refuse the pair with different errors, up to 0.16.3 the block is ignored",
        "#8167, #8168; run on 0.16.9, 0.18.2, 0.19.3, 0.19.4 and 0.19.7",
        lambda ctx: ctx.stage == 3 and ctx.tensor_parallel_size > 1,
        is_bug_fix=True,
    ),
    BehaviorChange(
        "buffers-pinned-on-request",
        "0.18.3",
        "zero_optimization.offload_optimizer.pin_memory",
        "offload buffers of stages 1 and 2 are pinned only where `pin_memory` says so",
        "up to 0.18.2 they are always pinned, which is faster but uses host memory that cannot be swapped",
        "#7689",
        lambda ctx: (
            ctx.stage in (1, 2)
            and ctx.offload_device("offload_optimizer") == "cpu"
            and not ctx.has_key("zero_optimization.offload_optimizer.pin_memory")
        ),
        "write `pin_memory: true` to keep them pinned",
        {"zero_optimization.offload_optimizer.pin_memory": True},
        until="0.19.5",
    ),
    BehaviorChange(
        "fp32-accumulation-of-bf16-refused-at-stage-0",
        "0.19.3",
        "data_types.grad_accum_dtype",
        "bf16 with fp32 gradient accumulation is refused at stage 0",
        "it ran on 0.18.3 and raises NotImplementedError on 0.19.3; the release between them is not known",
        "run on 0.18.3 and 0.19.3",
        lambda ctx: (
            ctx.stage == 0 and ctx.is_enabled("bf16") and ctx.ds("data_types.grad_accum_dtype") in ("fp32", "float32")
        ),
        "train at stage 1, which supports it",
        {"zero_optimization.stage": 1},
        "error",
    ),
    BehaviorChange(
        "bf16-checkpoints-at-stage-0-load",
        "0.18.5",
        "bf16.enabled",
        "checkpoints of bf16 at stage 0 can be loaded",
        "up to 0.18.4 they are saved and cannot be loaded",
        "#7786, #7788, #7790",
        lambda ctx: ctx.stage == 0 and ctx.is_enabled("bf16"),
        is_bug_fix=True,
    ),
    BehaviorChange(
        "bf16-gradient-norm-at-stage-0",
        "0.18.6",
        "bf16.enabled",
        "the gradient norm of bf16 at stage 0, and thus clipping, is correct",
        "up to 0.18.5 it is wrong, so clipped steps were of another size",
        "#7839",
        lambda ctx: ctx.stage == 0 and ctx.is_enabled("bf16"),
        is_bug_fix=True,
    ),
    BehaviorChange(
        "autocast-fp16-scaled-at-stage-0",
        "0.18.0",
        "torch_autocast.dtype",
        "fp16 autocast at stage 0 scales its loss",
        "0.17.2 to 0.17.6 autocast without loss scaling, so small gradients became 0",
        "#7619",
        lambda ctx: (
            ctx.stage == 0 and ctx.is_enabled("torch_autocast") and str(ctx.ds("torch_autocast.dtype")) in _FP16_NAMES
        ),
        is_bug_fix=True,
    ),
    BehaviorChange(
        "muon-is-deepspeeds-own",
        "0.17.6",
        "optimizer.type",
        "`Muon` is DeepSpeed's own optimizer",
        "before, DeepSpeed takes torch's class of that name if there is one, which refuses parameters of one dimension",
        "#7509; run on 0.16.9 and 0.18.2",
        _uses_muon,
        severity="warning",
        is_bug_fix=True,
    ),
    BehaviorChange(
        "muon-at-stage-3",
        "0.18.9",
        "optimizer.type",
        "`Muon` trains at stage 3, without reduce-scatter",
        "before, stage 3 does not support it",
        "#7919",
        lambda ctx: _uses_muon(ctx) and ctx.stage == 3,
        is_bug_fix=True,
    ),
    BehaviorChange(
        "muon-trains-otherwise",
        "0.19.7",
        "optimizer.type",
        "`Muon` trains differently: the losses of the same run change",
        "seen between 0.19.3 and 0.19.7; no setting brings the old steps back",
        "run on 0.19.3 and 0.19.7",
        _uses_muon,
        "finish the run with the old release, and compare the first steps of the next one",
    ),
    BehaviorChange(
        "one-bit-optimizers-gone",
        "0.19.7",
        "optimizer.type",
        "the 1-bit optimizers are gone",
        "before, they were refused above stage 0; now they are unknown",
        "#8489; run on 0.19.8",
        lambda ctx: ctx.optimizer.name in ("onebitadam", "onebitlamb", "zerooneadam"),
        "use AdamW; its communication is not compressed",
        severity="error",
    ),
    BehaviorChange(
        "offload-accumulates-at-stage-2",
        "0.15.2",
        "zero_optimization.offload_optimizer",
        "gradients accumulated at stage 2 with an offloaded optimizer are right",
        "before, they are wrong",
        "#6550",
        lambda ctx: ctx.stage == 2 and _offloads(ctx) and _accumulation_steps(ctx) > 1,
        is_bug_fix=True,
    ),
    BehaviorChange(
        "offload-keeps-every-backward",
        "0.19.0",
        "zero_optimization.offload_optimizer",
        "gradients of several backward passes in one step are kept, and their norm is right",
        "before, some are lost with an offloaded optimizer at stages 1 and 2",
        "#7981, #7967",
        lambda ctx: (
            ctx.stage in (1, 2) and ctx.offload_device("offload_optimizer") == "cpu" and _accumulation_steps(ctx) > 1
        ),
        is_bug_fix=True,
    ),
    BehaviorChange(
        "bf16-accumulation-does-not-leak",
        "0.19.0",
        "gradient_accumulation_steps",
        "the last micro-batch's gradient no longer leaks into the next step",
        "up to 0.18.9 it does at stage 1 in bf16 with accumulation",
        "#7985",
        lambda ctx: ctx.stage == 1 and ctx.is_enabled("bf16") and _accumulation_steps(ctx) > 1,
        is_bug_fix=True,
    ),
    BehaviorChange(
        "bf16-states-on-the-host",
        "0.19.1",
        "bf16.bf16_optimizer_states",
        "bf16 optimizer states work with an offloaded optimizer",
        "before, the pair is refused or the key is ignored",
        "#8010",
        lambda ctx: ctx.ds("bf16.bf16_optimizer_states") is True and _offloads(ctx),
        is_bug_fix=True,
    ),
    BehaviorChange(
        "zenflow-without-topk-ratio",
        "0.19.3",
        "zero_optimization.zenflow.topk_ratio",
        "ZenFlow without a `topk_ratio` is accepted, and the loss becomes NaN or 0",
        "0.18.2 stops and requires `zero_allow_untested_optimizer`",
        "run on 0.18.2, 0.19.3 and 0.19.8",
        lambda ctx: (
            ctx.has_key("zero_optimization.zenflow")
            and ctx.ds("zero_optimization.zenflow.topk_ratio") in (None, "auto")
        ),
        "remove the `zenflow` block",
        {"zero_optimization.zenflow": None},
        "error",
    ),
    BehaviorChange(
        "universal-checkpoints-of-autotp",
        "0.18.9",
        "checkpoint.load_universal",
        "universal checkpoints work with AutoTP",
        "before, they lose the tensor shards",
        "0.18.9's release; read",
        lambda ctx: ctx.ds("checkpoint.load_universal") is True and ctx.tensor_parallel_size > 1 and ctx.stage < 3,
        is_bug_fix=True,
    ),
    BehaviorChange(
        "universal-checkpoints-of-autotp-at-stage-3",
        "0.19.6",
        "checkpoint.load_universal",
        "universal checkpoints work with AutoTP at stage 3 and with uneven shards",
        "up to 0.19.5 they do not",
        "#8185, #8270",
        lambda ctx: ctx.ds("checkpoint.load_universal") is True and ctx.tensor_parallel_size > 1 and ctx.stage == 3,
        is_bug_fix=True,
    ),
    BehaviorChange(
        "unmanaged-accumulation-with-offload",
        "0.19.5",
        "managed_gradient_accumulation",
        "`managed_gradient_accumulation: false` works with an offloaded optimizer",
        "0.19.4 refuses the pair",
        "0.19.5's release; read",
        lambda ctx: ctx.ds("managed_gradient_accumulation") is False and _offloads(ctx),
        is_bug_fix=True,
    ),
    BehaviorChange(
        "schedule-starts-at-its-first-rate",
        "0.15.3",
        "scheduler.type",
        "the schedule starts at `warmup_min_lr`, so the first step trains nothing where that is 0",
        "before, the first step was taken at the rate of the second",
        "run on 0.14.5 and 0.15.4",
        lambda ctx: (
            ctx.ds("scheduler.type") in ("WarmupLR", "WarmupDecayLR")
            and ctx.ds("scheduler.params.warmup_min_lr", 0) == 0
        ),
        "set `warmup_min_lr` above 0",
        severity="info",
    ),
    BehaviorChange(
        "collectives-time-out-earlier",
        "0.19.6",
        "",
        "a collective times out after 10 minutes instead of 30",
        "a rank that saves, compiles or loads for longer than that ends the run",
        "#8253; run on 0.19.3 and 0.19.8",
        lambda ctx: ctx.run.kind != "spec",
        "set DEEPSPEED_TIMEOUT=30, in minutes, to keep it",
        severity="info",
    ),
    BehaviorChange(
        "slow-zero-2-steps",
        "0.18.5",
        "zero_optimization.stage",
        "a step at stage 2 is slow where the model has many parameters",
        "each gradient counts all parameters: with 300 of them 15 times the processor time; 0.18.7 does not",
        "#7882, #7885, #7886; run on 0.18.4, 0.18.5, 0.18.6 and 0.19.3, read in 0.18.7",
        lambda ctx: ctx.stage == 2,
        "take 0.18.7 or newer",
        until="0.18.7",
    ),
    BehaviorChange(
        "gradients-reduced-in-one-bucket",
        "0.12.4",
        "zero_optimization.use_multi_rank_bucket_allreduce",
        "gradients of several ranks are averaged in one all-reduce of the bucket",
        "before, each rank's part was reduced by itself; sums may round otherwise, and memory peaks are other ones",
        "read in 0.12.3 and 0.12.4",
        lambda ctx: ctx.stage in (1, 2) and not ctx.has_key("zero_optimization.use_multi_rank_bucket_allreduce"),
        "set `use_multi_rank_bucket_allreduce: false` to keep it",
        {"zero_optimization.use_multi_rank_bucket_allreduce": False},
        severity="info",
    ),
    BehaviorChange(
        "no-sync-refused",
        "0.16.0",
        "zero_optimization.stage",
        "`engine.no_sync()` is new and refused at stages 2 and 3, and an accelerate that calls it fails",
        "a script or an accelerate that accumulates by `no_sync` stops at its first micro-step",
        "reports; not run",
        lambda ctx: ctx.stage >= 2 and _accumulation_steps(ctx) > 1,
        severity="info",
    ),
    BehaviorChange(
        "two-devices-under-zero-3",
        "0.14.1",
        "zero_optimization.offload_param.device",
        "a step may fail with tensors on two devices where parameters are offloaded",
        "0.14.1 and 0.14.2 alone",
        "reports; not run",
        lambda ctx: ctx.stage == 3 and _offloads(ctx, "offload_param"),
        "take 0.14.3 or newer",
        until="0.14.3",
    ),
)
