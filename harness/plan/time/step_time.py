# SPDX-License-Identifier: Apache-2.0
"""Time of one optimizer step on a known kind of GPU: compute, collectives, CPU Adam, PCIe and NVMe, with their overlap.

The work is counted (`harness.plan.time.step_work`), the rates are fitted (`harness.plan.time.fitted_rates`) or given.
An estimate with a range, not a measurement; no figure for an unknown device.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from harness.facts.devices import Device
from harness.facts.model_lookup import ModelFacts
from harness.plan.settings.plan_settings import PlanSettings
from harness.plan.time.fitted_rates import FITTED, MEASURED_HOST_SPREAD, THREAD_SPREAD, FittedRates
from harness.plan.time.rates import (
    MEASURED_SHARE,
    PAGEABLE_COPY,
    THREAD_BANDWIDTH,
    GroupRates,
    Rates,
    group_rates,
    link_rates,
)
from harness.plan.time.step_work import CollectiveWork, ComputeWork, OptimizerWork, StepWork, count_step_work
from harness.plan.weights.flops import model_flops_per_token

MESSAGE_LATENCY = 20e-6
"""Seconds of one message between pipeline stages, without its bytes."""
_COMPUTE, _CPU_OPTIMIZER, _NVME, PARAMETERS_READ = "compute", "CPU optimizer", "NVMe", "parameters from NVMe"
_NETWORKS = tuple(12.5e9 * cards for cards in (1, 2, 4, 8, 16, 32, 64))
"""Bytes a second of hosts with so many ports of 100 Gbit/s."""
_AFTER_STEP = "parameters gathered after the step"
PARTS_OF_UPDATE = (_CPU_OPTIMIZER, _NVME, "PCIe at the step", _AFTER_STEP, "GPU optimizer")
"""Parts of the optimizer's step, which do not depend on the batch; all others are of the passes."""
_LIMITS = {"issue of collectives": "collectives", PARAMETERS_READ: _NVME, "PCIe at the step": "PCIe"}
"""Parts that count with another one."""
_RATES = {
    _COMPUTE: "compute",
    _CPU_OPTIMIZER: "cpu_optimizer",
    _NVME: "nvme",
    PARAMETERS_READ: "nvme",
    "PCIe": "pcie",
    "PCIe at the step": "pcie",
    "GPU optimizer": "gpu_optimizer",
}


@dataclass(frozen=True, slots=True)
class TimePart:
    """One kind of work: its seconds, those of them that nothing else hides, the factor by which a fast and a slow
    run differ from them, and the further factor of a slow one.
    """

    name: str
    seconds: float
    exposed: float
    scatter: float = 1.0
    slowdown: float = 1.0


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of one optimizer step, by part. `fixed_seconds`: those that do not depend on the batch. `mfu` is that of
    `model_flops_per_token`. `fast_seconds`, `slow_seconds`: four of five measured runs lie between them.
    """

    seconds: float
    bottleneck: str
    parts: tuple[TimePart, ...]
    fixed_seconds: float
    tokens_per_step: int
    mfu: float
    fast_seconds: float = 0.0
    slow_seconds: float = 0.0

    @property
    def range(self) -> tuple[float, float]:
        """Seconds of a fast and of a slow run of this setting."""
        return self.fast_seconds, self.slow_seconds

    @property
    def tokens_per_second(self) -> float:
        """Over all ranks."""
        return self.tokens_per_step / self.seconds

    @property
    def break_even_tokens(self) -> float:
        """Tokens a step at which half of the time goes to what does not depend on the batch."""
        variable = self.seconds - self.fixed_seconds
        return self.tokens_per_step * self.fixed_seconds / variable if variable > 0 else 0.0

    def seconds_of(self, name: str) -> float:
        """Seconds of a part, hidden ones included; 0 if there is none."""
        return next((part.seconds for part in self.parts if part.name == name), 0.0)


def estimate_step_time(
    model: ModelFacts,
    settings: PlanSettings,
    device: Device | None,
    rates: Rates | None = None,
    fitted: FittedRates = FITTED,
) -> StepTime | None:
    """The estimate, or None without a device whose peak is known."""
    if device is None or device.is_cpu:
        return None
    rates = rates or Rates()
    work, links = count_step_work(model, settings), group_rates(settings, device, rates)
    parts = time_parts(work, settings, device, rates, links, fitted)
    peak = device.flops_16 if settings.param_bytes == 2 else device.flops_32
    flops = settings.tokens_per_step * model_flops_per_token(model, settings.seq_length)
    return _sum_parts(parts, settings.tokens_per_step, flops / (peak * settings.world_size))


def replace_parts(time: StepTime, parts: Sequence[TimePart]) -> StepTime:
    """The step of the same tokens with other parts."""
    return _sum_parts(parts, time.tokens_per_step, time.mfu * time.seconds)


def _sum_parts(parts: Sequence[TimePart], tokens: int, peak_seconds: float) -> StepTime:
    """`peak_seconds`: those of the model's operations at the peak of all GPUs."""
    seconds = sum(part.exposed for part in parts)
    return StepTime(
        seconds=seconds,
        bottleneck=bottleneck_of(parts),
        parts=tuple(parts),
        fixed_seconds=sum(part.exposed for part in parts if part.name in PARTS_OF_UPDATE),
        tokens_per_step=tokens,
        mfu=peak_seconds / seconds,
        fast_seconds=sum(part.exposed / part.scatter for part in parts),
        slow_seconds=sum(part.exposed * part.scatter * part.slowdown for part in parts),
    )


