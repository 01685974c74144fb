"""Rows that exist only while a model is built, a checkpoint is written or read, a folder is exported; and assumptions.

Model states are in `harness.plan.states`, `zero3`. s12 = deepspeed/runtime/zero/stage_1_and_2.py, s3 = zero/stage3.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from harness.plan.rows import ENGINE, PHASES, SAVE, STEP, Amount, Phase, Row, Tier, pinned, row
from harness.plan.settings import Settings
from harness.plan.shards import Shards

CUDA_CONTEXT = 600_000_000
NCCL_BUFFERS = 700_000_000
GPU_PROCESS = 2_000_000_000
CPU_PROCESS = 500_000_000
SLACK = 0.08
EXPORT_SHARD = 2 << 30
LOAD: tuple[Phase, ...] = ("load",)
RESUME: tuple[Phase, ...] = ("resume",)
EXPORT: tuple[Phase, ...] = ("export",)
_BUILDS = "harness/runtime/models/creation.py build_model"


def phase_rows(s: Settings, z: Shards) -> Iterator[Row]:
    """What building, saving, resuming and exporting need on top of the states."""
    yield from _load(s, z)
    yield from _save(s, z)
    yield from _resume(s, z)
    size = min(EXPORT_SHARD, s.param_bytes * z.total)
    formula, source = "min(2 GiB, P), one a host", "harness/runtime/export.py SHARD_BYTES"
    yield Row("host", "export", "one file of the exported folder", size, formula, source, EXPORT, shared=True)


def _load(s: Settings, z: Shards) -> Iterator[Row]:
    """Stages 0 to 2 and AutoTP build the whole model in fp32 on every rank; stage 3 cuts each module as it is made."""
    w = s.master_bytes
    if s.stage < 3 or s.tensor > 1:
        yield row(
            "host", ("model", "the whole model in fp32, built on every rank"), Amount(4, z.total, "P"), _BUILDS, LOAD
        )
        if 0 < s.stage < 3 and s.optimizer_at == "none":
            zero = Amount(w, z.part, "P / N")
            yield row(
                "gpu", ("temporary", "gradient that creates the states"), zero, "s12 initialize_optimizer_states", LOAD
            )
    if s.stage < 3:
        return
    module = Amount(s.param_bytes, z.largest_module, "largest module")
    yield row(
        "gpu", ("temporary", "one module, gathered to be filled"), module, "zero/partition_parameters.py Init", LOAD
    )
    shards = Amount(s.param_bytes, z.part, "P / N")
    if s.parameters_at == "none":
        what = ("temporary", "shards on their way through the host while they are joined")
        yield row("host", what, shards, "zero/utils.py defragment", LOAD)
    elif s.parameters_at == "cpu":
        what = ("cache", "first shards, kept by torch's cache of page-locked memory")
        yield pinned(what, shards, "s3 _create_fp16_partitions_with_defragmentation", phases=ENGINE)
    masters = ("temporary", "second copy of one sub-group's masters")
    copies = Amount(w, z.sub_group, "largest sub-group / N")
    tier: Tier = "gpu" if s.optimizer_at == "none" else "host"
    yield row(tier, masters, copies, "s3 _create_fp32_partitions", LOAD)


def _save(s: Settings, z: Shards) -> Iterator[Row]:
    """Tensors on a GPU pass through the host one storage at a time; those on the host are written from there."""
    if s.optimizer_at != "none":
        return
    w = s.master_bytes
    amounts = {
        0: Amount(4, z.total, "P"),
        3: Amount(w, z.sub_group, "largest sub-group / N"),
    }
    amount = amounts.get(s.stage, Amount(w, z.part, "P / N"))
    yield row("host", ("save", "one tensor on its way to the file"), amount, "torch.save of the flat buffers", SAVE)


def _resume(s: Settings, z: Shards) -> Iterator[Row]:
    """Every rank reads its optimizer file whole before it copies anything."""
    if s.optimizer_at == "nvme":
        return
    width = s.master_bytes + s.state_bytes * s.num_states
    amount = Amount(width, z.total, "P") if s.stage == 0 else Amount(width, z.part, "P / N")
    source = "runtime/engine.py _load_zero_checkpoint, counted"
    yield row("host", ("resume", "the rank's optimizer file, read whole"), amount, source, RESUME)


def cpu_rows(s: Settings, z: Shards) -> Iterator[Row]:
    """What a rank without a GPU has besides the engine's tensors. Gloo gathers into a copy; without offload the step's
    gradients are gone by then, and it is no larger than they were.
    """
    what, source = "process: Python, torch, libraries", "assumed"
    yield Row("host", "process", what, CPU_PROCESS, "0.5 GB", source, PHASES, assumed=True)
    if s.stage in {1, 2} and s.optimizer_at != "none" and s.world > 1:
        copy = ("temporary", "gloo's copy of the updated parameters")
        yield row("host", copy, Amount(s.param_bytes, z.total, "P"), "runtime/utils.py all_gather_dp_groups", STEP)


def gpu_assumptions(s: Settings, rows: Iterable[Row], padding: int) -> list[Row]:
    """CUDA context, NCCL, allocator slack, the process; and what rounding adds to page-locked blocks."""
    context, during = "assumed: lazy kernel loading", PHASES[:-1]
    result = [
        Row("gpu", "context", "CUDA context", CUDA_CONTEXT, "0.6 GB", context, during, assumed=True),
        slack_row(rows),
        Row("host", "process", "process: Python, torch, CUDA", GPU_PROCESS, "2 GB", "assumed", PHASES, assumed=True),
    ]
    if s.world > 1:
        result.append(Row("gpu", "nccl", "NCCL buffers", NCCL_BUFFERS, "0.7 GB", "assumed", during, assumed=True))
    if padding and s.pin_memory:
        source = "torch CachingHostAllocator.h: powers of two"
        what = "rounding of page-locked blocks"
        result.append(Row("host", "rounding", what, padding, "next power of two", source, during))
    return result


def slack_row(rows: Iterable[Row]) -> Row:
    """What torch's caching allocator reserves above what is allocated: a share of the largest phase's tensors."""
    tensors = [row for row in rows if row.tier == "gpu" and not row.assumed]
    peak = max(sum(row.bytes for row in tensors if phase in row.phases) for phase in PHASES)
    formula = f"{SLACK:.0%} of the largest phase"
    return Row("gpu", "slack", "allocator slack", int(SLACK * peak), formula, "assumed", PHASES[:-1], assumed=True)
