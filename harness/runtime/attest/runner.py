"""Asks the claims when their time has come, and stops the run when one does not hold.

The loop tells what happens; nothing else knows that claims exist.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, Protocol

import deepspeed
import torch

from harness.errors import Exit
from harness.files import replace_file
from harness.findings import Finding, Fix
from harness.runtime.attest import spread, weights
from harness.runtime.attest.asked import asked_of
from harness.runtime.attest.claim import Answer, Claim, Moment, NotApplicable, skipped
from harness.runtime.attest.claims import CLAIMS
from harness.runtime.attest.seen import Seen, Taken
from harness.runtime.data import Drawn
from harness.runtime.ranks import Ranks, RefusedByAll
from harness.runtime.refusals import say
from harness.runtime.rundir import Orders, RunDir, counted_accelerators
from harness.runtime.state import State
from harness.runtime.topology import Topology

FILE = "attestation.json"
FORMAT_VERSION = 1
FIRST_STEPS = 20
JUDGED = (1, 4, FIRST_STEPS)
"""Of the first steps, those after which all ranks compare what they saw."""
DRIFT_STEPS = 200
_MOST_ROWS = 1024
_TOLD = tuple(field.name for field in fields(Answer))


class Begun(Protocol):
    """What a run is once it is built: a job of the loop."""

    engine: Any
    steps: int
    train: Any


class Attestation:
    """Of one run, on every rank: all call the same methods at the same steps. `launch.attest: off`: they do nothing."""

    def __init__(
        self, orders: Orders, run_dir: RunDir, ranks: Ranks, topology: Topology, model: Any, config: Any
    ) -> None:
        """Before `deepspeed.initialize`: takes sums of the model's weights."""
        self.mode = orders.run.spec.launch.attest
        self._ranks, self._file = ranks, run_dir.root / FILE
        self._answers: dict[str, dict[str, Any]] = {}
        self._ignored = orders.run.spec.ignore
        self._begun: list[tuple[Claim, Any]] = []
        self._written: dict[str, str] = {}
        self._fp16 = False
        if self.mode == "off":
            return
        asked = asked_of(orders.run, ranks.world, counted_accelerators(run_dir))
        half = {getattr(torch, asked.dtype)} - {torch.float32}
        fresh = spread.reference(model, config) if asked.fresh else {}
        self._seen = Seen(asked, topology, config, weights.note(model, tuple(half)), fresh)

    def built(self, engine: Any) -> None:
        """After `deepspeed.initialize`, before a checkpoint is loaded. Raises RefusedByAll. A collective."""
        if self.mode != "off":
            self._seen.engine, self._seen.named = engine, dict(engine.module.named_parameters())
            self._ask(("built",), 0)
            self._seen.origin = {}

    def begin(self, job: Begun, state: State) -> None:
        """Before the first step: looks, and judges with what is seen in that step."""
        if self.mode == "off":
            return
        seen, engine, shape = self._seen, job.engine, job.train.shape
        self._fp16 = bool(engine.fp16_enabled())
        seen.start, seen.total_steps, seen.divisor = state.step, job.steps, shape.accumulation * shape.ranks
        seen.skipped_before, seen.global_before = int(engine.skipped_steps), int(engine.global_steps)
        seen.micro_before = int(engine.micro_steps)
        seen.scheduled_before = int(getattr(engine.lr_scheduler, "last_epoch", 0) or 0)
        self._begun = [(claim, _look(claim, seen)) for claim in CLAIMS if claim.moment == "begun"]

    def drawn(self, drawn: Drawn, rank: int) -> None:
        """A step begins, with these micro-batches of data rank `rank`."""
        if self.mode == "off" or not self._early(1):
            return
        seen = self._seen
        if len(seen.steps) + 1 in JUDGED:
            digest = hashlib.blake2b(digest_size=8)
            for batch in drawn.micro_batches:
                digest.update(batch.input_ids.numpy().tobytes())
            rows = drawn.rows[:, rank].reshape(-1)[:_MOST_ROWS].tolist()
            step = seen.start + len(seen.steps) + 1
            seen.drawn = {"digest": digest.hexdigest(), "rows": rows, "step": step}
        if seen.moved is None and seen.engine is not None and seen.engine.get_lr()[0] > 0:
            seen.before_step = weights.sample(weights.masters(seen.engine))

    def after(self, state: State, rate: float, losses: torch.Tensor) -> None:
        """A step is over. Raises RefusedByAll after some of the first steps, and where replicas drift."""
        if self.mode == "off":
            return
        if self._early(1):
            self._keep(state, rate, losses)
            if len(self._seen.steps) in JUDGED:
                self._ask(("steps", "drift") if len(self._seen.steps) == 1 else ("steps",), state.step)
        elif state.step % DRIFT_STEPS == 0:
            self._seen.turn += 1
            self._ask(("drift",), state.step)

    def finish(self, state: State) -> None:
        """Training has ended in order: a run of fewer steps than are looked at is judged now. A collective."""
        if self.mode != "off" and self._early(1) and self._seen.steps and len(self._seen.steps) not in JUDGED:
            self._ask(("steps",), state.step)

    def _early(self, more: int) -> bool:
        return len(self._seen.steps) + more <= FIRST_STEPS

    def _keep(self, state: State, rate: float, losses: torch.Tensor) -> None:
        seen, engine = self._seen, self._seen.engine
        norm = engine.get_global_grad_norm()
        scale = float(engine.optimizer.cur_scale) if self._fp16 else _scale(engine)
        before = seen.steps[-1].skipped if seen.steps else seen.skipped_before
        taken = Taken(state.step, float(rate), int(engine.skipped_steps), scale, _kept(norm), _kept(losses))
        seen.steps.append(taken)
        if seen.moved is None and seen.before_step is not None and taken.skipped == before:
            now, was = weights.sample(weights.masters(engine)), seen.before_step
            if was.numel() and now.shape == was.shape:
                move, largest = float((now - was).abs().max()), float(was.abs().max())
                seen.moved = {"step": state.step, "start": seen.start, "rate": rate, "move": move, "weight": largest}
        seen.before_step = None

    def _ask(self, moments: tuple[Moment, ...], step: int) -> None:
        """Look on this rank, gather, judge; stop if that is what `launch.attest` says."""
        looked = [*self._begun, *((claim, _look(claim, self._seen)) for claim in CLAIMS if claim.moment in moments)]
        self._begun = []
        everyone = zip(*self._ranks.gather([look for _, look in looked]), strict=True)
        answers = [
            (claim, _judge(claim, self._seen, looks)) for (claim, _), looks in zip(looked, everyone, strict=True)
        ]
        wrong = [_finding(claim, answer, self.mode) for claim, answer in self._unwanted(answers)]
        for claim, answer in answers:
            self._note(claim, answer, step)
        if self._ranks.is_first and (wrong or self._states() != self._written or len(self._seen.steps) >= FIRST_STEPS):
            self._written = self._states()
            replace_file(self._file, self._text(), durable=bool(wrong))
        if wrong and self.mode == "stop":
            raise RefusedByAll(wrong, Exit.ATTESTATION)
        if wrong and self._ranks.is_first:
            say(wrong)

    def _states(self) -> dict[str, str]:
        return {name: answer["state"] for name, answer in self._answers.items()}

    def _unwanted(self, answers: Sequence[tuple[Claim, Answer]]) -> list[tuple[Claim, Answer]]:
        """What differs, unless the spec puts up with it."""
        return [(c, a) for c, a in answers if a.state == "differs" and c.id not in self._ignored]

    def _text(self) -> str:
        """The file: a claim a line. (Indented by `json` it would take ten times as long.)"""
        head = {"format_version": FORMAT_VERSION, "deepspeed": deepspeed.__version__, "mode": self.mode}
        claims = ",\n".join(json.dumps(self._answers[name], default=str) for name in sorted(self._answers))
        return f'{json.dumps(head)[:-1]}, "claims": [\n{claims}\n]}}\n'

    def _note(self, claim: Claim, answer: Answer, step: int) -> None:
        """What was once found wrong stays told; what once held is not forgotten for a later look that cannot tell."""
        before = self._answers.get(claim.id, {}).get("state")
        if before == "differs" or (before == "holds" and answer.state == "skipped"):
            return
        about = {"id": claim.id, "name": claim.name, "question": claim.question, "step": step}
        told = {name: value for name in _TOLD if (value := getattr(answer, name)) not in (None, "", ())}
        if answer.state == "differs" and claim.id in self._ignored:
            told["ignored"] = self._ignored[claim.id]
        self._answers[claim.id] = {**about, **told}


