# SPDX-License-Identifier: Apache-2.0
"""Offload to NVMe: paths, keys and the buffers of the optimizer's states."""

from __future__ import annotations

from typing import Any

from harness.gates.registry import Cite, Context, Findings, Fix, gate
from harness.gates.swap_sizes import (
    count_buffers_per_sub_group,
    count_swapped_sub_groups,
    get_parameter_buffer_size,
    get_sub_group_size,
    is_kept_in_host_memory,
    list_shard_sizes,
)
from harness.spec.unread_values import NVME_KEYS

_SECTIONS = ("offload_optimizer", "offload_param")
_OPTIMIZER_DEVICE = "zero.offload_optimizer.device"
_BUFFER_COUNT = "zero.offload_optimizer.buffer_count"


def _is_optimizer_on_nvme(ctx: Context) -> bool:
    return ctx.stage == 3 and ctx.offload_device("offload_optimizer") == "nvme"


def _get_buffer_count(ctx: Context) -> Any:
    return ctx.ds("zero_optimization.offload_optimizer.buffer_count", 4)


def _list_pipeline_keys(ctx: Context) -> list[str]:
    """The spec keys of the switches for pipelined swapping that are on."""
    keys = ("offload_optimizer.pipeline_read", "offload_optimizer.pipeline_write")
    return [f"zero.{key}" for key in keys if ctx.ds(f"zero_optimization.{key}") is True]


@gate(
    "OF002 nvme-offload-without-a-path",
    upstream="crashes",
    cites=(
        Cite("runtime/zero/offload_config.py", "nvme_path: Optional[Path] = None", since="0.15.0"),
        Cite("runtime/zero/offload_config.py", "nvme_path: Path = None", until="0.14.5"),
    ),
    when=lambda ctx: ctx.stage >= 3,  # below stage 3 nothing is swapped, whatever the path: OF001 and OF003
)
def nvme_without_path(ctx: Context) -> Findings:
    """NVMe offload without a path.

    `device: nvme` in `zero.offload_optimizer` or `zero.offload_param` without `nvme_path`.

    Why: DeepSpeed's configuration accepts it. The swapper then fails when the engine is built, after every rank has its
    weights: with a TypeError about `NoneType` for the optimizer, with a bare AssertionError for the parameters (run on
    0.19.8).

    Example:
        zero.stage: 3
        zero.offload_optimizer.device: nvme
    """
    for section in _SECTIONS:
        if ctx.offload_device(section) == "nvme" and not getattr(ctx.run.spec.zero, section).nvme_path:
            key = f"zero.{section}.device"
            path_key = f"zero.{section}.nvme_path"
            yield ctx.finding(
                f"{ctx.key(key)} is `nvme` and {ctx.key(path_key)} is not set",
                key,
                label="where to?",
                notes=["DeepSpeed fails on this only when the engine is built, after every rank has its weights"],
                fix=Fix(
                    f"set {ctx.key(path_key)} to a folder on a local NVMe disk",
                    {path_key: "/local_nvme"},
                    effect="the folder has to exist on every host",
                ),
            )


@gate(
    "OF003 nvme-optimizer-below-stage-3",
    cites=Cite("runtime/zero/stage_1_and_2.py", "offload_optimizer_config.device != OffloadDeviceEnum.none"),
)
def nvme_optimizer_below_stage_3(ctx: Context) -> Findings:
    """Optimizer offload to NVMe below ZeRO stage 3.

    `zero.offload_optimizer.device: nvme` with `zero.stage` 1 or 2.

    Why: At stages 1 and 2 DeepSpeed only checks that the device is not `none` and keeps the optimizer in host memory:
    it writes no file and does not read `nvme_path` (run on 0.19.8). The host needs the memory that NVMe was to save.

    Example:
        zero.stage: 2
        zero.offload_optimizer.device: nvme
        zero.offload_optimizer.nvme_path: /local_nvme
    """
    if ctx.stage in (1, 2) and ctx.offload_device("offload_optimizer") == "nvme":
        yield ctx.finding(
            f"the optimizer stays in host memory at ZeRO stage {ctx.stage}, NVMe needs stage 3",
            _OPTIMIZER_DEVICE,
            label="acts as `cpu`",
            related=[("zero.stage", "the stage is set here")],
            notes=["DeepSpeed silently accepts this and writes nothing to the disk"],
            fix=ctx.fix_to_set(
                "zero.stage", 3, effect="the same steps with sharded parameters and the optimizer on NVMe"
            ),
        )


