"""`harness adopt`: a configuration of DeepSpeed, accelerate, axolotl or LLaMA-Factory as a run spec in YAML, with notes
about what it has no place for.

Writes nothing; the text that it gives is checked as a run spec before it is given.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any

from harness.convert import yaml_writer
from harness.errors import UserError
from harness.facts.deepspeed_version import DeepSpeedTarget
from harness.findings import Finding, Place
from harness.spec import deepspeed_mapping
from harness.spec.parse.source import KeyPath, Source, join_key, split_key
from harness.spec.run_spec import Consumer, RunSpec
from harness.spec.spec_loader import LoadedSpec, load_spec

_SPEC_KEYS_OF_AUTO = {
    "train_micro_batch_size_per_gpu": "train.per_device_train_batch_size",
    "bf16.enabled": "precision.bf16",
    "fp16.enabled": "precision.fp16",
}
_TRAINER_DEFAULTS: dict[str, Any] = {
    "optimizer.params.lr": 5e-5,
    "optimizer.params.betas": [0.9, 0.999],
    "optimizer.params.eps": 1e-8,
    "optimizer.params.weight_decay": 0.0,
    "scheduler.params.warmup_min_lr": 0,
    "scheduler.params.warmup_max_lr": 5e-5,
    "scheduler.params.warmup_num_steps": 1,
    "scheduler.params.total_num_steps": 1000,
}
"""What the Trainer fills in where nobody says anything else (transformers 5.23); its steps are not known here."""
_SAME_DEFAULT = frozenset(
    """train_batch_size gradient_accumulation_steps gradient_clipping optimizer.params.betas optimizer.params.eps
    optimizer.params.weight_decay""".split()
)
"""Keys for which the run spec has the Trainer's default, or derives them as it does."""
_LOSS_SCALING_DEFAULTS = {
    "loss_scale": 0,
    "initial_scale_power": 16,
    "loss_scale_window": 1000,
    "hysteresis": 2,
    "min_loss_scale": 1,
}
_REQUIRED_FIELDS = {
    "model.name_or_path": "path/to/a/model",
    "data.train": "path/to/texts.jsonl",
    "train.max_steps": 1000,
}
"""What a run needs and a DeepSpeed configuration does not say, with a value that shows what belongs there."""


@dataclass(frozen=True)
class Note:
    """Something of the file that the run spec does not say, or says with a value of our choice."""

    place: Place
    message: str

    def __str__(self) -> str:
        return f"{self.place.file}:{self.place.line}: {self.message}"


@dataclass
class Draft:
    """A run spec in the making: raw values by section, and notes."""

    spec: dict[str, Any] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)

    def get(self, key: str) -> Any:
        """The value of a dotted key; None where it has none."""
        value: Any = self.spec
        for part in key.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        return value

    def put(self, key: str, value: Any) -> None:
        """Set a dotted key."""
        *sections, name = key.split(".")
        block = self.spec
        for section in sections:
            block = block.setdefault(section, {})
        block[name] = value

    def drop(self, path: KeyPath) -> None:
        """Take a key out, and sections that are empty then."""
        block: Any = self.spec
        for part in path[:-1]:
            block = block.get(part) if isinstance(block, dict) else None
        if isinstance(block, dict):
            block.pop(path[-1], None)
            if not block and len(path) > 1:
                self.drop(path[:-1])

    def add_note(self, place: Place, message: str) -> None:
        """Remember something for the comments."""
        self.notes.append(Note(place, message))


class ConversionError(UserError):
    """The file has errors; `source` is there to quote from."""

    def __init__(self, loaded: LoadedSpec) -> None:
        super().__init__([f for f in loaded.findings if f.is_error], loaded.code)
        self.source = loaded.source


@dataclass(frozen=True)
class ConvertedSpec:
    """The YAML and its notes; `loaded` is the file that it was made of."""

    text: str
    notes: tuple[Note, ...]
    loaded: LoadedSpec


