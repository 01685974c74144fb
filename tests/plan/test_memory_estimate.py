# SPDX-License-Identifier: Apache-2.0
"""Memory of real models, against the figures that were worked out from DeepSpeed's source. Needs nothing; a second."""

from __future__ import annotations

from typing import Any

import pytest

from harness.plan.memory.memory_estimate import Capacity, MemoryEstimate, check_fit, estimate_memory
from harness.plan.memory.memory_items import PHASES, MemoryItem, Phase, pinned_rounding_bytes
from harness.plan.planner import Plan, make_plan
from harness.plan.settings.plan_settings import settings_of
from harness.run.resolved_run import resolve_run
from tests.support.plan_inputs import TINY, offload, plan_of, run_of


def memory(*args: Any, **kwargs: Any) -> MemoryEstimate:
    memory_of_plan = plan_of(*args, **kwargs).memory
    assert memory_of_plan is not None
    return memory_of_plan


def host_states(plan: Plan) -> float:
    """GB a host in the optimizer step, without processes, rounding and what torch's cache keeps."""
    assert plan.memory is not None
    rows = [row for row in plan.memory.items_of("host") if row.kind not in ("process", "rounding", "cache")]
    rows = [row for row in rows if "step" in row.phases]
    return 8 * sum(row.bytes for row in rows) / 1e9


