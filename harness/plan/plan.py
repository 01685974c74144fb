"""The plan of a run: memory, time and alternatives as one value, and its JSON. Decides nothing and contacts no host."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.facts.devices import DEVICES, Device, find_device
from harness.facts.models import Found, ModelFacts, find
from harness.findings import Finding, Fix
from harness.plan.ladder import Rung, ladder, title
from harness.plan.memory import Capacity, Fit, Memory, fit, memory_of
from harness.plan.rows import Row
from harness.plan.run import Run
from harness.plan.settings import Settings, settings_of
from harness.plan.time import ASSUMPTIONS, StepTime, step_time
from harness.units import format_bytes, parse_bytes

FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run needs. `memory`, `fit`, `time` and `rungs` are empty where the model, the ranks or the micro-batch are
    unknown; `findings` say which and how to tell.
    """

    run: Run
    model: ModelFacts | None
    model_source: str
    device: Device | None
    capacity: Capacity
    settings: Settings | None
    memory: Memory | None
    fit: Fit
    time: StepTime | None
    rungs: tuple[Rung, ...]
    findings: tuple[Finding, ...]

    @property
    def title(self) -> str:
        """What is run, in a few words: `ZeRO-3, optimizer on cpu`."""
        return title(self.settings) if self.settings else f"ZeRO-{self.run.spec.zero.stage}"

    def to_json(self) -> dict[str, Any]:
        """The content of `plan.json`. Bytes and seconds; `gpu` values a rank, `host` and `nvme` values a node."""
        memory, model, device = self.memory, self.model, self.device
        return {
            "format_version": FORMAT_VERSION,
            "name": self.run.name,
            "world": self.run.degrees.world,
            "ranks_per_host": memory.ranks_per_host if memory else None,
            "model": None if model is None else _model_json(model, self.model_source),
            "device": device.name if device else None,
            "device_memory_is_host_memory": memory.pooled if memory else None,
            "model_states_per_rank_bytes": memory.model_states if memory else None,
            "gpu_peak_bytes": memory.gpu_peak if memory else None,
            "gpu_peak_phase": memory.gpu_peak_phase if memory else None,
            "host_peak_bytes": memory.host_peak if memory else None,
            "nvme_bytes": memory.nvme if memory else None,
            "gpu_capacity_bytes": self.capacity.gpu,
            "host_capacity_bytes": self.capacity.host,
            "fits": self.fit.fits,
            "binding_constraint": self.fit.binding or None,
            "step_seconds": self.time.seconds if self.time else None,
            "tokens_per_second": self.time.tokens_per_second if self.time else None,
            "bottleneck": self.time.bottleneck if self.time else None,
            "step_parts_seconds": dict(self.time.parts) if self.time else None,
            "tokens_per_step": self.settings.tokens_per_step if self.settings else None,
            "rows": [_row_json(row) for row in memory.rows] if memory else [],
            "alternatives": [_rung_json(rung) for rung in self.rungs],
            "assumptions": list(ASSUMPTIONS) if self.time else [],
            "findings": [
                {"gate": f.gate, "severity": f.severity, "message": f.message, "key": f.key} for f in self.findings
            ],
        }


def _model_json(model: ModelFacts, source: str) -> dict[str, Any]:
    return {
        "family": model.family,
        "source": source,
        "num_parameters": model.num_parameters,
        "active_parameters": model.active_parameters,
        "parameters_per_layer": model.per_layer,
        "embedding_parameters": model.embeddings,
        "largest_parameter": model.largest_parameter,
        "num_layers": model.num_layers,
    }


def _row_json(row: Row) -> dict[str, Any]:
    return {
        "tier": row.tier,
        "kind": row.kind,
        "what": row.what,
        "bytes_per_rank": row.bytes,
        "formula": row.formula,
        "source": row.source,
        "phases": list(row.phases),
        "assumed": row.assumed,
    }


