"""What was written against what should have been, before the folder gets its name."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForCausalLM

from harness.errors import UserError
from harness.hostinfo import machine
from harness.runtime.checkpoint.consolidate import FullWeights
from harness.runtime.export.export_tensors import ExportTensors
from harness.runtime.export.safetensors_writer import cast_tensor, output_bytes
from harness.runtime.user_errors import user_error
from harness.units import format_bytes

_SPARE_BYTES = 64 << 20
_PROBE_SHAPE = (2, 16)
"""Sequences and tokens of the comparison."""
_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}
"""Of the largest logit. Weights are the same to the bit; sums of adapters are rounded once here and in parts there."""


def check_free_space(folder: Path, content: ExportTensors, dtype: torch.dtype) -> None:
    """Raises Refused (CK126) before anything is written."""
    there = next(p for p in folder.absolute().parents if p.exists())
    needed = sum(output_bytes(content, name, dtype) for name in content.shapes) + _SPARE_BYTES
    free = shutil.disk_usage(there).free
    if free < needed:
        raise user_error(
            "CK126",
            f"the export needs {format_bytes(needed)} in `{there}`, where {format_bytes(free)} are free",
            fix="make room there, or name another folder",
        )


def check_files(folder: Path, content: ExportTensors, dtype: torch.dtype) -> None:
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


def check_architecture(folder: Path, content: ExportTensors, *, trust_remote_code: bool) -> None:
    """`transformers` finds in the folder all that the architecture needs; built on the meta device, without memory.
    `trusted`: with code that the folder brings. Raises Refused (CK125).
    """
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)
    except Exception as error:  # of code that nobody here has seen
        what = str(error).strip().split("\n")[0][:300]
        raise user_error(
            "CK125",
            f"`transformers` cannot build the model of the export: {type(error).__name__}: {what}",
            notes=("nothing was kept",),
            fix="export where `transformers` knows the model, or its own code is in the folder of `model.name_or_path`",
        ) from error
    needed = {name: p.shape for name, p in model.named_parameters()}
    missing = sorted(name for name in needed if name not in content.shapes)
    if missing:
        words = f"lacks {', '.join(f'`{name}`' for name in missing[:3])}" + (" and more" if missing[3:] else "")
        raise _mismatch_error(model, words)
    other = sorted(name for name, shape in needed.items() if content.shapes[name] != shape)
    if other:
        name = other[0]
        raise _mismatch_error(model, f"has `{name}` of {tuple(content.shapes[name])}, should be {tuple(needed[name])}")


def _mismatch_error(model: Any, words: str) -> UserError:
    return user_error(
        "CK125",
        f"the checkpoint does not fit the class `{type(model).__name__}` of its configuration: it {words}",
        notes=("nothing was kept",),
        fix="export with the `transformers` release and the code that it was trained with",
    )


def compare_logits(
    folder: Path,
    weights: FullWeights,
    *,
    adapter_only: bool,
    adapter: dict[str, Any],
    config: Path,
    trust_remote_code: bool,
) -> None:
    """Load the folder as anybody would, and a second model straight from the checkpoint, without merging.

    Raises Refused (CK124 other logits, CK125 not enough memory for two models, or `peft` is missing).
    """
    need = 2 * 4 * sum(shape.numel() for shape in weights.shapes.values())
    free = machine.host_memory().available
    if free < need:
        raise user_error(
            "CK125",
            f"comparing logits loads the model twice, {format_bytes(need)}, and {format_bytes(free)} are available",
            fix="export without `--verify`: names and shapes are checked all the same",
        )
    dtype = next(iter(_float_dtypes(folder)), torch.float32)
    load = AutoModelForCausalLM.from_pretrained
    exported = (
        _load_adapters(folder)
        if adapter_only
        else load(folder, dtype=torch.float32, trust_remote_code=trust_remote_code)
    )
    trained = _build_trained_model(
        weights, adapter, folder if trust_remote_code else config, dtype, trust_remote_code=trust_remote_code
    )
    ids = torch.randint(0, trained.config.vocab_size, _PROBE_SHAPE, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        here, there = exported.eval()(input_ids=ids).logits, trained.eval()(input_ids=ids).logits
    largest = float(there.abs().max())
    off = float((here - there).abs().max())
    if not off <= _TOLERANCE[dtype] * max(largest, 1.0):
        raise user_error(
            "CK124",
            f"the logits of the export differ from the checkpoint's by {off:.3g}, the largest is {largest:.3g}",
            notes=("nothing was kept",),
            fix="report this: the export is wrong",
        )


def _float_dtypes(folder: Path) -> list[torch.dtype]:
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
        raise user_error(
            "CK125",
            "comparing the logits of adapters needs the package `peft`, which is not installed here",
            fix="pip install 'deepspeed-harness[lora]', or export without `--verify`",
        ) from None
    return AutoPeftModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def _build_trained_model(
    weights: FullWeights, adapter: dict[str, Any], config: Path, dtype: torch.dtype, *, trust_remote_code: bool
) -> Any:
    """The model as it was trained, adapters and all, with every tensor rounded as the export rounds it."""
    made = AutoConfig.from_pretrained(config, trust_remote_code=trust_remote_code)
    model = AutoModelForCausalLM.from_config(made, dtype=torch.float32, trust_remote_code=trust_remote_code)
    if adapter:
        from peft import LoraConfig, inject_adapter_in_model

        fields = {k: v for k, v in adapter.items() if k in LoraConfig.__dataclass_fields__}
        inject_adapter_in_model(LoraConfig(**fields), model)
    state = {name: cast_tensor(weights.get(name), dtype).float() for name in weights.shapes}
    model.load_state_dict(state, strict=False)
    model.tie_weights()
    model.config.use_cache = False
    return model