@gate(
    "OF010 too-few-optimizer-swap-buffers",
    upstream="asserts",
    cites=(
        Cite(
            "runtime/swap_tensor/partitioned_optimizer_swapper.py",
            "required_buffer_count = swap_info.num_tensors()",
            since="0.16.9",
        ),
        Cite(
            "runtime/swap_tensor/partitioned_optimizer_swapper.py",
            "required_buffer_count = len(swap_info.tensors)",
            until="0.16.8",
        ),
    ),
    when=_is_optimizer_on_nvme,
    policy="a model of a few thousand parameters runs: nothing of it is swapped",
)
def few_optimizer_buffers(ctx: Context) -> Findings:
    """Too few swap buffers for the optimizer's states.

    `zero.offload_optimizer.buffer_count` with `device: nvme` at stage 3, against what one step holds at once: the
    master weights, each state and the gradient. That is 4 with Adam and Lion (whose second state nothing reads) and 3
    with Adagrad.

    Why: Fewer buffers end in a bare AssertionError or in "range() arg 3 must not be zero", at initialisation or in the
    first step (run on 0.19.8 with 1, 2 and 3 buffers and Adam; 4 runs). A model whose sub-groups are smaller than 1 MiB
    is not swapped at all and hides it.

    Example:
        zero.stage: 3
        zero.offload_optimizer.device: nvme
        zero.offload_optimizer.nvme_path: /local_nvme
        zero.offload_optimizer.buffer_count: 2
    """
    count = _get_buffer_count(ctx)
    needed = count_buffers_per_sub_group(ctx)
    if count < needed:
        yield ctx.finding(
            f"{ctx.key(_BUFFER_COUNT)} is {count}, a step of {ctx.optimizer.type} holds {needed} buffers",
            _BUFFER_COUNT,
            label="weights, states and gradient",
            fix=ctx.fix_to_set(_BUFFER_COUNT, needed, effect="larger buffers in host memory"),
        )


@gate(
    "OF011 too-few-buffers-for-pipelined-swapping",
    upstream="asserts",
    severity=("error", "warning"),
    cites=Cite("runtime/swap_tensor/pipelined_optimizer_swapper.py", "ran out of swap buffers"),
    when=_is_optimizer_on_nvme,
)
def few_pipeline_buffers(ctx: Context) -> Findings:
    """Too few swap buffers for pipelined swapping.

    `pipeline_read` or `pipeline_write` in `zero.offload_optimizer` with `device: nvme` at stage 3 and too few buffers
    for the sub-groups that are in flight: with Adam 8 for one of the two keys, 12 for both. The default is 4.

    Why: The sub-group that is computed, the one that is read ahead and the one that is still written each hold the
    buffers of a whole sub-group, four with Adam. One too few is an AssertionError in the first step (run on 0.19.8 with
    a model of six sub-groups: 7 buffers failed and 8 ran with one flag, 11 failed and 12 ran with both). A model of two
    sub-groups needs 8 with both flags, and a model of one sub-group 4. Where the model or the ranks are not known, this
    is a warning: with the default `zero.sub_group_size` of 1e9, 8B parameters on 8 ranks are one or two sub-groups a
    rank.

    Example:
        model.name_or_path: meta-llama/Llama-3.1-70B
        launch.num_gpus: 8
        zero.stage: 3
        zero.offload_optimizer.device: nvme
        zero.offload_optimizer.nvme_path: /local_nvme
        zero.offload_optimizer.pipeline_read: true
        zero.offload_optimizer.pipeline_write: true
    """
    keys = _list_pipeline_keys(ctx)
    if not keys:
        return
    count = _get_buffer_count(ctx)
    buffers_per_sub_group = count_buffers_per_sub_group(ctx)
    if count < buffers_per_sub_group:
        return  # too few for a single sub-group: OF010
    sub_groups = 1 + len(keys)
    model = ctx.run.spec.model
    shards = list_shard_sizes(ctx) if model.name_or_path or model.config else None
    if shards is not None:
        sub_groups = min(sub_groups, count_swapped_sub_groups(ctx, shards))
    needed = sub_groups * buffers_per_sub_group
    if count < needed:
        have = "have" if len(keys) > 1 else "has"
        up_to = "" if shards is not None else "up to "
        yield ctx.finding(
            f"{' and '.join(map(ctx.key, keys))} {have} {up_to}{sub_groups} sub-groups in memory at once, "
            f"which need {needed} buffers: there are {count}",
            keys[0],
            severity="error" if shards is not None else "warning",
            label=f"{up_to}{sub_groups} in flight",
            related=[(_BUFFER_COUNT, "buffers")],
            notes=[] if shards is not None else ["how many a rank has depends on the model and the number of ranks"],
            fix=ctx.fix_to_set(
                _BUFFER_COUNT,
                needed,
                effect="more buffers in host memory",
            ),
        )


