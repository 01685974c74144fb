# SPDX-License-Identifier: Apache-2.0
"""Checks of an export before the folder gets its name: free space, names and shapes, the architecture, logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from transformers import AutoConfig, PreTrainedModel

from harness.errors import UserError, user_error
from harness.hostinfo import machine
from harness.hostinfo.training_packages import install_command
from harness.run.objective_facts import facts_of
from harness.runtime.checkpoint.consolidate import FullWeights
from harness.runtime.checkpoint.disk_space import free_bytes
from harness.runtime.export.export_tensors import ExportTensors
from harness.runtime.export.safetensors_writer import cast_tensor, output_bytes
from harness.runtime.hub_kernels import refuse_hub_kernels
from harness.runtime.models.auto_class import auto_class
from harness.runtime.text_part import load_whole
from harness.units import format_bytes

_SPARE_BYTES = 64 << 20
_PROBE_SHAPE = (2, 16)
"""Sequences and tokens of the comparison."""
_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}
"""Of the largest logit. Weights are the same to the bit; sums of adapters are rounded once here and in parts there."""


def check_free_space(folder: Path, tensors: ExportTensors, dtype: torch.dtype) -> None:
    """Raises UserError (CK126) before anything is written."""
    parent = next(p for p in folder.absolute().parents if p.exists())
    needed = sum(output_bytes(tensors, name, dtype) for name in tensors.shapes) + _SPARE_BYTES
    free = free_bytes(parent)
    if free < needed:
        raise user_error(
            "CK126",
            f"the export needs {format_bytes(needed)} in `{parent}`, where {format_bytes(free)} are free",
            fix="free space there, or name another folder",
        )


def check_files(folder: Path, tensors: ExportTensors, dtype: torch.dtype) -> None:
    """Check that the files hold exactly the tensors of the export. Raises RuntimeError."""
    shapes: dict[str, torch.Size] = {}
    dtype_name = str(dtype).removeprefix("torch.")
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as reader:
            for name in reader.keys():  # noqa: SIM118
                shapes[name] = torch.Size(reader.get_slice(name).get_shape())
    if shapes != dict(tensors.shapes):
        differences = sorted(set(shapes.items()) ^ set(tensors.shapes.items()), key=str)
        raise RuntimeError(f"the export in {dtype_name} differs from the checkpoint in {differences[:5]}")


def check_architecture(
    folder: Path, tensors: ExportTensors, *, trust_remote_code: bool, objective: str | None = None
) -> None:
    """Check that the folder holds every tensor of the architecture, which is built on the meta device, without memory.
    `trust_remote_code`: with code that the folder brings. Raises UserError (CK125).
    """
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
        refuse_hub_kernels(config)
        with torch.device("meta"):
            model: PreTrainedModel = auto_class(objective).from_config(config, trust_remote_code=trust_remote_code)
    except Exception as error:  # code of the model may raise anything
        reason = str(error).strip().split("\n")[0][:300]
        raise user_error(
            "CK125",
            f"`transformers` cannot build the model of the export: {type(error).__name__}: {reason}",
            notes=("the harness removed the partial export",),
            fix="export where `transformers` knows the model, or its own code is in the folder of `model.name_or_path`",
        ) from error
    expected = {name: p.shape for name, p in model.named_parameters()}
    missing = sorted(name for name in expected if name not in tensors.shapes)
    if missing:
        difference = f"lacks {', '.join(f'`{name}`' for name in missing[:3])}" + (" and more" if missing[3:] else "")
        raise _mismatch_error(model, difference)
    mismatches = sorted(name for name, shape in expected.items() if tensors.shapes[name] != shape)
    if mismatches:
        name = mismatches[0]
        shape = tuple(tensors.shapes[name])
        raise _mismatch_error(model, f"has `{name}` of {shape}, should be {tuple(expected[name])}")


def _mismatch_error(model: PreTrainedModel, difference: str) -> UserError:
    return user_error(
        "CK125",
        f"the checkpoint does not fit the class `{type(model).__name__}` of its configuration: it {difference}",
        notes=("the harness removed the partial export",),
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
    objective: str | None = None,
) -> None:
    """Load the folder with `transformers`, build a second model from the checkpoint without merging, and compare.

    Raises UserError (CK124 other logits, CK125 not enough memory for two models, or `peft` is missing).
    """
    needed = 2 * 4 * sum(shape.numel() for shape in weights.shapes.values())
    free = machine.host_memory().available
    if free < needed:
        raise user_error(
            "CK125",
            f"comparing logits loads the model twice, {format_bytes(needed)}, and {format_bytes(free)} are available",
            fix="export without `--verify`: names and shapes are still checked",
        )
    dtype = _float_dtype(folder)
    exported_model = (
        _load_adapters(folder)
        if adapter_only
        else _load_exported(folder, objective, trust_remote_code=trust_remote_code)
    )
    trained_model = _build_trained_model(
        weights, adapter, folder if trust_remote_code else config, dtype, objective, trust_remote_code=trust_remote_code
    )
    vocab = trained_model.config.get_text_config().vocab_size  # a composite has none of its own
    ids = torch.randint(0, vocab, _PROBE_SHAPE, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        actual = exported_model.eval()(input_ids=ids).logits
        expected = trained_model.eval()(input_ids=ids).logits
    largest = float(expected.abs().max())
    difference = float((actual - expected).abs().max())
    if not difference <= _TOLERANCE[dtype] * max(largest, 1.0):
        raise user_error(
            "CK124",
            f"the logits of the export differ from the checkpoint's by {difference:.3g}, the largest is {largest:.3g}",
            notes=("the harness removed the partial export",),
            fix="report this: the export is wrong",
        )


def _float_dtype(folder: Path) -> torch.dtype:
    """Of the first floating-point tensor."""
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as reader:
            for name in reader.keys():  # noqa: SIM118
                tensor: torch.Tensor = reader.get_tensor(name)
                if tensor.is_floating_point():
                    return tensor.dtype
    return torch.float32


def _load_adapters(folder: Path) -> torch.nn.Module:
    try:
        from peft import PeftConfig, PeftModel
    except ImportError:
        raise user_error(
            "CK125",
            "comparing the logits of adapters needs the package `peft`, which is not installed here",
            fix=f"{install_command('lora')}; or export without `--verify`",
        ) from None
    base = PeftConfig.from_pretrained(folder).base_model_name_or_path
    model: torch.nn.Module = PeftModel.from_pretrained(load_whole(Path(str(base))), folder)
    return model


def _load_exported(folder: Path, objective: str | None, *, trust_remote_code: bool) -> torch.nn.Module:
    """As its users load it. Raises UserError (CK124) for a head over labels that the folder lacks."""
    if not facts_of(objective or "causal_lm").has_label_head:
        return load_whole(folder, trust_remote_code=trust_remote_code)
    model: torch.nn.Module
    model, report = auto_class(objective).from_pretrained(
        folder, dtype=torch.float32, trust_remote_code=trust_remote_code, output_loading_info=True
    )
    if report["missing_keys"]:
        raise user_error("CK124", f"the export lacks {sorted(report['missing_keys'])[:3]}", fix="report this")
    return model


def _build_trained_model(
    weights: FullWeights,
    adapter: dict[str, Any],
    config: Path,
    dtype: torch.dtype,
    objective: str | None,
    *,
    trust_remote_code: bool,
) -> PreTrainedModel:
    """The trained model with its adapters, every tensor rounded like the export's."""
    model_config = AutoConfig.from_pretrained(config, trust_remote_code=trust_remote_code)
    model: PreTrainedModel = auto_class(objective).from_config(
        model_config, dtype=torch.float32, trust_remote_code=trust_remote_code
    )
    if adapter:
        from peft import LoraConfig, inject_adapter_in_model

        fields = {k: v for k, v in adapter.items() if k in LoraConfig.__dataclass_fields__}
        inject_adapter_in_model(LoraConfig(**fields), model)
    state = {name: cast_tensor(weights.get(name), dtype).float() for name in weights.shapes}
    model.load_state_dict(state, strict=False)
    model.tie_weights()
    model.config.use_cache = False
    return model
