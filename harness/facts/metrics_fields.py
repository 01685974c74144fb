# SPDX-License-Identifier: Apache-2.0
"""The fields of the long lines of `metrics.jsonl`. Data alone; the lines themselves are in `metrics_schema`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FieldKind = Literal["count", "number", "text", "flag", "counts", "numbers", "texts", "map"]


@dataclass(frozen=True, slots=True)
class MetricsField:
    """One field of a line. `always`: every such line has it; `since`: the first version of the schema with it."""

    name: str
    kind: FieldKind
    unit: str
    meaning: str
    always: bool = False
    since: int = 1


def required(name: str, kind: FieldKind, unit: str, meaning: str) -> MetricsField:
    """A field that is always there, from version 1 on or since its line is."""
    return MetricsField(name, kind, unit, meaning, always=True)


def since_v2(name: str, kind: FieldKind, unit: str, meaning: str) -> MetricsField:
    """A field that version 2 has added."""
    return MetricsField(name, kind, unit, meaning, since=2)


COMMON = (
    required("type", "text", "", "which of the lines below this is"),
    since_v2("time", "number", "s since 1970", "when the line was written"),
)
"""Fields of every line."""

RUN = (
    required("format_version", "count", "", "version of this schema"),
    required("name", "text", "", "name of the run"),
    required("world", "count", "ranks", "all ranks"),
    required("steps", "count", "", "the step at which the run ends"),
    required("start_step", "count", "", "the step that it went on from; 0 for a start"),
    MetricsField("resumed_from", "text", "", "the checkpoint that it went on from"),
    required("parameters", "count", "elements", "the whole model, however it is cut"),
    since_v2("trainable_parameters", "count", "elements", "of these, the ones that are trained, such as LoRA's"),
    required("micro_batch", "count", "rows", "what a rank computes at once"),
    required("accumulation", "count", "", "micro-batches a step"),
    required("global_batch", "count", "rows", "a step, over all ranks"),
    required("max_length", "count", "tokens", "`data.max_length`"),
    required("train_tokens", "count", "tokens", "in the training part"),
    required("eval_tokens", "count", "tokens", "in the held-out part"),
    MetricsField("records_left_out", "map", "records", "by reason"),
    MetricsField("records_cut", "count", "records", "longer than `data.max_length`"),
    MetricsField(
        "unigram_entropy", "number", "nats", "of the held-out part: what a model that knows frequencies alone reaches"
    ),
    required("steps_per_epoch", "count", "", "whole global batches of an epoch"),
    required("zero_stage", "count", "", "as the engine says it"),
    required("run_sha256", "text", "", "of what was decided before the start"),
    since_v2("data_parallel", "count", "ranks", "degree of data parallelism"),
    since_v2("tensor_parallel", "count", "ranks", "degree of tensor parallelism"),
    since_v2("pipeline_parallel", "count", "ranks", "stages of the pipeline"),
    since_v2("sequence_parallel", "count", "ranks", "degree of sequence parallelism"),
    since_v2("hosts", "texts", "", "host of each rank, in rank order"),
    since_v2("device", "text", "", "rank 0's accelerator as its driver calls it, or `cpu`"),
    since_v2(
        "machine",
        "map",
        "",
        "rank 0's host: `cpu`, `host_memory_bytes`, and versions of `torch`, `deepspeed` and `harness`",
    ),
    since_v2("device_memory_bytes", "count", "bytes", "memory of rank 0's accelerator; none on a CPU"),
    since_v2(
        "device_peak_flops", "number", "FLOP/s", "peak of one device in this run's number format; none where not known"
    ),
    since_v2("device_peak_source", "text", "", "where the peak comes from: `telemetry.peak_flops` or a data sheet"),
    since_v2("flops_source", "text", "", "what FLOPs are counted from, or why they are not"),
    since_v2(
        "matmul_parameters", "count", "elements", "parameters that a token is multiplied with (only active experts)"
    ),
    since_v2("clock", "text", "", "`host`: parts of a step are timed on the host, `device`: by events on the device"),
    since_v2("logging_steps", "count", "", "steps between two `step` lines"),
    since_v2("gather_steps", "count", "", "steps between two gathers over all ranks; none: never"),
    since_v2(
        "offload_to_host_bytes", "number", "bytes", "a rank, a step, from device to host memory, as the plan counts it"
    ),
    since_v2(
        "offload_to_device_bytes", "number", "bytes", "a rank, a step, from host memory to device, as the plan counts"
    ),
    since_v2("attempt", "count", "", "which start of this run, from 1"),
    since_v2("patches", "map", "", "by name: applied, not needed, switched off, or skipped or refused and why"),
)

STEP = (
    required("step", "count", "", "steps done"),
    required(
        "loss", "number", "nats", "mean over all predicted tokens of the global batch, before the update; may be null"
    ),
    required("learning_rate", "number", "", "of this step"),
    MetricsField("grad_norm", "number", "", "of the whole gradient before clipping"),
    MetricsField("loss_scale", "number", "", "only in fp16"),
    required("tokens", "count", "tokens", "all so far, over all ranks, padding not counted"),
    since_v2(
        "predicted_tokens",
        "count",
        "tokens",
        "those of `tokens` that the loss counts; absent after a resume from a checkpoint without this count",
    ),
    required("samples", "count", "rows", "all so far, over all ranks"),
    required(
        "tokens_per_second", "number", "tokens/s", "over all ranks since the line before, without saves and evaluations"
    ),
    required("skipped", "count", "", "steps so far that changed nothing, as the engine counts them"),
    since_v2("steps", "count", "", "steps since the line before, which the means below are over"),
    since_v2("step_tokens", "number", "tokens", "mean a step, over all ranks, without padding"),
    since_v2("step_positions", "number", "positions", "mean a step, over all ranks, padding too: what is computed"),
    required("seconds", "number", "s", "mean a step: data, computation, update, what the loop itself does; rank 0"),
    MetricsField(
        "seconds_data", "number", "s", "of these: waiting for data (on a device: what its work does not hide)"
    ),
    MetricsField("seconds_forward", "number", "s", "of these: forward"),
    MetricsField("seconds_backward", "number", "s", "of these: backward, with the communication that it waits for"),
    MetricsField("seconds_optimizer", "number", "s", "of these: reduction that was left, clipping, update"),
    MetricsField(
        "seconds_pipeline", "number", "s", "of these: forward, backward and update of a pipeline, which are one"
    ),
    since_v2("seconds_loop", "number", "s", "of these: NaN handling, the loss over all ranks, measuring"),
    since_v2(
        "seconds_communication",
        "number",
        "s",
        "inside the parts above: in collectives, waiting for others included; "
        "mean of the steps in which it was measured. `clock: device`: what computation hides counts too",
    ),
    since_v2("communication_share", "number", "", "the same over `seconds`, 0 to 1"),
    since_v2("seconds_io", "number", "s", "inside the parts above: blocked by reads and writes of NVMe swapping"),
    since_v2(
        "seconds_checkpoint", "number", "s", "since the line before, all of it, not in `seconds`: stalled by saves"
    ),
    since_v2("seconds_evaluation", "number", "s", "since the line before, all of it, not in `seconds`: evaluations"),
    since_v2(
        "flops",
        "number",
        "FLOP",
        "a step, all ranks: what the model needs, forward and backward; causal attention "
        "inside each document, nothing recomputed, no padding",
    ),
    since_v2("flops_hardware", "number", "FLOP", "a step, all ranks: what is executed, with recomputation and padding"),
    since_v2("flops_6n", "number", "FLOP", "a step, all ranks: 6 x active parameters x tokens, to compare"),
    since_v2("device_flops_per_second", "number", "FLOP/s", "`flops` / `seconds` / `world`"),
    since_v2("mfu", "number", "", "`device_flops_per_second` / `device_peak_flops`, 0 to 1; none without a known peak"),
    since_v2("hfu", "number", "", "the same of `flops_hardware`"),
    since_v2("mfu_6n", "number", "", "the same of `flops_6n`"),
    required("memory_host_bytes", "count", "bytes", "rank 0's process: resident, at most a second ago"),
    since_v2("memory_host_peak_bytes", "count", "bytes", "rank 0's process: resident at most so far"),
    since_v2("memory_gpu_bytes", "count", "bytes", "rank 0's device: allocated now"),
    since_v2("memory_gpu_reserved_bytes", "count", "bytes", "rank 0's device: taken by the allocator now"),
    MetricsField("memory_gpu_peak_bytes", "count", "bytes", "rank 0's device: allocated at most so far"),
    since_v2("nvme_bytes", "count", "bytes", "in the swap files of rank 0's host"),
    since_v2(
        "nvme_read_bytes", "number", "bytes", "rank 0, mean a step: read by NVMe swapping, counted at its file handles"
    ),
    since_v2(
        "nvme_write_bytes", "number", "bytes", "rank 0, mean a step: written by NVMe swapping, counted in the same way"
    ),
)

RANKS = (
    required("step", "count", "", "the last step of the interval"),
    required("steps", "count", "", "steps of the interval; figures are medians over them unless noted otherwise"),
    required("seconds", "numbers", "s", "the step, which is the same on all ranks that wait for each other"),
    required("busy", "numbers", "s", "the step without waiting for other ranks; a slow rank is detected by it"),
    required("data", "numbers", "s", "of the busy time: waiting for data"),
    required("compute", "numbers", "s", "of the busy time: forward, backward, update"),
    required("io", "numbers", "s", "of the busy time: blocked by NVMe swapping"),
    required("host", "numbers", "s", "of the busy time: everything else"),
    required("work", "numbers", "FLOP", "mean a step: floating-point operations of the rows that the rank was given"),
    required("memory_host_bytes", "counts", "bytes", "resident, at most a second ago"),
    MetricsField("memory_gpu_peak_bytes", "counts", "bytes", "allocated on the device at most so far"),
)

STRAGGLER = (
    required("step", "count", "", "when it was noticed, or was over"),
    required("state", "text", "", "`named`, or `gone` once it is as fast as the other ranks again"),
    required("ranks", "counts", "", "the slow ranks"),
    required("host", "text", "", "their host"),
    required("whole_host", "flag", "", "all ranks of the host are slower than those of other hosts"),
    required("slower", "number", "", "busy time over that of its peers, minus 1: 0.25 is 25 % slower"),
    required("seconds", "number", "s", "what it costs a step: `busy` less `peers`"),
    since_v2("busy", "number", "s", "its step without waits for others, mean of the steps in which it was slow"),
    since_v2("peers", "number", "s", "the same of its peers in these steps, their median"),
    required("cause", "text", "", "`data`, `compute`, `input_size`, `io`, `host` or `gpu`, the likely one"),
    required("evidence", "text", "", "the measurements behind it, as text"),
)

MEMORY = (
    required("step", "count", "", "steps done"),
    required("phase", "text", "", "`load`, `resume`, `step` (the first) or `save` (the first)"),
    required("memory_host_bytes", "counts", "bytes", "by rank: resident at its end"),
    required("memory_host_peak_bytes", "counts", "bytes", "by rank: resident at most in it"),
    MetricsField("memory_gpu_bytes", "counts", "bytes", "by rank: allocated on the device at its end"),
    MetricsField("memory_gpu_reserved_bytes", "counts", "bytes", "by rank: taken by the device's allocator at its end"),
    MetricsField("memory_gpu_peak_bytes", "counts", "bytes", "by rank: allocated on the device at most so far"),
    MetricsField(
        "states",
        "map",
        "bytes",
        "after the first step, by tier and kind of the plan's rows: of the rank with most; `nvme.*` in files",
    ),
)

GPU = (
    required("step", "count", "", "when a problem was noticed, or was over"),
    required("rank", "count", "", "the rank that computes on it"),
    required("host", "text", "", "its host"),
    required("state", "text", "", "`problem`, or `gone` once the GPU has no problem"),
    required(
        "problems",
        "texts",
        "",
        "`ecc`, `remap`, `lost`, `thermal`, `slowdown`, `nvlink`, `pcie_width`, `pcie_generation` or `power_limit`",
    ),
    required("evidence", "text", "", "the measurements behind it, as text"),
    MetricsField("bus_id", "text", "", "its PCI bus id"),
    MetricsField("uuid", "text", "", "its UUID"),
    MetricsField("sm_clock", "count", "MHz", "now"),
    MetricsField("sm_clock_max", "count", "MHz", "at most"),
    MetricsField("temperature", "count", "degrees Celsius", "now"),
    MetricsField("power", "number", "W", "now"),
    MetricsField("power_limit", "number", "W", "in force"),
    MetricsField("pcie_width", "count", "lanes", "now"),
    MetricsField("pcie_width_max", "count", "lanes", "that GPU and slot allow"),
    MetricsField("ecc_uncorrected", "count", "errors", "uncorrected ECC errors since the driver was loaded"),
    MetricsField("xid", "count", "", "the last Xid error that the driver reported of it in this run"),
)