def convert_file(file: str, target: DeepSpeedTarget, consumer: Consumer | None = None) -> ConvertedSpec:
    """A run spec of what the file says. Raises Refused with the file's errors; it has to be mended first."""
    from harness.convert import trainer_config

    loaded = trainer_config.load_trainer_config(file, target) or load_spec(file, (), target, consumer=consumer)
    source = loaded.source
    if source is None or loaded.spec is None or any(f.is_error for f in loaded.findings):
        raise ConversionError(loaded)
    if loaded.format == "spec":
        message = f"`{file}` is a run spec already"
        raise UserError([Finding("SP016", "error", message, place=Place(file, 1, 1))])
    draft = Draft()
    _fill_draft(draft, loaded, source, target)
    if loaded.format == "accelerate-yaml":
        from harness.convert import accelerate_launch

        accelerate_launch.add_accelerate_fields(draft, loaded)
    elif loaded.format in ("axolotl-yaml", "trainer-yaml"):
        trainer_config.add_trainer_fields(draft, loaded)
    _add_missing_fields(draft, source, loaded)
    return _validate_draft(draft, file, target, loaded)


def _fill_draft(draft: Draft, loaded: LoadedSpec, source: Source, target: DeepSpeedTarget) -> None:
    """Every key of the DeepSpeed JSON; defaults that moved between releases as this one has them."""
    from harness.spec.auto_values import find_auto_values
    from harness.spec.deepspeed_json_checks import convert_as_deepspeed

    by_trainer = loaded.format in ("axolotl-yaml", "trainer-yaml")
    config = deepcopy(convert_as_deepspeed(source.data, target))
    rate = config.get("optimizer", {}).get("params", {}).get("lr")
    values = _TRAINER_DEFAULTS | ({"scheduler.params.warmup_max_lr": rate} if isinstance(rate, float) else {})
    filled = _fill_auto_values(config, "", values)
    _add_auto_notes(
        draft,
        source,
        [path for path in find_auto_values(source.data) if source.user_path(path) in source.spots],
        filled,
    )
    draft.spec, _ = deepspeed_mapping.map_deepspeed_json(config, normalize_optimizer=by_trainer)
    if draft.get("precision.fp16") is not True:
        _drop_fp16(draft, source, config)
    _write_release_defaults(draft, config, target)
    device = draft.get("zero.offload_param.device")
    if device in ("cpu", "nvme") and draft.get("zero.stage") != 3:
        draft.drop(("zero", "offload_param"))
        place = source.place(("zero_optimization", "offload_param"), of_key=True)
        draft.add_note(place, "`offload_param` is left out: DeepSpeed reads it at stage 3 only")
    if draft.get("deepspeed.zero_optimization.cpu_offload_use_pin_memory") is not None:
        draft.drop(("deepspeed", "zero_optimization", "cpu_offload_use_pin_memory"))
        place = source.place(("zero_optimization", "cpu_offload_use_pin_memory"))
        draft.add_note(place, "`cpu_offload_use_pin_memory` sets nothing in DeepSpeed: `pin_memory` does")
    if loaded.consumer == "hf" and "scheduler" not in config:
        draft.put("scheduler.type", "linear")


def _drop_fp16(draft: Draft, source: Source, config: dict[str, Any]) -> None:
    """Loss scaling and the like are read with fp16 alone; what is not as usual is noted where fp16 was left open."""
    draft.drop(("precision", "fp16"))
    block = config.get("fp16")
    left_open = isinstance(block, dict) and block.get("enabled") == "auto"
    for name, usual in _LOSS_SCALING_DEFAULTS.items():
        value = draft.get(f"precision.{name}")
        draft.drop(("precision", name))
        if left_open and value not in (None, usual):
            place = source.place(("fp16", name))
            draft.add_note(place, f"`fp16.{name}` is left out: set `precision.{name}` to {value} with `precision.fp16`")
    draft.drop(("deepspeed", "fp16"))


def _fill_auto_values(block: dict[str, Any], prefix: str, values: dict[str, Any]) -> set[str]:
    """Replace what the Trainer has a default for; the keys that were replaced."""
    filled: set[str] = set()
    for name, value in block.items():
        key = f"{prefix}{name}"
        if isinstance(value, dict):
            filled |= _fill_auto_values(value, f"{key}.", values)
        elif value == "auto" and key in values:
            block[name] = values[key]
            filled.add(key)
    return filled


