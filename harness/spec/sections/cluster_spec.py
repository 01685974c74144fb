# SPDX-License-Identifier: Apache-2.0
"""`cluster`: hardware of the hosts, for the plan."""

from typing import Annotated

from pydantic import Field

from harness.spec.sections.section import Positive, Quantity, Section


class ClusterSpec(Section):
    """Hardware of the hosts, where no hostfile or probe provides it. Only the plan uses it."""

    num_nodes: Positive | None = None
    """Hosts."""
    gpus_per_node: Positive | None = None
    """Accelerators per host."""
    gpu: str | None = None
    """A kind that `harness plan` knows, such as `H100-80GB`; or any name, with `gpu_memory` and `gpu_tflops`."""
    gpu_memory: Quantity | None = None
    """Memory of a GPU, such as `80GB`. Overrides that of a known `gpu`."""
    gpu_tflops: Annotated[float, Field(gt=0.0, le=1e6)] | None = None
    """Dense 16-bit peak of a GPU in TFLOP/s, without sparsity. Overrides that of a known `gpu`."""
    gpu_memory_bandwidth: Quantity | None = None
    """Memory bandwidth of a GPU, such as `3.35TB/s`. Overrides that of a known `gpu`."""
    host_memory: Quantity | None = None
    """Memory per host, such as `2TB`."""
    nvme: Quantity | None = None
    """Local disks per host, such as `8x3.5TB`."""
    host_memory_bandwidth: Quantity | None = None
    """Memory bandwidth per host, such as `400GB/s`. `harness doctor --measure` measures it."""
    nvme_read_bandwidth: Quantity | None = None
    """Total read rate of a host's disks, such as `24GB/s`."""
    nvme_write_bandwidth: Quantity | None = None
    """Total write rate of a host's disks."""
    checkpoint_write_bandwidth: Quantity | None = None
    """Write rate of a host to the file system of its checkpoints."""
    checkpoint_shared_bandwidth: Quantity | None = None
    """Write rate of that file system for all hosts together, such as `250GB/s`. Default of the plan: at most 2 TB/s."""
    link_bandwidth: Quantity | None = None
    """One direction between two GPUs of a host, as measured."""
    network_bandwidth: Quantity | None = None
    """Measured network rate of a host in one direction, the sum of its network cards: the bus bandwidth of
    `all_gather_perf` over two hosts, such as `300GB/s`."""
    pcie_bandwidth: Quantity | None = None
    """One direction between a GPU and host memory, as measured."""
    compute_efficiency: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    """Share of the dense peak that forward and backward reach, instead of rates fitted to published runs."""
    failure_hours_per_gpu: Annotated[float, Field(gt=0.0)] | None = None
    """Mean hours between failures of one GPU. Default of the plan: 50,700."""
