"""Time of one optimizer step on a known kind of GPU: compute, collectives, CPU Adam, PCIe and NVMe traffic.

The largest is the bottleneck. A first estimate from stated assumptions, not a measurement; no figure is made up for an
unknown device.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.facts.devices import Device
from harness.facts.models import ModelFacts
from harness.plan.settings import Settings
from harness.plan.shards import local_parameters

EFFICIENCY = 0.45
LINK_EFFICIENCY = 0.8
HOST_BANDWIDTH = 400e9
NVME_READ = 10e9
NVME_WRITE = 5e9
ADAM_BYTES = 28
STEP_BYTES = 42

ASSUMPTIONS = (
    f"compute at {EFFICIENCY:.0%} of the dense peak, causal attention at half",
    f"links and PCIe at {LINK_EFFICIENCY:.0%} of their data sheet",
    f"host memory {HOST_BANDWIDTH / 1e9:.0f} GB/s a node; CPU Adam moves {ADAM_BYTES} bytes a parameter, with unscaling"
    f" and the cast {STEP_BYTES}",
    f"NVMe {NVME_READ / 1e9:.0f} GB/s read and {NVME_WRITE / 1e9:.0f} GB/s written a node",
)


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of one optimizer step, by part. `parts` lists everything; collectives that overlap count only where they
    exceed compute.
    """

    seconds: float
    bottleneck: str
    parts: tuple[tuple[str, float], ...]
    tokens_per_second: float


def step_time(model: ModelFacts, s: Settings, device: Device | None) -> StepTime | None:
    """The estimate, or None without a device whose peak is known."""
    if device is None or device.is_cpu:
        return None
    size = sum(p.numel for p in local_parameters(model, s))
    compute = _compute(model, s, device)
    collectives = _collectives(size, s, device) + _tensor_parallel(model, s, device)
    parts = {
        "compute": compute,
        "collectives": collectives,
        "PCIe": _pcie(size, s, device),
        "CPU optimizer": _cpu_optimizer(size, s),
        "NVMe": _nvme(size, s),
    }
    hidden = min(compute, collectives) if s.overlap else 0.0
    seconds = sum(parts.values()) - hidden
    bottleneck = max(parts, key=lambda name: parts[name])
    shown = tuple((name, value) for name, value in parts.items() if value)
    return StepTime(seconds, bottleneck, shown, s.tokens_per_step / seconds)


def flops_per_token(m: ModelFacts, sequence: int, checkpointing: bool) -> float:
    """Floating-point operations that the hardware executes for a token, forward and backward.

    6 a matmul parameter and 6 L a d s of causal attention (half of PaLM's 12). Checkpointing recomputes the layers,
    without the last projection of the MLP (torch stops early): 2 (N_layers - L h f), and the attention's forward.
    """
    attention = 6 * m.num_layers * m.heads * m.head_dim * sequence
    total = 6 * m.matmul_parameters + attention
    if not checkpointing:
        return total
    idle_share = m.experts_per_token or 1
    down = m.num_layers * m.hidden * m.intermediate * idle_share
    layers = m.matmul_parameters - m.vocab * m.hidden
    return total + 2 * (layers - down) + attention / 3


def _compute(m: ModelFacts, s: Settings, device: Device) -> float:
    """Seconds of forward and backward, with the bubble of 1F1B: (p - 1) / m micro-batches idle."""
    peak = device.flops_16 if s.mixed else device.flops_32
    tokens = s.micro_batch * s.accumulation * s.sequence
    ranks = s.tensor * s.pipeline * s.sequence_parallel
    seconds = tokens * flops_per_token(m, s.sequence, s.checkpointing) / (peak * EFFICIENCY * ranks)
    return seconds * (1 + (s.pipeline - 1) / s.accumulation)


def _bandwidth(s: Settings, device: Device) -> float:
    return (device.link if s.hosts == 1 else device.network) * LINK_EFFICIENCY


def _collectives(size: int, s: Settings, device: Device) -> float:
    """Ring collectives of data parallelism, in units of the model's bytes x (N - 1) / N as DeepSpeed issues them.

    Stages 1 and 2 all-reduce gradients by default (`use_multi_rank_bucket_allreduce`); stage 3 gathers twice and
    reduce-scatters once a micro-batch, less what stays gathered over the turn.
    """
    g, n = s.accumulation, s.shards
    if n == 1:
        return 0.0
    kept = min(size, s.reuse // 2 + s.prefetch) / size
    units = {0: 2.0, 1: 3.0, 2: 2.0 * g + 1, 3: g * (3 - kept)}[s.stage]
    return units * s.param_bytes * size * (n - 1) / n / _bandwidth(s, device)


def _tensor_parallel(m: ModelFacts, s: Settings, device: Device) -> float:
    """AutoTP all-reduces the hidden states 7 times a layer: 2 forward, 5 backward."""
    t = s.tensor
    if t == 1:
        return 0.0
    payload = 7 * m.num_layers / s.pipeline * s.tokens_per_micro_batch * m.hidden * s.param_bytes * s.accumulation
    return 2 * payload * (t - 1) / t / (device.link * LINK_EFFICIENCY)


def _pcie(size: int, s: Settings, device: Device) -> float:
    """Gradients to the host and parameters back, the larger direction; the ranks of a host have a link each."""
    part, e, g = size / s.shards, s.param_bytes, s.accumulation
    down = up = 0.0
    if s.optimizer_at != "none":
        down = (e * g + 4 if s.stage == 3 else 4 + (e * g if g > 1 else 0)) * part
        up = e * part + (e * g * part if s.stage == 3 else e * (g - 1) * part)
    if s.parameters_at != "none":
        up += 2 * e * g * part
    return max(down, up) / (device.pcie * LINK_EFFICIENCY)


def _cpu_optimizer(size: int, s: Settings) -> float:
    """A stream over host memory that all ranks of a node share; nothing of it overlaps the GPU."""
    if s.optimizer_at == "none":
        return 0.0
    return STEP_BYTES * size / s.shards * s.ranks_per_host / HOST_BANDWIDTH


def _nvme(size: int, s: Settings) -> float:
    """The optimizer reads and writes 16 bytes a parameter; parameters are read for each gather and written once."""
    part = size / s.shards * s.ranks_per_host
    seconds = 0.0
    if s.optimizer_at == "nvme":
        seconds += 16 * part / NVME_READ + 16 * part / NVME_WRITE
    if s.parameters_at == "nvme":
        seconds += 2 * s.param_bytes * s.accumulation * part / NVME_READ + s.param_bytes * part / NVME_WRITE
    return seconds
