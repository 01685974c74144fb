# SPDX-License-Identifier: Apache-2.0
"""Watches the steps of one engine: when to compare what, and what becomes of a difference.

Ranks compare with one small all-gather after steps 1, 4 and 20 and every 200 steps, on a gloo group of their own; the
gradient witness has its own steps. On all other steps nothing is read and nothing waits for the device.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.runtime.pipe.engine import PipelineEngine

from harness.engine_watch.config_review import review_config
from harness.engine_watch.engine_differences import (
    EngineDifferenceError,
    check_finding,
    difference_finding,
    find_gradient_faults,
    print_error_once,
)
from harness.engine_watch.json_checks import CHECKS, expected_settings_of_json
from harness.engine_witness.gradient_witness import GradientWitness
from harness.file_io import replace_file
from harness.findings import Finding, Severity
from harness.printed_text import escape_unprintable
from harness.runtime.engine_checks.check_results import CheckResults, evaluate_check, observe_check
from harness.runtime.engine_checks.engine_check import CheckMoment, EngineCheck
from harness.runtime.engine_checks.observations import Observations, StepRecord
from harness.runtime.engine_checks.witness_checks import witness_outcomes
from harness.runtime.object_gather import all_gather_object
from harness.runtime.topology import Topology
from harness.runtime.user_errors import first_error_line, print_findings

if TYPE_CHECKING:
    from harness.spec.run_spec import Consumer

OnDifference = Literal["raise", "warn", "write"]
FIRST_STEPS = 20
COMPARISON_STEPS = (1, 4, FIRST_STEPS)
_SUMMARY_STEP = 4
"""After this one, a line says how many checks hold."""
INTERVAL_STEPS = 200
_MAX_DIFFERENCES = 20
"""Differences that the file keeps, the first ones."""
_GROUP_TIMEOUT = timedelta(minutes=5)
_NO_LOSS = torch.zeros(())
_NO_MODEL_CONFIG: Any = None
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """`file` is the JSON on disk, None where only `config`, its values, is known. `output` is the file to write."""

    config: dict[str, Any]
    file: Path | None
    consumer: Consumer
    on_difference: OnDifference
    output: Path


class EngineWatch:
    """Watches one engine until `close`, or until the program ends.

    All ranks must create it at the same point. An error of its own is one line, after which it does nothing but tell
    the other ranks, which then do nothing either.
    """

    def __init__(self, engine: Any, options: WatchOptions) -> None:
        """Review the JSON and evaluate what is known of the engine before its first step. A collective. Raises
        EngineDifferenceError.
        """
        self.engine, self.options = engine, options
        self.is_active = True
        self._is_main_process = dist.get_rank() == 0
        self._world_size = dist.get_world_size()
        self._results, self._findings = CheckResults(), list[Finding]()
        self._review: tuple[Finding, ...] = ()
        self._gradient_faults: tuple[Finding, ...] = ()
        self._num_steps, self._last_step = 0, int(engine.global_steps)
        self._num_witness_results = 0
        self._start_values: list[tuple[EngineCheck, Any]] | None = None
        self._has_failed, self._can_write, self._has_summary = False, True, False
        self._unwrap: Callable[[], None] = lambda: None
        self._severity: Severity = "error" if options.on_difference == "raise" else "warning"
        self.witness = GradientWitness(engine)
        self._group: dist.ProcessGroup | None = None
        self._call_or_quit(self._start)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All differences so far, the same on every rank."""
        return tuple(self._findings)

    def close(self) -> None:
        """Stop watching, and write the last state. The engine and its process groups are as before. Raises nothing."""
        if self.is_active:
            self._quit()
            if self._is_main_process:
                self._print_summary()
                self._write_file(is_durable=True, has_ended=True)
        group, self._group = self._group, None
        if group is not None and dist.is_initialized():
            with contextlib.suppress(Exception):  # the script may have destroyed all groups, and made others
                dist.destroy_process_group(group)

    def _start(self) -> None:
        engine = self.engine
        # Every rank sends within a step of the others: a rank that takes longer never called `harness.watch`.
        self._group = dist.new_group(backend="gloo", timeout=_GROUP_TIMEOUT)
        expected = expected_settings_of_json(self.options.config, self._world_size)
        topology = Topology.from_dims(expected.parallel_dims, self._world_size, dist.get_rank())
        self._observations = Observations(expected, topology, _NO_MODEL_CONFIG, {}, {})
        self._observations.engine, self._observations.parameters = engine, dict(engine.module.named_parameters())
        self._observations.start_step = int(engine.global_steps)
        self._observations.skipped_steps_at_start = int(engine.skipped_steps)
        self._wrap("train_batch" if isinstance(engine, PipelineEngine) else "step")
        self.witness.attach()
        if self._is_main_process:
            self._call_or_fail(self._review_config)
        self._gradient_faults = tuple(self._gather(find_gradient_faults(self._review))[0])
        self._compare(("built",), [])

    def _review_config(self) -> None:
        """Print what the linter says of the JSON under this release, but for mere information."""
        options = self.options
        self._review = review_config(
            options.config, options.file, options.consumer, deepspeed.__version__, self._world_size
        )
        findings = [f for f in self._review if f.severity != "info"]
        if findings:
            what = f"`{options.file}`" if options.file else "the engine's JSON"
            lines = [f"harness.watch: {what} under DeepSpeed {deepspeed.__version__}:"]
            for finding in findings:  # not as an error is printed: the training goes on
                lines.append(f"  {finding.gate}, {finding.severity}: {finding.message}")
                lines += [f"    {finding.fix.title}"] if finding.fix else []
            sys.stderr.write("\n".join(map(escape_unprintable, lines)) + "\n")

    def _wrap(self, name: str) -> None:
        """Look at the engine before and after a method of it. Its class stays as it is."""
        inner = getattr(self.engine, name)

        @wraps(inner)
        def watched(*args: Any, **kwargs: Any) -> Any:
            if self.is_active and self._start_values is None:
                self._observe_start()
            result = inner(*args, **kwargs)
            if self.is_active and self.engine.global_steps != self._last_step:
                self._call_or_quit(self._on_step_end)
            return result

        def unwrap() -> None:
            if vars(self.engine).get(name) is watched:
                delattr(self.engine, name)

        setattr(self.engine, name, watched)
        self._unwrap = unwrap

    def _observe_start(self) -> None:
        """Before the first step, after a checkpoint was loaded: observe now, evaluate after that step."""
        checks = [check for check in CHECKS if check.moment == "begun"]
        self._start_values = [(check, observe_check(check, self._observations)) for check in checks]

    def _on_step_end(self) -> None:
        """A step is over. After some steps a collective that may raise EngineDifferenceError."""
        self._last_step = int(self.engine.global_steps)
        self._num_steps += 1
        is_early = self._num_steps <= FIRST_STEPS
        if is_early:
            self._call_or_fail(self._record_step)
        findings = self._read_witness()
        if self._num_steps in COMPARISON_STEPS:
            self._compare(("begun", "steps", "drift") if self._num_steps == 1 else ("steps",), findings)
        elif self._num_steps % INTERVAL_STEPS == 0:
            self._observations.replica_comparisons += 1
            self._compare(("drift",), findings)
        elif findings:
            self._report(findings)
        if self._num_steps == _SUMMARY_STEP and self._is_main_process:
            self._print_summary()

    def _print_summary(self) -> None:
        """Once, where steps were taken and nothing differs: how many checks hold. `write` prints nothing."""
        if self._has_summary or self._findings or not self._num_steps or self.options.on_difference == "write":
            return
        self._has_summary = True
        states = list(self._results.states().values())
        skipped = f", {states.count('skipped')} were skipped" if "skipped" in states else ""
        reason = self.witness.unable or self.witness.fault
        without = f"; gradients are not compared: {escape_unprintable(reason)}" if reason else ""
        text = f"{states.count('holds')} checks hold{skipped} (`{self.options.output.name}`){without}"
        _print_beside_progress(f"harness.watch: step {self._last_step}: {text}")

    def _record_step(self) -> None:
        """Keep copies on the device of what the checks read later."""
        engine, norm = self.engine, self.engine.get_global_grad_norm()
        self._observations.steps.append(
            StepRecord(
                self._last_step,
                0.0,
                int(engine.skipped_steps),
                getattr(engine.optimizer, "loss_scale", None) if engine.fp16_enabled() else None,
                norm.detach().clone() if isinstance(norm, torch.Tensor) else norm,
                _NO_LOSS,
            )
        )

    def _read_witness(self) -> list[Finding]:
        """The differences that the witness has measured since the last call, the same on every rank."""
        results = self.witness.results[self._num_witness_results :]
        self._num_witness_results += len(results)
        for result in results:
            for check, outcome in witness_outcomes(result):
                self._results.record(check, outcome, result.step)
        differences = [difference for result in results for difference in result.differences]
        return [difference_finding(d, self._severity, self._gradient_faults) for d in differences]

    def _compare(self, moments: tuple[CheckMoment, ...], findings: Sequence[Finding]) -> None:
        """Evaluate the checks of these moments over all ranks, and report. A collective."""
        checks = [check for check in CHECKS if check.moment in moments and check.moment != "begun"]
        local_values = [(check, observe_check(check, self._observations)) for check in checks]
        if "begun" in moments:
            local_values += self._start_values or []
        values_by_rank = self._gather([value for _, value in local_values])
        for (check, _), rank_values in zip(local_values, zip(*values_by_rank, strict=True), strict=True):
            result = evaluate_check(check, self._observations.expected, rank_values)
            self._results.record(check, result, self._last_step)
            if result.state == "differs":
                findings = [*findings, check_finding(check, result, self._severity)]
        self._report(findings)

    def _gather(self, value: T) -> list[T]:
        """`value` of every rank. A collective. Raises RuntimeError on every rank where one of them has failed."""
        try:
            rows = all_gather_object(None if self._has_failed else [value], self._group)
        except TypeError as error:  # raised before anything is sent
            _print_line(f"failed because of its own error; the training continues: {_first_line(error)}")
            self._has_failed = True
            rows = all_gather_object(None, self._group)
        values = [row[0] for row in rows if row is not None]
        if len(values) < len(rows):
            raise RuntimeError("a rank has failed")
        return values

    def _report(self, findings: Sequence[Finding]) -> None:
        """Write the file, then raise, print or do nothing. Raises EngineDifferenceError."""
        self._findings += findings
        if self._is_main_process:
            self._write_file(is_durable=bool(findings))
        if findings and self.options.on_difference == "raise":
            self._quit()
            print_error_once(dist.get_rank())
            raise EngineDifferenceError(findings)
        if findings and self.options.on_difference == "warn" and self._is_main_process:
            print_findings(findings)

    def _write_file(self, *, is_durable: bool, has_ended: bool = False) -> None:
        """Write engine_checks.json. Where that fails, say so once."""
        witness = self.witness
        head = {
            "deepspeed": deepspeed.__version__,
            "torch": str(torch.__version__),
            "mode": self.options.on_difference,
            "config": str(self.options.file) if self.options.file else None,
            "consumer": self.options.consumer,
            "world_size": self._world_size,
            "steps": self._num_steps,
            "has_ended": has_ended,
            "gradient_witness": {
                "steps": [result.step for result in witness.results],
                "unable": witness.unable,
                "limits": list(witness.limits),
                "fault": witness.fault,
            },
            "differences": [finding.to_json() for finding in self._findings[:_MAX_DIFFERENCES]],
            "findings": [finding.to_json() for finding in self._review],
        }
        try:
            if self._can_write:
                self.options.output.parent.mkdir(parents=True, exist_ok=True)
                replace_file(self.options.output, self._results.to_json(head), durable=is_durable)
        except OSError as error:
            self._can_write = False
            _print_line(f"`{self.options.output}` cannot be written: {error.strerror or error}")

    def _call_or_quit(self, function: Callable[[], None]) -> None:
        """Call it. After an error of ours this rank has no part in any later collective, nor has any other rank."""
        try:
            function()
        except EngineDifferenceError:
            self._quit()
            raise
        except Exception as error:
            if not self._has_failed:
                _print_line(f"stopped because of its own error; the training continues: {_first_line(error)}")
            self._quit()

    def _call_or_fail(self, function: Callable[[], None]) -> None:
        """Call it. After an error of ours this rank says so in the next collective."""
        try:
            function()
        except Exception as error:
            _print_line(f"failed because of its own error; the training continues: {_first_line(error)}")
            self._has_failed = True

    def _quit(self) -> None:
        self.is_active = False
        self._unwrap()
        self.witness.detach()


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {first_error_line(error)}"[:300]


def _print_beside_progress(text: str) -> None:
    """A line of its own, also where the Trainer's progress bar is on the screen."""
    tqdm = sys.modules.get("tqdm")
    if tqdm is None:
        sys.stderr.write(text + "\n")
    else:
        tqdm.tqdm.write(text, file=sys.stderr)
    sys.stderr.flush()


def _print_line(text: str) -> None:
    sys.stderr.write(f"harness.watch on rank {dist.get_rank() if dist.is_initialized() else 0}: {text}\n")
    sys.stderr.flush()
