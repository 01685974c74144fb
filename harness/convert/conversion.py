# SPDX-License-Identifier: Apache-2.0
"""`harness adopt`: a configuration of DeepSpeed, accelerate, axolotl or LLaMA-Factory as a run spec in YAML, with notes
about keys that have no place in it.

Writes no file; the text is checked as a run spec before it is returned.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.convert import accelerate_launch, trainer_config, yaml_writer
from harness.convert.deepspeed_config import fill_from_deepspeed
from harness.convert.draft import Draft, Note
from harness.errors import UserError
from harness.facts.deepspeed_version import DeepSpeedTarget
from harness.findings import Finding, Place
from harness.spec.parse.source import Source, split_key
from harness.spec.run_spec import Consumer, RunSpec
from harness.spec.spec_loader import LoadedSpec, load_spec

_REQUIRED_FIELDS = {
    "model.name_or_path": "path/to/a/model",
    "data.train": "path/to/texts.jsonl",
    "train.max_steps": 1000,
}
"""Fields that a run needs and a DeepSpeed configuration does not have, with a placeholder for each."""


class ConversionError(UserError):
    """The file has errors; `lines_of` has the lines to quote."""

    def __init__(self, loaded: LoadedSpec) -> None:
        super().__init__([finding for finding in loaded.findings if finding.is_error], loaded.code)
        self.lines_of = loaded.source.lines if loaded.source is not None else None


@dataclass(frozen=True)
class ConvertedSpec:
    """The YAML and its notes; `loaded` is the original file."""

    text: str
    notes: tuple[Note, ...]
    loaded: LoadedSpec


def convert_file(file: str, target: DeepSpeedTarget, consumer: Consumer | None = None) -> ConvertedSpec:
    """A run spec with the meaning of the file. Raises UserError with the file's errors, which the user fixes first."""
    loaded = trainer_config.load_trainer_config(file, target) or load_spec(file, (), target, consumer=consumer)
    source = loaded.source
    if source is None or loaded.spec is None or any(finding.is_error for finding in loaded.findings):
        raise ConversionError(loaded)
    if loaded.format == "spec":
        message = f"`{file}` is a run spec already"
        raise UserError([Finding("SP016", "error", message, place=Place(file, 1, 1))])
    draft = Draft()
    fill_from_deepspeed(draft, loaded, source, target)
    if loaded.format == "accelerate-yaml":
        accelerate_launch.add_accelerate_fields(draft, loaded)
    elif loaded.format in ("axolotl-yaml", "trainer-yaml"):
        trainer_config.add_trainer_fields(draft, loaded)
    _add_missing_fields(draft, source, loaded)
    return _validate_draft(draft, file, target, loaded)


def _add_missing_fields(draft: Draft, source: Source, loaded: LoadedSpec) -> None:
    """Fields that a run spec needs and the file leaves to a script."""
    if draft.get("train.per_device_train_batch_size") is None and draft.get("train.global_batch_size") is None:
        by_trainer = loaded.consumer == "hf"
        draft.put("train.per_device_train_batch_size", 8 if by_trainer else 1)
        reason = "8 is the Trainer's default" if by_trainer else "1 stands for the script's value"
        draft.add_note(Place(source.file, 1, 1), f"no micro-batch in the file: {reason}")
    if draft.get("optimizer.type") is None and draft.get("deepspeed.optimizer") is None:
        draft.add_note(Place(source.file, 1, 1), "the script creates the optimizer: set `optimizer`")


def _validate_draft(draft: Draft, file: str, target: DeepSpeedTarget, loaded: LoadedSpec) -> ConvertedSpec:
    """The text, without the keys that a run spec does not take."""
    remarks = {}
    for key, value in _REQUIRED_FIELDS.items():
        by_epochs = key == "train.max_steps" and draft.get("train.num_train_epochs") is not None
        if draft.get(key) is None and not by_epochs:
            steps = draft.get("deepspeed.scheduler.params.total_num_steps") if key == "train.max_steps" else None
            draft.put(key, steps if isinstance(steps, int) and steps > 0 else value)
            remarks[key] = "not in the file: set your own"
    errors: list[Finding] = []
    for _ in range(20):
        text = yaml_writer.format_document(_in_section_order(draft.spec), _comment_lines(draft, file), remarks)
        errors = [f for f in load_spec("spec.yaml", (), target, text=text).findings if f.is_error]
        if not errors:
            return ConvertedSpec(text, tuple(draft.notes), loaded)
        for finding in errors:
            path = split_key(finding.key)
            place = loaded.source.place(path) if loaded.source else Place(file, 1, 1)
            draft.add_note(place, f"left out: {finding.message}")
            draft.drop(path if finding.gate != "SP008" else path[:-1])
    raise UserError(errors)


def _in_section_order(spec: dict[str, Any]) -> dict[str, Any]:
    return {name: spec[name] for name in RunSpec.model_fields if spec.get(name) not in (None, {})}


def _comment_lines(draft: Draft, file: str) -> Iterator[str]:
    yield f"A run spec of {'standard input' if file == '-' else Path(file).name}, made by `harness adopt`."
    if draft.notes:
        yield ""
        yield "Not mapped, or set to a default:"
        for note in draft.notes:
            yield f"  {Path(note.place.file).name}:{note.place.line}: {note.message}"