def bottleneck_of(parts: Sequence[TimePart]) -> str:
    """What takes most of a step: its parts on the disks, on PCIe and on the links count together."""
    exposed: dict[str, float] = defaultdict(float)
    for part in parts:
        exposed[_LIMITS.get(part.name, part.name)] += part.exposed
    return max(exposed, key=exposed.__getitem__)


def find_enough_network(
    model: ModelFacts, settings: PlanSettings, device: Device, rates: Rates
) -> tuple[float, float, str] | None:
    """Bytes a second of a host's network, of the least for sale with which collectives no longer limit the step, and
    what does then; None where no such network would change their limit.
    """
    here = link_rates(settings, device, rates).network
    for network in (here, *(rate for rate in _NETWORKS if rate > here)):
        time = estimate_step_time(model, settings, device, replace(rates, network=network))
        if time is not None and time.bottleneck != "collectives":
            return None if network == here else (here, network, time.bottleneck)
    return None


def time_parts(
    work: StepWork, settings: PlanSettings, device: Device, rates: Rates, links: GroupRates, fitted: FittedRates
) -> list[TimePart]:
    """The parts of a step that take time. The bubble of a pipeline is part of compute."""
    compute = compute_time(work.compute, settings, device, rates, fitted)
    if settings.step_threads:
        by_threads = _thread_rate(settings) < rates.host_bandwidth(device) * MEASURED_SHARE
        by_host = min(rates.spread.cpu_optimizer, THREAD_SPREAD if by_threads else MEASURED_HOST_SPREAD)
        rates = replace(rates, spread=replace(rates.spread, cpu_optimizer=by_host))
    parts = [
        TimePart(_COMPUTE, compute.seconds, compute.seconds),
        *_collective_parts(work.collectives, settings, links, fitted, _overlappable(work, settings, compute.seconds)),
        *_offload_parts(work.optimizer, settings, device, rates, fitted, compute.seconds),
    ]
    scaled = [_scale_part(part, rates, compute.attention_share) for part in parts if part.seconds > 0]
    if not work.compute.experts or rates.efficiency:
        return scaled
    return [replace(part, slowdown=rates.spread.experts) if part.name == _COMPUTE else part for part in scaled]


def rate_of_part(name: str) -> str:
    """The field of `Scale` and `Spread` that a part of a step goes by."""
    return _RATES.get(name, "collectives")


def _scale_part(part: TimePart, rates: Rates, attention_share: float) -> TimePart:
    """The part by a calibration, with its scatter; that of compute lies between products and attention."""
    rate, spread = rate_of_part(part.name), rates.spread
    factor, scatter = getattr(rates.scale, rate), getattr(spread, rate)
    if part.name == _COMPUTE:
        scatter = scatter ** (1 - attention_share) * spread.attention**attention_share
    return TimePart(part.name, part.seconds * factor, part.exposed * factor, scatter)


