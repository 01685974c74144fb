"""Memory of a run, as rows: GPU a rank, host a node, NVMe a node; the peak of each and whether it fits.

Arithmetic on settings and model facts; asks no machine what it has.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from harness.facts.devices import Device
from harness.facts.models import ModelFacts
from harness.plan.activations import Shape, head_bytes, kept_input, layer_bytes, logits_peak, recompute_extra
from harness.plan.rows import BACKWARD, BOTH, Phase, Row, Tier, rounding
from harness.plan.settings import Settings
from harness.plan.shards import shard
from harness.plan.states import state_rows

CUDA_CONTEXT = 600_000_000
NCCL_BUFFERS = 700_000_000
GPU_PROCESS = 2_000_000_000
CPU_PROCESS = 500_000_000
SLACK = 0.08
HOST_RESERVE = 0.05


@dataclass(frozen=True, slots=True)
class Memory:
    """All rows of one run. `gpu_peak` is bytes a rank, `host_peak` and `nvme` are bytes a host of `ranks_per_host`.

    On the CPU accelerator (`pooled`) the GPU rows lie in host memory too, and `host_peak` includes them.
    """

    rows: tuple[Row, ...]
    ranks_per_host: int
    pooled: bool

    def of(self, tier: Tier) -> tuple[Row, ...]:
        """The rows of one tier."""
        return tuple(row for row in self.rows if row.tier == tier)

    def at(self, tier: Tier, phase: Phase) -> int:
        """Bytes a rank on this tier in this phase."""
        return sum(row.bytes for row in self.rows if row.tier == tier and phase in row.phases)

    @property
    def gpu_peak_phase(self) -> Phase:
        """When a GPU holds most."""
        return max(BOTH, key=lambda phase: self.at("gpu", phase))

    @property
    def gpu_peak(self) -> int:
        """Bytes a rank on its device at that moment."""
        return self.at("gpu", self.gpu_peak_phase)

    @property
    def host_peak(self) -> int:
        """Bytes a host."""
        pooled = self.gpu_peak if self.pooled else 0
        return self.ranks_per_host * (max(self.at("host", phase) for phase in BOTH) + pooled)

    @property
    def nvme(self) -> int:
        """Bytes on the disks of a host."""
        return self.ranks_per_host * sum(row.bytes for row in self.of("nvme"))

    @property
    def model_states(self) -> int:
        """Bytes a rank of parameters, gradients, master weights and optimizer states, in GPU and host memory."""
        kinds = ("parameters", "gradients", "gradients_whole", "master", "master_gradients", "states")
        rows = [row for row in self.rows if row.kind in kinds and row.tier != "nvme"]
        return max(sum(row.bytes for row in rows if phase in row.phases) for phase in BOTH)


def memory_of(model: ModelFacts, settings: Settings, device: Device | None) -> Memory:
    """Count a run. Without a known device it is taken for a GPU of unknown size."""
    pooled = device is not None and device.is_cpu
    shards = shard(model, settings)
    if pooled:  # host pages that nothing is written to cost nothing: of a bucket, what the gradients fill
        settings = replace(settings, reduce_bucket=min(settings.reduce_bucket, shards.total))
    rows = [*state_rows(settings, shards), *activation_rows(model, settings)]
    rows += _cpu_assumptions() if pooled else _gpu_assumptions(settings, rows)
    return Memory(tuple(rows), settings.ranks_per_host, pooled)


def activation_rows(m: ModelFacts, s: Settings) -> list[Row]:
    """Rows of one rank for the backward pass: what the layers keep, then the head or one recomputed layer."""
    x = Shape(s.tokens_per_micro_batch, s.sequence, 2 if s.mixed else 4, s.attention)
    layers = -(-m.num_layers // s.pipeline)
    in_flight = min(s.pipeline, s.accumulation)
    whole = _divided(layer_bytes(m, x), s.tensor)
    head = head_bytes(m, x) + logits_peak(m, x) - 4 * m.vocab * x.tokens
    source = "transformers modules, saved tensors"
    if not s.checkpointing:
        what = f"activations of {layers} layers"
        kept = Row("gpu", "activations", what, in_flight * layers * whole, _layer_formula(m, x), source, BACKWARD)
        return [kept, _head_row(m, x, head)]
    inputs = in_flight * layers * kept_input(m, x)
    formula = f"{layers} layers x {x.e} x hidden x {x.tokens} tokens"
    kept = Row(
        "gpu", "activations", f"inputs of {layers} layers (gradient checkpointing)", inputs, formula, source, BACKWARD
    )
    again = whole + _divided(recompute_extra(m, x), s.tensor)
    if head >= again:
        return [kept, _head_row(m, x, head)]
    formula = f"{_layer_formula(m, x)} + 2 x {x.e} x intermediate"
    return [kept, Row("gpu", "recompute", "one layer while it is recomputed", again, formula, source, BACKWARD)]


def _divided(size: int, degree: int) -> int:
    return -(-size // degree)


def _layer_formula(m: ModelFacts, x: Shape) -> str:
    return f"{layer_bytes(m, x) // x.tokens:,} bytes a token and layer, {x.tokens} tokens"


def _head_row(m: ModelFacts, x: Shape, size: int) -> Row:
    formula = f"12 x {m.vocab:,} words x {x.tokens} tokens, and the final norm"
    return Row(
        "gpu", "logits", "logits and loss", size, formula, "transformers loss/loss_utils.py, logits in fp32", BACKWARD
    )


def _cpu_assumptions() -> list[Row]:
    what, source = "process: Python, torch, libraries", "assumed"
    return [Row("host", "process", what, CPU_PROCESS, "0.5 GB", source, assumed=True)]


def _gpu_assumptions(s: Settings, rows: list[Row]) -> list[Row]:
    peak = max(sum(r.bytes for r in rows if r.tier == "gpu" and phase in r.phases) for phase in BOTH)
    result = [
        Row("gpu", "context", "CUDA context", CUDA_CONTEXT, "0.6 GB", "assumed: lazy kernel loading", assumed=True),
        Row("gpu", "slack", "allocator slack", int(SLACK * peak), f"{SLACK:.0%} of the above", "assumed", assumed=True),
        Row("host", "process", "process: Python, torch, CUDA", GPU_PROCESS, "2 GB", "assumed", assumed=True),
    ]
    if s.world > 1:
        result.append(Row("gpu", "nccl", "NCCL buffers", NCCL_BUFFERS, "0.7 GB", "assumed", assumed=True))
    extra = rounding(rows) if s.pin_memory else 0
    if extra:
        source = "torch CachingHostAllocator.h: powers of two"
        result.append(Row("host", "rounding", "rounding of page-locked blocks", extra, "next power of two", source))
    return result


@dataclass(frozen=True, slots=True)
class Capacity:
    """What there is: bytes a GPU and a host; None where nobody said."""

    gpu: int | None
    host: int | None


@dataclass(frozen=True, slots=True)
class Fit:
    """Whether a plan fits (None: what is not known may still be too small) and which tier is fullest."""

    fits: bool | None
    binding: str


def fit(memory: Memory, capacity: Capacity) -> Fit:
    """Compare peaks with what there is; 5 % of a host is left to the system."""
    host = None if capacity.host is None else capacity.host * (1 - HOST_RESERVE)
    gpu = None if memory.pooled else capacity.gpu
    shares = {"gpu memory": (memory.gpu_peak, gpu), "host memory": (memory.host_peak, host)}
    known = {name: need / have for name, (need, have) in shares.items() if have}
    if not known:
        return Fit(None, "")
    binding = max(known, key=lambda name: known[name])
    if known[binding] > 1:
        return Fit(False, binding)
    all_known = (memory.pooled or capacity.gpu is not None) and capacity.host is not None
    return Fit(True if all_known else None, binding)


def alternative(settings: Settings, **changes: object) -> Settings:
    """The same settings with some of them changed, `overlap` following the stage as DeepSpeed's default does."""
    if "stage" in changes:
        changes.setdefault("overlap", changes["stage"] == 3)
    return replace(settings, **changes)  # type: ignore[arg-type]
