"""What kind of configuration a file holds: a run spec, a DeepSpeed JSON, or that of another program.

Decides by top-level keys alone; checks none of them.
"""

from __future__ import annotations

from typing import Any, Literal

from harness.errors import UserError
from harness.findings import Place
from harness.spec.parse.source import Source, input_error
from harness.spec.run_spec import RunSpec

ConfigFormat = Literal["spec", "deepspeed-json", "accelerate-yaml", "axolotl-yaml", "trainer-yaml"]
_SHARED_KEYS = frozenset(("optimizer", "scheduler", "checkpoint"))
_ACCELERATE = frozenset(("compute_environment", "distributed_type", "deepspeed_config"))
_AXOLOTL = frozenset(("base_model", "micro_batch_size", "sequence_len", "datasets", "adapter"))
_TRAINER = frozenset(
    """model_name_or_path per_device_train_batch_size learning_rate num_train_epochs output_dir finetuning_type
    cutoff_len lr_scheduler_type bf16 dataset do_train""".split()
)


def detect_format(source: Source) -> ConfigFormat | None:
    """The kind of file; None for one that is nothing known, neither in whole nor in part."""
    data = source.data
    if _ACCELERATE & data.keys():
        return "accelerate-yaml"
    if source.syntax == "yaml":
        if "base_model" in data and len(_AXOLOTL & data.keys()) > 1:
            return "axolotl-yaml"
        sections = any(isinstance(data.get(name), dict) for name in RunSpec.model_fields if name != "deepspeed")
        return "trainer-yaml" if len(_TRAINER & data.keys()) > 1 and not sections else "spec"
    if looks_like_deepspeed(data):
        return "deepspeed-json"
    return "spec" if RunSpec.model_fields.keys() & data.keys() - {"name"} else _guess_json_format(data)


def looks_like_deepspeed(data: dict[str, Any]) -> bool:
    """Are there more top-level keys of DeepSpeed's than of a run spec?"""
    from harness.facts.deepspeed_keys import block_keys

    known = block_keys("") or {}
    ours = sum(key in RunSpec.model_fields for key in data if key not in _SHARED_KEYS)
    theirs = sum(key in known and key not in RunSpec.model_fields for key in data)
    if ours or theirs:
        return theirs > ours
    optimizer = data.get("optimizer")
    return isinstance(optimizer, dict) and "type" in optimizer and "params" in optimizer


def _guess_json_format(data: dict[str, Any]) -> ConfigFormat | None:
    """For a JSON of unknown keys alone: DeepSpeed's, if it is empty or some are nearly known."""
    from harness.facts.deepspeed_keys import block_keys
    from harness.spec.suggestions import nearest_name

    known = block_keys("") or {}
    near = not data or any(nearest_name(name, known) for name in list(data)[:40])
    return "deepspeed-json" if near else None


def require_supported_format(source: Source, found: ConfigFormat | None) -> None:
    """One finding instead of one a key, for what is not read here. Raises Refused."""
    place = Place(source.file, 1, 1)
    if found is None:
        what = "neither a run spec nor a DeepSpeed configuration"
        raise input_error("SP016", f"this is {what}: none of its keys is known", place, "name another file")
    if found in ("axolotl-yaml", "trainer-yaml"):
        whose = "an axolotl" if found == "axolotl-yaml" else "a LLaMA-Factory or Trainer"
        raise _needs_conversion(f"this is {whose} configuration, not a run spec", source)
    nothing_ours = not RunSpec.model_fields.keys() & source.data.keys()
    if source.syntax == "yaml" and nothing_ours and len(source.data) > 1 and looks_like_deepspeed(source.data):
        title = "save it as JSON, which DeepSpeed reads"
        raise input_error("SP016", "this is a DeepSpeed configuration in YAML", place, title)


def _needs_conversion(message: str, source: Source) -> UserError:
    title = f"make a run spec of it: `harness adopt {source.file} > spec.yaml`"
    return input_error("SP016", message, Place(source.file, 1, 1), title)
