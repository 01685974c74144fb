# SPDX-License-Identifier: Apache-2.0
"""Offload of the optimizer to host memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from harness.facts.kept_copies import KEPT_BYTES
from harness.gates.registry import Cite, Context, Findings, Fix, gate, spec_gate
from harness.gates.swap_sizes import get_sub_group_size, list_shard_sizes
from harness.patches.patch_registry import is_planned
from harness.plan.settings.patch_facts import patch_facts

_DEVICE = "zero.offload_optimizer.device"
_RATIO = "zero.offload_optimizer.ratio"


def _get_ratio(ctx: Context) -> Any:
    return ctx.ds("zero_optimization.offload_optimizer.ratio", 1.0)


@gate(
    "OF004 optimizer-offload-without-zero", upstream="wrong", cites=Cite("ops/adam/cpu_adam.py", "CPUAdam param is on")
)
def optimizer_offload_without_zero(ctx: Context) -> Findings:
    """Optimizer offload without ZeRO.

    `zero.offload_optimizer.device` other than `none` with `zero.stage: 0`.

    Why: At stage 0 nothing is offloaded. DeepSpeed only swaps the optimizer's class for DeepSpeedCPUAdam, which runs on
    the CPU accelerator (run on 0.19.8) and asserts in the first step on a GPU, whose parameters it cannot touch (read).

    Example:
        zero.stage: 0
        zero.offload_optimizer.device: cpu
    """
    if ctx.has_stage and ctx.stage == 0 and ctx.is_optimizer_offloaded:
        lowest_stage = 3 if ctx.offload_device("offload_optimizer") == "nvme" else 1
        yield ctx.finding(
            "the optimizer is not offloaded at ZeRO stage 0",
            _DEVICE,
            label="needs stage 1 or higher",
            related=[("zero.stage", "the stage is set here")],
            notes=["on a GPU DeepSpeed fails in the first step: CPUAdam finds its parameters on the device"],
            fix=ctx.fix_to_set("zero.stage", lowest_stage, effect="the same steps with sharded optimizer states"),
        )


def _has_block_without_device(ctx: Context, section: str) -> bool:
    """Is there a block with at least one key, of which none is `device`?"""
    block = f"zero_optimization.{section}"
    if not ctx.has_key(block) or ctx.has_key(f"{block}.device"):
        return False  # `cpu_offload: false` becomes a block without a device, too, when it is translated
    if getattr(ctx.run.spec.zero, section) is not None:
        return ctx.offload_device(section) == "none"
    value = ctx.ds(block)
    return isinstance(value, dict) and value != {}


@gate(
    "OF006 offload-block-without-a-device",
    cites=Cite("runtime/zero/offload_config.py", 'device: OffloadDeviceEnum = "none"'),
    when=lambda ctx: ctx.stage > 0,
)
def offload_block_without_device(ctx: Context) -> Findings:
    """An offload block without a device.

    `offload_optimizer` or `offload_param` in `zero_optimization` with other keys, but without `device`.

    Why: The default device is `none`: nothing is offloaded, whatever path, ratio or buffers the block names, and the
    optimizer stays on the device (run on 0.19.8 for both blocks).

    Example: {
      "train_micro_batch_size_per_gpu": 1,
      "gradient_clipping": 1.0,
      "zero_optimization": {
        "stage": 2,
        "offload_optimizer": {
          "pin_memory": true
        }
      }
    }
    """
    for section in ("offload_optimizer", "offload_param"):
        if section == "offload_param" and ctx.stage < 3:
            continue  # nothing would be offloaded in any case: OF001 once there is a device
        if _has_block_without_device(ctx, section):
            key = f"zero.{section}.device"
            has_path = ctx.has_key(f"zero_optimization.{section}.nvme_path")
            device = "nvme" if section == "offload_param" and has_path else "cpu"
            effect = "the optimizer moves to the host" if section == "offload_optimizer" else "parameters move"
            yield ctx.finding(
                f"{ctx.key(f'zero.{section}')} has no `device`, so nothing is offloaded",
                key,
                label="the default is `none`",
                fix=ctx.fix_to_set(key, device, effect=effect),
            )


_WITH_CPU_KERNEL = ("", "adam", "adamw", "adagrad", "lion", "muon")


@gate(
    "OF020 offloaded-optimizer-without-a-cpu-kernel",
    severity=("error", "warning"),
    cites=Cite("runtime/engine.py", "torch_optimizer = getattr(torch.optim, self.optimizer_name())"),
    when=lambda ctx: ctx.stage > 0 and ctx.is_optimizer_offloaded,
)
def optimizer_without_cpu_kernel(ctx: Context) -> Findings:
    """An offloaded optimizer without a CPU kernel.

    `zero.offload_optimizer` with an optimizer for which DeepSpeed has no CPU implementation: any but Adam, AdamW,
    Adagrad, Lion and Muon.

    Why: An optimizer of torch is stepped in torch code on the CPU: correct, and several times slower than DeepSpeed's
    own kernels (run on 0.19.8 with SGD). LAMB is a CUDA kernel and cannot step tensors on the host at all (read).

    Example:
        zero.stage: 2
        zero.offload_optimizer.device: cpu
        optimizer.type: sgd
    """
    optimizer = ctx.optimizer
    is_ours = ctx.run.kind == "spec" and optimizer.key == "optimizer"  # the harness allows what ZeRO has not tested
    is_allowed = is_ours or ctx.ds("zero_allow_untested_optimizer")
    if optimizer.name in _WITH_CPU_KERNEL or not is_allowed:
        return
    is_lamb = optimizer.name == "lamb"
    reason = "is a CUDA kernel and cannot step on the CPU" if is_lamb else "has no CPU kernel and steps in torch code"
    yield ctx.finding(
        f"the optimizer is offloaded, and {optimizer.type} {reason}",
        f"{optimizer.key}.type",
        severity="error" if is_lamb else "warning",
        label="no CPU kernel",
        related=[(_DEVICE, "offloaded here")],
        fix=ctx.fix_to_remove(
            "zero.offload_optimizer",
            "or take AdamW, Adagrad or Lion",
            effect="the same steps, with the optimizer on the device",
        ),
    )


@gate(
    "OF025 fp32-optimizer-states-not-read",
    severity=("warning", "error"),
    unread="the states follow the master weights",
    cites=(
        Cite("runtime/engine.py", "optimizer_parameters.pop('fp32_optimizer_states', None)", since="0.19.1"),
        Cite("ops/adam/cpu_adam.py", "fp32_optimizer_states=True"),
    ),
    when=lambda ctx: ctx.optimizer.params.get("fp32_optimizer_states") is False,
)
def unread_fp32_optimizer_states(ctx: Context) -> Findings:
    """A number format of optimizer states that has no effect.

    `fp32_optimizer_states: false` in the parameters of Adam or AdamW without an offloaded optimizer, or offloaded
    without `bf16.bf16_master_weights_and_grads`.

    Why: On the device DeepSpeed drops the key and FusedAdam keeps its states in fp32; up to 0.19.0 FusedAdam refuses
    the key with a TypeError instead (read). Offloaded, the states take the format of the master weights, which is fp32
    unless those were made bf16 (run on 0.19.8).

    Example:
        zero.stage: 2
        deepspeed.optimizer.type: AdamW
        deepspeed.optimizer.params.lr: 0.0001
        deepspeed.optimizer.params.weight_decay: 0.0
        deepspeed.optimizer.params.fp32_optimizer_states: false
    """
    optimizer = ctx.optimizer
    if optimizer.name not in ("adam", "adamw") or optimizer.params.get("torch_adam"):
        return
    is_offloaded = ctx.stage > 0 and ctx.is_optimizer_offloaded
    if is_offloaded and (ctx.ds("bf16.bf16_master_weights_and_grads") or ctx.ds("fp16.fp16_master_weights_and_grads")):
        return
    key = f"{optimizer.key}.params.fp32_optimizer_states"
    if is_offloaded:
        reason, label = "the states follow fp32 master weights", "has no effect"
    elif ctx.target.version < (0, 19, 1):
        reason, label = f"FusedAdam of DeepSpeed {ctx.target.text} does not accept this key: TypeError", "refused"
    else:
        reason, label = "only an offloaded optimizer reads it", "has no effect"
    yield ctx.finding(
        f"{ctx.key(key)} is `false`, but {reason}",
        key,
        severity="error" if label == "refused" else "warning",
        label=label,
        fix=Fix("remove it; `bf16.bf16_optimizer_states` is the key for 16-bit states", {key: None}, safe=True),
    )


@gate(
    "OF028 contiguous-gradients-forced-on",
    severity="info",
    unread="DeepSpeed switches it on itself",
    cites=Cite("runtime/zero/stage_1_and_2.py", "self.contiguous_gradients = contiguous_gradients or self.cpu_offload"),
)
def forced_contiguous_gradients(ctx: Context) -> Findings:
    """Contiguous gradients cannot be switched off with offload.

    `zero.contiguous_gradients: false` at stage 1 or 2 with an offloaded optimizer.

    Why: Offload copies gradients out of the contiguous buffer, so DeepSpeed switches it on whatever the file says (read
    in 0.19.8; the losses are the same).

    Example:
        zero.stage: 2
        zero.contiguous_gradients: false
        zero.offload_optimizer.device: cpu
    """
    if ctx.stage in (1, 2) and ctx.is_optimizer_offloaded and ctx.ds("zero_optimization.contiguous_gradients") is False:
        key = "zero.contiguous_gradients"
        yield ctx.unread(
            f"{ctx.key(key)} is `false`, and an offloaded optimizer switches it on",
            key,
            related=[(_DEVICE, "offloaded here")],
            fix=Fix(f"set {ctx.key(key)} to `true`", {key: True}, safe=True),
        )


@gate(
    "OF005 partial-offload-below-stage-3",
    upstream="raises",
    cites=Cite("runtime/zero/config.py", "Partial offloading only supported for ZeRO Stage 3."),
)
def partial_offload_below_stage_3(ctx: Context) -> Findings:
    """Partial optimizer offload below ZeRO stage 3.

    `zero.offload_optimizer.ratio` below 1 with `zero.stage` 0, 1 or 2.

    Why: DeepSpeed refuses it while it reads the configuration, on every rank: "Partial offloading only supported for
    ZeRO Stage 3."

    Example:
        zero.stage: 2
        zero.offload_optimizer.device: cpu
        zero.offload_optimizer.ratio: 0.5

    Use instead:
        zero.stage: 3
        zero.offload_optimizer.device: cpu
        zero.offload_optimizer.ratio: 0.5
    """
    ratio = _get_ratio(ctx)
    if ctx.has_stage and ctx.stage != 3 and ratio != 1.0:
        yield ctx.finding(
            f"{ctx.key(_RATIO)} is {ratio:g}, only stage 3 offloads a part",
            _RATIO,
            related=[("zero.stage", "the stage is set here")],
            notes=["DeepSpeed refuses this once every rank has started"],
            fix=ctx.fix_to_set(_RATIO, 1.0, effect="all optimizer states on the CPU"),
        )


@gate(
    "OF062 partial-offload-on-nvme",
    upstream="raises",
    cites=Cite("runtime/zero/stage3.py", "self.subgroup_to_device[i] = 'cpu'"),
    when=lambda ctx: ctx.stage == 3 and ctx.offload_device("offload_optimizer") == "nvme",
    unseen="needs CUDA",
)
def partial_offload_on_nvme(ctx: Context) -> Findings:
    """A part of the optimizer on NVMe.

    `zero.offload_optimizer.ratio` below 1 at stage 3 with `device: nvme`.

    Why: Partial offload divides the sub-groups between GPU and CPU, and swapping wants all of them: "expected input to
    be on cuda" while the engine is built (#4872, where the maintainers name `cpu` as the only device; read in 0.14.5 to
    0.19.8).

    Example:
        zero.stage: 3
        zero.offload_optimizer.device: nvme
        zero.offload_optimizer.nvme_path: /local_nvme
        zero.offload_optimizer.ratio: 0.5
    """
    ratio = _get_ratio(ctx)
    if ratio != 1.0:
        yield ctx.finding(
            f"{ctx.key(_RATIO)} is {ratio:g}, which divides the optimizer between GPU and CPU, not NVMe",
            _RATIO,
            related=[("zero.offload_optimizer.device", "the device is set here")],
            notes=["DeepSpeed ends with `expected input to be on cuda` while it builds the optimizer"],
            fix=ctx.fix_to_set(_RATIO, 1.0, effect="all optimizer states on NVMe"),
        )


@gate(
    "OF013 partial-offload-without-cpu-adam",
    upstream="asserts",
    cites=Cite("runtime/zero/stage3.py", "Hybrid Optimizer Only Supports DeepSpeedCPUAdam"),
    when=lambda ctx: ctx.stage == 3 and ctx.is_optimizer_offloaded,
)
def partial_offload_without_cpu_adam(ctx: Context) -> Findings:
    """Partial offload with an optimizer other than DeepSpeedCPUAdam.

    `zero.offload_optimizer.ratio` below 1 at stage 3 with an optimizer that does not become DeepSpeedCPUAdam: any type
    but Adam and AdamW, or these with `torch_adam: true`.

    Why: DeepSpeed asserts "Hybrid Optimizer Only Supports DeepSpeedCPUAdam" when the engine is built, after every rank
    has its weights (run on 0.19.8 with Adagrad and with torch's AdamW).

    Example:
        zero.stage: 3
        zero.offload_optimizer.device: cpu
        zero.offload_optimizer.ratio: 0.5
        deepspeed.optimizer.type: Adagrad
        deepspeed.optimizer.params.lr: 0.01
    """
    ratio = _get_ratio(ctx)
    optimizer = ctx.optimizer
    is_of_torch = optimizer.params.get("torch_adam")
    if ratio != 1.0 and (is_of_torch or optimizer.name not in ("", "adam", "adamw")):
        implementation = f"{optimizer.type} of torch" if is_of_torch else optimizer.type
        yield ctx.finding(
            f"{ctx.key(_RATIO)} is {ratio:g}, which only DeepSpeedCPUAdam supports, not {implementation}",
            _RATIO,
            related=[(f"{optimizer.key}.type", "the optimizer is set here")],
            fix=ctx.fix_to_remove(_RATIO, effect="all optimizer states on the CPU"),
        )


@gate(
    "OF014 partial-offload-of-few-sub-groups",
    severity="warning",
    cites=(
        Cite("runtime/zero/stage3.py", "if i >= int((1 - self.partial_offload) * sub_group_size):", since="0.18.0"),
        Cite("runtime/zero/stage3.py", "if i < int(self.partial_offload * sub_group_size):", until="0.17.6"),
    ),
    needs=("world size", "model facts"),
    when=lambda ctx: ctx.stage == 3 and 0 < _get_ratio(ctx) < 1,
)
def partial_offload_of_few_sub_groups(ctx: Context) -> Findings:
    """Partial offload that rounds to all or nothing.

    `zero.offload_optimizer.ratio` below 1 at stage 3 for a model with too few sub-groups for this share.

    Why: The share counts sub-groups, not parameters: the first `(1 - ratio)` of them, rounded down, stay on the device.
    A model whose shard is smaller than `zero.sub_group_size` (1e9 elements by default) is one sub-group, and `ratio:
    0.5` offloads all of it (run on 0.19.8). Up to 0.17.6 DeepSpeed instead offloads the first `ratio` of them, rounded
    down, here none (read).

    Example:
        model.config: llama-2-layers
        zero.stage: 3
        zero.offload_optimizer.device: cpu
        zero.offload_optimizer.ratio: 0.5
        launch.num_gpus: 2
    """
    shards = list_shard_sizes(ctx)
    limit = get_sub_group_size(ctx)
    if shards is None or limit < 1 or not ctx.is_optimizer_offloaded:
        return
    ratio = _get_ratio(ctx)
    smaller_part = min(ratio, 1 - ratio)
    total = sum(shards)
    groups = -(-total // limit)
    if groups * smaller_part < 1:
        size = max(1, int(total * smaller_part / 4))
        size_key = "zero.sub_group_size"
        sub_groups = f"{groups} sub-group{'s' if groups > 1 else ''}"
        effect = "the same steps in smaller pieces; a share of the states stays on the device"
        yield ctx.finding(
            f"{ctx.key(_RATIO)} is {ratio:g}, but {total:,} elements a rank make {sub_groups}",
            _RATIO,
            label="all or nothing",
            related=[(size_key, "elements a sub-group")],
            fix=ctx.fix_to_set(size_key, size, effect=effect),
        )


_OVERLAP = "zero.offload_optimizer.overlap_step_gib"
_NAMES_OF_FP32 = ("fp32", "float32", "float", "torch.float32")


def _why_not_overlapped(ctx: Context) -> Iterator[tuple[bool, str, str]]:
    """(is it so, the reason, its key), the first of them first."""
    facts = patch_facts(ctx.run)
    is_plain_adam = facts.optimizer_type in ("adam", "adamw")
    reason = f"stage {facts.stage} keeps one sub-group, whose gradients are final at the end"
    yield facts.stage != 3, reason, "zero.stage"
    yield facts.optimizer_device != "cpu", "states are not in host memory", _DEVICE
    yield not is_plain_adam, f"the optimizer is `{ctx.optimizer.type}`", f"{ctx.optimizer.key}.type"
    yield not facts.has_16bit_weights, "weights are in fp32", "precision.bf16"
    is_torch = bool((ctx.optimizer.params or {}).get("torch_adam"))
    yield is_torch, "`torch_adam` is not DeepSpeed's CPU Adam", f"{ctx.optimizer.key}.params"
    is_16bit = bool(ctx.ds("bf16.bf16_master_weights_and_grads") or ctx.ds("bf16.bf16_optimizer_states"))
    yield is_16bit, "masters or states are in bf16", "deepspeed.bf16"
    yield facts.has_plugins, "a plug-in may read masters before the step", "plugins.file"
    block = "deepspeed.zero_optimization"
    yield facts.has_zenflow, "ZenFlow makes its own step", f"{block}.zenflow"
    yield facts.has_super_offload, "SuperOffload makes its own step", f"{block}.offload_optimizer.super_offload"
    yield facts.has_deepcompile, "DeepCompile reduces gradients itself", "deepspeed.compile.deepcompile"
    switches = ctx.run.spec.launch.patches
    yield not is_planned("one-pass-adam", facts, switches), "`one-pass-adam` is switched off", "launch.patches"
    yield facts.offload_ratio == 0, "the device steps all sub-groups", _RATIO
    yield facts.param_device == "nvme", "16-bit weights are on NVMe", "zero.offload_param.device"
    is_wide = facts.offload_ratio < 1 or ctx.ds("data_types.grad_accum_dtype") in _NAMES_OF_FP32
    yield ctx.is_enabled("fp16") and is_wide, "gradients in fp32 are scaled in place", "precision.fp16"
    model = ctx.run.spec.model
    trains_all = not (model.lora or model.freeze or model.train_only)
    held, limit = sum(list_shard_sizes(ctx) or ()) if trains_all else 0, get_sub_group_size(ctx)
    size = held % limit or min(held, limit)  # the last sub-group, which is stepped first
    gib = ctx.run.spec.zero.overlap_step_gib
    reason = f"copies of the last one of {size:,} elements, {KEPT_BYTES} bytes each, do not fit into {gib:g} GiB"
    yield KEPT_BYTES * size > gib * 2**30, reason, "zero.sub_group_size"


@spec_gate(
    "OF036 overlapped-step-not-here",
    cites=Cite("runtime/zero/stage3.py", "self.unscale_and_clip_grads(sub_group_id, scaled_global_grad_norm)"),
    when=lambda ctx: ctx.run.spec.zero.overlap_step_gib > 0,
)
def overlapped_step_not_here(ctx: Context) -> Findings:
    """A step beside the backward pass where it cannot be exact.

    `zero.offload_optimizer.overlap_step_gib` at another stage than 3, with another device than `cpu` or another
    optimizer than DeepSpeed's Adam and AdamW, with weights in fp32 or states in bf16, with parameters on NVMe, with a
    plug-in, ZenFlow, SuperOffload or DeepCompile, with the patch `one-pass-adam` switched off, with a `ratio` of 0, in
    fp16 with gradients summed in fp32 or `ratio` below 1, or in less memory than the copies of a sub-group take.

    Why: The harness steps a sub-group early where it keeps the old values. Elsewhere gradients are not final in
    time, others make the step, or the gradient itself is overwritten by it.

    Example:
        precision.bf16: true
        zero.stage: 2
        zero.offload_optimizer.device: cpu
        zero.offload_optimizer.overlap_step_gib: 8

    Use instead:
        precision.bf16: true
        zero.stage: 3
        zero.offload_optimizer.device: cpu
        zero.offload_optimizer.overlap_step_gib: 8
    """
    found = [(reason, key) for is_so, reason, key in _why_not_overlapped(ctx) if is_so]
    fix = ctx.fix_to_remove(_OVERLAP, effect="the same weights, stepped after the backward pass")
    for reason, key in found[:1]:
        message = f"no sub-group can be stepped beside the backward pass: {reason}"
        yield ctx.finding(message, _OVERLAP, related=[(key, "this is why")], fix=fix)
