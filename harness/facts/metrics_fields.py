"""The fields of the long lines of `metrics.jsonl`. Data alone; the lines themselves are in `metrics_schema`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["count", "number", "text", "flag", "counts", "numbers", "texts", "map"]


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a line. `always`: every such line has it; `since`: the first version of the schema with it."""

    name: str
    kind: Kind
    unit: str
    meaning: str
    always: bool = False
    since: int = 1


def must(name: str, kind: Kind, unit: str, meaning: str) -> Field:
    """A field that is always there, from version 1 on or since its line is."""
    return Field(name, kind, unit, meaning, always=True)


def new(name: str, kind: Kind, unit: str, meaning: str) -> Field:
    """A field that version 2 has added."""
    return Field(name, kind, unit, meaning, since=2)


COMMON = (
    must("type", "text", "", "which of the lines below this is"),
    new("time", "number", "s since 1970", "when the line was written"),
)
"""Fields of every line."""

RUN = (
    must("format_version", "count", "", "version of this schema"),
    must("name", "text", "", "name of the run"),
    must("world", "count", "ranks", "all ranks"),
    must("steps", "count", "", "the step at which the run ends"),
    must("start_step", "count", "", "the step that it went on from; 0 for a start"),
    Field("resumed_from", "text", "", "the checkpoint that it went on from"),
    must("parameters", "count", "elements", "the whole model, however it is cut"),
    must("micro_batch", "count", "rows", "what a rank computes at once"),
    must("accumulation", "count", "", "micro-batches a step"),
    must("global_batch", "count", "rows", "a step, over all ranks"),
    must("max_length", "count", "tokens", "`data.max_length`"),
    must("train_tokens", "count", "tokens", "in the training part"),
    must("eval_tokens", "count", "tokens", "in the held-out part"),
    Field("records_left_out", "map", "records", "by reason"),
    Field("records_cut", "count", "records", "longer than `data.max_length`"),
    Field(
        "unigram_entropy", "number", "nats", "of the held-out part: what a model that knows frequencies alone reaches"
    ),
    must("steps_per_epoch", "count", "", "whole global batches of an epoch"),
    must("zero_stage", "count", "", "as the engine says it"),
    must("run_sha256", "text", "", "of what was decided before the start"),
    new("data_parallel", "count", "ranks", "degree of data parallelism"),
    new("tensor_parallel", "count", "ranks", "degree of tensor parallelism"),
    new("pipeline_parallel", "count", "ranks", "stages of the pipeline"),
    new("sequence_parallel", "count", "ranks", "degree of sequence parallelism"),
    new("hosts", "texts", "", "host of each rank, in rank order"),
    new("device", "text", "", "rank 0's accelerator as its driver calls it, or `cpu`"),
    new("device_memory_bytes", "count", "bytes", "memory of rank 0's accelerator; none on a CPU"),
    new(
        "device_peak_flops", "number", "FLOP/s", "peak of one device in this run's number format; none where not known"
    ),
    new("device_peak_source", "text", "", "where the peak comes from: `telemetry.peak_flops` or a data sheet"),
    new("flops_source", "text", "", "what FLOPs are counted from, or why they are not"),
    new("matmul_parameters", "count", "elements", "parameters that a token is multiplied with (active experts alone)"),
    new("clock", "text", "", "`host`: parts of a step by the host's clock, `device`: by events that the device passes"),
    new("logging_steps", "count", "", "steps between two `step` lines"),
    new("gather_steps", "count", "", "steps between two looks at all ranks; none: never"),
    new(
        "offload_to_host_bytes", "number", "bytes", "a rank, a step, from device to host memory, as the plan counts it"
    ),
    new("offload_to_device_bytes", "number", "bytes", "a rank, a step, from host memory to device, as the plan counts"),
    new("attempt", "count", "", "which start of this run, from 1"),
)

