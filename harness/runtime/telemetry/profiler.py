# SPDX-License-Identifier: Apache-2.0
"""Some steps under torch's profiler: a trace file, and a table of the time by kind of work.

DeepSpeed's own FLOPs profiler and communication logger are switched on in its JSON. `write_comms_summary` writes the
figures of the latter.
"""

from __future__ import annotations

import contextlib
import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from harness.file_io import replace_file
from harness.runtime.distributed import Distributed
from harness.runtime.metrics import MetricsWriter
from harness.spec.sections.telemetry_spec import TelemetrySpec

_EVENT_KINDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "communication",
        ("c10d::", "nccl", "gloo", "allreduce", "all_reduce", "all_gather", "reduce_scatter", "broadcast_"),
    ),
    ("attention", ("scaled_dot_product", "flash", "fmha", "_efficient_attention", "softmax")),
    ("matrix products", ("aten::mm", "addmm", "bmm", "matmul", "linear", "gemm", "cutlass", "aten::_grouped_mm")),
    ("optimizer", ("optimizer.step", "adam", "multi_tensor", "_foreach", "lamb", "lion")),
    (
        "copies",
        ("aten::copy_", "memcpy", "aten::to", "_to_copy", "aten::cat", "contiguous", "clone", "memset", "fill_"),
    ),
    ("embedding and gathers", ("embedding", "index", "gather", "scatter")),
    ("loss", ("cross_entropy", "nll_loss", "log_softmax")),
)
"""Kind -> parts of an event's name in lower case. The first match counts; all else is `_OTHER_KIND`."""
_OTHER_KIND = "element by element and other"


@dataclass(frozen=True, slots=True)
class StepRange:
    """The steps to profile, both ends included."""

    first: int
    last: int

    @staticmethod
    def parse(text: str | None) -> StepRange | None:
        """Parse `10-12` or `10`. None for None, and for a range that ends before it begins."""
        if text is None:
            return None
        first, _, last = text.partition("-")
        step_range = StepRange(int(first), int(last or first))
        return step_range if step_range.last >= step_range.first else None


class StepProfiler:
    """The profiler of one rank. It records if the rank is one of `profile_ranks`."""

    def __init__(self, spec: TelemetrySpec, distributed: Distributed, run_dir: Path, metrics: MetricsWriter) -> None:
        self._step_range, self._enabled = StepRange.parse(spec.profile_steps), distributed.rank in spec.profile_ranks
        self._rank, self._folder, self._metrics = distributed.rank, run_dir / "profile", metrics
        self._profiler: torch.profiler.profile | None = None
        self._first_step = 0

    def starts_or_stops_after(self, step: int) -> bool:
        """Does the range start or stop after this step? The same on all ranks, whether they record or not."""
        return self._step_range is not None and (step == self._step_range.first - 1 or step == self._step_range.last)

    def start_if_due(self, step: int) -> None:
        """Start before step `step`, if it is in the range."""
        span = self._step_range
        if span is None or not self._enabled or self._profiler is not None or not span.first <= step <= span.last:
            return
        activities = [torch.profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        self._profiler, self._first_step = torch.profiler.profile(activities=activities), step
        self._profiler.start()

    def stop_if_due(self, step: int, *, last: bool = False) -> Path | None:
        """Stop after the last step of the range. Returns the file of the table. A full disk does not stop the run."""
        if self._profiler is None or self._step_range is None or (step < self._step_range.last and not last):
            return None
        profiler, self._profiler, self._enabled = self._profiler, None, False
        profiler.stop()
        name = f"rank-{self._rank:05d}.steps-{self._first_step}-{step}"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            profiler.export_chrome_trace(str(self._folder / f"{name}.trace.json.gz"))
            table = self._folder / f"{name}.txt"
            events = profiler.key_averages()
            table.write_text(format_table(events, step - self._first_step + 1), encoding="utf-8")
        except (OSError, RuntimeError) as error:  # torch's exporter raises the latter where it cannot write
            self._metrics.write("tracker_failed", step=step, tracker="profile", error=str(error))
            return None
        self._metrics.write("profile", step=step, first_step=self._first_step, path="profile")
        return table


def format_table(events: Iterable[Any], steps: int) -> str:
    """Milliseconds per step by kind of work, then the longest events; by the device's time, else the host's."""
    all_events = list(events)
    on_device = any(_device_time(e) > 0 for e in all_events)
    by_kind: dict[str, float] = defaultdict(float)
    rows = []
    for event in all_events:
        microseconds = _device_time(event) if on_device else float(event.self_cpu_time_total)
        if microseconds <= 0:
            continue
        by_kind[classify_event(event.key)] += microseconds
        rows.append((microseconds, event.count, event.key))
    total = sum(by_kind.values()) or 1.0
    place = "on the device" if on_device else "on the host, all threads"
    lines = [f"Time {place}, a step, over {steps} step{'s' * (steps > 1)}; profiling makes steps slower", ""]
    lines += [f"{'kind':<32}{'ms':>12}{'share':>9}"]
    for kind, microseconds in sorted(by_kind.items(), key=lambda item: -item[1]):
        lines.append(f"{kind:<32}{microseconds / 1000 / steps:>12.3f}{microseconds / total:>9.1%}")
    lines += ["", f"{'event':<60}{'calls':>10}{'ms':>12}{'share':>9}"]
    for microseconds, count, key in sorted(rows, reverse=True)[:30]:
        lines.append(
            f"{key[:59]:<60}{count / steps:>10.1f}{microseconds / 1000 / steps:>12.3f}{microseconds / total:>9.1%}"
        )
    return "\n".join(lines) + "\n"


def classify_event(name: str) -> str:
    """The kind of work of an event."""
    lower_name = name.lower()
    return next((kind for kind, parts in _EVENT_KINDS if any(part in lower_name for part in parts)), _OTHER_KIND)


def _device_time(event: Any) -> float:
    return float(getattr(event, "self_device_time_total", 0) or 0)


def write_comms_summary(run_dir: Path, distributed: Distributed, *, enabled: bool) -> None:
    """Write DeepSpeed's summary of its collectives to `profile/communication.json`, where the disk takes it. A
    collective if `enabled`.
    """
    if not enabled:
        return
    from deepspeed.comm import comm

    summary = comm.log_summary(return_dict=True)
    if distributed.is_main_process and summary:
        text = json.dumps(summary, indent=1, default=str)
        with contextlib.suppress(OSError):
            (run_dir / "profile").mkdir(parents=True, exist_ok=True)
            replace_file(run_dir / "profile" / "communication.json", text + "\n", durable=False)
