"""What was written against what should have been, before the folder gets its name."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForCausalLM

from harness.errors import Refused
from harness.facts import machine
from harness.runtime.export.content import Content
from harness.runtime.export.writing import cast, size_of
from harness.runtime.refusals import refusal
from harness.runtime.shards import Weights
from harness.units import format_bytes

_SPARE_BYTES = 64 << 20
_PROBE = (2, 16)
"""Sequences and tokens of the comparison."""
_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}
"""Of the largest logit. Weights are the same to the bit; sums of adapters are rounded once here and in parts there."""


def refuse_lack_of_room(folder: Path, content: Content, dtype: torch.dtype) -> None:
    """Raises Refused (CK126) before anything is written."""
    there = next(p for p in folder.absolute().parents if p.exists())
    needed = sum(size_of(content, name, dtype) for name in content.shapes) + _SPARE_BYTES
    free = shutil.disk_usage(there).free
    if free < needed:
        raise refusal(
            "CK126",
            f"the export needs {format_bytes(needed)} in `{there}`, where {format_bytes(free)} are free",
            fix="make room there, or name another folder",
        )


def compare_files(folder: Path, content: Content, dtype: torch.dtype) -> None:
    """Every name, shape and number format is there, and nothing else."""
    written: dict[str, torch.Size] = {}
    wanted_name = str(dtype).removeprefix("torch.")
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118
                part = opened.get_slice(name)
                written[name] = torch.Size(part.get_shape())
    if written != dict(content.shapes):
        different = sorted(set(written.items()) ^ set(content.shapes.items()), key=str)
        raise RuntimeError(f"the export in {wanted_name} differs from the checkpoint in {different[:5]}")


def compare_with_architecture(folder: Path, content: Content, *, trusted: bool) -> None:
    """`transformers` finds in the folder all that the architecture needs; built on the meta device, without memory.
    `trusted`: with code that the folder brings. Raises Refused (CK125).
    """
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=trusted)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, trust_remote_code=trusted)
    except Exception as error:  # of code that nobody here has seen
        what = str(error).strip().split("\n")[0][:300]
        raise refusal(
            "CK125",
            f"`transformers` cannot build the model of the export: {type(error).__name__}: {what}",
            notes=("nothing was kept",),
            fix="export where `transformers` knows the model, or its own code is in the folder of `model.name_or_path`",
        ) from error
    needed = {name: p.shape for name, p in model.named_parameters()}
    missing = sorted(name for name in needed if name not in content.shapes)
    if missing:
        words = f"lacks {', '.join(f'`{name}`' for name in missing[:3])}" + (" and more" if missing[3:] else "")
        raise _unfit(model, words)
    other = sorted(name for name, shape in needed.items() if content.shapes[name] != shape)
    if other:
        name = other[0]
        raise _unfit(model, f"has `{name}` of {tuple(content.shapes[name])}, should be {tuple(needed[name])}")


def _unfit(model: Any, words: str) -> Refused:
    return refusal(
        "CK125",
        f"the checkpoint does not fit the class `{type(model).__name__}` of its configuration: it {words}",
        notes=("nothing was kept",),
        fix="export with the `transformers` release and the code that it was trained with",
    )


def compare_logits(
    folder: Path, weights: Weights, *, alone: bool, adapter: dict[str, Any], config: Path, trusted: bool
) -> None:
    """Load the folder as anybody would, and a second model straight from the checkpoint, without merging.

    Raises Refused (CK124 other logits, CK125 not enough memory for two models, or `peft` is missing).
    """
    need = 2 * 4 * sum(shape.numel() for shape in weights.shapes.values())
    free = machine.memory().available
    if free < need:
        raise refusal(
            "CK125",
            f"comparing logits loads the model twice, {format_bytes(need)}, and {format_bytes(free)} are available",
            fix="export without `--verify`: names and shapes are checked all the same",
        )
    dtype = next(iter(_dtypes(folder)), torch.float32)
    load = AutoModelForCausalLM.from_pretrained
    exported = _load_adapters(folder) if alone else load(folder, dtype=torch.float32, trust_remote_code=trusted)
    trained = _from_checkpoint(weights, adapter, folder if trusted else config, dtype, trusted=trusted)
    ids = torch.randint(0, trained.config.vocab_size, _PROBE, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        here, there = exported.eval()(input_ids=ids).logits, trained.eval()(input_ids=ids).logits
    largest = float(there.abs().max())
    off = float((here - there).abs().max())
    if not off <= _TOLERANCE[dtype] * max(largest, 1.0):
        raise refusal(
            "CK124",
            f"the logits of the export differ from the checkpoint's by {off:.3g}, the largest is {largest:.3g}",
            notes=("nothing was kept",),
            fix="report this: the export is wrong",
        )


def _dtypes(folder: Path) -> list[torch.dtype]:
    found = []
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118
                tensor = opened.get_tensor(name)
                if tensor.is_floating_point():
                    return [tensor.dtype]
    return found


def _load_adapters(folder: Path) -> Any:
    try:
        from peft import AutoPeftModelForCausalLM
    except ImportError:
        raise refusal(
            "CK125",
            "comparing the logits of adapters needs the package `peft`, which is not installed here",
            fix="pip install 'deepspeed-harness[lora]', or export without `--verify`",
        ) from None
    return AutoPeftModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def _from_checkpoint(
    weights: Weights, adapter: dict[str, Any], config: Path, dtype: torch.dtype, *, trusted: bool
) -> Any:
    """The model as it was trained, adapters and all, with every tensor rounded as the export rounds it."""
    made = AutoConfig.from_pretrained(config, trust_remote_code=trusted)
    model = AutoModelForCausalLM.from_config(made, dtype=torch.float32, trust_remote_code=trusted)
    if adapter:
        from peft import LoraConfig, inject_adapter_in_model

        fields = {k: v for k, v in adapter.items() if k in LoraConfig.__dataclass_fields__}
        inject_adapter_in_model(LoraConfig(**fields), model)
    state = {name: cast(weights.get(name), dtype).float() for name in weights.shapes}
    model.load_state_dict(state, strict=False)
    model.tie_weights()
    model.config.use_cache = False
    return model