@gate(
    "OF012 fast-init-buffer-too-small",
    upstream="asserts",
    cites=Cite("runtime/swap_tensor/optimizer_utils.py", "is too small for initializing fp32 params"),
    needs=("world size", "model facts"),
    when=lambda ctx: ctx.stage == 3 and ctx.ds("zero_optimization.offload_optimizer.fast_init") is True,
    unseen="needs shards of 1 MiB and more",
)
def small_fast_init_buffer(ctx: Context) -> Findings:
    """Fast initialisation with small parameter buffers.

    `zero.offload_optimizer.fast_init` with optimizer and parameters on NVMe at stage 3, when a sub-group of the
    optimizer is larger than `zero.offload_param.buffer_size`.

    Why: Fast initialisation reads whole sub-groups through the parameter buffers and asserts "numel of fp16 buffers ...
    is too small" when the engine is built (run on 0.19.8). With the defaults, 1e9 elements in a sub-group and 1e8 in a
    buffer, only small models pass.

    Example:
        model.config: llama-2-layers
        zero:
          stage: 3
          offload_param:
            device: nvme
            nvme_path: /local_nvme
            max_in_cpu: 0
            buffer_count: 16
            buffer_size: 33554432
          offload_optimizer:
            device: nvme
            nvme_path: /local_nvme
            fast_init: true
        launch.num_gpus: 2
    """
    if ctx.offload_device("offload_optimizer") != "nvme" or ctx.offload_device("offload_param") != "nvme":
        return
    shards = list_shard_sizes(ctx)
    if shards is None or is_kept_in_host_memory(ctx, shards):
        return
    largest_group = min(get_sub_group_size(ctx), sum(shards))
    buffer_size = get_parameter_buffer_size(ctx)
    if largest_group <= buffer_size:
        return
    key = "zero.offload_optimizer.fast_init"
    yield ctx.finding(
        f"{ctx.key(key)} reads sub-groups of {largest_group:,} elements through buffers of {buffer_size:,}",
        key,
        related=[("zero.offload_param.buffer_size", "buffers")],
        fix=ctx.fix_to_remove(key, safe=True, effect="the first write to the disk takes longer"),
    )


_NO_FOLDERS = ("/proc/", "/sys/")
_IN_MEMORY = ("/dev/shm", "/run/")  # noqa: S108


def _describe_path_problem(path: str) -> str:
    """The fault of an NVMe path; empty if it has none."""
    if not path.startswith("/"):
        return "relative to where each rank runs"
    if path.startswith(_NO_FOLDERS):
        return "where no folder can be made"
    return "in memory, not on a disk" if path.startswith(_IN_MEMORY) else ""