@pytest.mark.parametrize(
    ("zero", "raw", "gigabytes"),
    [
        (offload("cpu"), {}, 1053),
        (offload("cpu", sub_group_size=100_000_000), {}, 996),
        (offload("cpu", "cpu"), {}, 1162),
        (offload("cpu"), {"bf16": {"bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}}, 564),
        (offload("nvme"), {}, 370),
        (offload("nvme", sub_group_size=100_000_000), {}, 170.5),
    ],
)
def test_llama_70b_on_one_host_of_8(zero: dict[str, Any], raw: dict[str, Any], gigabytes: float) -> None:
    assert host_states(plan_of(zero=zero, deepspeed=raw)) == pytest.approx(gigabytes, abs=1)


def test_parameters_on_nvme_need_a_write_back_buffer_that_is_not_divided() -> None:
    small = memory(zero=offload("nvme", "nvme", sub_group_size=100_000_000))
    large = memory(zero=offload("nvme", "nvme"))
    assert large.host_peak - small.host_peak > 200e9
    assert small.nvme_bytes == pytest.approx((12 + 2) * 70_553_706_496, rel=0.001)


def test_14_bytes_a_parameter_on_the_host_and_16_with_the_parameters() -> None:
    """And fp32 gradients of a sub-group."""
    p, small = 70_553_706_496, {"sub_group_size": 1_000_000}
    assert host_states(plan_of(zero=offload("cpu", **small))) * 1e9 == pytest.approx(14 * p, rel=0.01)
    assert host_states(plan_of(zero=offload("cpu", "cpu", **small))) * 1e9 == pytest.approx(16 * p, rel=0.01)


@pytest.mark.parametrize(
    ("ways", "state_bytes"),
    [((), 0), (("read",), 8), (("write",), 8), (("read", "write"), 8)],
    ids=["plain", "read", "write", "both"],
)
def test_states_of_the_first_step_are_in_memory_where_nobody_releases_them(
    ways: tuple[str, ...], state_bytes: int
) -> None:
    """A DeepSpeed JSON that another program trains with; 526 GiB a host, as counted on DeepSpeed. Not a run spec."""
    swapped = {"device": "nvme", "nvme_path": "/nvme", **{f"pipeline_{way}": True for way in ways}}
    zero = {"stage": 3, "sub_group_size": 100_000_000, "offload_optimizer": swapped}
    ours = run_of(zero=zero, launch={"patches": {"one-pass-adam": "off"}})  # without its buffers for two sub-groups
    peaks = [make_plan(run).memory for run in (ours, resolve_run(ours.spec, world_size=8, kind="deepspeed-json"))]
    more = {}
    for phase in ("step", "load"):
        without, with_them = (m.host_bytes_at(phase) for m in peaks if m is not None)
        more[phase] = with_them - without
    # What else a JSON has in memory: gradients too small for the disk. A run spec has those of two sub-groups instead.
    two_sub_groups = sum(row.bytes for row in peaks[0].items if row.kind == "first_states")  # type: ignore[union-attr]
    assert more["step"] + (8 * two_sub_groups if state_bytes else 0) == pytest.approx(
        state_bytes * 70_553_706_496, rel=0.002, abs=1e9
    )
    assert more["load"] == 0


def test_llama_8b_at_stage_3_in_the_step() -> None:
    rows = memory("llama-3.1-8b").items
    step = {row.kind: row.bytes / 1e9 for row in rows if row.tier == "gpu" and "step" in row.phases and not row.assumed}
    assert step["parameters"] == pytest.approx(2.01, abs=0.01)
    assert step["master"] + step["states"] == pytest.approx(12.05, abs=0.01)
    assert step["temporary"] == pytest.approx(6.0, abs=0.1)


@pytest.mark.parametrize(
    ("stage", "per_parameter", "shared"), [(0, 16, 0), (1, 4, 12)], ids=["replicated", "optimizer states sharded"]
)
def test_model_states_of_the_literature(stage: int, per_parameter: float, shared: float) -> None:
    p = 8_030_261_248
    assert memory("llama-3.1-8b", zero={"stage": stage}).model_state_bytes == pytest.approx(
        (per_parameter + shared / 8) * p, rel=1e-3
    )


def test_fp32_keeps_a_second_copy_of_the_weights_at_stages_1_to_3() -> None:
    kinds = [row.kind for row in memory(precision={"bf16": False}).items]
    assert "master" in kinds
    assert "master" not in [row.kind for row in memory(precision={"bf16": False}, zero={"stage": 0}).items]


def test_checkpointing_keeps_inputs_instead_of_layers() -> None:
    bytes_by_kind = {row.kind: row.bytes for row in memory("llama-3.1-8b").items}
    assert bytes_by_kind["activations"] == 32 * 2 * 4096 * 4096
    whole = {row.kind: row.bytes for row in memory("llama-3.1-8b", train={"gradient_checkpointing": False}).items}
    assert whole["activations"] == 32 * 4096 * 200_840


def test_on_the_cpu_device_rows_are_host_memory() -> None:
    m = memory(TINY, ranks=2, cluster={"gpu": "cpu"})
    assert m.pooled
    assert m.host_peak == max(m.host_bytes_at(phase) for phase in PHASES)
    assert m.host_bytes_at("step") == 2 * (m.bytes_at("host", "step") + m.bytes_at("gpu", "step"))
    assert not [row for row in m.items if row.kind in ("context", "nccl", "rounding")]


def _kept_by_malloc(length: int, *, checkpointing: bool) -> int:
    """Bytes in the backward pass."""
    sections: dict[str, Any] = {"cluster": {"gpu": "cpu"}, "data": {"max_length": length}}
    items = memory(TINY, ranks=2, train={"gradient_checkpointing": checkpointing}, **sections).items
    return sum(item.bytes for item in items if item.kind == "heap" and "backward" in item.phases)


def test_on_the_cpu_malloc_keeps_the_blocks_of_a_micro_batch() -> None:
    """The blocks that are computed again too; none of more than 32 MiB, which it maps one by one."""
    plain = memory(TINY, ranks=2, train={"gradient_checkpointing": False}, cluster={"gpu": "cpu"}).items
    kinds = ("activations", "logits", "gathered", "gradient_largest")
    blocks = sum(item.bytes for item in plain if item.kind in kinds and "backward" in item.phases)
    assert _kept_by_malloc(4096, checkpointing=False) == blocks > 10_000_000
    assert _kept_by_malloc(4096, checkpointing=True) == blocks
    assert _kept_by_malloc(1 << 19, checkpointing=False) < 1_000_000
    assert not [item for item in memory(TINY, ranks=2).items if item.kind == "heap"]


def test_on_the_cpu_only_the_touched_part_of_a_bucket_counts() -> None:
    bucket = next(row for row in memory(TINY, ranks=2, cluster={"gpu": "cpu"}).items if row.kind == "bucket")
    assert bucket.bytes == 2 * 94_912


def test_every_row_has_a_formula_and_a_source() -> None:
    for zero in ({"stage": 0}, {"stage": 1}, offload("cpu", stage=2), offload("nvme", "nvme")):
        for row in memory(zero=zero).items:
            assert row.bytes > 0
            assert row.formula
            assert row.source


def test_pinned_blocks_are_rounded_up_to_powers_of_two() -> None:
    rows = [
        MemoryItem("host", "x", "x", 5, "", "", pinned_blocks=(5, 8)),
        MemoryItem("host", "y", "y", 9, "", "", pinned_blocks=(9,)),
        MemoryItem("host", "z", "z", 3, "", ""),
    ]
    assert pinned_rounding_bytes(rows) == 3 + 0 + 7


def test_the_rounding_disappears_without_pinned_memory() -> None:
    zero = {"stage": 3, "offload_optimizer": {"device": "cpu", "pin_memory": False}}
    assert "rounding" in [row.kind for row in memory(zero=offload("cpu")).items]
    assert "rounding" not in [row.kind for row in memory(zero=zero).items]


@pytest.mark.parametrize(
    ("gpu", "host", "expected"),
    [
        (80 * 2**30, 2 * 10**12, (True, "host memory")),
        (20 * 2**30, 2 * 10**12, (False, "GPU memory")),
        (80 * 2**30, 10**12, (False, "host memory")),
        (80 * 2**30, None, (None, "GPU memory")),
        (None, 10**12, (False, "host memory")),
        (None, None, (None, "")),
    ],
)
def test_fit(gpu: int | None, host: int | None, expected: tuple[bool | None, str]) -> None:
    fit = check_fit(memory(zero=offload("cpu")), Capacity(gpu, host))
    assert (fit.fits, fit.binding) == expected


def test_disks_that_are_too_small_or_unknown() -> None:
    needed = memory(zero=offload("nvme", sub_group_size=100_000_000))
    assert check_fit(needed, Capacity(80 * 2**30, 10**12, 8 * 10**11)).binding == "NVMe"
    assert check_fit(needed, Capacity(80 * 2**30, 10**12, 8 * 10**11)).fits is False
    assert check_fit(needed, Capacity(80 * 2**30, 10**12, 8 * 10**12)).fits is True
    assert check_fit(needed, Capacity(80 * 2**30, 10**12)).fits is None


def test_resuming_reads_the_optimizer_file_whole_on_every_rank() -> None:
    p, m = 70_553_706_496, memory(zero=offload("cpu"))
    row = next(row for row in m.items if row.kind == "resume")
    assert 8 * row.bytes == pytest.approx(12 * p, rel=1e-4)
    assert 1.3e12 < m.host_bytes_at("resume") < 2e12
    assert m.host_bytes_at("load") < m.host_bytes_at("step") < m.host_bytes_at("resume")


def test_below_stage_3_every_rank_builds_the_whole_model() -> None:
    """Weights that are read in bf16, new ones in fp32."""
    new = {"random_init": True}
    assert (
        3 * 8 * 8_030_261_248 > memory("llama-3.1-8b", zero={"stage": 2}).host_bytes_at("load") > 2 * 8 * 8_030_261_248
    )
    assert memory("llama-3.1-8b", model=new, zero={"stage": 2}).host_bytes_at("load") > 4 * 8 * 8_030_261_248
    assert memory("llama-3.1-8b").host_bytes_at("load") < 4 * 8_030_261_248


def test_a_checkpoint_leaves_a_gpu_one_tensor_at_a_time() -> None:
    rows = {row.kind: row for row in memory("llama-3.1-8b").items if "save" in row.phases}
    assert rows["save"].bytes == 4 * 1_003_782_656
    assert "save" not in {row.kind for row in memory(zero=offload("cpu")).items}


def test_the_second_shard_of_zeropp_is_there_between_gather_and_step() -> None:
    rows = memory("llama-3.1-8b", deepspeed={"zero_optimization": {"zero_hpz_partition_size": 4}}).items
    second = next(row for row in rows if row.kind == "secondary")
    assert second.phases == ("forward", "backward")
    assert second.bytes == pytest.approx(2 * 8_030_261_248 / 4, rel=1e-3)


@pytest.mark.parametrize(("accumulation", "in_flight"), [(1, 1), (2, 2), (16, 4)])
def test_the_first_stage_of_a_pipeline_holds_several_micro_batches(accumulation: int, in_flight: int) -> None:
    run: dict[str, Any] = {"zero": {"stage": 1}, "parallel": {"pipeline_parallel_size": 4}}
    train = {"gradient_accumulation_steps": accumulation, "gradient_checkpointing": False}
    activations = next(row for row in memory("llama-3.1-70b", train=train, **run).items if row.kind == "activations")
    one = 20 * 4096 * (16 * 8192 + 8 + 4 * 72 * 128 + 4 * 64 + 8 * 28672)
    assert activations.bytes == in_flight * one


def test_a_tensor_degree_divides_attention_and_mlp_and_not_the_norms() -> None:
    run: dict[str, Any] = {"zero": {"stage": 1}, "train": {"gradient_checkpointing": False}}
    whole = next(r for r in memory("llama-3.1-8b", **run).items if r.kind == "activations").bytes
    four = next(
        r for r in memory("llama-3.1-8b", parallel={"tensor_parallel_size": 4}, **run).items if r.kind == "activations"
    ).bytes
    replicated = 32 * 4096 * (16 * 4096 + 8)
    assert four == replicated + (whole - replicated) // 4


def test_inputs_of_checkpointed_layers_can_wait_on_the_host() -> None:
    """By DeepSpeed's key and by the spec's own, and the last stay; nothing waits without recomputation."""
    one_input = 2 * 4096 * 4096

    def inputs(**sections: Any) -> list[tuple[str, int]]:
        rows = memory("llama-3.1-8b", **sections).items
        return [(row.tier, row.bytes) for row in rows if row.kind == "activations"]

    raw = {"activation_checkpointing": {"cpu_checkpointing": True}}
    offloaded = {"gradient_checkpointing": True, "offload_activations": True}
    on_device = [("gpu", 4 * one_input), ("gpu", 2 * one_input)]  # in the forward and the backward pass
    assert inputs(deepspeed=raw) == [("host", 31 * one_input), *on_device]
    assert inputs(train=offloaded) == inputs(deepspeed=raw)
    assert [tier for tier, _ in inputs(train={**offloaded, "gradient_checkpointing": False})] == ["gpu"]
    off = {"activation_checkpointing": {"cpu_checkpointing": False}}
    assert inputs(train=offloaded, deepspeed=off) == [("gpu", 32 * one_input)]


def test_a_save_in_the_background_keeps_a_copy_of_the_state_in_host_memory() -> None:
    def copies(stage: int, **checkpoint: Any) -> dict[str, tuple[int, bool]]:
        rows = memory("llama-3.1-8b", zero={"stage": stage}, checkpoint=checkpoint).items
        return {row.description: (row.bytes, row.shared) for row in rows if row.description.endswith("background")}

    due = {"save_steps": 10, "async_save": True}
    weights, states = (f"copy of {w} for a save in the background" for w in ("the weights", "masters and states"))
    assert copies(3, **due) == {states: (12 * 1_003_782_656, False)}
    total = 8_030_261_248
    assert copies(2, **due) == {states: (12 * total // 8, False), weights: (2 * total, True)}
    assert copies(0, **due) == {states: (12 * total, True), weights: (2 * total, True)}
    assert copies(3, save_steps=10) == copies(3, async_save=True) == {}
    assert copies(3, **{**due, "save_steps": None}) == {}


def test_each_stage_of_a_pipeline_has_the_mask_of_packed_rows() -> None:
    rows = memory(
        "llama-3.1-8b",
        data={"packing": True, "max_length": 4096},
        model={"attn_implementation": "sdpa"},
        parallel={"pipeline_parallel_size": 2},
        zero={"stage": 1},
    ).items
    assert [row.bytes for row in rows if row.description == "mask of attention"] == [4096**2]


def test_states_written_beside_old_ones_are_there_from_the_first_step_on() -> None:
    """12 bytes of each element of the last sub-groups that fit; a checkpoint is read before."""

    def bytes_at(gib: int) -> dict[Phase, int]:
        place = {"device": "cpu", "overlap_step_gib": gib}
        plan = memory(zero={"stage": 3, "sub_group_size": 10**8, "offload_optimizer": place})
        return {phase: plan.host_bytes_at(phase) for phase in ("resume", "step", "save")}

    without, beside = bytes_at(0), bytes_at(50)
    more = {phase: (beside[phase] - without[phase]) / 8 / 2**30 for phase in without}
    assert more["step"] == more["save"] == pytest.approx(50, rel=0.02)
    assert 50 * 2 / 14 <= more["resume"] < 10, "their weights, in page-locked blocks"


def test_copies_from_the_gpu_take_two_page_locked_blocks_from_the_first_save_on() -> None:
    def blocks(stage: int, **zero: Any) -> list[tuple[int, bool]]:
        checkpoint = {"save_steps": 10, "async_save": True}
        rows = memory("llama-3.1-8b", zero={"stage": stage, **zero}, checkpoint=checkpoint).items
        return [
            (row.bytes, row.shared) for row in rows if row.kind == "staged" and row.pinned_blocks == (64 << 20,) * 2
        ]

    offloaded = {"offload_optimizer": {"device": "cpu"}}
    assert blocks(3) == blocks(2) == blocks(1) == [(128 << 20, False)]
    assert blocks(2, **offloaded) == blocks(0) == [(128 << 20, True)], "one rank copies the weights"
    assert blocks(3, **offloaded) == []


def test_a_phase_is_never_empty_and_the_peak_is_one_of_them() -> None:
    m = memory("llama-3.1-8b")
    assert all(m.host_bytes_at(phase) > 0 for phase in PHASES)
    assert m.gpu_peak == max(m.bytes_at("gpu", phase) for phase in PHASES)
    assert m.bytes_at("gpu", "forward") < m.bytes_at("gpu", "backward")


def test_a_ratio_leaves_the_first_sub_groups_on_the_device() -> None:
    """Whole sub-groups: 0.3 of 9 are 2 that stay."""
    zero = {"stage": 3, "offload_optimizer": {"device": "cpu", "ratio": 0.7}}
    half, whole = memory(zero=zero), memory(zero={"stage": 3, "offload_optimizer": {"device": "cpu", "ratio": 0.999}})
    near = [row for row in half.items if row.tier == "gpu" and row.kind in ("master", "states", "master_gradients")]
    assert {row.kind for row in near} == {"master", "states", "master_gradients"}
    moved = sum(row.bytes for row in near)
    assert moved == pytest.approx(2 / 9 * 16 * 8_819_213_312, rel=0.05)

    def on_host(m: MemoryEstimate) -> int:
        return sum(row.bytes for row in m.items_of("host") if row.kind in ("master", "states", "master_gradients"))

    assert on_host(half) + moved == on_host(whole)


def test_the_mask_of_packed_rows_is_whole_on_each_rank_of_a_sequence_group() -> None:
    """A byte a pair of positions of a row, which the sequence degree does not divide."""
    spread: dict[str, Any] = {"parallel": {"sequence_parallel_size": 8}, "train": {"per_device_train_batch_size": 2}}

    def masks(**sections: Any) -> list[tuple[int, bool]]:
        rows = memory(**{**spread, "data": {"max_length": 65530, "packing": True}, **sections}).items
        return [(row.bytes, "step" in row.phases) for row in rows if row.description.startswith("attention mask")]

    assert masks() == [(2 * 65536**2, True)]
    assert masks(data={"max_length": 65536}) == []
    assert masks(model={"attn_implementation": "flash_attention_2"}) == []
    assert masks(model={"attn_implementation": "sdpa_varlen"}) == []
    assert masks(parallel={}) == []


def test_sdpa_makes_masks_of_packed_rows_and_the_other_kernels_none() -> None:
    """At 65,536 tokens: the mask, its inverse while a layer converts it, and bf16 of it for each layer that keeps its own;
    keys and values of every query head. Counted by the simulated device (tests/training/simulation).
    """
    square = 65_536**2

    def activations(kernel: str, **train: Any) -> int:
        sections: dict[str, Any] = {
            "data": {"max_length": 65_536, "packing": True},
            "train": {"per_device_train_batch_size": 1, **train},
        }
        rows = memory("llama-3.1-8b", model={"name_or_path": "llama-3.1-8b", "attn_implementation": kernel}, **sections)
        return sum(row.bytes for row in rows.items if row.kind in ("activations", "recompute"))

    heads = 2 * 2 * (32 - 8) * 128 * 65_536
    for checkpointing, layers in ((True, 0), (False, 32)):  # one layer at a time is recomputed after the loss, the peak
        without = activations("sdpa_varlen", gradient_checkpointing=checkpointing)
        extra = activations("sdpa", gradient_checkpointing=checkpointing) - without
        assert extra == square + layers * (2 * square + heads)
        for kernel in ("flash_attention_2", "flash_attention_3"):
            assert activations(kernel, gradient_checkpointing=checkpointing) == without


def test_three_figures_of_the_peak_each_within_its_range() -> None:
    m, fewer = memory("llama-3.1-8b"), memory("llama-3.1-8b", zero={"stage": 2})
    outside = sum(row.bytes for row in m.items if row.kind in ("context", "nccl"))
    tensors = max(
        sum(row.bytes for row in m.items_of("gpu") if not row.assumed and phase in row.phases) for phase in PHASES
    )
    tensors += next(row.bytes for row in m.items if row.kind == "held")
    assert m.allocated_peak == tensors < m.gpu_peak
    assert m.reserved_peak == int(1.25 * tensors)
    assert fewer.reserved_peak == int(1.10 * fewer.allocated_peak)
    assert m.nvidia_smi_peak == m.reserved_peak + outside
    figures = (m.allocated_peak, m.reserved_peak, m.nvidia_smi_peak)
    ranges = (m.allocated_peak_range, m.reserved_peak_range, m.nvidia_smi_peak_range)
    assert all(low < figure < high for figure, (low, high) in zip(figures, ranges, strict=True))
    assert [low for low, _ in ranges] == sorted(low for low, _ in ranges)
    for each, gaps in ((m, 1.08), (fewer, 1.04)):
        assert each.gpu_peak_range[1] == int(gaps * each.allocated_peak_range[1]) + outside


def test_states_neither_shrink_nor_grow_in_the_range() -> None:
    """70B on 8 GPUs: 16 bytes a parameter, an eighth on each; what varies is beside them."""
    zero: dict[str, Any] = {"stage": 3, "offload_optimizer": {"device": "none"}}
    m, states = memory("llama-3.1-70b", zero=zero), 16 * 70_553_706_496 // 8
    low, high = m.allocated_peak_range
    beside = m.allocated_peak - states
    assert m.allocated_peak - 0.3 * beside < low < m.allocated_peak < high < m.allocated_peak + 0.6 * beside
    offloaded = memory("llama-3.1-70b", zero=offload("cpu", "cpu"))
    assert offloaded.allocated_peak_range == (
        int(0.85 * offloaded.allocated_peak),
        int(1.25 * offloaded.allocated_peak),
    ), "of activations and buffers alone the range is that of the whole"


ROOTS = "square roots of Adam's states"


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("where", ["cpu accelerator", "cpu"])
def test_adam_of_torch_makes_two_tensors_for_each_that_it_steps_on_the_cpu(stage: int, where: str) -> None:
    """Measured: 8.0 bytes an element above the states (torch 2.13, 64 Mi elements, `foreach` left out)."""

    def rows(**params: bool) -> dict[str, tuple[str, int]]:
        block = {"optimizer": {"type": "AdamW", "params": {"lr": 1e-5, **params}}}
        on = {"cluster": {"gpu": "cpu"}} if where == "cpu accelerator" else {}
        offload = {} if on else {"offload_optimizer": {"device": where}}
        items = memory(TINY, ranks=2, **on, zero={"stage": stage, **offload}, deepspeed=block).items
        return {row.description: (row.tier, row.bytes) for row in items if "step" in row.phases}

    tier, size = rows(torch_adam=True)[ROOTS]
    assert ROOTS not in rows() | rows(torch_adam=True, fused=True)
    assert tier == ("gpu" if where == "cpu accelerator" else "host")
    states = next(b for name, (_, b) in rows(torch_adam=True).items() if "optimizer states" in name)
    assert size == pytest.approx(states, rel=0.01)


def test_deepspeeds_adam_on_the_cpu_makes_no_tensor() -> None:
    zero = {"stage": 3, "offload_optimizer": {"device": "cpu"}}
    assert ROOTS not in [row.description for row in memory(TINY, ranks=2, cluster={"gpu": "cpu"}, zero=zero).items]


def test_adam_of_torch_steps_what_was_read_from_nvme() -> None:
    """Four swap buffers of 4 bytes an element."""
    block = {"optimizer": {"type": "AdamW", "params": {"lr": 1e-5, "torch_adam": True}}}
    found = {row.description: row.bytes for row in memory(zero=offload("nvme"), deepspeed=block).items_of("host")}
    assert found[ROOTS] == pytest.approx(found["optimizer swap buffers"] / 2, rel=0.001)


def test_a_state_of_stage_0_on_the_cpu_has_its_temporaries_alone() -> None:
    """Nothing is flat there: the largest tensor decides."""
    block = {"optimizer": {"type": "AdamW", "params": {"lr": 1e-5, "torch_adam": True}}}
    items = memory(TINY, ranks=2, cluster={"gpu": "cpu"}, zero={"stage": 0}, deepspeed=block).items
    found = {row.description: row.bytes for row in items}
    assert 0 < found[ROOTS] < found["optimizer states"]


@pytest.mark.parametrize(
    ("trainer", "name", "expected"),
    [
        ("trainer", "", False),
        ("axolotl", "adamw_torch_fused", False),
        ("llama-factory", "adamw_torch", True),
        ("accelerate", "", True),
    ],
)
def test_the_adam_of_a_loop_has_roots_unless_it_is_fused(trainer: str, name: str, expected: bool) -> None:
    def has_roots(**zero: Any) -> bool:
        run = run_of(zero=zero)._replace(trainer=trainer, loop_optimizer=name)
        settings, model = settings_of(run), run.find_model().facts
        assert settings is not None
        assert model is not None
        return ROOTS in [row.description for row in estimate_memory(model, settings, None).items]

    assert has_roots(stage=2) is expected
    assert not has_roots(stage=2, offload_optimizer={"device": "cpu"})  # accelerate makes it DeepSpeed's


def test_states_of_bf16_weights_without_masters_are_bf16() -> None:
    """As ms-swift trains without DeepSpeed: published peaks of 7.7 B parameters on one GPU are 73 GiB, not 190."""
    run = run_of(zero={"stage": 0})._replace(trainer="swift", loop_optimizer="adamw_torch")
    settings, model = settings_of(run), run.find_model().facts
    assert settings is not None
    assert model is not None
    found = {row.description: row.bytes for row in estimate_memory(model, settings, None).items}
    assert found["optimizer states, from the first step on"] == 2 * found["parameters"] == 2 * found[ROOTS]


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_adam_of_torch_has_a_root_of_each_state_that_it_steps(stage: int) -> None:
    """4 bytes an element of the partition; of a sub-group at stage 3."""

    def rows(**params: bool) -> dict[str, int]:
        block = {"optimizer": {"type": "AdamW", "params": {"lr": 1e-5, **params}}}
        items = memory(zero={"stage": stage}, deepspeed=block).items
        return {row.description: row.bytes for row in items if "step" in row.phases}

    assert ROOTS not in rows() | rows(torch_adam=True, fused=True)
    found = rows(torch_adam=True)
    states = found["optimizer states, from the first step on" if stage else "optimizer states"]
    assert found[ROOTS] == states // 2 if stage < 3 else 4e9 < found[ROOTS] < states // 2


def test_adapters_save_less_than_a_model_that_is_trained_whole() -> None:
    """The input of each norm, q, k, v and the output of attention, three tensors of the MLP: no input of a frozen
    weight, but for that of the two adapters.
    """
    train = {"gradient_checkpointing": False, "loss_chunk_size": 0}

    def activations(**model: Any) -> int:
        run = {"name_or_path": "meta-llama/Llama-3.1-8B", **model}
        return next(r.bytes for r in memory(model=run, train=train).items if r.kind == "activations")

    h, i, tokens, layers, r = 4096, 14336, 4096, 32, 8
    of_norms, of_attention = 2 * (4 * h + 4), 2 * (2 * h + 2 * h // 4) + 4 * 32
    later = layers * tokens * (of_norms + 2 * h + of_attention + 3 * 2 * i + 2 * 2 * r)
    assert activations(lora={"r": r}) == later - tokens * (4 * h + 4)  # nothing before the first layer is trained
    assert activations() > 1.2 * later


def test_a_frozen_head_has_no_gradient_in_fp32() -> None:
    def head(**model: Any) -> int:
        run = {"name_or_path": "meta-llama/Llama-3.1-8B", **model}
        rows = memory(model=run, train={"gradient_checkpointing": False, "loss_chunk_size": 1024}).items
        return next(r.bytes for r in rows if r.kind == "logits" and "forward" in r.phases)

    less = head() - head(freeze=["lm_head.*"])
    assert less == 4 * 128256 * 4096 + 2 * 4096 * 4096


def test_a_cpu_has_no_page_locked_memory() -> None:
    """`CPU_Accelerator.pin_memory` returns its argument: there is no second copy of the gradients while it is made."""
    label = "gradients before they are page-locked"
    for gpu, zero, is_there in (
        ("H100-80GB", offload("cpu"), True),
        ("cpu", offload("cpu"), False),
        ("cpu", {**offload("cpu"), "pin_memory_backend": "native"}, True),
    ):
        plan = plan_of(zero=zero, cluster={"gpu": gpu, "gpus_per_node": 8})
        assert plan.memory is not None
        assert (label in {row.description for row in plan.memory.items_of("host")}) is is_there


def test_new_weights_of_stage_3_are_made_in_fp32_beside_their_cast() -> None:
    """Simulated with DeepSpeed 0.19.8: 933,889,024 bytes with the parameters on the host, 1,003,218,432 on the GPU, and
    805,306,368 for 64 experts whose first matrix is twice the second.
    """
    wide = {"hidden_size": 1024, "num_attention_heads": 16, "num_key_value_heads": 4}
    llama = {**TINY, **wide, "intermediate_size": 4096, "num_hidden_layers": 8, "vocab_size": 152_000}
    moe = {**wide, "model_type": "qwen3_moe", "num_hidden_layers": 4, "vocab_size": 3200, "head_dim": 64}
    moe |= {"num_experts": 64, "num_experts_per_tok": 4, "moe_intermediate_size": 1024, "intermediate_size": 4096}

    def load(config: dict[str, Any], parameters: str = "cpu") -> int:
        zero = {
            **offload("cpu", parameters),
            "stage3_param_persistence_threshold": 100,
            "reduce_bucket_size": 1_000_000,
        }
        rows = memory(config, zero=zero).items_of("gpu")
        return sum(row.bytes for row in rows if "load" in row.phases and not row.assumed)

    assert load(llama) == pytest.approx(933_889_024, rel=0.001)
    assert load(llama, "none") == pytest.approx(1_003_218_432, rel=0.001)
    assert load(moe) == pytest.approx(805_306_368, rel=0.001)


SHAPE = {**TINY, "hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 12, "vocab_size": 8192}
STAGE_0: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "masters in one buffer": ({"optimizer": {"type": "adamw"}}, (1674, 1674, 2232, 2046, 384, 372, 1302)),
    "masters one by one": ({"optimizer": {"type": "sgd", "momentum": 0.9}}, (1488, 1302, 1488, 1302, 384, 24, 930)),
    "no masters": ({"precision": {"bf16": False}}, (372, 1860, 1488, 1116, 372, 24, 1116)),
    "another format of messages": (
        {"deepspeed": {"communication_data_type": "fp32"}, "zero": {"stage": 0, "reduce_bucket_size": 1_000_000}},
        (1674, 2046, 2232, 2046, 384, 372, 1302),
    ),
}
"""MiB as simulated with DeepSpeed 0.19.8: GPU load, backward, step, resume; host load, save, resume."""


@pytest.mark.parametrize("way", STAGE_0)
def test_stage_0_is_what_its_engine_holds(way: str) -> None:
    """An engine with masters makes the states while it is built, by zeros as wide as the masters, and reads those of a
    checkpoint beside them. The all-reduce comes when the activations are gone, and before the step.
    """
    sections, simulated = STAGE_0[way]
    config = {**SHAPE, "num_attention_heads": 8, "num_key_value_heads": 8}
    run = {"zero": {"stage": 0}, "data": {"max_length": 16}, **sections}
    rows = memory(config, 2, **run, train={"gradient_checkpointing": False}).items
    phases = [("gpu", name) for name in ("load", "backward", "step", "resume")]
    phases += [("host", name) for name in ("load", "save", "resume")]
    planned = [
        sum(
            row.bytes for row in rows if row.tier == tier and phase in row.phases and not row.assumed and not row.shared
        )
        for tier, phase in phases
    ]
    assert [round(size / (1 << 20)) for size in planned] == pytest.approx(list(simulated), abs=1)


def test_states_that_a_cpu_reads_are_not_copied() -> None:
    """A live engine of 2 CPU ranks held 28 bytes a parameter (tests/training/plan/test_phase_memory.py)."""
    config = {**SHAPE, "num_attention_heads": 8, "num_key_value_heads": 8}
    estimate = memory(config, 2, zero={"stage": 0}, cluster={"gpu": "cpu"})
    tensors = [row for row in estimate.items if "resume" in row.phases and not row.assumed and not row.shared]
    assert sum(row.bytes for row in tensors) == 28 * 97_536_768


def test_the_all_reduce_of_stage_0_comes_after_the_activations() -> None:
    rows = memory(zero={"stage": 0}, train={"gradient_checkpointing": False}).items_of("gpu")
    backward = [row for row in rows if "backward" in row.phases]
    assert {"bucket", "activations"} & {row.kind for row in backward} == {"activations"}


BACKGROUND = {"async_save": True, "save_steps": 1}


@pytest.mark.parametrize(
    ("zero", "checkpoint", "simulated"),
    [
        (offload(stage=1), {}, (12, 187)),
        (offload(stage=2), {}, (198, 373)),
        (offload(), {}, (94, 96)),
        (offload(stage=2), BACKGROUND, (563, 373)),
        (offload(), BACKGROUND, (189, 96)),
    ],
)
def test_frozen_weights_pass_through_the_host(
    zero: dict[str, Any], checkpoint: dict[str, Any], simulated: tuple[int, int]
) -> None:
    """MiB of adapters of rank 16 at save and resume, as simulated with DeepSpeed 0.19.8: it collects all frozen weights
    of stage 2, and all frozen shards of stage 3, before it writes them.
    """
    config = {**SHAPE, "num_attention_heads": 8, "num_key_value_heads": 8}
    rows = memory(config, 2, zero=zero, model={"lora": {"r": 16}}, checkpoint=checkpoint).items_of("host")
    planned = [
        sum(row.bytes for row in rows if row.kind == phase and phase in row.phases) / (1 << 20)
        for phase in ("save", "resume")
    ]
    assert planned == pytest.approx(list(simulated), abs=2)
