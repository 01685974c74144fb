# SPDX-License-Identifier: Apache-2.0
"""The model card of an export: what was trained, on what, with which settings, how its loss went, and hashes.

Paths of this machine and variables are left out: a card is published.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.facts.environment_variables import is_secret
from harness.run_records.run_record import Points, RunRecord

_SECTIONS = ("train", "optimizer", "scheduler", "precision", "zero", "parallel")
_POINTS = 10
"""Rows of the table of losses."""
_OBJECTIVES = {
    "dpo": "DPO",
    "kto": "KTO",
    "reward": "a reward model",
    "classification": "a classifier",
    "custom": "a loss of its own",
}


def render_model_card(record: RunRecord, folder: Path, checkpoint: str) -> str:
    """`README.md` of the exported `folder`. `checkpoint`: the name of the checkpoint that was exported."""
    spec = record.run.spec.model_dump(mode="json", exclude_defaults=True) if record.run is not None else {}
    if record.run is not None:  # the rate and the schedule also where they are the defaults
        sections = {name: getattr(record.run.spec, name) for name in ("optimizer", "scheduler")}
        spec |= {name: section.model_dump(mode="json", exclude_none=True) for name, section in sections.items()}
    is_adapter = (folder / "adapter_config.json").is_file()
    model = spec.get("model", {})
    base = "" if model.get("random_init") else _public_name(str(model.get("name_or_path") or ""), record.folder)
    objective = str(spec.get("objective") or "causal_lm")
    tags = ["harness", "deepspeed", *(["lora"] if "lora" in spec.get("model", {}) else [])]
    head: dict[str, Any] = {"library_name": "peft" if is_adapter else "transformers", "tags": tags}
    if "/" in base:
        head["base_model"] = base
    if objective in ("causal_lm", "dpo", "kto"):
        head["pipeline_tag"] = "text-generation"
    lines = ["---", *(f"{key}: {json.dumps(value)}" for key, value in head.items()), "---", "", f"# {record.name}", ""]
    what = "An adapter of" if is_adapter else "Trained from"
    lines += [
        f"{what} {f'`{base}`' if base else 'random weights'} with {_OBJECTIVES.get(objective, 'the next token')} "
        f"as its objective, by the harness on DeepSpeed. Checkpoint `{checkpoint}` of run `{record.folder.name}`.",
        "",
        "## Data",
        "",
        *_data_lines(spec.get("data", {}), record.folder),
        "",
        "## Settings",
        "",
        "| Key | Value |",
        "| --- | --- |",
        *(f"| `{key}` | `{value}` |" for key, value in _settings(spec)),
        "",
        *_loss_lines(record),
        "## Versions",
        "",
        *_version_lines(record.header),
        "",
        "## Files",
        "",
        "| File | sha256 |",
        "| --- | --- |",
        *(f"| `{path.name}` | `{_sha256(path)}` |" for path in sorted(folder.glob("*.safetensors"))),
    ]
    return "\n".join(lines) + "\n"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _public_name(name: str, run: Path) -> str:
    """A name on the Hub as it is, of a path its last part: the path says who trained where. A relative path stands from
    a folder that the run's is below.
    """
    places = [Path(), *run.resolve().parents]
    is_path = _is_path(name) or name.count("/") > 1 or any((place / name).exists() for place in places)
    return Path(name).name if is_path else name


def _is_path(text: str) -> bool:
    return text.startswith(("/", "./", "../", "~"))


def _data_lines(data: Mapping[str, Any], run: Path) -> Iterator[str]:
    sources = data.get("train")
    for source in sources if isinstance(sources, list) else [sources] if sources else []:
        entry = dict(source) if isinstance(source, Mapping) else {"path": source}
        rest = ", ".join(f"{key} {entry[key]}" for key in ("weight", "format", "split") if entry.get(key) is not None)
        yield f"* `{_public_name(str(entry.get('path')), run)}`{f' ({rest})' if rest else ''}"
    for key in ("max_length", "packing", "eval_fraction"):
        if key in data:
            yield f"* `{key}: {json.dumps(data[key])}`"


def _settings(spec: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Keys that were set, with their values; `model.lora` among them."""
    sections = {name: spec.get(name) for name in _SECTIONS} | {"model.lora": spec.get("model", {}).get("lora")}
    for section, values in sections.items():
        for key, value in _leaves(section, values) if isinstance(values, Mapping) else ():
            text = json.dumps(value).replace("|", "\\|")
            is_local = "path" in key or (isinstance(value, str) and _is_path(value))
            if value is not None and not is_local and not is_secret(key, text):
                yield key, text


def _leaves(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _leaves(f"{key}.{name}", inner)
    else:
        yield key, value


def _loss_lines(record: RunRecord) -> list[str]:
    """The curve of the whole training as a table: some steps of the training loss, and all evaluations near them."""
    training = record.training
    losses, held_out = training.points("step", "loss"), dict(training.points("eval", "loss"))
    steps = sorted({*(step for step, _ in _spread(losses)), *(step for step, _ in _spread(sorted(held_out.items())))})
    if not steps:
        return []
    by_step = dict(losses)
    cells = (f"| {step:g} | {_number(by_step.get(step))} | {_number(held_out.get(step))} |" for step in steps)
    return ["## Loss", "", "| Step | Training | Held out |", "| ---: | ---: | ---: |", *cells, ""]


def _spread(points: Points) -> Sequence[tuple[float, float]]:
    """At most `_POINTS` of these, evenly, the first and the last among them."""
    if len(points) <= _POINTS:
        return points
    return [points[round(index * (len(points) - 1) / (_POINTS - 1))] for index in range(_POINTS)]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def _version_lines(header: Mapping[str, Any]) -> Iterator[str]:
    machine = header.get("machine")
    for name in ("harness", "deepspeed", "torch"):
        version = machine.get(name) if isinstance(machine, Mapping) else None
        if version:
            yield f"* {name} {version}"
