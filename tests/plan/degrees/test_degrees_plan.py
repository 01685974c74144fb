# SPDX-License-Identifier: Apache-2.0
"""Plans of any degrees against figures worked out by hand and against papers. Needs nothing; a second."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from harness.facts.model_lookup import find_model
from harness.plan.degrees.degrees_plan import DegreesPlan, plan_degrees
from harness.plan.degrees.degrees_request import DegreesRequest
from harness.plan.degrees.gpu_work import Traffic
from harness.plan.degrees.rank_groups import ParallelDegrees, assign_layers
from harness.views.plan_degrees import render_degrees
from harness.views.style import Style

LLAMA_405B = 405_853_388_800
LAYER_405B = 3_187_703_808


def request(model: str = "llama-3.1-405b", gpus: int = 16384, **changes: Any) -> DegreesRequest:
    """A request; degrees and the other values by name."""
    names = ("tensor", "pipeline", "context", "expert", "virtual_stages", "schedule", "sequence", "gpus_per_host")
    degrees = ParallelDegrees(gpus, **{name: changes.pop(name) for name in names if name in changes})
    return replace(DegreesRequest(model, "H100-80GB", degrees, tokens_per_step=16_777_216, seq_length=8192), **changes)


def as_trained() -> DegreesRequest:
    """Llama 3 405B on 16,384 GPUs: arXiv 2407.21783, table 4; a layer a chunk, since its first chunk has none."""
    return request(tensor=8, pipeline=16, virtual_stages=8, schedule="interleaved")


def traffic(plan: DegreesPlan, purpose: str) -> Traffic:
    """One kind of traffic."""
    return next(each for each in plan.work.traffic if each.purpose == purpose)


def test_llama_405b_in_its_128_chunks() -> None:
    """126 layers: the first stage's first chunk and the last one's last have none (section 3.3.2 of the paper)."""
    stages = assign_layers(126, as_trained().degrees)
    assert [len(stage.layers) for stage in stages] == [7, *[8] * 14, 7]
    assert len(stages[0].chunks[0]) == len(stages[15].chunks[7]) == 0
    assert sorted(index for stage in stages for index in stage.layers) == list(range(126))
    assert (stages[0].has_embedding, stages[15].has_head) == (True, True)


@pytest.mark.parametrize("layers", [32, 61, 80, 126])
@pytest.mark.parametrize(("pipeline", "chunks"), [(1, 1), (4, 1), (16, 1), (8, 2), (8, 4)])
def test_every_layer_is_on_one_stage(layers: int, pipeline: int, chunks: int) -> None:
    degrees = ParallelDegrees(128, pipeline=pipeline, virtual_stages=chunks)
    stages = assign_layers(layers, degrees)
    assert sorted(index for stage in stages for index in stage.layers) == list(range(layers))
    counts = [len(stage.layers) for stage in stages]
    assert max(counts) - min(counts) <= 1 + chunks if layers % (pipeline * chunks) else len(set(counts)) == 1


def test_a_dualpipe_rank_holds_two_stages() -> None:
    stages = assign_layers(61, ParallelDegrees(2048, pipeline=16, expert=64, schedule="dualpipe"))
    assert sum(len(stage.layers) for stage in stages) == 2 * 61
    assert all(stages[index].layers == tuple(reversed_pair(stages[15 - index].chunks)) for index in range(16))
    assert stages[0].has_embedding
    assert stages[0].has_head
    assert stages[15].has_embedding


def reversed_pair(chunks: tuple[range, ...]) -> list[int]:
    """The layers of the mirrored rank, in its own order."""
    return [*chunks[1], *chunks[0]]


def test_states_of_llama_405b_on_a_middle_stage() -> None:
    """Eight layers over eight tensor ranks, vectors whole; masters and states over 128 data ranks."""
    plan = plan_degrees(as_trained())
    vectors = 8 * 2 * 16384
    local = (8 * LAYER_405B - vectors) // 8 + vectors
    fullest = plan.fullest
    assert fullest.parameters.total == local
    sizes = {item.kind: item.bytes for item in fullest.items}
    assert sizes["parameters"] == 2 * local
    assert sizes["gradients"] == 4 * local
    assert sizes["master weights"] == pytest.approx(4 * local / 128)
    assert sizes["optimizer states"] == pytest.approx(8 * local / 128)


def test_all_stages_together_hold_the_model_once() -> None:
    """Sixteen stages of eight tensor ranks: the model, and the vectors seven times more."""
    plan = plan_degrees(as_trained())
    total = 8 * sum(stage.parameters.total for stage in plan.memory)
    vectors = 126 * 2 * 16384 + 16384
    assert total == LLAMA_405B + 7 * vectors


def test_activations_are_those_of_the_formula() -> None:
    """Megatron's terms by hand: norms, attention, MLP, of a Llama layer in 16 bits, over eight ranks."""
    plan = plan_degrees(as_trained())
    hidden, width, keys, columns, heads = 16384, 128 * 128, 8 * 128, 53248, 128
    token = 4 * 2 * hidden + 2 * (width + 2 * keys) + 2 * width + 4 * heads + 3 * 2 * columns
    in_flight = next(item for item in plan.fullest.items if item.kind == "activations in flight")
    assert in_flight.bytes == pytest.approx(token / 8 * 8 * 8192 * 16)
    whole = plan_degrees(replace(as_trained(), degrees=replace(as_trained().degrees, sequence=False)))
    other = next(item for item in whole.fullest.items if item.kind == "activations in flight")
    assert other.bytes - in_flight.bytes == pytest.approx(4 * 2 * hidden * 7 / 8 * 8 * 8192 * 16)


