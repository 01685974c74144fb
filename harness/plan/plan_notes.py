# SPDX-License-Identifier: Apache-2.0
"""Findings of a plan about what it estimates alone: kernels for each length of rows, packed attention, models."""

from __future__ import annotations

from harness.facts.devices import Device
from harness.facts.language_model import TAKES_BORDERS
from harness.facts.model_lookup import BY_NAME, ModelLookup
from harness.findings import Finding, Fix
from harness.run.resolved_run import ResolvedRun
from harness.spec.sections.data_spec import DataSpec
from harness.units import format_count

_TABLE_SUFFIXES = (".jsonl", ".json", ".csv", ".parquet", ".arrow")


def row_kernel_findings(run: ResolvedRun, device: Device | None) -> tuple[Finding, ...]:
    """The memory that is not planned: oneDNN's kernels for each length of rows, in bf16 on a CPU."""
    data = run.spec.data
    is_cpu_bf16 = device is not None and device.is_cpu and run.spec.precision.bf16
    if not is_cpu_bf16 or data.packing or data.pad_to_multiple_of is not None or not _may_have_rows(data):
        return ()
    key = "data.pad_to_multiple_of"
    message = "host memory can grow beyond the plan: in bf16 on a CPU, torch keeps kernels for each length of rows"
    notes = ("oneDNN does not free them; a run with rows of 1 to 256 tokens held 1,612 MiB a rank instead of 628",)
    fix = Fix("set it to 64, or `data.packing: true`", {key: 64}, effect="more padding, which the loss does not count")
    return (Finding("MM015", "info", message, key, notes=notes, fix=fix),)


def attention_findings(run: ResolvedRun, device: Device | None) -> tuple[Finding, ...]:
    """The prices of packed rows without masks that no GPU has confirmed."""
    kernel = run.attn_implementation
    if not run.spec.data.packing or kernel not in TAKES_BORDERS or device is None or device.is_cpu:
        return ()
    message = f"memory and time of packed rows by `{kernel}` are estimated: no run on a GPU has measured them"
    notes = ("the time assumes one document per row; shorter documents take less",)
    return (Finding("MM020", "info", message, "model.attn_implementation", notes=notes),)


def _may_have_rows(data: DataSpec) -> bool:
    """Can records become rows of their own length? A text is cut into blocks of one length."""
    formats = [source.format or data.format for source in data.train or ()]
    paths = [source.path for source in data.train or ()]
    return any(
        name != "text" if name != "auto" else path.lower().endswith(_TABLE_SUFFIXES) or path.endswith("-chat")
        for name, path in zip(formats, paths, strict=True)
    )


def built_model_findings(lookup: ModelLookup) -> tuple[Finding, ...]:
    """A model that no formula counts, or that no run has measured."""
    model = lookup.facts
    if model is not None and lookup.source.startswith(BY_NAME):
        message = f"the model is not known here: planned by {lookup.source}, {format_count(model.num_parameters)}"
        fix = Fix(f"name a folder with its `config.json`, for its own sizes{lookup.why_not}")
        return (Finding("MM001", "info", message, "model.name_or_path", fix=fix),)
    if model is None or not (model.built or model.counted_only):
        return ()
    notes: tuple[str, ...] = ("parameters are exact; activations are those of a Llama-like layer",)
    if model.estimated:
        message = f"the size of `model_type: {model.family}` is an estimate from the usual fields of its configuration"
        notes = (
            "parameters are those of a Llama-like model of these sizes: mostly within 3 % (6 % with experts)",
            "where transformers is installed and knows the model, its parameters are exact",
        )
    elif model.built:
        message = f"`model_type: {model.family}` is not counted by formula: transformers built it on the meta device"
    else:
        message = f"`model_type: {model.family}` is counted by formula, and no run of it was measured"
    return (Finding("MM006", "info", message, "model.name_or_path", notes=notes),)


def tower_findings(lookup: ModelLookup) -> list[Finding]:
    """MM022 for a model that reads images or sound, of which the text part alone is counted."""
    config = lookup.config or {}
    has_towers = "the language model alone" in lookup.source or "vision_config" in config or "audio_config" in config
    if lookup.facts is None or not has_towers:
        return []
    count = format_count(lookup.facts.num_parameters)
    message = f"the model also reads images or sound: this plan is of its text part, {count} parameters"
    message += "; `harness launch` trains no other weights"
    notes = ("the other weights stay as they are",)
    fix = Fix("add the towers yourself where another program trains them")
    return [Finding("MM022", "warning", message, "model.name_or_path", notes=notes, fix=fix)]
