# SPDX-License-Identifier: Apache-2.0
"""A run of any degrees from the command line: its options, and a sentence for each that does not fit the others."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

from harness.facts.model_lookup import ModelFacts
from harness.findings import Finding, Fix
from harness.plan.degrees.rank_groups import ParallelDegrees
from harness.plan.search.plan_request import validate_count, validate_gpu
from harness.plan.time.pipeline_schedule import SCHEDULES, Schedule
from harness.plan.weights.optimizer_states import BytesPerParameter

Precision = Literal["bf16", "fp16", "fp32", "fp8"]
Checkpointing = Literal["none", "selective", "full"]
StateFormat = Literal["fp32", "bf16", "int8", "momentum", "none"]

_STATE_BYTES: dict[StateFormat, int] = {"fp32": 8, "bf16": 4, "int8": 2, "momentum": 4, "none": 0}
_MAX_GPUS = 1_000_000
_MAX_DEGREE = 1 << 20


@dataclass(frozen=True, slots=True)
class DegreesRequest:
    """The options. `zero_stage` is that of the data-parallel group; 1 is Megatron's distributed optimizer.
    `reduced_bytes`: of a gradient between ranks, None for those of the recipe.
    """

    model: str
    gpu: str
    degrees: ParallelDegrees
    micro_batch: int = 1
    tokens_per_step: float = float(1 << 20)
    seq_length: int = 4096
    precision: Precision = "bf16"
    checkpointing: Checkpointing = "none"
    zero_stage: int = 1
    states: StateFormat = "fp32"
    reduced_bytes: int | None = None

    @property
    def sequences(self) -> float:
        """Sequences that the tokens of a step ask for."""
        return self.tokens_per_step / self.seq_length

    @property
    def micro_batches(self) -> int:
        """Micro-batches a step and pipeline: the nearest number to what the tokens ask for."""
        return max(1, round(self.sequences / (self.micro_batch * self.degrees.data)))

    @property
    def planned_tokens(self) -> int:
        """Tokens of a step with whole micro-batches."""
        return self.micro_batches * self.micro_batch * self.degrees.data * self.seq_length

    @property
    def recipe(self) -> BytesPerParameter:
        """Bytes a parameter as Megatron's distributed optimizer has them: gradients in fp32, 6 + 12 / d bytes in 16
        bits (docs/source/api-guide/dist_optimizer.md). FP8 keeps a matrix and its transpose, a byte each.
        """
        moments = _STATE_BYTES[self.states]
        if self.precision == "fp32":
            return BytesPerParameter(4, 4, 0, moments)
        return BytesPerParameter(2, 4, 4, moments)

    @property
    def element_bytes(self) -> int:
        """Bytes of an activation element between layers."""
        return 4 if self.precision == "fp32" else 2


def validate_degrees(request: DegreesRequest, model: ModelFacts | None) -> list[Finding]:
    """Every finding about a request at once; those about the model where it is known."""
    findings = [
        *validate_count("--gpus", request.degrees.world_size, _MAX_GPUS),
        *validate_count("--max-length", request.seq_length, 1 << 24),
        *validate_count("--micro-batch", request.micro_batch, _MAX_DEGREE),
        *validate_gpu(request.gpu),
    ]
    degrees = request.degrees
    for option, value in (
        ("--tensor", degrees.tensor),
        ("--pipeline", degrees.pipeline),
        ("--context", degrees.context),
        ("--expert", degrees.expert),
        ("--virtual-stages", degrees.virtual_stages),
        ("--gpus-per-node", degrees.gpus_per_host),
    ):
        findings += validate_count(option, value, _MAX_DEGREE)
    if findings:
        return findings
    findings += _validate_world(degrees)
    if not findings:
        findings += [*_validate_schedule(request), *(_validate_model(request, model) if model is not None else ())]
    return findings


def validate_choice(option: str, value: str, choices: tuple[str, ...]) -> list[Finding]:
    """A finding for a word that is not among the choices."""
    if value in choices:
        return []
    close = difflib.get_close_matches(value.lower(), choices, n=1)
    fix = Fix(f"give `{option} {close[0]}`" if close else "choose one of " + ", ".join(choices))
    return [_error(f"`{option} {value[:40]}` is not one of {', '.join(choices)}", fix.title)]


CHOICES: dict[str, tuple[str, ...]] = {
    "--schedule": SCHEDULES,
    "--precision": get_args(Precision),
    "--checkpointing": get_args(Checkpointing),
    "--states": get_args(StateFormat),
}
"""Words of each option that has a few."""


def _error(message: str, fix: str) -> Finding:
    return Finding("MM007", "error", message, fix=Fix(fix))


def _validate_world(degrees: ParallelDegrees) -> Iterator[Finding]:
    """The world is the product of the degrees; the fix names the nearest that are."""
    world, replica = degrees.world_size, degrees.replica
    if world % replica == 0:
        return
    product = f"tensor {degrees.tensor} x pipeline {degrees.pipeline} x context {degrees.context} = {replica:,}"
    fixes = []
    for option, value in (
        ("--pipeline", degrees.pipeline),
        ("--tensor", degrees.tensor),
        ("--context", degrees.context),
    ):
        rest = replica // value
        near = [each for each in _divisors(world // rest) if world % rest == 0] if world % rest == 0 else []
        near = sorted((each for each in near if each != value), key=lambda each: abs(each - value))[:2]
        if value > 1 and near:
            fixes.append(" or ".join(f"`{option} {each}`" for each in sorted(near)))
    below, above = world // replica * replica, (world // replica + 1) * replica
    counts = " or ".join(f"`--gpus {each}`" for each in (below, above) if each)
    yield _error(f"{world:,} GPUs are not a multiple of {product}", f"give {', or '.join([*fixes, counts])}")


def _divisors(number: int) -> list[int]:
    small = [each for each in range(1, int(number**0.5) + 1) if number % each == 0]
    return sorted({*small, *(number // each for each in small)})


def _nearest(total: int, value: int) -> str:
    """The divisors of a total around a value: `8 or 16`."""
    divisors = _divisors(total)
    below, above = [each for each in divisors if each < value][-1:], [each for each in divisors if each > value][:1]
    return " or ".join(map(str, below + above))


def _validate_schedule(request: DegreesRequest) -> Iterator[Finding]:
    degrees, stages, micro_batches = request.degrees, request.degrees.pipeline, request.micro_batches
    schedule: Schedule = degrees.schedule
    if schedule == "interleaved" and degrees.virtual_stages < 2:
        yield _error("an interleaved schedule has at least two chunks a stage", "give `--virtual-stages 2` or more")
    if degrees.virtual_stages > 1 and schedule != "interleaved":
        yield _error(
            f"`--virtual-stages {degrees.virtual_stages}` goes with an interleaved schedule, not with {schedule}",
            "give `--schedule interleaved`, or leave `--virtual-stages` out",
        )
    per_count = request.micro_batch * degrees.data * request.seq_length
    if schedule == "interleaved" and stages > 1 and micro_batches % stages:
        tokens = max(1, round(micro_batches / stages)) * stages * per_count
        yield _error(
            f"{micro_batches} micro-batches are no multiple of {stages} stages, as an interleaved schedule needs",
            f"give `--batch-tokens {tokens}`",
        )
    if schedule == "dualpipe" and stages > 1:
        if stages % 2:
            yield _error(f"DualPipe has stages in pairs, not {stages}", f"give `--pipeline {stages + 1}`")
        elif micro_batches % 2 or micro_batches < 2 * stages:
            count = max(2 * stages, micro_batches + micro_batches % 2)
            yield _error(
                f"{micro_batches} micro-batches are odd, or fewer than DualPipe needs: twice its {stages} stages",
                f"give `--batch-tokens {count * per_count}`",
            )


def _validate_model(request: DegreesRequest, model: ModelFacts) -> Iterator[Finding]:
    tensor_findings = list(_validate_tensor(request, model))
    yield from tensor_findings[:1]
    yield from _validate_layers(request.degrees, model.num_layers)
    if not tensor_findings:
        yield from _validate_length(request)
    yield from _validate_experts(request, model)


def _validate_tensor(request: DegreesRequest, model: ModelFacts) -> Iterator[Finding]:
    """Heads and columns divide; key-value heads divide or repeat."""
    tensor, kv_heads = request.degrees.tensor, model.kv_heads
    columns = model.intermediate if request.degrees.expert == 1 else tensor
    for name, count in (("query heads", model.heads), ("MLP columns", columns)):
        if count % tensor:
            message = f"{count:,} {name} do not divide over `--tensor {tensor}`"
            yield _error(message, f"give `--tensor` {_nearest(count, tensor)}")
    if kv_heads % tensor and tensor % kv_heads and model.latent is None:
        message = f"{kv_heads} key-value heads neither divide over `--tensor {tensor}` nor repeat on it"
        yield _error(message, f"give `--tensor` {_nearest(kv_heads, tensor)}")


def _validate_layers(degrees: ParallelDegrees, num_layers: int) -> Iterator[Finding]:
    """A chunk for every layer at least, where the embedding and the head may have one of their own."""
    if degrees.pipeline * degrees.virtual_stages <= num_layers + 2 and degrees.pipeline <= num_layers:
        return
    chunks = f" x {degrees.virtual_stages} chunks" if degrees.virtual_stages > 1 else ""
    most = max(1, num_layers // degrees.virtual_stages)
    yield _error(f"{num_layers} layers are too few for {degrees.pipeline} stages{chunks}", f"give `--pipeline {most}`")


def _validate_length(request: DegreesRequest) -> Iterator[Finding]:
    """A context ring takes a sequence in two parts a rank, so that a causal mask leaves all the same work."""
    degrees = request.degrees
    ring, tensor = 2 * degrees.context if degrees.context > 1 else 1, degrees.sequence_share
    if request.seq_length % (ring * tensor) == 0:
        return
    length = max(1, round(request.seq_length / (ring * tensor))) * ring * tensor
    parts = [f"{ring} parts of a context ring"] if ring > 1 else []
    parts += [f"{tensor} tensor ranks"] if tensor > 1 else []
    message = f"{request.seq_length:,} tokens do not divide over {' x '.join(parts)}"
    yield _error(message, f"give `--max-length {length}`")


def _validate_experts(request: DegreesRequest, model: ModelFacts) -> Iterator[Finding]:
    degrees = request.degrees
    if degrees.expert == 1:
        return
    if not model.experts:
        yield _error(f"`--expert {degrees.expert}`: {request.model} has no experts", "leave `--expert` out")
    elif model.experts % degrees.expert:
        yield _error(
            f"{model.experts} experts do not divide over `--expert {degrees.expert}`",
            f"give `--expert` {_nearest(model.experts, degrees.expert)}",
        )
    elif degrees.stage_ranks % degrees.expert:
        yield _error(
            f"`--expert {degrees.expert}` does not divide the {degrees.stage_ranks:,} GPUs of a pipeline stage",
            f"give `--expert` {_nearest(degrees.stage_ranks, degrees.expert)}",
        )
