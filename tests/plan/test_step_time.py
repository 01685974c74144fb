# SPDX-License-Identifier: Apache-2.0
"""Step time: FLOPs against counted ones, and which part limits. Needs nothing; milliseconds."""

from __future__ import annotations

from typing import Any

import pytest

from harness.facts.devices import CPU, find_device
from harness.facts.model_lookup import facts_from_config, find_model
from harness.plan.memory.zero_partitions import local_num_parameters
from harness.plan.time.fitted_rates import FITTED
from harness.plan.time.rates import MEASURED_SHARE, THREAD_BANDWIDTH, Rates
from harness.plan.time.step_time import StepTime, TimePart, bottleneck_of, estimate_step_time, find_enough_network
from harness.plan.weights.flops import FULL_RECOMPUTATION, NO_RECOMPUTATION, hardware_flops_per_token
from tests.support.plan_inputs import offload, plan_of, settings


def time_of(*args: Any, **kwargs: Any) -> StepTime:
    time = plan_of(*args, **kwargs).time
    assert time is not None
    return time


def test_flops_are_6_a_matmul_parameter_and_the_attention() -> None:
    facts = find_model("llama-3.1-8b").facts
    assert facts is not None
    n = 8_030_261_248 - 128_256 * 4096 - 65 * 4096
    assert facts.matmul_parameters == n
    assert hardware_flops_per_token(facts, 2048, NO_RECOMPUTATION) == 6 * n + 6 * 32 * 4096 * 2048


