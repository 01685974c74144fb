# SPDX-License-Identifier: Apache-2.0
"""Numbers of a log that look wrong though nothing failed. Observations: none is a cause, and none is certain."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import median

from harness.diagnosis.diagnosis_types import LogFacts
from harness.diagnosis.reader.metric_series import MetricSeries, Sample

_MIN_ZEROS, _MIN_ZEROS_OF_A_QUOTE = 5, 3
_MIN_EQUAL_NORMS = 10
_MIN_EQUAL_RATES = 30
_MIN_RATES = 24
_MIN_MEMORY = 10
_LOSS_JUMP = 1.3
_MIN_LOSS_JUMP = 0.3
_MEMORY_GROWTH = 1.05
_AROUND_RESUME = 5
_MIN_ITERATIONS = 5
_SLOWER, _STEADY = 1.04, 1.01
"""Megatron's iterations differ by less than `_STEADY` on sound machines."""
_ROW = 3
"""Losses whose median counts."""
_DIVERGED_BY, _MIN_DIVERGENCE = 1.5, 1.0
_ABSURD_LOSS, _ABSURD_NORM = 1e3, 1e4


def observe_series(series: MetricSeries, facts: LogFacts) -> Iterator[str]:
    """A sentence for each series that looks wrong."""
    samples = series.samples
    yield from _observe_zeros(samples.get("loss", ()), samples.get("norm", ()), facts)
    yield from _observe_norms(samples.get("norm", ()), samples.get("loss", ()))
    yield from _observe_sizes(samples.get("loss", ()), samples.get("norm", ()))
    if not series.resumes:
        yield from _observe_divergence(samples.get("loss", ()), samples.get("norm", ()))
    yield from _observe_resumes(samples.get("loss", ()), series.resumes)
    yield from _observe_learning_rate(samples.get("lr", ()))
    yield from _observe_throughput(samples.get("rate", ()))
    if len({sample.value for sample in samples.get("batch", ())}) <= 1:  # a batch that grows takes longer
        yield from _observe_iterations(samples.get("iteration", ()))
    yield from _observe_memory(samples.get("memory", ()))


def _observe_zeros(losses: Sequence[Sample], norms: Sequence[Sample], facts: LogFacts) -> Iterator[str]:
    for name, row in (("loss", losses), ("gradient norm", norms)):
        run = _last_run(row, 0.0)
        if len(run) < (_MIN_ZEROS if len(run) < len(row) else _MIN_ZEROS_OF_A_QUOTE):
            continue
        text = f"observation: the {name} is exactly 0 in {len(run)} lines in a row, from line {run[0].line} on"
        if '"overlap_comm": true' in facts.config or "'overlap_comm': True" in facts.config:
            text += "; `overlap_comm` is on: compare with `overlap_comm: false`"
            if release := facts.versions.get("deepspeed"):
                text += f" (`harness explain {release}` lists the races of that release)"
        elif name == "loss":
            text += ": all labels may be masked, or the gradients are not finite"
        yield text


def _observe_norms(norms: Sequence[Sample], losses: Sequence[Sample]) -> Iterator[str]:
    run = _last_run(norms, norms[-1].value) if norms else []
    if not run or not (value := run[-1].value):
        return
    zeros = min(len(run), len(_last_run(losses, 0.0)))
    if zeros >= _MIN_ZEROS:
        yield (
            f"observation: the gradient norm is {value:g} while the loss is 0, in the last {zeros} lines: gradients of "
            "no loss are no gradients: look at the labels, NaN in the logits, the attention kernel and its release"
        )
    elif len(run) >= _MIN_EQUAL_NORMS:
        where = f"all {len(run)}" if len(run) == len(norms) else f"the last {len(run)}"
        is_limit = f"{value:g}" in ("0.1", "0.3", "0.5", "1", "2", "5")
        reason = "it may be measured after clipping" if is_limit else "the same batch, or a fault of the step"
        yield (
            f"observation: the gradient norm is {value:g} in {where} lines: {reason}, and says nothing of the gradients"
        )


def _observe_sizes(losses: Sequence[Sample], norms: Sequence[Sample]) -> Iterator[str]:
    """Norms that no sound training has, in all lines."""
    lowest = min((s.value for s in norms), default=0.0)
    if len(norms) < 2 or lowest < _ABSURD_NORM:
        return
    text = f"observation: the gradient norm is {lowest:.4g} or more in all {len(norms)} lines"
    if losses and losses[0].value >= _ABSURD_LOSS:
        yield (
            f"{text}, and the first loss is {losses[0].value:.4g}, where a language model begins near 10: the values "
            "are broken from the first step on: stop the job; compare the weights, the dtype and ZeRO-3 with a run "
            "without DeepSpeed, or at stage 2, and try other releases of DeepSpeed and the trainer"
        )
    else:
        yield f"{text}: the training is unstable, whatever clipping makes of it"