def _overlappable(work: StepWork, settings: PlanSettings, compute: float) -> float:
    """Seconds of compute beside collectives: below stage 3 backward passes alone, at stage 1 that of the last batch."""
    times = {1: 1, 2: settings.accumulation}.get(settings.stage)
    return compute * (1.0 if times is None else work.optimizer.last_backward * times)


def _collective_parts(
    work: CollectiveWork, settings: PlanSettings, links: GroupRates, fitted: FittedRates, compute: float
) -> list[TimePart]:
    """Ring collectives: payload x (N - 1) / N over the slowest edge, and the issue of each gather and reduction. Where
    they overlap with so many seconds of `compute`, a share of the shorter one is hidden.
    """
    ranks, hpz = settings.zero_world_size, settings.hpz_partition_size
    share = (ranks - 1) / ranks
    gather = work.gather * share / links.zero + (work.hpz_gather * (hpz - 1) / hpz / links.hpz if hpz > 1 else 0.0)
    reduce = work.reduce * share / links.zero
    issue = (work.gathers * fitted.gather_seconds + work.reductions * fitted.reduction_seconds) if ranks > 1 else 0.0
    after = gather if settings.stage in (1, 2) else 0.0
    data = gather + reduce - after
    can_overlap = settings.overlap_comm and work.prefetches
    hidden = fitted.overlap * min(1.0, compute / (data + issue or 1.0)) if can_overlap else 0.0
    inside = work.tensor / links.tensor + work.sequence / links.sequence
    between = work.pipeline / links.pipeline + work.messages * MESSAGE_LATENCY
    return [
        TimePart("collectives", data, data * (1 - hidden)),
        TimePart("issue of collectives", issue, issue * (1 - hidden)),
        TimePart(_AFTER_STEP, after, after),
        TimePart("tensor and sequence parallelism", inside, inside),
        TimePart("pipeline messages", between, between),
    ]


def _offload_parts(
    work: OptimizerWork, settings: PlanSettings, device: Device, rates: Rates, fitted: FittedRates, compute: float
) -> list[TimePart]:
    """A share of the copies during the passes is hidden, of pageable ones none; the step overlaps with copies of its
    own results alone. In DeepSpeed's order stage 3 copies these from a cast that is not page-locked.
    """
    fast = device.pcie * rates.link_efficiency
    slow = min(fast, PAGEABLE_COPY)
    pcie, weights = fast if settings.pin_memory else slow, fast if settings.pins_parameters else slow
    upload = pcie if settings.stage < 3 or settings.steps_in_one_pass else slow
    pageable = work.pcie / pcie * (pcie < fast) + work.pcie_weights / weights * (weights < fast)
    during = max(work.pcie / pcie, work.pcie_fetched / pcie + work.pcie_weights / weights, pageable)
    boundary = work.pcie_step / pcie + work.upload / upload
    host = work.host_bytes / cpu_step_rate(settings, device, rates, fitted)
    early = min(work.early_share, work.last_backward * compute / host) if host else 0.0
    gpu = work.gpu_elements * fitted.optimizer_bytes / (device.bandwidth * fitted.memory_share) + fitted.step_seconds
    nvme = work.nvme
    swap = _swap_seconds(work, settings, rates, host)
    written = (nvme.gradients_write + nvme.parameters_write) / rates.nvme_write
    read = nvme.parameters_read / rates.nvme_read
    return [
        TimePart("PCIe", during, max(during - compute, fitted.pcie_exposed * during, pageable)),
        TimePart("PCIe at the step", boundary, boundary - min(host, work.pcie_hidden / upload)),
        TimePart("GPU optimizer", gpu, gpu),
        TimePart(_CPU_OPTIMIZER, host, host * (1 - early)),
        TimePart(_NVME, swap + written, swap + written),
        TimePart(PARAMETERS_READ, read, max(0.0, read - compute) if settings.prefetch_bucket_size else read),
    ]


