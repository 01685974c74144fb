# SPDX-License-Identifier: Apache-2.0
"""All checks, in the order in which they run: what would mean wrong weights comes first."""

from __future__ import annotations

from benchmarks.gpu_checks.check import Check

NO_STREAMS = "a CPU has no streams: a copy that nobody waits for cannot be late"
NO_ALLOCATOR = "a CPU has no caching allocator: reserved memory and what streams keep"
NO_KERNELS = "kernels of a GPU, their time and their rounding"
NO_SIZE = "the planned time and memory of a GPU, and a ratio that is worth something"
NO_CLOCK = "events of a device, and MFU"
CHECKS = (
    Check("device", 1, "device_use", "two ranks compute on the GPU", 2, 30, 90, cannot_show="a GPU"),
    Check("ops", 1, "op_builds", "DeepSpeed's ops are compiled", 1, 20, 200, cannot_show="nvcc"),
    Check("weights-cpu-1", 1, "equal_weights", "one rank, optimizer on the CPU", 1, 60, 120, cannot_show=NO_STREAMS),
    Check("weights-cpu-2", 1, "equal_weights", "two ranks, optimizer on the CPU", 2, 60, 120, cannot_show=NO_STREAMS),
    Check("weights-nvme-1", 1, "equal_weights", "one rank, optimizer on NVMe", 1, 30, 100, cannot_show=NO_STREAMS),
    Check("weights-nvme-2", 1, "equal_weights", "two ranks, optimizer on NVMe", 2, 30, 100, cannot_show=NO_STREAMS),
    Check("rows", 1, "row_copies", "rows arrive whole", 1, 15, 60, cannot_show=NO_STREAMS),
    Check("gathers", 1, "gathers", "layers are gathered ahead", 2, 20, 60, cannot_show="the time of a gather"),
    Check(
        "memory-leaf", 1, "gather_memory", "70B wide, layers as one", 2, 80, 150, host_gib=58, cannot_show=NO_ALLOCATOR
    ),
    Check(
        "memory-plain",
        1,
        "gather_memory",
        "70B wide, module by module",
        2,
        80,
        150,
        host_gib=58,
        cannot_show=NO_ALLOCATOR,
    ),
    Check(
        "memory-nvme",
        1,
        "gather_memory",
        "70B wide, weights on NVMe",
        2,
        60,
        170,
        host_gib=52,
        cannot_show=NO_ALLOCATOR,
    ),
    Check("ops-2", 2, "op_builds", "the same, where part 1 was not run", 1, 20, 200, cannot_show="nvcc"),
    Check("attention", 2, "attention", "masks of packed rows, and their price", 1, 40, 100, cannot_show=NO_KERNELS),
    Check("packing", 2, "packed_rows", "packed rows without masks", 1, 40, 100, cannot_show=NO_KERNELS),
    Check("loss", 2, "loss_chunks", "the loss in chunks", 1, 40, 100, cannot_show=NO_KERNELS),
    Check("syncs", 2, "host_syncs", "steps do not wait for the device", 1, 25, 80, cannot_show="waits for a device"),
    Check(
        "watch", 2, "watched_engine", "an engine under `harness.watch`", 1, 40, 100, cannot_show="waits, and its time"
    ),
    Check("telemetry", 2, "step_lines", "parts of a step, by the device's clock", 2, 60, 120, cannot_show=NO_CLOCK),
    Check("activations", 2, "activation_offload", "activations kept on the host", 1, 30, 90, cannot_show="the copies"),
    Check("recompute", 2, "activation_dials", "activations by dial", 1, 40, 110, cannot_show="memory of a device"),
    Check("saves", 2, "saves", "stalls of saves", 1, 90, 180, cannot_show="copies from a device, and their rate"),
    Check(
        "kills", 2, "kills", "ends of a run, and resumes", 2, 90, 160, cannot_show="memory of a GPU that is given back"
    ),
    Check("ops-3", 3, "op_builds", "the same, where no other part was run", 1, 20, 200, cannot_show="nvcc"),
    Check("copies", 3, "copy_rates", "host to device and back", 1, 15, 60, cannot_show="a bus, and pinned memory"),
    Check("qlora", 3, "quantized_base", "weights in 4 bits", 1, 40, 110, cannot_show="memory of a device"),
    Check("host-rates", 3, "host_rates", "memory, CPU Adam, disk", 1, 30, 90),
    Check(
        "real-size",
        3,
        "real_size",
        "3B against bare DeepSpeed and the plan",
        1,
        240,
        420,
        host_gib=56,
        cannot_show=NO_SIZE,
    ),
)


WIRE = Check("wire", 0, "wire_probe", "two ranks on one GPU reach each other", 2)
"""Of no part: it decides how the others are run."""


def find_check(name: str) -> Check:
    """The check of this name. Raises KeyError."""
    return {check.name: check for check in (WIRE, *CHECKS)}[name]