def test_checkpointing_keeps_less() -> None:
    sizes = [
        plan_degrees(replace(as_trained(), checkpointing=checkpointing)).fullest.total  # type: ignore[arg-type]
        for checkpointing in ("none", "selective", "full")
    ]
    assert sizes[0] > sizes[1] > sizes[2]


def test_work_of_all_gpus_is_that_of_the_model() -> None:
    """Six FLOPs a multiplied parameter and token: what the slowest stage does times the GPUs is a little more."""
    plan = plan_degrees(as_trained())
    facts = find_model("llama-3.1-405b").facts
    assert facts is not None
    tokens = plan.work.tokens
    by_layers = 6 * 126 * (LAYER_405B - 2 * 16384) * tokens
    slowest = plan.work.product_flops * 16384
    assert slowest == pytest.approx(by_layers * 128 / 126)
    attention = 6 * 126 * 128 * 128 * 8192 * tokens
    assert plan.work.attention.flops * 16384 == pytest.approx(attention * 128 / 126)
    assert plan.work.model_flops == 6 * facts.matmul_parameters * tokens + attention


def test_full_checkpointing_computes_the_forward_pass_again() -> None:
    none, full = (
        plan_degrees(replace(as_trained(), checkpointing=each)).work  # type: ignore[arg-type]
        for each in ("none", "full")
    )
    mlp, once = (sum(one.flops for one in work.products if one.part == "mlp") for work in (full, none))
    assert mlp == pytest.approx(once * 4 / 3)
    assert full.attention.flops == pytest.approx(none.attention.flops * 4 / 3)


def test_tensor_traffic_is_megatrons() -> None:
    """Four all-reduces of tokens x hidden a layer and micro-batch, each 2 (t - 1) / t of its bytes."""
    whole = replace(as_trained(), degrees=replace(as_trained().degrees, sequence=False))
    each = traffic(plan_degrees(whole), "tensor all-reduce")
    assert each.calls == 4 * 8 * 16
    assert each.link_bytes == pytest.approx(4 * 8 * 16 * 8192 * 16384 * 2 * 2 * 7 / 8)
    assert (each.network_bytes, each.within_host) == (0, True)
    divided = plan_degrees(as_trained())
    both = traffic(divided, "tensor reduce-scatter").link_bytes + traffic(divided, "tensor all-gather").link_bytes
    assert both == pytest.approx(each.link_bytes)