def test_checkpointing_does_not_recompute_the_last_projection() -> None:
    """1,275,068,416 were counted by torch for 256 tokens of this model, without the attention kernel."""
    config = {"model_type": "llama", "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4}
    facts = facts_from_config({**config, "intermediate_size": 704, "vocab_size": 1000}).facts
    assert facts is not None
    extra = hardware_flops_per_token(facts, 128, FULL_RECOMPUTATION) - hardware_flops_per_token(
        facts, 128, NO_RECOMPUTATION
    )
    attention = 2 * 4 * 256 * 128
    assert 256 * (extra - attention) == 1_275_068_416


def test_nothing_is_made_up_for_the_cpu_or_an_unknown_gpu() -> None:
    facts = find_model("llama-3.1-8b").facts
    assert facts is not None
    assert estimate_step_time(facts, settings(), None) is None
    assert estimate_step_time(facts, settings(), CPU) is None


def test_a_large_batch_is_limited_by_compute_and_a_small_one_by_the_cpu_step() -> None:
    short = {"data": {"max_length": 256}, "train": {"gradient_accumulation_steps": 1}}
    assert time_of(zero=offload("cpu"), train={"gradient_accumulation_steps": 32}).bottleneck == "compute"
    assert time_of(zero=offload("cpu"), **short).bottleneck == "CPU optimizer"
    assert time_of(zero=offload("nvme"), **short).bottleneck == "NVMe"


def test_the_cpu_step_moves_54_bytes_a_parameter_at_a_share_of_the_hosts_bandwidth() -> None:
    """44, and 10 to cast gradients that are held once; in one pass 28, and 34 where fp32 gradients are scaled in place. A
    measured bandwidth replaces that of such hosts, of whose streams less was reached.
    """
    in_order = {"patches": {"one-pass-adam": "off"}}
    measured = {"host_memory_bandwidth": "200GB/s"}
    for reached, cluster in ((580e9 * FITTED.host_memory_share, {}), (200e9 * MEASURED_SHARE, measured)):
        for launch, bytes_at_three, bytes_at_two in ((in_order, 54, 44), ({}, 28, 34)):
            sections = {"cluster": cluster, "launch": launch}
            three = time_of(zero=offload("cpu"), **sections).seconds_of("CPU optimizer")
            two = time_of(zero=offload("cpu", stage=2), **sections).seconds_of("CPU optimizer")
            assert three == pytest.approx(bytes_at_three * 70.55e9 / reached, rel=0.01)
            assert two == pytest.approx(bytes_at_two * 70.55e9 / reached, rel=0.01)


def test_a_thread_a_rank_limits_the_cpu_step_of_few_ranks() -> None:
    """At most a stream: 64 threads of each of 8 ranks do not make the host's memory faster."""
    for threads, ranks, reached in (
        (1, 1, THREAD_BANDWIDTH),
        (1, 8, 8 * THREAD_BANDWIDTH),
        (64, 8, MEASURED_SHARE * 580e9),
    ):
        time = time_of("llama-3.1-8b", ranks, zero=offload("cpu"), launch={"env": {"OMP_NUM_THREADS": str(threads)}})
        assert time.seconds_of("CPU optimizer") == pytest.approx(28 * 8.03e9 / reached, rel=0.01)


def test_the_range_of_the_cpu_step_follows_what_is_known_of_the_host() -> None:
    """Of its threads, of its memory, of neither: the widest holds the H100 run and the published hosts."""
    scatters = [
        next(part.scatter for part in time_of(zero=offload("cpu"), **sections).parts if part.name == "CPU optimizer")
        for sections in (
            {"launch": {"env": {"OMP_NUM_THREADS": "1"}}},
            {"launch": {"env": {"OMP_NUM_THREADS": "64"}}},
            {"cluster": {"host_memory_bandwidth": "300GB/s"}},
            {},
        )
    ]
    assert scatters == [1.7, 2.0, 2.0, 3.0]
    h100, least, most = 48 * 3.2e9 / 2.85, 0.06 * 580e9, 0.39 * 580e9  # benchmarks/results/gpu-h100-2026-11-26.md
    for reached in (h100, least, most):
        assert 1 / 3 < reached / (FITTED.host_memory_share * 580e9) < 3


def test_stage_3_fetches_gradients_back_on_the_stream_that_sent_them() -> None:
    """16 bits down and up in each of 4 micro-batches, in line; at stage 2 both ways at once."""
    for stage, moved in ((3, 2 * 4 + 2 * 4), (2, 2 * 4)):
        time = time_of("llama-3.1-8b", zero=offload("cpu", stage=stage))
        assert time.seconds_of("PCIe") == pytest.approx(moved * 8.03e9 / 8 / 51.2e9, rel=0.01)


def test_weights_that_are_page_locked_do_not_wait_for_gradients_that_are_not() -> None:
    """Nothing hides a pageable copy. Trained weights are page-locked whatever their key says: their two copies for each
    of 4 micro-batches go by the link's own rate.
    """
    both, slow = 51.2e9, 6.9e9
    shard = 8.03e9 / 8
    for pins in ((False, True), (False, False)):
        zero = offload("cpu", "cpu")
        zero["offload_optimizer"]["pin_memory"], zero["offload_param"]["pin_memory"] = pins
        part = next(part for part in time_of("llama-3.1-8b", zero=zero).parts if part.name == "PCIe")
        assert part.exposed == pytest.approx(16 / slow * shard, rel=0.01)
        assert part.seconds == pytest.approx(max(16 / slow, 8 / slow + 16 / both) * shard, rel=0.01)
    frozen = {"model": {"train_only": ["lm_head.weight"]}}
    by_key = []
    for pin in (True, False):
        zero = offload("cpu", "cpu")
        zero["offload_param"]["pin_memory"] = pin
        by_key += [next(part for part in time_of("llama-3.1-8b", zero=zero, **frozen).parts if part.name == "PCIe")]
    assert by_key[1].seconds > 5 * by_key[0].seconds


def test_frozen_weights_are_moved_but_not_stepped() -> None:
    """An adapter's step is the adapter's; from host memory all weights come for each gather, in 4 bits a quarter of them
    and its scales.
    """
    zero = offload("cpu", "cpu")
    plain = time_of("llama-3.1-8b", zero=zero)
    for quantization, share in ((None, 2 / 3), ({"load_in_4bit": True}, 0.22)):
        model = {"lora": {"r": 16}, **({"quantization": quantization} if quantization else {})}
        adapter = time_of("llama-3.1-8b", zero=zero, model=model)
        assert adapter.seconds_of("CPU optimizer") < 0.01 * plain.seconds_of("CPU optimizer")
        assert adapter.seconds_of("PCIe") == pytest.approx(share * plain.seconds_of("PCIe"), rel=0.1)


def test_copies_are_slow_where_host_memory_is_not_page_locked() -> None:
    """All of them without `pin_memory`; in DeepSpeed's order those of stage 3's updated weights always."""
    order, patched = {"patches": {"one-pass-adam": "off"}}, {}
    locked = ((3, patched, True, 51.2e9), (3, order, True, 6.9e9), (2, order, True, 51.2e9))
    for stage, launch, pins, rate in (*locked, (2, patched, False, 6.9e9), (3, patched, False, 6.9e9)):
        zero = offload("cpu", stage=stage)
        zero["offload_optimizer"]["pin_memory"] = pins
        time = time_of("llama-3.1-8b", zero=zero, launch=launch, train={"gradient_accumulation_steps": 1})
        moved = 2 if stage == 3 else 2 + 4
        assert time.seconds_of("PCIe at the step") == pytest.approx(moved * 8.03e9 / 8 / rate, rel=0.01)
        during = next((part for part in time.parts if part.name == "PCIe"), None)
        assert during is None or (during.exposed == during.seconds) == (not pins)


def test_the_last_backward_pass_hides_what_is_stepped_beside_it() -> None:
    """As much as it is long, as the step beside it moves no more bytes; by little memory as much as that holds."""
    train = {"gradient_accumulation_steps": 16, "gradient_checkpointing": True}
    whole = time_of(zero=offload("cpu", sub_group_size=10**8), train=train)
    for gib, most in ((500, 8.8e9), (2, 131.5e6)):  # the last sub-group has 131 M elements, that of the norms 0.2 M
        zero = offload("cpu", sub_group_size=10**8)
        zero["offload_optimizer"]["overlap_step_gib"] = gib
        early = time_of(zero=zero, train=train)
        part = next(part for part in early.parts if part.name == "CPU optimizer")
        elements = 70.55e9 / settings(zero=zero).zero_world_size
        backward = early.seconds_of("compute") / 16 * 3 / 4
        by_memory = most / elements * whole.seconds_of("CPU optimizer")
        hidden = whole.seconds_of("CPU optimizer") - part.exposed
        assert hidden == pytest.approx(min(backward, by_memory), rel=0.02)
        assert part.seconds == whole.seconds_of("CPU optimizer")


@pytest.mark.parametrize(("pinned", "is_hidden"), [({}, False), ({"pin_memory_backend": "native"}, True)])
def test_the_budget_counts_what_torch_rounds(pinned: dict[str, str], is_hidden: bool) -> None:
    """1.7175 GiB hold 14 bytes of each of 131.3 M elements, but not 12 and a block of 2^28 bytes."""
    zero = offload("cpu", sub_group_size=10**8) | pinned
    zero["offload_optimizer"] |= {"overlap_step_gib": 1.7175, "pin_memory": True}
    part = next(part for part in time_of(zero=zero).parts if part.name == "CPU optimizer")
    assert (part.exposed < 0.99 * part.seconds) == is_hidden


def test_nothing_is_hidden_where_no_sub_group_is_stepped_early() -> None:
    """Frozen, stepped by the device, one sub-group that is larger than the copies may be, or as large as the shard."""
    zero = offload("cpu")
    zero["offload_optimizer"]["overlap_step_gib"] = 1
    on_device = {**zero, "offload_optimizer": {**zero["offload_optimizer"], "ratio": 0.0}}
    model = {"model": {"freeze": ["*"]}}
    for sections in ({"zero": zero, **model}, {"zero": offload("cpu"), **model}, {"zero": on_device}, {"zero": zero}):
        for part in time_of(**sections).parts:
            assert part.name != "CPU optimizer" or part.exposed == part.seconds


def test_bound_cores_make_the_cpu_step_faster() -> None:
    free = time_of(zero=offload("cpu")).seconds_of("CPU optimizer")
    bound = time_of(zero=offload("cpu"), launch={"bind_cores_to_rank": True}).seconds_of("CPU optimizer")
    assert bound == pytest.approx(free / FITTED.bound_cores)


def test_a_million_tokens_of_70b_on_8_h100_take_minutes() -> None:
    time = time_of(train={"gradient_accumulation_steps": 32})
    assert 120 < time.seconds_of("compute") < 240
    assert time.tokens_per_second == pytest.approx(2**20 / time.seconds)


def test_one_rank_has_no_collectives_and_several_hosts_have_slower_ones() -> None:
    assert time_of("llama-3.1-8b", ranks=1).seconds_of("collectives") == 0
    one, two = (time_of("llama-3.1-8b", ranks=n).seconds_of("collectives") for n in (8, 16))
    assert two > 1.1 * one


def collectives(ranks: int, **sections: Any) -> float:
    """Seconds that 16-bit Llama-3.1-8B is gathered and reduced once each in a step, on H100."""
    once = {"train": {"gradient_accumulation_steps": 1}, "zero": {"stage": 1, "overlap_comm": False}}
    time = time_of("llama-3.1-8b", ranks, **{**once, **sections})
    return time.seconds_of("collectives") + time.seconds_of("parameters gathered after the step")


BYTES = 3 * 2 * 8_030_261_248
"""An all-reduce and a gather."""


def test_a_ring_over_hosts_has_all_network_cards_of_a_host() -> None:
    """8 x 50 GB/s at 80 %, as one NCCL ring leaves the host by each card. One card's rate was planned before."""
    assert collectives(16) == pytest.approx(BYTES * 15 / 16 / 320e9)
    assert collectives(64) == pytest.approx(BYTES * 63 / 64 / 320e9)


def test_the_network_that_is_enough_is_the_least_with_which_compute_limits_the_step() -> None:
    plan = plan_of("llama-3.1-70b", 16, cluster={"network_bandwidth": "100Gb/s"})
    assert plan.time is not None
    assert plan.time.bottleneck == "collectives"
    assert plan.model is not None
    assert plan.settings is not None
    assert plan.device is not None
    enough = find_enough_network(plan.model, plan.settings, plan.device, plan.rates)
    assert enough is not None
    here, rate, limit = enough
    assert (here, limit) == (12.5e9, "compute")
    for network, bottleneck in ((rate, "compute"), (rate / 2, "collectives")):
        assert time_of("llama-3.1-70b", 16, cluster={"network_bandwidth": int(network)}).bottleneck == bottleneck
    assert time_of("llama-3.1-70b", 16, cluster={"network_bandwidth": "4TB/s"}).bottleneck == "compute"


def test_the_disks_limit_a_step_by_all_that_is_read_and_written() -> None:
    """Optimizer states and parameters, each of which takes less than compute alone."""
    seconds = {"compute": 384.0, "NVMe": 351.0, "parameters from NVMe": 368.0, "CPU optimizer": 36.0}
    assert bottleneck_of([TimePart(name, each, each) for name, each in seconds.items()]) == "NVMe"


def test_issuing_gathers_counts_as_collectives() -> None:
    """ZeRO-3 of frozen weights on short rows: their bytes and their issue take longer than compute, neither alone."""
    seconds = {"compute": 0.63, "collectives": 0.17, "issue of collectives": 0.56, "GPU optimizer": 0.02}
    assert bottleneck_of([TimePart(name, each, each) for name, each in seconds.items()]) == "collectives"
    seconds["issue of collectives"] = 0.4
    assert bottleneck_of([TimePart(name, each, each) for name, each in seconds.items()]) == "compute"


def test_a_host_with_fewer_gpus_has_fewer_cards() -> None:
    assert collectives(16, cluster={"gpus_per_node": 4}) == pytest.approx(BYTES * 15 / 16 / 160e9)


def test_a_network_that_is_measured_is_of_a_host_and_taken_as_it_is() -> None:
    assert collectives(16, cluster={"network_bandwidth": "100GB/s"}) == pytest.approx(BYTES * 15 / 16 / 100e9)
    assert collectives(8, cluster={"network_bandwidth": "1GB/s"}) == collectives(8)


def test_a_ring_is_no_faster_than_the_links_inside_a_host() -> None:
    assert collectives(16, cluster={"network_bandwidth": "4TB/s"}) == pytest.approx(BYTES * 15 / 16 / 360e9)


def test_groups_that_leave_a_host_side_by_side_share_its_cards() -> None:
    """With 8 tensor-parallel ranks each has a data-parallel group of its own, one rank of it on a host."""
    facts, tensor = find_model("llama-3.1-8b").facts, {"parallel": {"tensor_parallel_size": 8}}
    assert facts is not None
    size = local_num_parameters(facts, settings("llama-3.1-8b", 16, **tensor, zero={"stage": 1}))
    assert collectives(16, **tensor) == pytest.approx(3 * 2 * size * 1 / 2 / 40e9)


def test_pipeline_stages_that_fill_a_host_reduce_inside_it() -> None:
    """Stages are outermost (`PipeDataParallelTopology`): only their messages leave the host, each by its rank's card."""
    facts, stages = find_model("llama-3.1-8b").facts, {"parallel": {"pipeline_parallel_size": 2}}
    assert facts is not None
    size = local_num_parameters(facts, settings("llama-3.1-8b", 16, **stages, zero={"stage": 1}))
    assert collectives(16, **stages) == pytest.approx(3 * 2 * size * 7 / 8 / 360e9)
    piped = time_of("llama-3.1-8b", 16, **stages, zero={"stage": 1}, train={"gradient_accumulation_steps": 1})
    hidden = 2 * 2 * 4096 * 4096
    assert piped.seconds_of("pipeline messages") == pytest.approx(hidden / 40e9 + 2 * 20e-6)


def test_pipeline_bubble() -> None:
    run = {"zero": {"stage": 1}, "train": {"gradient_accumulation_steps": 8}}
    facts, h100 = find_model("llama-3.1-8b").facts, find_device("H100")
    assert facts is not None
    plain = estimate_step_time(facts, settings("llama-3.1-8b", **run), h100)
    piped = estimate_step_time(facts, settings("llama-3.1-8b", parallel={"pipeline_parallel_size": 4}, **run), h100)
    assert plain is not None
    assert piped is not None
    assert piped.seconds_of("compute") == pytest.approx(plain.seconds_of("compute") / 4 * (1 + 3 / 8))


def test_a_slow_run_with_experts_takes_as_long_as_published_ones() -> None:
    """3.77 times as long in the median of the sources that were set aside; a given efficiency is the user's own."""
    facts, run = find_model("mixtral-8x7b").facts, settings("mixtral-8x7b")
    assert facts is not None
    time = estimate_step_time(facts, run, find_device("H100"))
    known = estimate_step_time(facts, run, find_device("H100"), Rates(efficiency=0.4))
    assert time is not None
    assert known is not None
    compute, given, dense = (each.parts[0] for each in (time, known, time_of()))
    assert [each.name for each in (compute, given, dense)] == ["compute"] * 3
    assert 3.7 < compute.scatter * compute.slowdown < 3.9
    assert given.slowdown == dense.slowdown == 1.0
    assert time.slow_seconds - time.seconds > compute.exposed * 2.7
