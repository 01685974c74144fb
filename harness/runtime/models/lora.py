# SPDX-License-Identifier: Apache-2.0
"""LoRA through `peft`: small trained matrices next to frozen weights.

The model keeps its class: the adapters are put into its modules, so that the loss, evaluation, checkpoints and export
work as usual. They are in the training format like the rest of the model; their fp32 masters are the optimizer's. The
names of their tensors are in `lora_merge.py`.
"""

from __future__ import annotations

import contextlib
import copy
import difflib
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import set_seed

from harness.hostinfo.training_packages import install_command
from harness.runtime.models.lora_merge import ADAPTER_NAME
from harness.runtime.user_errors import first_error_line, user_error
from harness.spec.sections.model_spec import LoraSpec

ADAPTER_FOLDER = "adapter"
"""Below a checkpoint, where `adapter_config.json` is."""


def add_adapters(model: torch.nn.Module, lora: LoraSpec, seed: int) -> None:
    """Put the adapters in and freeze the rest. Seeded by `seed`, so that all ranks and stages draw the same.

    Raises UserError (MD152 a target that fits nothing, MD154 `peft` is missing, MD155 `peft` cannot do what
    `model.lora` says).
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError:
        raise user_error(
            "MD154",
            "`model.lora` needs the package `peft`, which is not installed here",
            key="model.lora",
            fix=f"install it on every host: {install_command('lora')}",
        ) from None
    fields = {name: value for name, value in lora.model_dump().items() if value is not None}
    for name in ("target_modules", "modules_to_save", "exclude_modules", "layers_to_transform"):
        if isinstance(fields.get(name), tuple):
            fields[name] = list(fields[name])
    if isinstance(lora.target_modules, tuple):
        _check_targets(lora.target_modules, [name for name, _ in model.named_modules()])
    set_seed(seed)
    try:
        with _no_renamed_targets():
            inject_adapter_in_model(LoraConfig(task_type="CAUSAL_LM", **fields), model, ADAPTER_NAME)
    except (ValueError, KeyError, TypeError, NotImplementedError) as error:
        raise user_error(
            "MD155",
            "`peft` cannot add these adapters to this model",
            key="model.lora",
            notes=(first_error_line(error),),
            fix="name modules of the model in `model.lora.target_modules`, such as `[q_proj, v_proj]`",
        ) from None
    for parameter in model.parameters():
        if parameter.requires_grad and parameter.dtype != _base_dtype(model):
            parameter.data = parameter.data.to(_base_dtype(model))


@contextlib.contextmanager
def _no_renamed_targets() -> Iterator[None]:
    """For types with fused experts, `peft` takes `gate_proj` and the like from the linear layers of that
    name, and adapts the experts instead, in a form that no export merges.
    """
    from peft.utils import transformers_weight_conversion as conversion

    convert = conversion.convert_peft_config_for_transformers
    conversion.convert_peft_config_for_transformers = lambda *_, **__: None
    try:
        yield
    finally:
        conversion.convert_peft_config_for_transformers = convert


def _is_renamed(target: str, config: Any, model: torch.nn.Module) -> bool:
    """Would a `peft` that loads the adapter look for this linear layer among the experts?"""
    from peft.utils.transformers_weight_conversion import convert_peft_config_for_transformers as convert

    trial = copy.copy(config)
    trial.target_modules, trial.rank_pattern, trial.alpha_pattern = {target}, {}, {}
    try:
        convert(trial, model=model, conversions=None)
    except ValueError:  # one half of what is fused
        return True
    return target not in trial.target_modules


def _check_targets(targets: tuple[str, ...], names: list[str]) -> None:
    """Refuse a target that fits no module: `peft` adapts the others and says nothing. If none fits, it raises."""
    misses = [target for target in targets if not any(f".{name}".endswith(f".{target}") for name in names)]
    if not misses or len(misses) == len(targets):
        return
    ends = sorted({name.rpartition(".")[2] for name in names if name})
    near = difflib.get_close_matches(misses[0], ends, n=1)
    known = ", ".join(f"`{end}`" for end in ends if not end.isdigit())
    raise user_error(
        "MD152",
        f"`{misses[0]}` in `model.lora.target_modules` matches no module of the model",
        key="model.lora.target_modules",
        notes=(f"its modules: {known}",),
        fix=f"write `{near[0]}`" if near else f"remove `{misses[0]}` from the list",
    )


def _base_dtype(model: torch.nn.Module) -> torch.dtype:
    """The number format of the frozen weights; those in 4 bits are stored as bytes."""
    return next(p.dtype for p in model.parameters() if not p.requires_grad and p.is_floating_point())


def adapter_config(model: torch.nn.Module) -> Any | None:
    """The model's `peft.LoraConfig`, None without adapters."""
    configs = getattr(model, "peft_config", None)
    return configs.get(ADAPTER_NAME) if isinstance(configs, dict) else None


def adapter_files(model: torch.nn.Module) -> dict[str, bytes]:
    """`adapter_config.json` as `peft` writes it, by name below a checkpoint; nothing without adapters."""
    config = copy.copy(adapter_config(model))
    if config is None:
        return {}
    config.inference_mode = True  # as PeftModel.save_pretrained does: who loads the folder does not train by default
    if isinstance(config.target_modules, set | list) and not (config.exclude_modules or config.layers_to_transform):
        adapted = [name for name, module in model.named_modules() if hasattr(module, "base_layer")]
        ends = shorten_names(adapted, [name for name, _ in model.named_modules()])
        renamed = [end for end in ends if _is_renamed(end, config, model)]
        config.target_modules = [end for end in ends if end not in renamed]
        if renamed:  # by the parameter, which keeps its name; such adapters take no dropout
            config.target_parameters, config.lora_dropout = [f"{end}.weight" for end in renamed], 0.0
    with tempfile.TemporaryDirectory(prefix="harness-adapter-") as scratch:
        config.save_pretrained(scratch)
        return {f"{ADAPTER_FOLDER}/{p.name}": p.read_bytes() for p in sorted(Path(scratch).iterdir())}


def shorten_names(selected: Iterable[str], names: Iterable[str]) -> list[str]:
    """The shortest ends of names that fit all of `selected` and no other of `names`, as `peft` compares them."""
    selected = list(selected)
    num_selected, num_all = (Counter(end for name in group for end in _name_ends(name)) for group in (selected, names))
    return sorted({next((end for end in _name_ends(n) if num_selected[end] == num_all[end]), n) for n in selected})


def _name_ends(name: str) -> list[str]:
    """`a.b.c`: `c`, `b.c`, `a.b.c`."""
    parts = name.split(".")
    return [".".join(parts[i:]) for i in range(len(parts) - 1, -1, -1)]