def _scale(engine: Any) -> float | None:
    """Of `torch_autocast` in fp16."""
    for name in ("torch_autocast_gradscaler", "torch_autocast_z0_gradscaler"):
        # Not by getattr: for a name that it lacks, DeepSpeed's engine lists all its names and the model's each time.
        scaler = getattr(engine.optimizer, name, None) or vars(engine).get(name)
        if scaler is not None:
            return float(scaler.get_scale())
    return None


def _kept(value: Any) -> Any:
    """A copy that stays as it is, where it is: nothing waits for the device."""
    return value.detach().clone() if torch.is_tensor(value) else value


def _look(claim: Claim, seen: Seen) -> Any:
    """What this rank sees: ("seen", value), ("skipped", why) or ("failed", why)."""
    try:
        return "seen", claim.look(seen)
    except NotApplicable as why:
        return "skipped", str(why)
    except Exception as error:  # DeepSpeed's insides move: a claim that cannot look any more says nothing
        return "failed", f"{type(error).__name__}: {error}"[:200]


def _judge(claim: Claim, seen: Seen, everyone: Sequence[Any]) -> Answer:
    """The same on every rank."""
    for kind, why in everyone:
        if kind == "failed":
            return skipped(f"could not be asked: {why}")
    for kind, why in everyone:
        if kind == "skipped":
            return skipped(why)
    try:
        return claim.judge(seen.asked, [value for _, value in everyone])
    except Exception as error:  # as above
        return skipped(f"could not be asked: {type(error).__name__}: {error}"[:200])


def _finding(claim: Claim, answer: Answer, mode: str) -> Finding:
    pages = f"; see also {', '.join(f'`harness explain {gate}`' for gate in claim.gates)}" if claim.gates else ""
    notes = (*answer.notes, f"asked of the engine: {claim.question}{pages}")
    severity = "error" if mode == "stop" else "warning"
    if mode == "stop":
        notes += (f"to go on all the same, put `ignore: {{{claim.id}: why}}` into the spec",)
    return Finding(
        claim.id, severity, answer.text, key=claim.key, notes=notes, fix=Fix(claim.fix) if claim.fix else None
    )
