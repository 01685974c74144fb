# SPDX-License-Identifier: Apache-2.0
"""Causes of a full host memory or disk, as far as the phase of the failure shows them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from harness.diagnosis.diagnosis_types import FailedAllocation, Frame
from harness.units import format_bytes

_STATES_LOW, _STATES_HIGH = 12, 16
"""Bytes per parameter of an Adam on the host: fp32 weights and two moments, and the gradients in fp32."""

_LOADING = (
    "whole-model-per-rank",
    "the model: each rank reads all of it into host memory",
    "set up ZeRO stage 3 before `from_pretrained`, so that each rank keeps only its partition (create "
    "`TrainingArguments(deepspeed=...)` first, or keep an `HfDeepSpeedConfig` alive, or use `deepspeed.zero.Init`);"
    " else load in 16 bits with `low_cpu_mem_usage=True`, or start fewer ranks per host; safetensors files need "
    "less than `.bin` files",
)
_OPTIMIZER = (
    "host-optimizer",
    "the optimizer states, if they are offloaded to the host",
    "give the job more host memory or more hosts; set `offload_optimizer.pin_memory: false`; put the states on NVMe "
    '(`offload_optimizer: {"device": "nvme", "nvme_path": ...}`), or keep them on the GPUs (`device: none`) where '
    "they fit",
)
_SAVING = (
    "consolidated-model",
    "the full model, which one rank gathers in host memory to save it",
    "set `stage3_gather_16bit_weights_on_model_save: false` in `zero_optimization` "
    "(`zero.stage3_gather_16bit_weights_on_model_save` of a run spec) and consolidate the weights from the "
    "checkpoint later with `zero_to_fp32.py`, or give rank 0's host enough memory for the full model",
)
_EVALUATION = (
    "evaluation-logits",
    "the logits of all evaluation batches, which the Trainer collects on the host",
    "set `prediction_loss_only: true`, `preprocess_logits_for_metrics`, `batch_eval_metrics: true` or fewer evaluation "
    "samples",
)
_DATA = (
    "dataset",
    "the dataset while it is read and tokenized",
    "use fewer processes (`preprocessing_num_workers`, `num_proc`), stream it (`streaming: true`), or tokenize it once "
    "before the job; keep it memory-mapped (no `keep_in_memory`)",
)
_TRAINING = (
    "growth-during-training",
    "memory that grew while training: data loader workers, pinned buffers, objects that are kept from step to step",
    "use fewer data loader workers (`dataloader_num_workers`), no `pin_memory`, and look at the host's memory over "
    "time; with offload, `harness plan` counts the constant part",
)
_PINNED = (
    "pinned-memory",
    "pinned (page-locked) host memory",
    "set `pin_memory: false` in `offload_optimizer` and `offload_param`, raise the limit of locked memory (`ulimit -l "
    "unlimited`, `docker run --ulimit memlock=-1`), or start fewer ranks per host",
)
_RESUMING = (
    "checkpoint-in-memory",
    "the checkpoint: each rank reads its files, or those of all ranks, into host memory",
    "start fewer ranks per host while resuming, or convert the checkpoint to universal format; weights alone need "
    "`load_optimizer_states=False`",
)
_BY_PHASE = {
    "model": _LOADING,
    "weights": _LOADING,
    "op": _OPTIMIZER,
    "engine": _OPTIMIZER,
    "optimizer states": _OPTIMIZER,
    "saving": _SAVING,
    "exporting": _SAVING,
    "evaluation": _EVALUATION,
    "data": _DATA,
    "training": _TRAINING,
    "optimizer step": _TRAINING,
    "batch": _TRAINING,
    "forward": _TRAINING,
    "backward": _TRAINING,
    "resuming": _RESUMING,
}
_PIN = re.compile(r"pin_memory|cudaHostAlloc|get_pinned|page-?locked|new_locked_tensor|mlock")
_BUILDS_OPTIMIZER = re.compile(r"cpu_?adam|DeepSpeedCPU|initialize_optimizer_states|fp32_partitions", re.IGNORECASE)


def find_host_allocation(
    frames: Sequence[Frame], phase: str, text: str, num_parameters: int, *, is_seen: bool
) -> FailedAllocation | None:
    """The block that was being allocated on the host; None where the phase says nothing. `is_seen`: the log says that
    memory ran out, and not only that a rank was killed.
    """
    rows = [f"{frame.file} {frame.function} | {frame.code}" for frame in frames[-8:]]
    if _PIN.search(text) or any(_PIN.search(row) for row in rows):
        found = _PINNED
    elif any(_BUILDS_OPTIMIZER.search(row) for row in rows):
        found = _OPTIMIZER
    elif phase in _BY_PHASE and (is_seen or _BY_PHASE[phase] is not _TRAINING):
        found = _BY_PHASE[phase]
    else:
        return None
    name, what, change = found
    if found is _OPTIMIZER:
        what += f": {_STATES_LOW} to {_STATES_HIGH} bytes for each parameter, over all hosts"
        if num_parameters:
            low, high = (format_bytes(num_parameters * size) for size in (_STATES_LOW, _STATES_HIGH))
            what += f"; {num_parameters / 1e9:.3g} billion parameters need {low} to {high}"
    elif found in (_LOADING, _SAVING) and num_parameters:
        what += f"; {num_parameters / 1e9:.3g} billion parameters are {format_bytes(num_parameters * 2)} in 16 bits"
    return FailedAllocation(name, what if is_seen else f"probably {what}", change)


_DISK_BY_TEXT = (
    (
        r"swap_tensor|/aio|nvme|zero_stage_\d",
        "swap-files",
        "the files that ZeRO swaps to NVMe",
        "free space, or name a larger disk in `nvme_path`; remove folders `zero_stage_3` of dead jobs; `harness plan` "
        "counts the bytes",
    ),
    (
        r"cpp_extension|torch_extensions|op_builder|triton|inductor|ninja",
        "compiled-ops",
        "compiled ops or kernels",
        "name folders on a larger disk: `TORCH_EXTENSIONS_DIR`, `TRITON_CACHE_DIR`, `TORCHINDUCTOR_CACHE_DIR`, "
        "`TMPDIR`",
    ),
    (
        r"huggingface_hub|file_download|snapshot_download",
        "downloaded-model",
        "a model that was being downloaded",
        "set `HF_HOME` to a larger disk, or remove old models from its cache",
    ),
    (
        r"datasets/|arrow_writer|/data_cache",
        "dataset-cache",
        "the cache of the dataset",
        "set `HF_DATASETS_CACHE` (or `HF_HOME`) to a larger disk, or stream the dataset",
    ),
    (
        r"wandb|tensorboard|torch/utils/tensorboard",
        "experiment-log",
        "the files of an experiment tracker",
        "set `WANDB_DIR` or the log folder to a larger disk, and remove old runs",
    ),
)


def find_disk_allocation(
    frames: Sequence[Frame], phase: str, text: str, num_parameters: int
) -> FailedAllocation | None:
    """The file that was being written when a disk was full."""
    rows = " ".join([*(f"{frame.file} {frame.function}" for frame in frames[-10:]), text])
    for pattern, name, what, change in _DISK_BY_TEXT:
        if re.search(pattern, rows):
            return FailedAllocation(name, what, change)
    if phase in ("saving", "exporting") or "serialization.py" in rows:
        size = f": {format_bytes(num_parameters * 14)} for this model" if num_parameters else ""
        return FailedAllocation(
            "checkpoint",
            f"a checkpoint: about 14 bytes for each parameter, with the states of Adam{size}",
            "free space and keep fewer checkpoints (`save_total_limit` of the Trainer, `checkpoint.save_total_limit` "
            "of a run spec), save to a larger disk, or without the optimizer (`save_only_model: true`); the checkpoint "
            "that was being written is incomplete: resume from the one before",
        )
    return None
