# SPDX-License-Identifier: Apache-2.0
"""AT031: the weights of the first step are those of the files that the model was loaded from.

transformers creates a model's parameters, ZeRO-3 partitions them, and the files are copied into the partitions: what
is not copied keeps its random values, and nothing says so.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from harness.runtime.engine_checks.engine_check import (
    CheckResult,
    NotApplicable,
    check_failed,
    check_passed,
    check_skipped,
    engine_check,
)
from harness.runtime.engine_checks.expected_settings import ExpectedSettings
from harness.runtime.engine_checks.model_weights import shape_of, shard_of
from harness.runtime.engine_checks.observations import Observations

_MAX_TENSORS = 8
_MAX_ELEMENTS = 256
_INDEX = "model.safetensors.index.json"
_MAX_OTHER = 0.5
"""A tensor of which more of the sampled elements are other ones was not loaded."""


def _observe(observations: Observations) -> Any:
    engine = observations.engine
    if int(engine.global_steps) or getattr(engine, "loaded_checkpoint_dp_world_size", None) is not None:
        raise NotApplicable("a checkpoint was loaded")
    files = find_weight_files(engine.module)
    named = {name: p for name, p in observations.parameters.items() if name in files and p.is_floating_point()}
    if not named:
        raise NotApplicable("no weight file on this host has names of the model")
    step = max(1, len(named) // _MAX_TENSORS)
    other, num_compared = list[str](), 0
    for name in sorted(named)[::step][:_MAX_TENSORS]:
        fraction = compare_with_file(name, named[name], files[name])
        num_compared += fraction is not None
        if fraction is not None and fraction > _MAX_OTHER:
            other.append(name)
    return {"compared": num_compared, "other": other}


def find_weight_files(module: Any) -> Mapping[str, Path]:
    """The safetensors file of each tensor, by its name; empty where the model's folder is not on this host."""
    source = str(getattr(getattr(module, "config", None), "_name_or_path", "") or "")
    folder = Path(source)
    if source and not folder.is_dir():
        folder = _find_snapshot(source)
    index, single = folder / _INDEX, folder / "model.safetensors"
    if not source or not (index.is_file() or single.is_file()):
        return {}
    if index.is_file():
        names = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        return {name: folder / file for name, file in names.items()}
    with safe_open(single, "pt") as tensors:
        return dict.fromkeys(tensors.keys(), single)


def _find_snapshot(source: str) -> Path:
    """The folder of a model of the Hub in the local cache; one that does not exist without it."""
    from huggingface_hub import try_to_load_from_cache

    try:
        found = try_to_load_from_cache(source, "config.json")
    except ValueError:  # no name of a model
        return Path("/nonexistent")
    return Path(found).parent if isinstance(found, str) else Path("/nonexistent")


def compare_with_file(name: str, parameter: Any, file: Path) -> float | None:
    """The share of sampled elements of this rank that differ from the file; None where they cannot be compared."""
    shape, shard = shape_of(parameter), shard_of(parameter)
    if shard is None or not shard[0].numel():
        return None
    local, start = shard[0][:_MAX_ELEMENTS].cpu(), shard[1]
    with safe_open(file, "pt") as tensors:
        stored = tensors.get_slice(name)
        is_quantized = str(stored.get_dtype()).upper().startswith(("F8", "U8", "I8"))  # with scales of their own
        if tuple(stored.get_shape()) != tuple(shape) or not shape or is_quantized:
            return None
        expected = _read_flat(stored, shape, start, local.numel())
    local = local[: expected.numel()].float()
    expected = expected.to(parameter.dtype).float()
    return float((~torch.isclose(local, expected, rtol=2e-2, atol=1e-6)).float().mean())


def _read_flat(stored: Any, shape: Sequence[int], start: int, length: int) -> torch.Tensor:
    """Elements of the flattened tensor, of which only their rows are read."""
    width = 1
    for size in shape[1:]:
        width *= size
    first = start // width
    last = min(shape[0], (start + length - 1) // width + 1)
    flat: torch.Tensor = stored[first:last].flatten()
    return flat[start - first * width :][:length]


def _evaluate(expected: ExpectedSettings, rank_values: Sequence[Any]) -> CheckResult:  # noqa: ARG001
    names = sorted({name for values in rank_values for name in values["other"]})
    num_compared = max(values["compared"] for values in rank_values)
    if all(values["compared"] == len(values["other"]) for values in rank_values):
        return check_skipped("no sampled weight is that of the model's files: it was created anew")
    if names:
        ranks = [rank for rank, values in enumerate(rank_values) if values["other"]]
        return check_failed(
            f"{len(names)} of {num_compared} sampled weights are not those of the model's files, such as "
            f"`{names[0]}` (rank {ranks[0]})",
            names,
            "the training starts from random or stale numbers there; a script that creates weights anew on purpose may "
            "ignore this",
        )
    return check_passed({"weights": num_compared})


CHECK = engine_check("AT031", _observe, _evaluate)
