# SPDX-License-Identifier: Apache-2.0
"""OpenRLHF and Megatron-DeepSpeed, whose settings are flags of a command alone, as those of the Trainer.

The flags are in `command_flags.txt`.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from harness.convert.draft import Draft
from harness.convert.programs.hf_trainer import HF_TRAINER
from harness.convert.trainer_file import is_on
from harness.spec.parse.source import Source

_KEYS = {
    **HF_TRAINER.keys,
    **{f"{name}_parallel_size": f"parallel.{name}_parallel_size" for name in ("tensor", "pipeline", "sequence")},
    "global_batch_size": "train.global_batch_size",
    "packing": "data.packing",
    "adam_betas": "optimizer.betas",
}
BY_FLAGS = {
    name: replace(HF_TRAINER, name=title, keys=_KEYS, defaults=())
    for name, title in (("openrlhf", "OpenRLHF"), ("megatron-deepspeed", "Megatron-DeepSpeed"))
}


def rename_flags(program: str, source: Source) -> Source:
    """The options of a command under the Trainer's names, with its DeepSpeed JSON; others keep theirs."""
    lines = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8").splitlines()
    rows = [[*line.split(), ""][1:4] for line in lines if line.split()[0] == program]
    draft, spots = Draft({**source.data}), dict(source.spots)
    for flag, _, _ in rows:
        draft.spec.pop(flag, None)
    for flag, name, default in rows:
        key, _, value = name.partition("=")
        given = source.data.get(flag, json.loads(default or "null"))
        if given not in (None, -1) and (is_on(given) or not value):  # -1: never, of steps
            draft.put(key, int(value) if value.isdigit() else value or given)
        if (flag,) in source.spots:
            spots[tuple(key.split("."))] = source.spots[(flag,)]
    return source._replace(data=draft.spec, spots=spots)