@gate(
    "OF026 nvme-path-that-is-no-disk",
    severity=("error", "warning"),
    cites=Cite(
        "runtime/zero/stage3.py",
        "nvme_swap_folder = os.path.join(offload_optimizer_config.nvme_path, 'zero_stage_3')",
    ),
    when=lambda ctx: ctx.stage == 3,
)
def nvme_path_off_disk(ctx: Context) -> Findings:
    """An NVMe path that is relative or not on a disk.

    `nvme_path` of an offload section with `device: nvme` at stage 3 that is relative, lies in a file system that lives
    in memory (`/dev/shm`, `/run`), or in one that takes no folders (`/proc`, `/sys`, an error).

    Why: DeepSpeed makes the folder wherever the path leads, on each host for itself. A relative one follows the working
    directory of the ranks; a path in memory uses the memory that NVMe was to save. Where no folder can be made, the
    engine fails with FileNotFoundError (run on 0.19.8: tmpfs is taken, `/proc` is not).

    Example:
        zero.stage: 3
        zero.offload_optimizer.device: nvme
        zero.offload_optimizer.nvme_path: /dev/shm/offload
    """
    for section in _SECTIONS:
        path = ctx.ds(f"zero_optimization.{section}.nvme_path")
        if ctx.offload_device(section) != "nvme" or not isinstance(path, str) or not path:
            continue
        problem = _describe_path_problem(path)
        if problem:
            key = f"zero.{section}.nvme_path"
            yield ctx.finding(
                f"{ctx.key(key)} is `{path}`, which is {problem}",
                key,
                severity="error" if path.startswith(_NO_FOLDERS) else "warning",
                fix=Fix(
                    f"set {ctx.key(key)} to a folder on a local NVMe disk, such as `/local_nvme`",
                    {key: "/local_nvme"},
                    effect="the folder has to exist on every host",
                ),
            )


def _has_value(ctx: Context, key: str) -> bool:
    """Has the file this key with a valid value other than `auto`, null, `none`, false, 0 and the empty text?"""
    return ctx.has_key(key) and ctx.ds(key) not in (None, False, "none", "")


@gate(
    "OF027 nvme-settings-with-cpu",
    severity="info",
    unread="nothing is swapped to a disk",
    cites=Cite(
        "runtime/zero/stage3.py", "self.swap_optimizer = offload_optimizer_config.device == OffloadDeviceEnum.nvme"
    ),
    when=lambda ctx: ctx.stage > 0,
)
def nvme_settings_with_cpu(ctx: Context) -> Findings:
    """Settings for NVMe with `device: cpu`.

    Keys of an offload section that only NVMe reads (`nvme_path`, `buffer_count`, `buffer_size`, `max_in_cpu`,
    `pipeline_read`, `pipeline_write`, `fast_init`) with `device: cpu`.

    Why: Nothing is swapped to a disk, so nothing reads them (read in 0.19.8). Either the device was meant to be `nvme`,
    or they are left over.

    Example:
        zero.stage: 3
        zero.offload_optimizer.device: cpu
        zero.offload_optimizer.nvme_path: /local_nvme
    """
    for section in _SECTIONS:
        if ctx.offload_device(section) != "cpu" or (section == "offload_param" and ctx.stage < 3):
            continue
        names = [name for name in NVME_KEYS if _has_value(ctx, f"zero_optimization.{section}.{name}")]
        if not names:
            continue
        key = f"zero.{section}.{names[0]}"
        others = len(names) - 1
        subject = ctx.key(key) + (f" and {others} other key{'s' if others > 1 else ''}" if others else "")
        has_path = "nvme_path" in names
        yield ctx.unread(
            f"{subject} {'are' if others else 'is'} read with `device: nvme` alone, this is `cpu`",
            key,
            related=[(f"zero.{section}.device", "the device is set here")],
            notes=[f"not read: {', '.join(f'`{name}`' for name in names)}"] if others else [],
            fix=Fix(
                f"remove {'them' if others else 'it'}",
                {f"zero.{section}.{name}": None for name in names},
                safe=not has_path,
                effect="the path is gone for a later run on NVMe" if has_path else "",
            ),
            of_key=True,
        )


_STATES = {"adagrad": 1}
"""Tensors of fp32 that a step makes for a parameter; two with Adam, and with Lion on the CPU."""


