# SPDX-License-Identifier: Apache-2.0
"""Our side: what the loader and the gates say of a file, and the job that stands for it. Imports no torch."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.errors import UserError
from harness.facts.deepspeed_version import resolve_target
from harness.findings import Finding
from harness.gates import check_run
from harness.gates.registry import all_gates
from harness.plan.tuned_defaults.rules import with_tuned_defaults
from harness.render import render_ds_config
from harness.run.resolved_run import ResolvedRun, resolve_run
from harness.spec.spec_loader import load_spec

from .case import Case, Json, file_text

VERSION = "0.19.8"


@dataclass(frozen=True)
class Verdict:
    """What we say. `crash` is a traceback of ours: always a disagreement."""

    findings: tuple[tuple[str, str, str], ...]
    """(id, severity, message)."""
    rendered: Json | None
    """What DeepSpeed would be given; None where the file does not load."""
    degrees: Json | None
    crash: str = ""

    @property
    def errors(self) -> tuple[str, ...]:
        return tuple(gate for gate, severity, _ in self.findings if severity == "error")

    @property
    def warnings(self) -> tuple[str, ...]:
        return tuple(gate for gate, severity, _ in self.findings if severity == "warning")

    @property
    def refused(self) -> bool:
        return bool(self.errors)

    def to_json(self) -> Json:
        return {"findings": self.findings, "crash": self.crash}


def verdict(case: Case, release: str = VERSION) -> Verdict:
    """Load, resolve, ask the gates and render, as `validate-config` and `render` do for this release."""
    suffix, text = file_text(case)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, f"case{suffix}")
        file.write_text(text)
        try:
            return _verdict(case, str(file), release)
        except UserError as refused:
            return Verdict(_told(refused.findings), None, None)
        except Exception as error:
            return Verdict((), None, None, f"{type(error).__name__}: {error}")


def _verdict(case: Case, file: str, release: str) -> Verdict:
    overrides = []
    if case.form == "json":  # the script knows, so the gates are told as well
        overrides.append(f"parallel.pipeline_parallel_size={case.pipeline}")
    consumer: Any = case.options.get("consumer", "deepspeed") if case.form == "json" else None
    deepspeed = resolve_target(release)
    loaded = load_spec(file, overrides, deepspeed, consumer=consumer)
    if loaded.spec is None or loaded.source is None:
        return Verdict(_told(loaded.findings), None, None)
    run = resolve_run(loaded.spec, world_size=case.world, kind=loaded.kind)
    report = check_run(run, loaded.source, deepspeed=deepspeed, consumer=loaded.consumer, accelerator="cpu")
    crash = next((f.message for f in report.findings if f.gate == "GT001"), "")
    rendered = json.loads(render_ds_config(with_tuned_defaults(run)).json_text)
    return Verdict(_told([*loaded.findings, *report.findings]), rendered, _degrees(run), crash)


def _told(findings: Any) -> tuple[tuple[str, str, str], ...]:
    """What was found. The runner lifts what PR017 is an error about up to 0.15.4."""
    return tuple(
        (f.gate, "warning" if f.gate == "PR017" else f.severity, f.message) for f in findings if isinstance(f, Finding)
    )


def _degrees(run: ResolvedRun) -> Json:
    degrees, batch = run.parallel_dims, run.batch
    return {
        "tensor": degrees.tensor,
        "pipeline": degrees.pipeline,
        "sequence": degrees.sequence,
        "data": degrees.data,
        "micro": batch.micro_batch,
        "accumulation": batch.accumulation,
        "global": batch.global_batch,
    }


def job(case: Case, said: Verdict) -> Json:
    """What DeepSpeed is asked to do: the rendered spec, or the JSON as the user wrote it."""
    text = case.text if case.form == "json" and not case.page else None
    config = case.config
    if case.form == "spec" and said.rendered is not None:
        config = said.rendered
    body: Json = {
        "config": config,
        "world": case.world,
        "model": case.model,
        **case.degrees,
        "recompute": case.options.get("recompute", False),
        "load": case.options.get("load", False),
        "save_16bit": case.options.get("save_16bit", False),
        "creation": case.options.get("creation", "plain"),
        "steps": case.options.get("steps", 3),
        "limit": case.options.get("limit", 40),
    }
    if text is not None:
        body["text"] = text
    if said.degrees is not None:
        body |= {k: said.degrees[k] for k in ("tensor", "pipeline", "sequence") if case.form == "spec"}
    return body


OLDER = "needs an older DeepSpeed"


def policies(release: str = VERSION) -> dict[str, str]:
    """Gates that refuse on purpose what this release runs, or whose claim needs other hardware."""
    found = {}
    for gate in all_gates():
        reason = getattr(gate, "policy", "") or getattr(gate, "unseen", "")
        if reason and (reason != OLDER or release == VERSION):
            found[gate.id] = str(reason)
    return found
