# SPDX-License-Identifier: Apache-2.0
"""A few hundred keys and values, good and wrong, given to the real `DeepSpeedConfig`: does it do what we say it does?

One process and no engine: what DeepSpeed refuses while it reads the file, and the value that it ends up with.
"""

from __future__ import annotations

import copy
import logging
import math
import random
from typing import Any

import pytest

from harness.facts.deepspeed_keys import MISSING, Key, block_keys, block_paths, is_typed_block
from harness.facts.deepspeed_values import interpret_value
from harness.facts.deepspeed_version import installed_version, parse_version
from tests.support.training.deepspeed_models import MODELS, READ, fields

VERSION = parse_version(installed_version() or "0")
VALUES: dict[str, list[Any]] = {
    "bool": [True, False, 1, 0, 2, 1.0, "true", "No", "off", "maybe", "", None, [], {}],
    "int": [7, 0, -3, True, 2.0, 2.5, "5", " 6 ", "500_000", "5e8", "5.0", "x", None, [], 1e30],
    "number": [0.25, 1, 0, -1.5, True, "0.5", "1e3", "x", None, [], {}],
    "str": ["text", "", 1, True, None, []],
    "list": [[], ["a"], "a", {}, None, 1],
    "dict": [{}, {"a": 1}, [], "a", None, 1],
    "block": [{}, [], "a", None, True, 1],
    "python": ["fp16", 1, True],
}
VALUES |= {"switch": VALUES["bool"], "flag": VALUES["bool"], "maps": VALUES["block"], "blocks": [[], None]}
NEEDS = {  # keys that want company, which is not what is compared here
    "zero_optimization.compute_grad_norm": {"zero_optimization": {"stage": 1}},
    "zero_optimization": {"zero_optimization": {"stage": 3}},
    "bf16.bf16_master_weights_and_grads": {"zero_optimization": {"stage": 1}},
    "bf16.bf16_optimizer_states": {"zero_optimization": {"stage": 1}, "bf16": {"bf16_master_weights_and_grads": True}},
    "fp16.fp16_master_weights_and_grads": {"zero_optimization": {"stage": 1}},
    "optimizer.params": {"optimizer": {"type": "AdamW"}},
    "scheduler.params": {"scheduler": {"type": "WarmupLR"}},
}
APART = {
    "data_efficiency.data_sampling.curriculum_learning.enabled": "wants metrics beside it",
    "data_efficiency.data_sampling.dynamic_batching.enabled": "wants tokens beside it",
    "gradient_accumulation_steps": "part of the batch triangle",
    "tensor_parallel.autotp_size": "compared with 0 by `deepspeed.initialize` before it is converted",
    "aio.use_gds": "asks for CUDA",
    "autotuning.start_step": "documented, read by nothing",
    "autotuning.end_step": "documented, read by nothing",
    "expert_parallel.load_balance_coeff": "must be null, which a gate tells",
}


def drawn() -> list[Any]:
    """Every key of the installed release with three values of its type's list and its allowed words; the same each
    time.
    """
    pick = random.Random(0)  # noqa: S311
    cases = []
    for path in block_paths():
        if path == "bfloat16" or "curriculum_metrics" in path or "layer_specs" in path:
            continue
        for key in (block_keys(path) or {}).values():
            name = f"{path}.{key.name}" if path else key.name
            if key.gone or key.alias or key.successor or key.type == "any" or name in APART:
                continue
            values = pick.sample(VALUES[key.type], k=min(4, len(VALUES[key.type])))
            values += [*pick.sample(key.allowed, k=1), "no-such-word"] if key.allowed and key.type == "str" else []
            values += [{"ge": b.limit - 1, "gt": b.limit, "le": b.limit + 1, "lt": b.limit}[b.op] for b in key.bounds]
            cases += [pytest.param(path, key, value, id=f"{name}={value!r}") for value in values]
    return cases


def merged(a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any]:
    both = dict(a)
    for name, value in b.items():
        both[name] = (
            merged(both[name], value) if isinstance(value, dict) and isinstance(both.get(name), dict) else value
        )
    return both


def config(path: str, key: Key, value: Any) -> dict[str, Any]:
    name = f"{path}.{key.name}" if path else key.name
    nested: Any = copy.deepcopy(value)  # DeepSpeed writes into what it is given
    for part in reversed(name.split(".")):
        nested = {part: nested}
    company = NEEDS.get(name) or NEEDS.get(path.split(".", maxsplit=1)[0] if key.name != "stage" else "", {})
    base: dict[str, Any] = {} if name.startswith("train_") else {"train_micro_batch_size_per_gpu": 4}
    if name == "train_batch_size" and value is None:
        base = {"train_micro_batch_size_per_gpu": 4}
    if name == "train_micro_batch_size_per_gpu" and value is None:
        base = {"train_batch_size": 4}
    return merged(merged(base, company), nested)


def really(path: str, key: Key, value: Any) -> tuple[bool, Any]:
    """(accepted, the value that DeepSpeed ends up with, or MISSING where it is not kept)."""
    from deepspeed.runtime.config import DeepSpeedConfig

    logging.getLogger("DeepSpeed").setLevel(logging.CRITICAL)
    try:
        accepted = DeepSpeedConfig(config(path, key, value))
    except Exception:
        return False, None
    holder = READ[path](accepted) if path in READ else None
    if holder is None:
        return True, MISSING
    name = (
        {json_name: field for field, json_name, _ in fields(path)}.get(key.name, key.name)
        if path in MODELS
        else key.name
    )
    if isinstance(holder, dict):
        return True, holder.get(name, MISSING)
    return True, getattr(holder, name, MISSING)


def same(key: Key, ours: Any, theirs: Any) -> bool:
    if theirs is MISSING or isinstance(ours, (dict, list, tuple)) or (isinstance(ours, float) and math.isnan(ours)):
        return True
    if key.type == "switch":
        return bool(ours) == bool(theirs)
    if ours is None:
        return theirs is None or key.name.startswith("train_") or key.name == "overlap_comm"  # derived
    if isinstance(ours, str):
        return not key.allowed or ours.lower()[-2:] == str(getattr(theirs, "value", theirs)).lower()[-2:]
    return bool(ours == theirs)


@pytest.mark.parametrize(("path", "key", "value"), drawn())
def test_deepspeed_takes_what_we_say(path, key, value):
    taken = interpret_value(key, value, is_typed=is_typed_block(path, VERSION), version=VERSION)
    accepted, theirs = really(path, key, value)
    if not accepted:
        assert taken.outcome in ("refused", "misread"), "DeepSpeed refuses it"
    elif is_typed_block(path, VERSION) and key.type not in ("block",):
        assert taken.outcome != "refused", f"DeepSpeed reads {theirs!r}"
    if accepted and taken.outcome in ("as written", "converted"):
        assert same(key, taken.value, theirs), f"DeepSpeed reads {theirs!r}"
    if accepted and taken.outcome == "misread" and theirs is not MISSING:
        assert bool(theirs) == bool(taken.value)
