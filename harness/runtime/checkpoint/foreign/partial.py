# SPDX-License-Identifier: Apache-2.0
"""The rest of a save with missing shards, by name: at ZeRO stage 1 and 2 the parameters of the ranks left.

The folder has one file a parameter and a list, and neither configuration nor index: no program takes it for a model.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from harness.checkpoints.foreign.folder_files import parse_shard
from harness.checkpoints.manifest import is_safe_path
from harness.errors import UserError, user_error
from harness.runtime.checkpoint.consolidate.layouts import find_rank_files, join_pieces
from harness.runtime.checkpoint.safe_load import load_shard

LIST = "partial.json"


def write_partial(tag: Path, out: Path) -> str:
    """Write them; returns the line to print. Raises UserError (CK105 where nothing is left, CK111, CK120)."""
    files = find_rank_files(tag)
    if "zero_pp_rank" in files[0].models[0].name:
        raise user_error(
            "CK105",
            f"nothing of `{tag}` can be saved: at ZeRO stage 3 each parameter has a piece in each shard",
            fix="name another checkpoint",
        )
    if len(files) > 1:
        raise user_error(
            "CK131", f"`{tag}` has tensor ranks or stages, of which no part is written", fix="name another"
        )
    head = load_shard(files[0].models[0])
    held = head.get("module")
    module: dict[str, Any] = held if isinstance(held, dict) else {}
    found, unreadable = dict[str, dict[str, Any]](), list[str]()
    for file in files[0].optimizers:
        try:
            found[file.name] = load_shard(file)["optimizer_state_dict"]
        except (UserError, KeyError):
            unreadable.append(file.name)
    try:
        stale = _shards_of_others(found, head)
        masters = _whole_masters(head, [shard for name, shard in found.items() if name not in stale])
    except Exception as error:  # content of any type provokes almost anything
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        raise user_error("CK120", f"`{tag}` is not as DeepSpeed writes it: {reason}", fix="name another") from None
    names = [name for name in {**module, **masters} if isinstance(name, str) and is_safe_path(name)]
    written: dict[str, str] = {}
    for name in names:
        pieces = masters.get(name)
        tensor = join_pieces(*pieces) if pieces else module[name]
        if torch.is_tensor(tensor):
            written[name] = "masters" if pieces else f"weights in {str(tensor.dtype).removeprefix('torch.')}"
            save_file({name: tensor.contiguous()}, out / f"{name}.safetensors")
    if not written:
        raise user_error("CK105", f"nothing of `{tag}` can be saved", fix="name another checkpoint")
    shapes = [name for group in head.get("param_shapes") or [] for name in group]
    lacking = sorted({*shapes} - {*written})
    body = {"source": str(tag.resolve()), "whole": False, "tensors": written, "missing": lacking}
    body |= {"unreadable_shards": unreadable, "shards_of_another_save": stale}
    (out / LIST).write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
    count = sum(kind == "masters" for kind in written.values())
    return (
        f"wrote {len(written)} parameters into {out}, {count} of them from the optimizer's masters; {len(lacking)} are "
        f"missing ({LIST} has the names); optimizer states are not written: this is no checkpoint"
    )


def _shards_of_others(found: dict[str, dict[str, Any]], head: dict[str, Any]) -> list[str]:
    """The names of optimizers' shards that are of another save than the counters `head`: by their ranks or steps."""
    if not found:
        return []
    ranks, steps = head["dp_world_size"], dict[str, set[int]]()
    for name, shard in found.items():
        counts = shard.get("partition_count", ranks)
        parsed = parse_shard(name)
        if (
            parsed is not None
            and (parsed.data or 0) < ranks
            and {*(counts if isinstance(counts, list) else [counts])} == {ranks}
        ):
            states = shard["base_optimizer_state"]["state"].values()
            steps[name] = {int(state["step"]) for state in states if "step" in state}
    counted = [step for each in steps.values() for step in each]
    taken = head["global_steps"] - head["skipped_steps"]
    if counted and taken not in counted:  # an optimizer that began later than its run
        taken = max(counted, key=counted.count)
    return [name for name in found if name not in steps or not steps[name] <= {taken}]


def _whole_masters(head: dict[str, Any], shards: list[dict[str, Any]]) -> dict[str, tuple[list[torch.Tensor], Any]]:
    """The pieces and the shape of each parameter whose every element is in these shards."""
    found: dict[str, tuple[list[torch.Tensor], Any]] = {}
    for number, shapes in enumerate(head.get("param_shapes") or []):
        for name, shape in shapes.items():
            pieces = []
            for shard in shards:
                part = shard["param_slice_mappings"][number].get(name)
                if part is not None and part.numel:
                    vector = shard["single_partition_of_fp32_groups"][number]
                    pieces.append(vector[part.start : part.start + part.numel])
            if sum(piece.numel() for piece in pieces) == math.prod(shape):
                found[name] = (pieces, torch.Size(shape))
    return found