def _observe_divergence(losses: Sequence[Sample], norms: Sequence[Sample]) -> Iterator[str]:
    """A loss that was low and is high at the end, in each of the last lines."""
    size = max(_ROW, len(losses) // 10)
    if len(losses) < 2 * size:
        return
    earlier = [s.value for s in losses[:-size]]
    low = min(median(earlier[i : i + size]) for i in range(0, len(earlier) - size + 1, size))
    last = [s.value for s in losses[-size:]]
    high = median(last)
    if low > 0 and high >= low * _DIVERGED_BY and high - low >= _MIN_DIVERGENCE and min(last) > low:
        text = f"observation: the loss rises from {low:.4g} to {high:.4g} and stays there: the training has diverged"
        shared = {s.line for s in losses} & {s.line for s in norms}
        if len(shared) == len(losses) and norms[-1].line > losses[-1].line:
            text += f"; line {norms[-1].line} has no loss any more"
        yield (
            f"{text}: stop the job, resume from a checkpoint before the rise with a lower learning rate or other data, "
            "and look at the gradient norms, the loss scale and the batch at the rise"
        )


def _observe_iterations(times: Sequence[Sample]) -> Iterator[str]:
    """Iterations that were steady and became slower."""
    size = max(2, len(times) // 3)
    if len(times) < _MIN_ITERATIONS:
        return
    first, last = ([s.value for s in row] for row in (times[:size], times[-size:]))
    is_steady = max(first) <= min(first) * _STEADY
    if is_steady and median(last) >= median(first) * _SLOWER and min(last) > max(first):
        yield (
            f"observation: an iteration takes {median(last) / median(first) - 1:.0%} longer than before and stays so, "
            f"{median(first):.5g} to {median(last):.5g}: one slow GPU or host holds all ranks: compare clocks and heat "
            "of the GPUs (`nvidia-smi -q -d PERFORMANCE`), and start again without the slow one"
        )


def _observe_resumes(losses: Sequence[Sample], resumes: Sequence[int]) -> Iterator[str]:
    for line in resumes[-1:]:
        before = [s.value for s in losses if s.line < line][-_AROUND_RESUME:]
        after = [s.value for s in losses if s.line > line][:_AROUND_RESUME]
        if len(before) < 3 or len(after) < 3:
            continue
        old, new = median(before), median(after)
        if new > old * _LOSS_JUMP and new - old > _MIN_LOSS_JUMP:
            yield (
                f"observation: the loss is {new:.4g} after the checkpoint was loaded (line {line}) and was {old:.4g} "
                "before: weights, optimizer states or the position in the data may not have been restored"
            )


def _observe_learning_rate(rates: Sequence[Sample]) -> Iterator[str]:
    run = _last_run(rates, rates[-1].value) if rates else []
    if len(run) == len(rates) >= _MIN_EQUAL_RATES:
        yield (
            f"observation: the learning rate is {rates[0].value:g} in all {len(rates)} lines: with any schedule but a "
            "constant one, nothing steps the scheduler"
        )
    elif rates and rates[-1].value == 0 and len(run) >= _MIN_ZEROS and len(run) == len(rates):
        yield f"observation: the learning rate is 0 in all {len(rates)} lines: nothing is trained"


def _observe_throughput(rates: Sequence[Sample]) -> Iterator[str]:
    if len(rates) < _MIN_RATES:
        return
    steady = rates[len(rates) // 10 :]
    quarter = len(steady) // 4
    parts = [median(s.value for s in steady[i * quarter : (i + 1) * quarter]) for i in range(4)]
    first, last = parts[0], parts[-1]
    if last > 0 and first >= 2 * last and min(parts) == last:
        yield (
            f"observation: the throughput falls to {last / first:.0%} of what it was, {first:.3g} to {last:.3g} a "
            "second: look at lengths of batches, clocks and heat, memory that is allocated again and again, the disk"
        )


def _observe_memory(samples: Sequence[Sample]) -> Iterator[str]:
    values = [sample.value for sample in samples]
    if len(values) < _MIN_MEMORY or values[1] <= 0 or values[-1] < values[1] * _MEMORY_GROWTH:
        return
    grown = sum(later > earlier for earlier, later in pairwise(values[1:]))
    if grown >= 0.9 * (len(values) - 2):
        yield (
            f"observation: the allocated memory grows with nearly every line, from {values[1]:g} to {values[-1]:g}: "
            "something keeps tensors of earlier steps (a list of losses with their graphs, say)"
        )


def _last_run(samples: Sequence[Sample], value: float) -> list[Sample]:
    """The last samples in a row that have this value."""
    run = list[Sample]()
    for sample in reversed(samples):
        if sample.value != value:
            break
        run.append(sample)
    return run[::-1]
