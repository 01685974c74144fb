# SPDX-License-Identifier: Apache-2.0
"""`harness adopt`: a configuration of DeepSpeed, accelerate or a training program as a run spec in YAML, with notes
about what the spec does not have as it is.

Writes no file; the text is checked as a run spec before it is returned.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

from harness.convert import accelerate_launch, yaml_writer
from harness.convert.deepspeed_config import fill_from_deepspeed
from harness.convert.draft import HEADINGS, Draft, Note, NoteKind
from harness.convert.fsdp_config import add_fsdp_fields, load_fsdp_config
from harness.convert.json_merge import auto_values, merge_trainer_fields
from harness.convert.model_objective import check_model
from harness.convert.trainer_config import TrainerConfig, is_error_of_file, load_trainer_config, wrong_release_error
from harness.convert.trainer_file import parse_release
from harness.errors import ExitCode, UserError
from harness.facts.deepspeed_version import DeepSpeedTarget
from harness.findings import Finding, Fix, Place
from harness.spec.parse.source import Source, split_key
from harness.spec.run_spec import Consumer, RunSpec
from harness.spec.spec_loader import LoadedSpec, load_spec

_REQUIRED_FIELDS = {
    "model.name_or_path": "path/to/a/model",
    "data.train": "path/to/texts.jsonl",
    "train.max_steps": 1000,
}
"""Fields that a run needs and a DeepSpeed configuration does not have, with a placeholder for each."""
_PLACEHOLDER = "not in the file: set your own"


class ConversionError(UserError):
    """The file has errors; `lines_of` has the lines to quote."""

    def __init__(self, loaded: LoadedSpec) -> None:
        super().__init__([finding for finding in loaded.findings if is_error_of_file(finding)], loaded.code)
        self.lines_of = loaded.source.lines if loaded.source is not None else None


@dataclass(frozen=True)
class ConvertedSpec:
    """The YAML and its notes; `loaded` is the original file, `draft` the values of the spec."""

    text: str
    notes: tuple[Note, ...]
    loaded: LoadedSpec
    draft: Draft
    trainer: TrainerConfig | None = None

    def notes_of(self, kind: NoteKind) -> tuple[Note, ...]:
        """The notes of one list."""
        return tuple(note for note in self.notes if note.kind == kind)

    @property
    def program(self) -> str:
        """The training program of the file; empty for DeepSpeed's and accelerate's own files."""
        return self.trainer.file.program.name if self.trainer is not None and self.trainer.file is not None else ""

    @property
    def placeholders(self) -> tuple[str, ...]:
        """The keys that a run needs and the file does not have."""
        return tuple(key for key in _REQUIRED_FIELDS if self.draft.remarks.get(key) == _PLACEHOLDER)

    @property
    def defaults(self) -> tuple[str, ...]:
        """The keys that have a default of the program."""
        return tuple(
            key for key in self.draft.remarks if self.draft.get(key) is not None and key not in _REQUIRED_FIELDS
        )


def convert_file(
    file: str, target: DeepSpeedTarget, consumer: Consumer | None = None, release: str | None = None
) -> ConvertedSpec:
    """A run spec with the meaning of the file. Raises UserError with the file's errors, which the user fixes first.

    `release` is the release of the training program that reads the file; default: the newest whose defaults are known.
    """
    fsdp = load_fsdp_config(file, target)
    trainer = load_trainer_config(file, target, release) if fsdp is None else None
    if fsdp is not None:
        loaded = fsdp[0]
    else:
        loaded = trainer.loaded if trainer is not None else load_spec(file, (), target, consumer=consumer)
    ignored = [finding for finding in loaded.findings if _is_ignored_key(finding)]
    source = loaded.source
    has_errors = any(is_error_of_file(finding) and finding not in ignored for finding in loaded.findings)
    if source is None or loaded.spec is None or has_errors:
        raise ConversionError(loaded)
    if loaded.format == "spec":
        message = f"`{file}` is a run spec already"
        raise UserError([Finding("SP016", "error", message, place=Place(file, 1, 1))])
    _check_release(file, trainer, release)
    draft = Draft()
    own_values = auto_values(trainer.file) if trainer is not None and trainer.file is not None else None
    fill_from_deepspeed(draft, loaded, _without_ignored_keys(source, ignored), target, own_values)
    for finding in ignored:
        hint = f" ({finding.fix.title})" if finding.fix is not None and finding.fix.title.startswith("did you") else ""
        draft.add_note(
            finding.place or Place(file, 1, 1), f"`{finding.key}`: DeepSpeed ignores it{hint}", "harmless", finding.key
        )
    if loaded.format == "accelerate-yaml":
        accelerate_launch.add_accelerate_fields(draft, loaded)
        if fsdp is not None:
            add_fsdp_fields(draft, fsdp[1])
    elif trainer is not None:
        merge_trainer_fields(draft, trainer)
    _add_missing_fields(draft, source, loaded)
    _suit_machine(draft, Place(file, 1, 1), has_stage=trainer is None or trainer.has_json)
    check_model(draft, file)
    return _validate_draft(draft, file, target, loaded, trainer)


def _check_release(file: str, trainer: TrainerConfig | None, release: str | None) -> None:
    if release is None:
        return
    if trainer is None or trainer.file is None:
        message = (
            f"`--from-release {release}`: the harness knows no defaults by release of a program that reads `{file}`"
        )
        raise UserError([Finding("SP011", "error", message, fix=Fix("leave it out"))], ExitCode.USAGE)
    first, last = map(parse_release, trainer.file.program.releases)
    if not first <= parse_release(release)[: len(last)] <= last:
        raise wrong_release_error(trainer.file.program, release)


def _is_ignored_key(finding: Finding) -> bool:
    """A key that DeepSpeed silently ignores, and that is no slip of the pen for one that it reads."""
    if finding.gate != "SP005" or not any("ignores" in note for note in finding.notes):
        return False
    name = str(split_key(finding.key)[-1])
    sets = finding.fix.sets if finding.fix is not None else {}
    meant = [str(split_key(key)[-1]) for key, value in sets.items() if value is not None]
    return not any(SequenceMatcher(None, name.lower(), new.lower()).ratio() > 0.8 for new in meant)


def _without_ignored_keys(source: Source, ignored: list[Finding]) -> Source:
    """The source without these keys: the draft has nothing of them."""
    rest = Draft(deepcopy(source.data))
    for finding in ignored:
        rest.drop(source.user_path(split_key(finding.key)))
    return source._replace(data=rest.spec)


def _add_missing_fields(draft: Draft, source: Source, loaded: LoadedSpec) -> None:
    """Fields that a run spec needs and the file leaves to a script."""
    if draft.get("train.per_device_train_batch_size") is None and draft.get("train.global_batch_size") is None:
        by_trainer = loaded.consumer == "hf"
        draft.put("train.per_device_train_batch_size", 8 if by_trainer else 1)
        reason = "8 is the Trainer's default" if by_trainer else "1 stands for the script's value"
        text = f"no micro-batch in the file: {reason}"
        draft.add_note(Place(source.file, 1, 1), text, key="train.per_device_train_batch_size")
    if draft.get("optimizer.type") is None and draft.get("deepspeed.optimizer") is None:
        if loaded.format in ("deepspeed-json", "accelerate-yaml"):
            draft.add_note(Place(source.file, 1, 1), "the script creates the optimizer: set `optimizer`")
        else:
            draft.put("optimizer.type", "adamw")


def _suit_machine(draft: Draft, place: Place, *, has_stage: bool) -> None:
    """What decides nothing of the training, and would be refused as it is: a kernel of a package that may be missing
    here or there, stage 3 and compilation of 4-bit weights (MD043, MD044), and fp16 at a stage 0 that no
    file names (PR002).
    """
    kernel = draft.get("model.attn_implementation")
    if str(kernel).startswith("flash_attention"):
        draft.put("model.attn_implementation", "auto")
        text = f"`model.attn_implementation`: `auto` takes `{kernel}` where its package is installed, else an equal one"
        draft.add_note(place, text, "harmless", "attn_implementation")
    if draft.get("model.quantization") is not None and draft.get("zero.stage") == 3:
        draft.put("zero.stage", 2)
        draft.drop(("zero", "offload_param"))
        text = "`zero.stage`: 2, not 3: every rank has all of the 4-bit weights at either (MD043)"
        draft.add_note(place, text, "harmless", "zero_optimization.stage")
    if draft.get("model.quantization") is not None and draft.get("train.torch_compile") is True:
        draft.drop(("train", "torch_compile"))
        text = "`train.torch_compile`: left out, since it is not built for 4-bit weights (MD044)"
        draft.add_note(place, text, "harmless", "torch_compile")
    if draft.get("precision.fp16") is True and not draft.get("zero.stage") and not has_stage:
        draft.put("zero.stage", 1)
        text = "`zero.stage`: 1, not 0, at which DeepSpeed's fp16 steps are far too small (PR002)"
        draft.add_note(place, text, "harmless", "zero_optimization.stage")


def _validate_draft(
    draft: Draft, file: str, target: DeepSpeedTarget, loaded: LoadedSpec, trainer: TrainerConfig | None
) -> ConvertedSpec:
    """The text, without the keys that a run spec does not take."""
    for key, value in _REQUIRED_FIELDS.items():
        by_epochs = key == "train.max_steps" and draft.get("train.num_train_epochs") is not None
        if draft.get(key) is None and not by_epochs:
            steps = draft.get("deepspeed.scheduler.params.total_num_steps") if key == "train.max_steps" else None
            draft.put(key, steps if isinstance(steps, int) and steps > 0 else value, _PLACEHOLDER)
    errors: list[Finding] = []
    for _ in range(20):
        spec = _in_section_order(draft.spec)
        text = yaml_writer.format_document(spec, _comment_lines(draft, file), draft.remarks)
        errors = [f for f in load_spec("spec.yaml", (), target, text=text).findings if f.is_error]
        if not errors:
            return ConvertedSpec(text, tuple(draft.notes), loaded, draft, trainer)
        for finding in errors:
            path = split_key(finding.key)
            place = loaded.source.place(path) if loaded.source else Place(file, 1, 1)
            draft.add_note(place, f"left out: {finding.message}", "manual", finding.key)
            draft.drop(path if finding.gate != "SP008" else path[:-1])
    raise UserError(errors)


def _in_section_order(spec: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value if name == "deepspeed" else _without_empty_values(value)
        for name in RunSpec.model_fields
        if (value := spec.get(name)) not in (None, {}) and (name == "deepspeed" or _without_empty_values(value) != {})
    }


def _without_empty_values(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    inner = {name: _without_empty_values(item) for name, item in value.items() if item is not None}
    return {name: item for name, item in inner.items() if item != {}}


def _comment_lines(draft: Draft, file: str) -> Iterator[str]:
    yield f"A run spec of {'standard input' if file == '-' else Path(file).name}, made by `harness adopt`."
    for kind, heading in HEADINGS.items():
        notes = [note for note in draft.notes if note.kind == kind]
        if notes:
            yield ""
            yield f"{heading}:"
        for note in notes:
            yield f"  {Path(note.place.file).name}:{note.place.line}: {note.message}"
