"""Saving: collected on every rank, written beside the final name, agreed on, published by one rename.

    checkpoints/step-00000100/manifest.json      written last; what is listed there is there
                              global_step100/    DeepSpeed's tag folder
                              rank-00000.pt      random states of a rank
                              huggingface/       config.json, generation_config.json, tokenizer: what an export needs
    checkpoints/latest                           the name of the newest complete one, for people

With `checkpoint.async_save` the write and the agreement are done by a thread on a process group of its own, from a copy
in host memory; training waits for the copy alone. One save is on its way at a time.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

from harness.checkpoints.choosing import name_of
from harness.checkpoints.evaluations import Evaluations
from harness.checkpoints.retention import sweep
from harness.findings import Finding
from harness.runtime.checkpoint import contents, nvme_states, random_states, shape
from harness.runtime.checkpoint.commit import Plan, commit, discard, make_folder
from harness.runtime.checkpoint.room import failed, short_of_room
from harness.runtime.checkpoint.shards import collect
from harness.runtime.checkpoint.shared import check_shared
from harness.runtime.checkpoint.snapshot import Host, available_bytes
from harness.runtime.checkpoint.writing import Part
from harness.runtime.ranks import Ranks
from harness.runtime.rundir import RunDir
from harness.runtime.state import State
from harness.spec.sections.running import CheckpointSpec

_PATIENCE = timedelta(hours=24)
_SPARE_BYTES = 2**30
"""Host memory that a copy leaves alone."""

Gather = Callable[[Any], list[Any]]


@dataclass(frozen=True)
class Outcome:
    """How a save ended, the same on every rank but for the times: `stalled` is how long this rank's training waited,
    `copied` what of it went by before the write began (all of it, for a save in line), `seconds` how long all took.
    """

    step: int
    folder: Path
    bytes: int
    stalled: float
    copied: float
    seconds: float
    background: bool
    error: Finding | None = None


@dataclass
class _Flight:
    """A save that a thread is at."""

    plan: Plan
    thread: threading.Thread
    began: float
    stalled: float
    ended: float = 0.0
    result: Finding | None = None
    crashed: BaseException | None = None


@dataclass
class Saver:
    """Saves of one run. Every method is a collective: all ranks call it at the same step."""

    run_dir: RunDir
    ranks: Ranks
    spec: CheckpointSpec
    protected: Path | None = None
    """The checkpoint that the run goes on from: never removed, and not written over."""
    _group: Any = None
    _host: Host = field(default_factory=Host)
    _flight: _Flight | None = None
    _hugging_face: dict[str, bytes] | None = None

    @staticmethod
    def open(run_dir: RunDir, ranks: Ranks, spec: CheckpointSpec) -> Saver:
        """Also removes what a killed save left in the run directory. Raises Refused on all ranks when the folder cannot
        be written (CK110), or is not the same one everywhere (CK116).
        """
        ranks.together(lambda: check_shared(run_dir.checkpoints, ranks))
        group = dist.new_group(backend="gloo", timeout=_PATIENCE) if spec.async_save else None
        if ranks.is_first:
            sweep(run_dir.checkpoints)
        ranks.barrier()
        return Saver(run_dir, ranks, spec, _group=group)

    def save(self, job: contents.Trained, state: State, *, background: bool | None = None) -> list[Outcome]:
        """Save, and return what has ended by now: an earlier save that was on its way, and this one unless a thread
        is left to write it (`background`; default: as the spec says). An error is in the outcome, not raised.
        """
        began = time.perf_counter()
        ended = self.join()
        final = self.run_dir.checkpoints / name_of(state.step)
        if self.protected is not None and self.protected == final:
            return ended  # it is there, and training has not moved
        plan = self._plan(job, state, final)
        wrong = self._begin(plan)
        if wrong is not None:
            return [*ended, self._outcome(plan, began, wrong)]
        if self._copied(plan, self.spec.async_save if background is None else background, job):
            self._start(plan, began)
            return ended
        found = commit(plan, self.ranks.gather)
        self._published(found)
        return [*ended, self._outcome(plan, began, found)]

    def note(self, step: int, **measured: Any) -> None:
        """Keep what an evaluation gave, for manifests and for `keep_best`. A disk that is full keeps none: a choice
        depends on it, nothing else.
        """
        if not self.ranks.is_first:
            return
        folder = self.run_dir.checkpoints
        with contextlib.suppress(OSError):
            Evaluations.read(folder).upto(step).with_one(step, measured).write(folder)

    def settle(self) -> list[Outcome]:
        """At the end of a step: the save that a thread was at, once it is done on all ranks."""
        if self._flight is None or self.ranks.any(self._flight.thread.is_alive()):
            return []
        return self.join()

    def join(self) -> list[Outcome]:
        """Wait for the save that is on its way, if one is. Before a rank ends, and before the next save."""
        flight, self._flight = self._flight, None
        if flight is None:
            return []
        waited = time.perf_counter()
        flight.thread.join()
        if flight.crashed is not None:
            raise flight.crashed
        self._published(flight.result)
        stalled = flight.stalled + time.perf_counter() - waited
        step, folder, size = flight.plan.step, flight.plan.final, flight.plan.bytes
        return [Outcome(step, folder, size, stalled, flight.stalled, flight.ended - flight.began, True, flight.result)]

    def _plan(self, job: contents.Trained, state: State, final: Path) -> Plan:
        """What this rank has to write, by reference, and the manifest without files."""
        temporary = final.with_name(f".tmp-{final.name}")
        parts = collect(job.engine, temporary, contents.tag_of(state))
        parts.append(Part(f"rank-{self.ranks.rank:05d}.pt", random_states.read()))
        body = contents.describe(job, state) | {"shape": shape.describe(job)}
        if self.ranks.is_first:
            if self._hugging_face is None:
                self._hugging_face = contents.hugging_face_files(job)
            parts += [Part(name, content) for name, content in self._hugging_face.items()]
        return Plan(state.step, temporary, final, body, parts, self.ranks, self.spec, self.protected)

    def _begin(self, plan: Plan) -> Finding | None:
        """The folder is there and has room; or why not, the same on every rank."""
        error: OSError | None = None
        if self.ranks.is_first:
            try:
                make_folder(plan.temporary)
            except OSError as caught:
                error = caught
        sizes = self.ranks.gather((sum(p.bytes for p in plan.parts), _plain(error)))
        plan.bytes = sum(size for size, _ in sizes)
        if error is None and self.ranks.is_first:
            try:
                error = short_of_room(plan.temporary, plan.bytes)
            except OSError as caught:
                error = caught
        wrong = next((e for e in self.ranks.gather(_plain(error)) if e is not None), None)
        if wrong is None:
            return None
        found = failed(plan.step, plan.final.parent, 0, OSError(*wrong), plan.bytes) if self.ranks.is_first else None
        if self.ranks.is_first:
            discard(plan.temporary)
        return next(f for f in self.ranks.gather(found) if f is not None)

    def _copied(self, plan: Plan, background: bool, job: contents.Trained) -> bool:
        """Replace the references by a copy, where a thread is to write and host memory allows it on all ranks."""
        if not background or self._group is None:
            return False
        mine, free = sum(p.bytes for p in plan.parts), available_bytes()
        here = max(1, int(job.ranks.world / max(1, len(set(self.ranks.gather(_host_name()))))))
        no_room = free is not None and mine * here + _SPARE_BYTES > free
        if self.ranks.any(no_room or nvme_states.swaps(job.engine.optimizer)):
            return False
        self._host.begin()
        plan.parts = [Part(p.name, self._host.copy_of(p.content)) for p in plan.parts]
        self._host.end()
        return True

    def _start(self, plan: Plan, began: float) -> None:
        thread = threading.Thread(target=self._write, name="checkpoint-write", daemon=True)
        self._flight = _Flight(plan, thread, began, time.perf_counter() - began)
        thread.start()

    def _write(self) -> None:
        flight = self._flight
        if flight is None:
            return
        try:
            flight.result = commit(flight.plan, self._gather)
        except BaseException as error:  # it is raised where the thread is joined
            flight.crashed = error
        flight.ended = time.perf_counter()

    def _gather(self, value: Any) -> list[Any]:
        out: list[Any] = [None] * self.ranks.world
        dist.all_gather_object(out, value, group=self._group)
        return out

    def _published(self, error: Finding | None) -> None:
        """What was converted for a resume in another shape is not needed once a checkpoint of this shape is there."""
        if error is None and self.ranks.is_first:
            shape.forget(self.run_dir)

    def _outcome(self, plan: Plan, began: float, error: Finding | None) -> Outcome:
        took = time.perf_counter() - began
        return Outcome(plan.step, plan.final, plan.bytes, took, took, took, False, error)


def _plain(error: OSError | None) -> tuple[int | None, str] | None:
    return None if error is None else (error.errno, error.strerror or str(error))


def _host_name() -> str:
    from harness.facts.machine import host_identity

    return host_identity()
