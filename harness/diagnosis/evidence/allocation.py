# SPDX-License-Identifier: Apache-2.0
"""The allocation with which a GPU, a host or a disk was full: from the traceback, the phase, and torch's numbers.

What may be allocated, and what to change then, is in `catalogue/allocations`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from harness.diagnosis.catalogue import CATALOGUE
from harness.diagnosis.diagnosis_types import FailedAllocation, Frame
from harness.entry_file import read_entries
from harness.units import format_bytes, parse_bytes

_LAST_FRAMES = 12
"""Frames at the end of a traceback that say what was being computed."""
_SIZE = r"([\d.]{1,12} ?[KMGT]i?B)"
_STATES_LOW, _STATES_HIGH = 12, 16
"""Bytes per parameter of an Adam on the host: fp32 weights and two moments, and the gradients in fp32."""
_PIN = re.compile(r"pin_memory|cudaHostAlloc|get_pinned|page-?locked|new_locked_tensor|mlock")
_BUILDS_OPTIMIZER = re.compile(r"cpu_?adam|DeepSpeedCPU|initialize_optimizer_states|fp32_partitions", re.IGNORECASE)


_GPU, _HOST, _DISK = (read_entries(CATALOGUE / "allocations" / f"{place}.txt") for place in ("gpu", "host", "disk"))


def _is_in(phase: str, fields: Mapping[str, str]) -> bool:
    """Is the allocation made in this phase of a job?"""
    return "phases" in fields and phase in fields["phases"].split(", ")


def find_gpu_allocation(frames: Sequence[Frame], phase: str) -> FailedAllocation | None:
    """The block that was being allocated; None where neither the frames nor the numbers show it."""
    texts = [f"{frame.file} {frame.function} | {frame.code}" for frame in frames[-_LAST_FRAMES:]]
    is_chunked = any("chunked_" in frame.file for frame in frames[-4:])
    for name, fields in _GPU.items():
        if ("phases" in fields and not _is_in(phase, fields)) or (
            name == "logits" and (is_chunked or phase == "generation")
        ):
            continue
        if any(re.search(fields["frames"], row) for row in (texts[-4:] if name == "logits" else texts)):
            return FailedAllocation(name, fields["text"], fields["change"])
    if phase in ("model", "weights"):
        text, change = "the model, as it is loaded onto this GPU", _GPU["whole-model"]["change"]
        return FailedAllocation("whole-model", text, change)
    if phase in ("engine", "optimizer states"):
        states = _GPU["optimizer-states"]
        return FailedAllocation("optimizer-states", f"probably {states['text']}", states["change"])
    return None


def find_host_allocation(
    frames: Sequence[Frame], phase: str, text: str, num_parameters: int, *, is_seen: bool
) -> FailedAllocation | None:
    """The block that was being allocated on the host; None where the phase says nothing. `is_seen`: the log says that
    memory ran out, and not only that a rank was killed.
    """
    rows = [f"{frame.file} {frame.function} | {frame.code}" for frame in frames[-8:]]
    by_phase = next((name for name, fields in _HOST.items() if _is_in(phase, fields)), "")
    if _PIN.search(text) or any(_PIN.search(row) for row in rows):
        name = "pinned-memory"
    elif any(_BUILDS_OPTIMIZER.search(row) for row in rows):
        name = "host-optimizer"
    elif by_phase and (is_seen or by_phase != "growth-during-training"):
        name = by_phase
    else:
        return None
    what = _HOST[name]["text"]
    if name == "host-optimizer":
        what += f": {_STATES_LOW} to {_STATES_HIGH} bytes for each parameter, over all hosts"
        if num_parameters:
            low, high = (format_bytes(num_parameters * size) for size in (_STATES_LOW, _STATES_HIGH))
            what += f"; {num_parameters / 1e9:.3g} billion parameters need {low} to {high}"
    elif name in ("whole-model-per-rank", "consolidated-model") and num_parameters:
        what += f"; {num_parameters / 1e9:.3g} billion parameters are {format_bytes(num_parameters * 2)} in 16 bits"
    return FailedAllocation(name, what if is_seen else f"probably {what}", _HOST[name]["change"])


def find_disk_allocation(
    frames: Sequence[Frame], phase: str, text: str, num_parameters: int
) -> FailedAllocation | None:
    """The file that was being written when a disk was full."""
    rows = " ".join([*(f"{frame.file} {frame.function}" for frame in frames[-10:]), text])
    for name, fields in _DISK.items():
        if re.search(fields["frames"], rows) or _is_in(phase, fields):
            has_size = num_parameters and "phases" in fields
            size = f": {format_bytes(num_parameters * 14)} for this model" if has_size else ""
            return FailedAllocation(name, fields["text"] + size, fields["change"])
    return None


def compare_numbers(text: str) -> tuple[str, ...]:
    """Notes on torch's numbers: fragmentation, other processes, memory outside torch, a request larger than the GPU."""
    sizes = {name: _find_size(pattern, text) for name, pattern in _SIZES.items()}
    wanted, total, unallocated = sizes["wanted"], sizes["total"], sizes["unallocated"]
    own, allocated = sizes["own"], sizes["allocated"]
    if sizes["reserved total"]:
        own = sizes["reserved total"]
        unallocated = max(own - allocated, 0)
    notes = []
    if wanted and total and wanted > total:
        notes.append("the request alone is larger than the GPU: one tensor, most often logits, a mask or a flat buffer")
    if wanted and unallocated >= wanted:
        remedy = "`PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`"
        meaning = (
            f"fragmentation; set {remedy}" if unallocated * 20 > total else f"too little for {remedy} to be enough"
        )
        notes.append(f"torch had {format_bytes(unallocated)} reserved but not allocated: {meaning}")
    others = sum(parse_size(size) for size in re.findall(rf"Process \d+ has {_SIZE} memory in use", text)) if own else 0
    if sizes["reserved total"]:
        others = total - own - sizes["free"]
    if total and others > total // 8 and own:
        notes.append(
            f"other processes, or memory outside torch, hold {format_bytes(others)} of this GPU: check `nvidia-smi` "
            f"for a leftover job, another rank on the same GPU, or an inference server"
        )
    outside = own - allocated - unallocated if sizes["own"] and allocated else 0
    if outside > 3 << 30:
        notes.append(
            f"this process holds {format_bytes(outside)} outside torch: the CUDA context, NCCL's buffers (one set for "
            "each process group), other libraries"
        )
    return tuple(notes)


_SIZES = {
    "wanted": rf"Tried to allocate {_SIZE}",
    "total": rf"(?:total capacity of|GPU \d+;) {_SIZE}",
    "free": rf"(?:of which|;) {_SIZE} (?:is )?free",
    "own": rf"this process has {_SIZE} memory in use",
    "allocated": rf"{_SIZE} (?:is allocated by PyTorch|already allocated)",
    "unallocated": rf"and {_SIZE} is reserved by PyTorch but unallocated",
    "reserved total": rf"{_SIZE} reserved in total by PyTorch",
}


def is_refused_with_room(text: str) -> bool:
    """Did the GPU have far more memory than the request, so that another limit refused it?"""
    wanted, free = (_find_size(_SIZES[name], text) for name in ("wanted", "free"))
    return bool(wanted) and free > wanted + (1 << 30)


def _find_size(pattern: str, text: str) -> int:
    match = re.search(pattern, text)
    return parse_size(match[1]) if match else 0


def parse_size(text: str) -> int:
    """Bytes of a size that a log shows; 0 for no size."""
    try:
        return parse_bytes(text)
    except ValueError:
        return 0