def test_data_and_pipeline_traffic() -> None:
    plan = plan_degrees(as_trained())
    gradients, parameters = traffic(plan, "gradients"), traffic(plan, "parameters")
    assert (gradients.ranks, gradients.ranks_in_host) == (128, 1)
    assert gradients.network_bytes == pytest.approx(4 * plan.fullest.parameters.total * 127 / 128)
    assert parameters.network_bytes == pytest.approx(gradients.network_bytes / 2)
    messages = traffic(plan, "pipeline messages")
    assert messages.calls == 2 * 16 * 8
    assert messages.network_bytes == pytest.approx(2 * 16 * 8 * 8192 * 16384 * 2 / 8)


def test_context_ranks_share_a_sequence() -> None:
    """Keys and values go around once forward and twice backward; gradients are summed over data and context."""
    plan = plan_degrees(request(gpus=1024, tensor=8, pipeline=8, context=2, tokens_per_step=64 * 8192))
    ring = traffic(plan, "context ring")
    layers = len(plan.slowest.layers)
    assert ring.link_bytes + ring.network_bytes == pytest.approx(3 * layers * 8 * 4096 * 2 * 8 * 128 / 8 * 2)
    assert traffic(plan, "gradients").ranks == 16
    assert plan.request.degrees.data == 8


def deepseek(**changes: Any) -> DegreesRequest:
    """DeepSeek-V3 as trained: arXiv 2412.19437, section 3."""
    wanted = {
        "pipeline": 16,
        "expert": 64,
        "schedule": "dualpipe",
        "tokens_per_step": 15360 * 4096,
        "seq_length": 4096,
        "precision": "fp8",
        "checkpointing": "selective",
        "states": "bf16",
    }
    return request("deepseek-v3", 2048, **(wanted | changes))


def test_deepseek_v3_fits_as_it_was_trained() -> None:
    """Without tensor parallelism, on 80 GB: what section 3.2.3 of the report is about."""
    plan = plan_degrees(deepseek())
    assert plan.fits
    assert plan.request.micro_batches == 120
    assert plan.fullest.in_flight == 17
    experts = 8 * 4 * 3 * 7168 * 2048
    assert plan.fullest.parameters.experts == experts
    states = {item.kind: item.bytes for item in plan.fullest.items}
    dense = plan.fullest.parameters.dense
    assert states["master weights"] == pytest.approx(4 * dense / 128 + 4 * experts / 2)
    assert plan.memory[1].tensors == pytest.approx(plan.memory[14].tensors)


def test_experts_send_a_token_once_to_each_of_four_hosts() -> None:
    """Eight copies, at most four hosts, one of eight hosts is its own: 3.5 copies over the network."""
    plan = plan_degrees(deepseek())
    combine = traffic(plan, "expert combine")
    moe_layers, tokens = 4 * 120, 4096
    assert combine.payload == pytest.approx(moe_layers * tokens * 8 * 7168 * 2 * 2)
    assert combine.network_bytes == pytest.approx(combine.payload * 3.5 / 8)
    other = plan_degrees(
        request("qwen3-235b-a22b", 256, pipeline=8, expert=32, tokens_per_step=4096 * 2048, seq_length=4096)
    )
    assert traffic(other, "expert combine").network_bytes == pytest.approx(
        traffic(other, "expert combine").payload * 24 / 32
    )


def test_experts_without_a_degree_divide_like_other_matrices() -> None:
    plan = plan_degrees(request("mixtral-8x7b-v0.1", 8, tensor=8, tokens_per_step=8192 * 8))
    assert plan.fullest.parameters.experts == 0
    assert not [each for each in plan.work.traffic if each.group == "expert"]
    assert 8 * plan.fullest.parameters.total == pytest.approx(46_702_792_704, rel=1e-3)


@pytest.mark.parametrize("schedule", ["naive", "gpipe", "1f1b", "zb-h1"])
def test_the_bubble_slows_the_step(schedule: str) -> None:
    base = request("llama-3.1-8b", 64, pipeline=4, tokens_per_step=16 * 16 * 4096, seq_length=4096)
    other = plan_degrees(replace(base, degrees=replace(base.degrees, schedule=schedule)))
    waits = {"naive": 3.0, "gpipe": 3 / 16, "1f1b": 3 / 16, "zb-h1": 1 / 16}
    assert other.work.bubble == pytest.approx(waits[schedule])
    assert next(part[1] for part in other.time.parts if part[0] == "pipeline bubble") > 0


