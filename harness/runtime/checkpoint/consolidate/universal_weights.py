# SPDX-License-Identifier: Apache-2.0
"""Whole tensors out of DeepSpeed's universal layout: of our own conversions, of imports, and of `ds_to_universal`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from harness import input_limits
from harness.file_io import parse_json, read_regular
from harness.runtime.checkpoint.consolidate.layouts import WEIGHT, ParamGroup, RankParams, ShardedParam
from harness.runtime.checkpoint.safe_load import load_file, load_param, load_shard
from harness.runtime.user_errors import user_error

GROUPS_FILE = "groups.json"


def read_universal_params(folder: Path) -> RankParams:
    """All parameters below `folder/zero`. Raises UserError (CK105 a parameter without `fp32.pt`, CK120)."""
    heads = sorted(folder.glob("*mp_rank_00_model_states.pt"))
    if not heads:
        raise user_error("CK105", f"`{folder}` has no file `*_model_states.pt`", fix="name a complete checkpoint")
    head = load_shard(heads[0])
    groups, step = _read_groups(folder, head)
    trained = {name for group in groups for name in group.names}
    trainable, others = dict[str, ShardedParam](), dict[str, ShardedParam]()
    for entry in sorted((folder / "zero").iterdir()):
        if not entry.is_dir():
            continue
        files = {file.stem: file for file in entry.glob("*.pt")}
        if WEIGHT not in files:
            raise user_error("CK105", f"`{entry}` has no `{WEIGHT}.pt`", fix="name a complete checkpoint")
        if step is None and "step" in files:
            step = int(load_file(files["step"], mmap=True))
        states = tuple(key for key in files if key != "step") if entry.name in trained or not trained else ()
        param = ShardedParam(load_param(files[WEIGHT]).shape, _reader(entry), states)
        (trainable if states else others)[entry.name] = param
    shared = {str(name): str(of) for name, of in (head.get("shared_params") or {}).items()}
    options = [group.options for group in groups]
    return RankParams(trainable, others, shared, head, [g.names for g in groups], options, step)


def _reader(entry: Path) -> Any:
    def read(key: str) -> torch.Tensor:
        return load_param(entry / f"{key}.pt").clone(memory_format=torch.contiguous_format)

    return read


def _read_groups(folder: Path, head: dict[str, Any]) -> tuple[list[ParamGroup], int | None]:
    """Names and options by group: from our own file, or from DeepSpeed's description of the shards."""
    if (folder / GROUPS_FILE).exists():
        body = parse_json(read_regular(folder / GROUPS_FILE, input_limits.RUN_FILE, follow=False))
        return [ParamGroup(group["options"], group["names"]) for group in body["groups"]], body["step"]
    state = load_shard(folder / "zero" / "optimizer_state.pt")
    options = state.get("param_groups") or state.get("optimizer_state_dict", {}).get("param_groups") or []
    shapes = head.get("param_shapes") or []
    plain = [  # one for each flat vector: a group has several at stage 3, by sub-groups
        {key: value for key, value in group.items() if key != "params"}
        for group in options
        for _ in group.get("params") or (0,)
    ]
    return [ParamGroup(one, list(names)) for one, names in zip(plain, shapes, strict=False)], None