def _add_auto_notes(draft: Draft, source: Source, paths: list[KeyPath], filled: set[str]) -> None:
    buckets = [path for path in paths if path[0] == "zero_optimization"]
    schedule = [path for path in paths if path[0] == "scheduler"]
    for path in paths:
        key, home = join_key(path), _SPEC_KEYS_OF_AUTO.get(join_key(path))
        if path in [*buckets[1:], *schedule[1:]] or key in _SAME_DEFAULT:
            continue
        group = buckets if path in buckets else schedule if path in schedule else []
        also = f" and {len(group) - 1} more are" if len(group) > 1 else " is"
        what = f"set `{home}`" if home else "DeepSpeed's default counts"
        if key in filled:
            value = _TRAINER_DEFAULTS[key]
            what = "values of our choice stand for the Trainer's" if path in schedule else f"{value} is its default"
        draft.add_note(source.place(path), f'`{key}`{also} "auto", which the Trainer fills in: {what}')


def _write_release_defaults(draft: Draft, config: dict[str, Any], target: DeepSpeedTarget) -> None:
    """A spec always says these, so it has to say what the JSON means without saying it."""
    version = target.version
    if "gradient_clipping" not in config:
        draft.put("train.max_grad_norm", 1.0 if version >= (0, 19, 3) else 0.0)
    for section in ("offload_optimizer", "offload_param"):
        block = draft.get(f"zero.{section}")
        if isinstance(block, dict) and block.get("device") != "none":
            block.setdefault("pin_memory", version >= (0, 19, 5))
    overflow = "deepspeed.bf16.check_grad_overflow"
    if draft.get("precision.bf16") is True and draft.get(overflow) is None and version < (0, 19, 3):
        draft.put(overflow, False)


def _add_missing_fields(draft: Draft, source: Source, loaded: LoadedSpec) -> None:
    """What a run spec needs and the file leaves to a script."""
    if draft.get("train.per_device_train_batch_size") is None and draft.get("train.global_batch_size") is None:
        trainer = loaded.consumer == "hf"
        draft.put("train.per_device_train_batch_size", 8 if trainer else 1)
        words = "8 is the Trainer's default" if trainer else "1 stands for what the script says"
        draft.add_note(Place(source.file, 1, 1), f"no micro-batch in the file: {words}")
    if draft.get("optimizer.type") is None and draft.get("deepspeed.optimizer") is None:
        draft.add_note(Place(source.file, 1, 1), "the script brings the optimizer: set `optimizer`")


def _validate_draft(draft: Draft, file: str, target: DeepSpeedTarget, loaded: LoadedSpec) -> ConvertedSpec:
    """The text, less what a run spec does not take."""
    remarks = {}
    for key, value in _REQUIRED_FIELDS.items():
        by_epochs = key == "train.max_steps" and draft.get("train.num_train_epochs") is not None
        if draft.get(key) is None and not by_epochs:
            steps = draft.get("deepspeed.scheduler.params.total_num_steps") if key == "train.max_steps" else None
            draft.put(key, steps if isinstance(steps, int) and steps > 0 else value)
            remarks[key] = "the file does not say: put yours here"
    wrong: list[Finding] = []
    for _ in range(20):
        text = yaml_writer.format_document(_in_section_order(draft.spec), _comments(draft, file), remarks)
        wrong = [f for f in load_spec("spec.yaml", (), target, text=text).findings if f.is_error]
        if not wrong:
            return ConvertedSpec(text, tuple(draft.notes), loaded)
        for finding in wrong:
            path = split_key(finding.key)
            place = loaded.source.place(path) if loaded.source else Place(file, 1, 1)
            draft.add_note(place, f"left out: {finding.message}")
            draft.drop(path if finding.gate != "SP008" else path[:-1])
    raise UserError(wrong)


def _in_section_order(spec: dict[str, Any]) -> dict[str, Any]:
    return {name: spec[name] for name in RunSpec.model_fields if spec.get(name) not in (None, {})}


def _comments(draft: Draft, file: str) -> Iterator[str]:
    yield f"A run spec of {'standard input' if file == '-' else FilePath(file).name}, made by `harness adopt`."
    if draft.notes:
        yield ""
        yield "Not mapped, or chosen here:"
        for note in draft.notes:
            yield f"  {FilePath(note.place.file).name}:{note.place.line}: {note.message}"