STEP = (
    must("step", "count", "", "steps done"),
    must(
        "loss", "number", "nats", "mean over all predicted tokens of the global batch, before the update; may be null"
    ),
    must("learning_rate", "number", "", "that the step was taken with"),
    Field("grad_norm", "number", "", "of the whole gradient before clipping"),
    Field("loss_scale", "number", "", "fp16 alone"),
    must("tokens", "count", "tokens", "all so far, over all ranks, padding not counted"),
    must("samples", "count", "rows", "all so far, over all ranks"),
    must(
        "tokens_per_second", "number", "tokens/s", "over all ranks since the line before, without saves and evaluations"
    ),
    must("skipped", "count", "", "steps so far that changed nothing, as the engine counts them"),
    new("steps", "count", "", "steps since the line before, which the means below are over"),
    new("step_tokens", "number", "tokens", "mean a step, over all ranks, without padding"),
    new("step_positions", "number", "positions", "mean a step, over all ranks, padding too: what is computed"),
    must("seconds", "number", "s", "mean a step: data, computation, update, what the loop itself does; rank 0"),
    Field("seconds_data", "number", "s", "of these: waiting for data (on a device: what its work does not hide)"),
    Field("seconds_forward", "number", "s", "of these: forward"),
    Field("seconds_backward", "number", "s", "of these: backward, with the communication that it waits for"),
    Field("seconds_optimizer", "number", "s", "of these: reduction that was left, clipping, update"),
    Field("seconds_pipeline", "number", "s", "of these: forward, backward and update of a pipeline, which are one"),
    new("seconds_loop", "number", "s", "of these: policies, the loss over all ranks, measuring"),
    new(
        "seconds_communication",
        "number",
        "s",
        "inside the parts above: in collectives, waiting for others included; "
        "mean of the steps in which it was measured. `clock: device`: what computation hides counts too",
    ),
    new("communication_share", "number", "", "the same over `seconds`, 0 to 1"),
    new("seconds_io", "number", "s", "inside the parts above: blocked by reads and writes of NVMe swapping"),
    new("seconds_checkpoint", "number", "s", "since the line before, all of it, not in `seconds`: stalled by saves"),
    new("seconds_evaluation", "number", "s", "since the line before, all of it, not in `seconds`: evaluations"),
    new(
        "flops",
        "number",
        "FLOP",
        "a step, all ranks: what the model needs, forward and backward; causal attention "
        "inside each document, nothing recomputed, no padding",
    ),
    new("flops_hardware", "number", "FLOP", "a step, all ranks: what is executed, with recomputation and padding"),
    new("flops_6n", "number", "FLOP", "a step, all ranks: 6 x active parameters x tokens, to compare"),
    new("device_flops_per_second", "number", "FLOP/s", "`flops` / `seconds` / `world`"),
    new("mfu", "number", "", "`device_flops_per_second` / `device_peak_flops`, 0 to 1; none without a known peak"),
    new("hfu", "number", "", "the same of `flops_hardware`"),
    new("mfu_6n", "number", "", "the same of `flops_6n`"),
    must("memory_host_bytes", "count", "bytes", "rank 0's process: resident now, or a second ago"),
    new("memory_host_peak_bytes", "count", "bytes", "rank 0's process: resident at most so far"),
    new("memory_gpu_bytes", "count", "bytes", "rank 0's device: allocated now"),
    new("memory_gpu_reserved_bytes", "count", "bytes", "rank 0's device: taken by the allocator now"),
    Field("memory_gpu_peak_bytes", "count", "bytes", "rank 0's device: allocated at most so far"),
    new("nvme_bytes", "count", "bytes", "in the swap files of rank 0's host"),
    new(
        "nvme_read_bytes", "number", "bytes", "rank 0, mean a step: read by NVMe swapping, counted at its file handles"
    ),
    new("nvme_write_bytes", "number", "bytes", "rank 0, mean a step: written by NVMe swapping, counted likewise"),
)

RANKS = (
    must("step", "count", "", "the last step of the interval"),
    must("steps", "count", "", "steps of the interval; figures are medians over them unless said otherwise"),
    must("seconds", "numbers", "s", "the step, which is alike on all ranks that wait for each other"),
    must("busy", "numbers", "s", "the step without waiting for other ranks: by this a slow rank is known"),
    must("data", "numbers", "s", "of the busy time: waiting for data"),
    must("compute", "numbers", "s", "of the busy time: forward, backward, update"),
    must("io", "numbers", "s", "of the busy time: blocked by NVMe swapping"),
    must("host", "numbers", "s", "of the busy time: everything else"),
    must("work", "numbers", "FLOP", "mean a step: floating-point operations of the rows that the rank was given"),
    must("memory_host_bytes", "counts", "bytes", "resident now, or a second ago"),
    Field("memory_gpu_peak_bytes", "counts", "bytes", "allocated on the device at most so far"),
)

STRAGGLER = (
    must("step", "count", "", "when it was noticed, or was over"),
    must("state", "text", "", "`named`, or `gone` when it is as fast as the others again"),
    must("ranks", "counts", "", "the slow ranks"),
    must("host", "text", "", "their host"),
    must("whole_host", "flag", "", "all ranks of the host are slow, as against other hosts"),
    must("slower", "number", "", "busy time against that of its peers, less 1: 0.25 is 25 % slower"),
    must("seconds", "number", "s", "what it costs a step"),
    must("cause", "text", "", "`data`, `compute`, `input_size`, `io` or `host`, the likely one"),
    must("evidence", "text", "", "the numbers that speak for it, in words"),
)

MEMORY = (
    must("step", "count", "", "steps done"),
    must("phase", "text", "", "`load`, `resume`, `step` (the first) or `save` (the first)"),
    must("memory_host_bytes", "counts", "bytes", "by rank: resident at its end"),
    must("memory_host_peak_bytes", "counts", "bytes", "by rank: resident at most in it"),
    Field("memory_gpu_bytes", "counts", "bytes", "by rank: allocated on the device at its end"),
    Field("memory_gpu_reserved_bytes", "counts", "bytes", "by rank: taken by the device's allocator at its end"),
    Field("memory_gpu_peak_bytes", "counts", "bytes", "by rank: allocated on the device at most so far"),
    Field(
        "states",
        "map",
        "bytes",
        "after the first step, by tier and kind of the plan's rows: of the rank with most; `nvme.*` in files",
    ),
)
