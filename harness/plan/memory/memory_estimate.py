# SPDX-License-Identifier: Apache-2.0
"""Memory of a run, as items: GPU a rank, host a node, NVMe a node; the peak of each and whether it fits.

Arithmetic on settings and model facts; no probe of a machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from harness.facts.devices import Device
from harness.facts.model_lookup import ModelFacts
from harness.plan.memory.activation_items import activation_items, layer_activation_bytes_on_gpu
from harness.plan.memory.gathered_items import gathered_items
from harness.plan.memory.memory_items import (
    PHASES,
    TRAINING,
    MemoryItem,
    Phase,
    Tier,
    keep_largest_moments,
    pinned_rounding_bytes,
)
from harness.plan.memory.model_states import later_gradient_items, model_state_items
from harness.plan.memory.transient_memory import (
    cpu_process_items,
    gpu_overhead_items,
    heap_items,
    held_item,
    transient_items,
)
from harness.plan.memory.zero_partitions import partition_model
from harness.plan.settings.plan_settings import PlanSettings

# Three figures of a GPU's peak: what torch has allocated, what its allocator has reserved, what `nvidia-smi` shows.
#
# `torch.cuda.max_memory_allocated` counts tensors. `max_memory_reserved` adds blocks that the allocator keeps and gaps
# between them; when a GPU is full it gives the free blocks back first, so a run may train with less than it reserves.
# `nvidia-smi` adds the CUDA context and NCCL's buffers, which torch does not see.


class Share(NamedTuple):
    """A factor as measured in the middle, and where most measurements lie."""

    value: float
    low: float
    high: float

    def of(self, size: int) -> tuple[int, int]:
        """The range of a size."""
        return int(self.low * size), int(self.high * size)


ALLOCATED = Share(1.0, 0.85, 1.25)
"""Measured over planned tensors: 26 of 31 runs of DeepSpeed, and of LoRA on one or two GPUs (gist chenyaofo/d4cd6a20,
hpcaitech/OPT-Benchmark, fms-acceleration, litgpt, dlrover, ColossalAI with Lightning). States and buckets are counted;
activations are those of transformers 5 in eager mode, and losses before it keep 4 to 8 bytes more for each logit.
"""
BESIDE_STATES = Share(1.0, 0.75, 1.50)
"""The same of tensors that are no states, with the states as counted: 21 of the 30 runs whose states can be those of
the plan (`benchmarks/published`).
"""
GUESSED = Share(1.0, 0.82, 1.53)
"""The same of a model of which the size in the name alone is known: nine of ten models of the catalogue have 0.97 to
1.22 times the parameters of the guess (`tests/facts/test_estimated_model.py`).
"""
RESERVED = Share(1.10, 1.04, 1.30)
"""Reserved over allocated memory below ZeRO-3: 1.05 to 1.29, half of them below 1.10, in 11 runs of 7B to 8B models on
one A100 (fms-acceleration, scripts/benchmarks/refs/a100_80gb.csv, full and LoRA, packed to 4096).
"""
RESERVED_ZERO3 = Share(1.25, 1.08, 1.50)
"""The same where parameters are gathered and freed all the time: 1.12 to 1.52 in 11 runs on two A100s (the same table,
FSDP), 1.26 to 1.35 in four (meta-llama/llama-cookbook#41, #165). A GPU that is full reserves all that there is: up to
2.4 with everything offloaded (hpcaitech/OPT-Benchmark).
"""


HOST_RESERVE = 0.05
STATE_KINDS = (
    "parameters",
    "frozen",
    "gradients",
    "gradients_whole",
    "master",
    "master_gradients",
    "states",
    "accumulated",
)


ITEM_GROUPS: Mapping[str, tuple[str, ...]] = {
    "parameters": (
        "parameters",
        "frozen",
        "reference",
        "persistent",
        "gathered",
        "secondary",
        "staging",
        "outgoing",
        "model",
        "cache",
    ),
    "gradients": (
        "gradients",
        "gradients_whole",
        "gradient_largest",
        "accumulated",
        "master_gradients",
        "largest",
        "small_gradients",
        "new_gradients",
    ),
    "masters": ("master",),
    "optimizer states": ("states", "first_states", "unused_states", "momentum", "roots"),
    "activations": ("activations", "logits", "recompute"),
    "buffers and temporaries": ("bucket", "temporary", "swap", "save", "staged", "resume", "rounding", "unreleased"),
    "assumed": ("context", "nccl", "slack", "held", "process", "heap", "export"),
}
"""Kinds of items in a few groups, for pictures."""


@dataclass(frozen=True)
class MemoryEstimate:
    """All items of one run. `gpu_peak` is bytes a rank, `host_peak` and `nvme_bytes` are bytes a host of
    `ranks_per_host`.

    On the CPU accelerator (`pooled`) the GPU items lie in host memory too, and `host_peak` includes them.
    """

    items: tuple[MemoryItem, ...]
    ranks_per_host: int
    pooled: bool
    gathers_parameters: bool = False
    """ZeRO-3, where blocks of the GPU's memory come and go, and leave gaps."""
    allocated: Share = ALLOCATED

    def items_of(self, tier: Tier) -> tuple[MemoryItem, ...]:
        """The items of one tier."""
        return tuple(item for item in self.items if item.tier == tier)

    def bytes_at(self, tier: Tier, phase: Phase) -> int:
        """Bytes a rank on this tier in this phase, without the items that the ranks of a host share."""
        return self._totals.get((tier, phase, False), 0)

    @cached_property
    def _totals(self) -> Mapping[tuple[Tier, Phase, bool], int]:
        """Bytes by tier, phase, and whether the ranks of a host share them."""
        totals: dict[tuple[Tier, Phase, bool], int] = {}
        for item in self.items:
            for phase in set(item.phases):
                key = item.tier, phase, item.shared
                totals[key] = totals.get(key, 0) + item.bytes
        return totals

    def host_bytes_at(self, phase: Phase) -> int:
        """Bytes of a host in this phase, device memory included where it is host memory."""
        shared = self._totals.get(("host", phase, True), 0)
        if phase == "export":  # one process a host
            return shared + self.bytes_at("host", phase)
        return (
            self.ranks_per_host * (self.bytes_at("host", phase) + (self.bytes_at("gpu", phase) if self.pooled else 0))
            + shared
        )

    @property
    def gpu_peak_phase(self) -> Phase:
        """The phase in which a GPU holds most."""
        return max(PHASES, key=lambda phase: self.bytes_at("gpu", phase))

    @property
    def gpu_peak(self) -> int:
        """Bytes a rank on its device in that phase."""
        return self.bytes_at("gpu", self.gpu_peak_phase)

    @cached_property
    def allocated_peak(self) -> int:
        """Bytes of tensors on the GPU in the phase of training that has most: `torch.cuda.max_memory_allocated`.

        Without building the engine, which may take more where there is room (`s12 available_memory`).
        """
        return self._fullest[0]

    @cached_property
    def _fullest(self) -> tuple[int, int]:
        """These bytes, and those of the states among them."""
        tensors = [item for item in self.items_of("gpu") if not item.assumed or item.kind == "held"]
        by_phase = ([item for item in tensors if phase in item.phases] for phase in TRAINING)
        return max(
            (sum(i.bytes for i in there), sum(i.bytes for i in there if i.kind in STATE_KINDS)) for there in by_phase
        )

    @property
    def allocated_peak_range(self) -> tuple[int, int]:
        """The lowest and the highest that most runs show. States are as they are counted, and differ with a guessed
        size of the model alone.
        """
        peak, states = self._fullest
        (least, most), beside = self.allocated.of(peak), BESIDE_STATES.of(peak - states)
        low, high = self.allocated.low / ALLOCATED.low, self.allocated.high / ALLOCATED.high
        return max(least, int(low * (states + beside[0]))), min(most, int(high * (states + beside[1])))

    @property
    def gpu_peak_range(self) -> tuple[int, int]:
        """Bytes that training needs of a GPU, with the CUDA context and NCCL's buffers: the least that most runs
        allocate; the most, with the smallest gaps measured. Blocks that are free the allocator gives back when the GPU
        is full, gaps between tensors it cannot.
        """
        low = self.allocated_peak_range[0]
        return low + self._outside_torch, self._reserved_share.of(self.allocated_peak_range[1])[0] + self._outside_torch

    @property
    def reserved_peak(self) -> int:
        """Bytes that torch's allocator takes from the GPU where there is room: `torch.cuda.max_memory_reserved`."""
        return int(self._reserved_share.value * self.allocated_peak)

    @property
    def reserved_peak_range(self) -> tuple[int, int]:
        """From the least allocated with the least gaps to the most with the most."""
        low, high = self.allocated_peak_range
        return self._reserved_share.of(low)[0], self._reserved_share.of(high)[1]

    @property
    def nvidia_smi_peak(self) -> int:
        """Bytes that `nvidia-smi` shows for the process: with the CUDA context and NCCL's buffers."""
        return self.reserved_peak + self._outside_torch

    @property
    def nvidia_smi_peak_range(self) -> tuple[int, int]:
        """That of the reserved memory; half the context and NCCL at least, and twice at most."""
        low, high = self.reserved_peak_range
        return low + self._outside_torch // 2, high + 2 * self._outside_torch

    @property
    def _reserved_share(self) -> Share:
        return RESERVED_ZERO3 if self.gathers_parameters else RESERVED

    @cached_property
    def _outside_torch(self) -> int:
        return sum(item.bytes for item in self.items_of("gpu") if item.kind in ("context", "nccl"))

    @property
    def host_peak_phase(self) -> Phase:
        """The phase in which a host holds most."""
        return max(PHASES, key=self.host_bytes_at)

    @property
    def training_peak_phase(self) -> Phase:
        """The same among forward, backward, step and save; the latest of equals."""
        return max(reversed(TRAINING), key=self.host_bytes_at)

    @property
    def host_peak(self) -> int:
        """Bytes a host in that phase."""
        return self.host_bytes_at(self.host_peak_phase)

    @property
    def nvme_bytes(self) -> int:
        """Bytes on the disks of a host."""
        return self.ranks_per_host * sum(item.bytes for item in self.items_of("nvme"))

    def bytes_by_group(self, tier: Tier) -> dict[str, int]:
        """Bytes by group at the tier's peak: of a rank for the GPU, of a host for the others."""
        phase = self.gpu_peak_phase if tier == "gpu" else self.host_peak_phase
        items = [item for item in self.items_of(tier) if tier == "nvme" or phase in item.phases]
        num_ranks = 1 if tier == "gpu" or phase == "export" else self.ranks_per_host
        return {
            name: sum(item.bytes * (1 if item.shared else num_ranks) for item in items if item.kind in kinds)
            for name, kinds in ITEM_GROUPS.items()
        }

    @property
    def model_state_bytes(self) -> int:
        """Bytes a rank of parameters, gradients, master weights and optimizer states, in GPU and host memory."""
        items = [item for item in self.items if item.kind in STATE_KINDS and item.tier != "nvme"]
        return max(sum(item.bytes for item in items if phase in item.phases) for phase in ("backward", "step"))


def estimate_memory(model: ModelFacts, settings: PlanSettings, device: Device | None) -> MemoryEstimate:
    """The memory of a run. An unknown device counts as a GPU of unknown size."""
    pooled = device is not None and device.is_cpu
    partitions = partition_model(model, settings)
    if pooled:  # host pages that nothing is written to cost nothing: of a bucket, what the gradients fill
        bucket_size = min(settings.reduce_bucket_size, partitions.total)
        pins = settings.pin_memory and settings.pins_natively  # `CPU_Accelerator.pin_memory` returns its argument else
        settings = settings.with_values(reduce_bucket_size=bucket_size, activation_device="none", pin_memory=pins)
        on_gpu, on_host = settings.step_temporaries
        settings = settings.with_values(step_temporaries=(2 * on_gpu, on_host))
    activations = activation_items(model, settings)
    candidates = [
        *model_state_items(settings, partitions),
        *later_gradient_items(settings, partitions, activations, model.num_layers),
        *gathered_items(model, settings, partitions, layer_activation_bytes_on_gpu(model, settings)),
        *activations,
        *transient_items(settings, partitions, None if device is None or pooled else device.memory),
    ]
    candidates = [item for item in candidates if item.bytes and not (pooled and _is_for_a_gpu_alone(item))]
    items = keep_largest_moments(candidates)
    if pooled:
        heap = [item for item in heap_items(model, settings, partitions, candidates) if item.bytes]
        items += [*cpu_process_items(settings, partitions), *heap]
    else:
        items += gpu_overhead_items(settings, items, pinned_rounding_bytes(items))
        items += held_item(settings, partitions)
    share = GUESSED if model.estimated and not model.built else ALLOCATED
    return MemoryEstimate(tuple(items), settings.ranks_per_host, pooled, settings.stage == 3, share)


def _is_for_a_gpu_alone(item: MemoryItem) -> bool:
    """On the CPU accelerator nothing is page-locked: torch keeps no cache of it, and a save needs no blocks of it.
    States that are read are already where the optimizer wants them, and not copied, and neither are updated weights.
    """
    return item.kind in ("cache", "staged", "outgoing") or (item.tier, item.kind) == ("gpu", "resume")


@dataclass(frozen=True, slots=True)
class Capacity:
    """The memory that there is: bytes a GPU, a host and the disks of a host; None where it is unknown."""

    gpu: int | None
    host: int | None
    nvme: int | None = None


@dataclass(frozen=True, slots=True)
class Fit:
    """Does a plan fit (None: an unknown tier may still be too small), and the fullest tier."""

    fits: bool | None
    binding: str
    headroom: float | None = None
    """Share of the fullest tier that is left; negative where it is too small."""
    phase: Phase | None = None
    """When the fullest tier holds most; None for disks."""
    fits_in_training: bool = False
    """Is it too small only while an engine is built, a checkpoint is read or a folder is exported?"""
    uncertain: tuple[int, int] | None = None
    """The range of a GPU's memory in training, where its memory lies inside and all else fits."""
    unknown: tuple[str, ...] = ()
    """Tiers that are used, and whose size nobody knows."""

    @property
    def verdict(self) -> bool | None:
        """Does it surely fit? None where the range of the estimate or an unknown tier leaves it open."""
        return None if self.uncertain else self.fits


def check_fit(memory: MemoryEstimate, capacity: Capacity) -> Fit:
    """Compare the peaks with the capacity; 5 % of a host is left to the system."""
    host = None if capacity.host is None else capacity.host * (1 - HOST_RESERVE)
    gpu = None if memory.pooled else capacity.gpu
    tiers = {
        "GPU memory": (memory.gpu_peak, gpu),
        "host memory": (memory.host_peak, host),
        "NVMe": (memory.nvme_bytes, capacity.nvme),
    }
    shares = {name: need / have for name, (need, have) in tiers.items() if have}
    if not shares:
        return Fit(None, "")
    binding = max(shares, key=lambda name: shares[name])
    headroom = 1 - shares[binding]
    uncertain = _uncertain_range(memory, gpu, all(share <= 1 for name, share in shares.items() if name != "GPU memory"))
    phase = {"GPU memory": memory.gpu_peak_phase, "host memory": memory.host_peak_phase}.get(binding)
    if headroom < 0:
        training = {
            "GPU memory": (max(memory.bytes_at("gpu", each) for each in TRAINING), gpu),
            "host memory": (memory.host_bytes_at(memory.training_peak_phase), host),
            "NVMe": (memory.nvme_bytes, capacity.nvme),
        }
        in_training = all(need <= have for need, have in training.values() if have)
        return Fit(False, binding, headroom, phase, in_training, uncertain)
    used = {name: have for name, (need, have) in tiers.items() if need and not (memory.pooled and name == "GPU memory")}
    unknown = tuple(name for name, have in used.items() if have is None)
    return Fit(None if unknown else True, binding, headroom, phase, uncertain=uncertain, unknown=unknown)


def _uncertain_range(memory: MemoryEstimate, gpu: int | None, others_fit: bool) -> tuple[int, int] | None:
    """The range of a GPU's peak where its memory lies inside, and the GPU alone decides."""
    low, high = memory.gpu_peak_range
    if gpu is None or not others_fit or not low <= gpu < high:
        return None
    is_sure_elsewhere = any(memory.bytes_at("gpu", phase) > gpu for phase in PHASES if phase not in TRAINING)
    return None if is_sure_elsewhere else (low, high)