@gate(
    "OF032 pipelined-swapping-keeps-states",
    severity="warning",
    cites=(
        Cite("runtime/swap_tensor/pipelined_optimizer_swapper.py", "buffer = torch.Tensor()", since="0.14.5"),
        Cite(
            "runtime/swap_tensor/pipelined_optimizer_swapper.py",
            "unpinned_tensors = param_info.get_unpinned_state_tensors()",
        ),
    ),
    when=lambda ctx: ctx.run.kind == "deepspeed-json" and _is_optimizer_on_nvme(ctx),
)
def optimizer_states_in_host_memory(ctx: Context) -> Findings:
    """Pipelined swapping that keeps the first step's optimizer states in host memory.

    A DeepSpeed JSON that another program trains with, at stage 3, with the optimizer on `nvme` and `pipeline_read` or
    `pipeline_write`.

    Why: The first step makes the states, writes them to the disk and keeps them: `_complete_swap_out` assigns an empty
    tensor to the variable of its loop and releases nothing. With Adam that is 8 bytes a parameter over all ranks, 526
    GiB for 70B, until the second step reads each sub-group; a host without that memory runs out of it. Run on 0.16.9,
    0.18.2, 0.19.3 and 0.19.8 with four sub-groups: either key is enough; without both, nothing stays in memory. 0.14.5
    has the same function; up to 0.14.4 it lacks the loop, and releases nothing either (read). A run spec is not
    affected: `harness launch` releases them.

    Example: {
      "train_micro_batch_size_per_gpu": 1,
      "gradient_clipping": 1.0,
      "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 0.0}},
      "bf16": {"enabled": true},
      "zero_optimization": {
        "stage": 3,
        "offload_optimizer": {
          "device": "nvme",
          "nvme_path": "/local_nvme",
          "buffer_count": 12,
          "pipeline_read": true,
          "pipeline_write": true
        }
      }
    }
    """
    keys = _list_pipeline_keys(ctx)
    if not keys:
        return
    width = 4 * _STATES.get(ctx.optimizer.name, 2)
    yield ctx.finding(
        f"the first step keeps its new optimizer states in host memory: {width} bytes a parameter over all ranks",
        keys[0],
        label="releases nothing of what it writes",
        notes=["the second step reads each sub-group back into the swap buffers, and the memory is free from then on"],
        fix=Fix(
            f"set {' and '.join(map(ctx.key, keys))} to false where hosts have no room for them",
            dict.fromkeys(keys, False),
            effect="a step then waits for the disk before and after each sub-group",
        ),
    )


@gate(
    "CK003 nvme-optimizer-that-deepspeed-cannot-resume",
    severity="warning",
    cites=Cite("runtime/engine.py", "load_zero_checkpoint and not self.zero_nvme_offload_optimizer()"),
    since="0.18.0",
)
def nvme_optimizer_without_resume(ctx: Context) -> Findings:
    """An optimizer on NVMe, whose checkpoints DeepSpeed does not fully load.

    A DeepSpeed JSON with `offload_optimizer.device: nvme` at stage 3. Run specs are not affected: the harness saves and
    loads these states itself.

    Why: `engine.save_checkpoint` writes empty tensors for what is swapped out and copies the swap files next to them;
    `engine.load_checkpoint` skips the optimizer: Adam restarts at step 0 without its moments, the learning rate is that
    of a new scheduler, and the exit code is 0. Neither `zero_to_fp32` nor `ds_to_universal` can read such shards.
    (Recorded from runs on 0.19.8 and read again in its source; the Trainer and accelerate are affected, too. Up to
    0.17.6 it loads the optimizer and copies the swap files back: read, not run.) `harness launch` avoids this: its
    shards hold the values, and a resume is exact.

    Example: {
      "train_micro_batch_size_per_gpu": 1,
      "bf16": {"enabled": true},
      "zero_optimization": {
        "stage": 3,
        "offload_optimizer": {"device": "nvme", "nvme_path": "/local_nvme", "pin_memory": true}
      }
    }
    """
    if ctx.run.kind == "deepspeed-json" and _is_optimizer_on_nvme(ctx):
        yield ctx.finding(
            "DeepSpeed does not load the optimizer of a checkpoint back when it is on NVMe",
            _OPTIMIZER_DEVICE,
            notes=["a resume silently loses Adam's state; `harness launch` of a run spec does not"],
            fix=Fix(
                f"set {ctx.key(_OPTIMIZER_DEVICE)} to cpu",
                {_OPTIMIZER_DEVICE: "cpu", "zero.offload_optimizer.nvme_path": None},
                effect="the optimizer moves to host memory, which must hold it",
            ),
        )