def _rung_json(rung: Rung) -> dict[str, Any]:
    return {
        "title": rung.title,
        "gpu_peak_bytes": rung.gpu,
        "host_peak_bytes": rung.host,
        "nvme_bytes": rung.nvme,
        "fits": rung.fit.fits,
        "binding_constraint": rung.fit.binding or None,
        "step_seconds": rung.time.seconds if rung.time else None,
        "chosen": rung.chosen,
    }


def make_plan(run: Run, base_dir: Path | None = None, gpu: str | None = None) -> Plan:
    """Plan a run; `base_dir` is the folder that a relative `model.name_or_path` starts from. `gpu` is
    the kind of device where the spec names none (`cpu`: this machine has no other). Raises nothing.
    """
    spec = run.spec
    found = find(spec.model.name_or_path, spec.model.config, base_dir, spec.model.revision)
    device = find_device(spec.cluster.gpu or gpu or "")
    settings = settings_of(run)
    host, host_findings = _host_memory(spec.cluster.host_memory)
    capacity = Capacity(device.memory or None if device else None, host)
    findings = (*_unknown(run, found, device, settings), *host_findings)
    if found.facts is None or settings is None:
        return Plan(run, found.facts, found.source, device, capacity, settings, None, Fit(None, ""), None, (), findings)
    model = found.facts
    memory = memory_of(model, settings, device)
    verdict = fit(memory, capacity)
    return Plan(
        run=run,
        model=model,
        model_source=found.source,
        device=device,
        capacity=capacity,
        settings=settings,
        memory=memory,
        fit=verdict,
        time=step_time(model, settings, device),
        rungs=ladder(model, settings, device, capacity),
        findings=(*findings, *_too_large(memory, capacity, verdict)),
    )


def _too_large(memory: Memory, capacity: Capacity, verdict: Fit) -> tuple[Finding, ...]:
    if verdict.fits is not False:
        return ()
    host = verdict.binding == "host memory"
    need, have = (memory.host_peak, capacity.host) if host else (memory.gpu_peak, capacity.gpu)
    of = f"a host of {memory.ranks_per_host} ranks" if host else "a rank"
    message = f"the plan needs {format_bytes(need)} {verdict.binding} for {of}, and there are {format_bytes(have or 0)}"
    fix = Fix("choose a row of `What else would fit` that fits, or more ranks")
    return (Finding("MM005", "warning", message, "cluster.host_memory" if host else "cluster.gpu", fix=fix),)


def _host_memory(text: str | int | None) -> tuple[int | None, tuple[Finding, ...]]:
    if text is None:
        return None, ()
    try:
        return parse_bytes(text), ()
    except ValueError as error:
        fix = Fix("write a size such as `2TB` or `1024GiB`")
        return None, (Finding("MM004", "warning", str(error), key="cluster.host_memory", fix=fix),)


def _unknown(run: Run, found: Found, device: Device | None, settings: Settings | None) -> tuple[Finding, ...]:
    findings = []
    if found.facts is None:
        key = "model.config" if run.spec.model.config is not None else "model.name_or_path"
        notes = ("memory and time are not planned; the run itself is not affected",)
        fix = Fix("name a folder that has a `config.json`, or write `model.config` out")
        findings.append(
            Finding("MM001", "info", f"the model's size is not known: {found.why_not}", key, notes=notes, fix=fix)
        )
    if settings is None:
        missing = "number of ranks" if run.degrees.data is None else "micro-batch"
        fix = Fix(
            "give `--hostfile` or `--world-size`"
            if run.degrees.data is None
            else "set `train.per_device_train_batch_size`"
        )
        notes = ("memory and time are not planned",)
        findings.append(Finding("MM002", "info", f"the {missing} is not known", "train", notes=notes, fix=fix))
    gpu = run.spec.cluster.gpu
    if gpu and device is None:
        close = difflib.get_close_matches(gpu, DEVICES, n=1, cutoff=0.3)
        fix = Fix(f"set `cluster.gpu: {close[0]}`" if close else "choose one of " + ", ".join(DEVICES))
        notes = ("known kinds: " + ", ".join(DEVICES),)
        findings.append(
            Finding("MM003", "warning", f"GPU kind `{gpu}` is not known", "cluster.gpu", notes=notes, fix=fix)
        )
    return tuple(findings)