def cpu_step_rate(settings: PlanSettings, device: Device, rates: Rates, fitted: FittedRates) -> float:
    """Bytes a second of host memory that the CPU optimizer of all ranks of a host moves."""
    stream = rates.host_bandwidth(device)
    if settings.step_threads:
        return min(_thread_rate(settings), stream * MEASURED_SHARE)
    share = MEASURED_SHARE if rates.host_memory else fitted.host_memory_share
    return stream * share * (fitted.bound_cores if settings.binds_cores else 1.0)


def _thread_rate(settings: PlanSettings) -> float:
    return THREAD_BANDWIDTH * settings.step_threads * settings.ranks_per_host


def _swap_seconds(work: OptimizerWork, settings: PlanSettings, rates: Rates, step: float) -> float:
    """Seconds beyond the CPU step: a pipelined read or write overlaps with Adam (pipelined_optimizer_swapper.py)."""
    read, write = work.nvme.optimizer_read / rates.nvme_read, work.nvme.optimizer_write / rates.nvme_write
    overlapped = (read if settings.pipeline_read else 0.0) + (write if settings.pipeline_write else 0.0)
    return read + write - overlapped + max(0.0, overlapped - step)


_LEAF_HOOKS = 0.53
"""Python calls of ZeRO-3's hooks with one hook a layer by those with one a module: 12,866 of 24,454 on a tiny Llama."""
_COMPILED_LAUNCHES = 0.5
"""Launches of a compiled layer by those of an eager one; assumed."""


class ComputeTime(NamedTuple):
    """Seconds of a step, and the share of them that fused attention takes."""

    seconds: float
    attention_share: float


def compute_time(
    work: ComputeWork, settings: PlanSettings, device: Device, rates: Rates, fitted: FittedRates
) -> ComputeTime:
    """The longer of what the GPU computes and what the host launches, a micro-batch after the other.

    A given `compute_efficiency` replaces the fitted shares: it is that of all executed operations.
    """
    gpu, attention = _gpu_seconds(work, settings, device, rates, fitted)
    micro_batch = max(gpu, work.layer_passes * launch_seconds(settings, fitted))
    return ComputeTime(micro_batch * work.micro_batches / (1 - work.idle_share), attention / micro_batch)


def _gpu_seconds(
    work: ComputeWork, settings: PlanSettings, device: Device, rates: Rates, fitted: FittedRates
) -> tuple[float, float]:
    """Products, attention, and the traffic of everything else: norms, activations, residuals, logits and their loss.
    Also the seconds of attention alone.
    """
    peak = device.flops_16 if settings.param_bytes == 2 else device.flops_32
    if rates.efficiency:
        executed = work.matmul_flops + work.attention_forward_flops + work.attention_backward_flops / 1.25
        return executed / (peak * rates.efficiency), 0.0
    share = fitted.matmul_share(device.name, work.width, work.rows) * (fitted.expert_share if work.experts else 1.0)
    products = work.matmul_flops / (peak * share)
    forward, backward = fitted.attention_shares(device.name, settings.seq_length)
    if settings.attention == "eager":  # plain products over all pairs; their traffic is that of the saved softmax
        forward = backward = fitted.matmul_share(device.name, work.width, work.rows) / 2
    attention = (work.attention_forward_flops / forward + work.attention_backward_flops / backward) / peak
    traffic = fitted.activation_passes * work.activation_bytes + fitted.logit_bytes * work.logits
    traffic += work.dequantized_bytes
    return products + attention + traffic / (device.bandwidth * fitted.memory_share), attention


def launch_seconds(settings: PlanSettings, fitted: FittedRates) -> float:
    """Seconds of the host for one pass through one layer: kernel launches, Python, ZeRO-3's hooks around modules."""
    launch = fitted.launch_seconds * (_COMPILED_LAUNCHES if settings.compiled else 1.0)
    hooks = fitted.hook_seconds * (_LEAF_HOOKS if settings.leaf_decoder_layers else 1.0)
    return launch + (hooks if settings.stage == 3 else 0.0)