def test_zero_stages_divide_more_and_send_more() -> None:
    base = request("llama-3.1-8b", 64, tensor=8, tokens_per_step=64 * 8192)
    plans = [plan_degrees(replace(base, zero_stage=stage)) for stage in range(4)]
    sizes = [plan.fullest.total for plan in plans]
    assert sizes == sorted(sizes, reverse=True)
    local, ranks = plans[0].fullest.parameters.total, 8
    kinds = [{item.kind: item.bytes for item in plan.fullest.items} for plan in plans]
    assert [each["gradients"] for each in kinds] == pytest.approx(
        [4 * local, 4 * local, 4 * local / ranks, 4 * local / ranks]
    )
    assert [each["parameters"] for each in kinds] == pytest.approx([2 * local, 2 * local, 2 * local, 2 * local / ranks])
    sent = [sum(each.network_bytes for each in plan.work.traffic if each.group == "data") for plan in plans]
    assert sent[0] == pytest.approx(8 * local * 7 / 8)
    assert sent[1] == pytest.approx(6 * local * 7 / 8)
    assert sent[2] > sent[1]
    assert sent[3] > sent[2]


def test_fp32_and_fp8_have_bytes_and_peaks_of_their_own() -> None:
    base = request("llama-3.1-8b", 64, tensor=8, tokens_per_step=64 * 8192)
    fp32, bf16, fp8 = (plan_degrees(replace(base, precision=each)) for each in ("fp32", "bf16", "fp8"))  # type: ignore[arg-type]
    assert [str(each.request.recipe.total) for each in (fp32, bf16, fp8)] == ["16", "18", "18"]
    assert fp32.time.seconds > bf16.time.seconds > fp8.time.seconds
    on_a100 = plan_degrees(replace(base, precision="fp8", gpu="A100-80GB"))
    assert any("no FP8" in note for note in on_a100.notes)


def test_batches_that_cannot_be_met_are_said() -> None:
    plan = plan_degrees(replace(request(tensor=8, pipeline=16), tokens_per_step=16e6))
    assert plan.request.planned_tokens == 15 * 128 * 8192
    assert "16,000,000 tokens are no whole number of micro-batches of 1,048,576 tokens" in plan.notes[0]


def test_groups_that_leave_their_host_are_said() -> None:
    plan = plan_degrees(request("llama-3.1-70b", 64, tensor=16, tokens_per_step=64 * 8192))
    assert "a tensor group of 16 spans 2 hosts" in plan.notes
    assert not traffic(plan, "tensor all-gather").within_host


def test_hours_are_steps_times_gpus() -> None:
    plan = plan_degrees(as_trained())
    hours, low, high = plan.gpu_hours(15.6e12)
    assert hours == pytest.approx(15.6e12 / 16_777_216 * plan.time.seconds * 16384 / 3600)
    assert low < hours < high


def test_sixteen_thousand_gpus_take_no_time() -> None:
    start = time.process_time()
    plan_degrees(as_trained())
    plan_degrees(deepseek())
    assert time.process_time() - start < 2


def test_a_plan_that_fits_with_checkpointing_says_so() -> None:
    """GPT-NeoX-20B in 4 stages on A100-80GB: 83 GiB without checkpointing, 67 GiB with it; a T4 holds neither."""
    wanted = replace(request("gpt-neox-20b", 8, pipeline=4), gpu="A100-80GB", seq_length=2048, tokens_per_step=1e6)
    shown = render_degrees(plan_degrees(wanted), None, None, [], Style())
    assert "does not fit; with `--checkpointing full` it fits, 66." in shown
    for other in (replace(wanted, checkpointing="full"), replace(wanted, gpu="T4-16GB")):
        assert "it fits, " not in render_degrees(plan_degrees(other), None, None, [], Style())
