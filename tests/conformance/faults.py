# SPDX-License-Identifier: Apache-2.0
"""Faults put into good configurations: a value of the space, a misspelt key, or two features that may not mix."""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace
from typing import Any

from .case import Case, Json, clone, drop, get, leaves, put
from .space import KEYS

FAMILIES = ("ZR", "OF", "PR", "OP", "BT", "TP", "UT", "ZR", "PR", "OP", "CK", "SQ", "PP", "OF", "CC", "EX", "MD")


def one(rng: random.Random, case: Case, family: str | None) -> Case:
    """One key with an odd value (of this family, where one is named)."""
    if family == "MD":
        return odd_model(rng, case)
    keys = [k for k in KEYS if k.odd and (family is None or k.family == family)]
    stage = get(case.config, "zero_optimization.stage", 0)
    near = [k for k in keys if stage in k.stages] or keys
    key = rng.choice(near)
    value = clone(rng.choice(key.odd))
    return with_value(case, key.path, value, key.family)


def with_value(case: Case, path: str, value: Any, family: str) -> Case:
    """The case with this key set; blocks that the key needs to be read are completed."""
    config = clone(case.config)
    put(config, path, value)
    if path.startswith("zero_optimization.") and get(config, "zero_optimization.stage", ...) is ...:
        put(config, "zero_optimization.stage", 0)
    _complete(config, path)
    said = f"{family}:{path}={value!r}"
    options = dict(case.options)
    if path == "checkpoint" and isinstance(value, dict) and value.get("load_universal"):
        options["load"] = True  # it is read then
    form = "spec" if path == "expert_parallel" else case.form  # a JSON does not say whether the model has experts
    return replace(
        case, config=config, faults=(*case.faults, said), tensor=tensor_degree(case, config), form=form, options=options
    )


def _complete(config: Json, path: str) -> None:  # noqa: C901
    if path.startswith("bf16.") and get(config, "bf16.enabled", ...) is ...:
        put(config, "bf16.enabled", True)
    if path.startswith("fp16.") and path != "fp16.enabled" and get(config, "fp16.enabled", ...) is ...:
        drop(config, "bf16")
        drop(config, "torch_autocast")
        put(config, "fp16.enabled", True)
    if path.startswith("torch_autocast.") and get(config, "torch_autocast.enabled", ...) is ...:
        drop(config, "bf16")
        drop(config, "fp16")
        put(config, "torch_autocast.enabled", True)
    for block in ("offload_optimizer", "offload_param"):
        inner = f"zero_optimization.{block}"
        if path.startswith(f"{inner}.") and get(config, f"{inner}.device", ...) is ...:
            put(
                config, f"{inner}.device", "nvme" if "buffer" in path or "pipeline" in path or "nvme" in path else "cpu"
            )
        if (
            get(config, f"{inner}.device") == "nvme"
            and get(config, f"{inner}.nvme_path", ...) is ...
            and "device" not in path
        ):
            put(config, f"{inner}.nvme_path", "{DIR}/nvme")
    if path.startswith("aio") and get(config, "zero_optimization.stage") == 3:
        put(config, "zero_optimization.offload_optimizer", {"device": "nvme", "nvme_path": "{DIR}/nvme"})
    if path.startswith("optimizer.") and "optimizer" not in config:
        config["optimizer"] = {}
    if path.startswith("optimizer.params.") and get(config, "optimizer.type", ...) is ...:
        put(config, "optimizer.type", "AdamW")
    if path.startswith("tensor_parallel.") and path != "tensor_parallel.autotp_size":
        config["tensor_parallel"].setdefault("autotp_size", 2)


def tensor_degree(case: Case, config: Json) -> int:
    """The tensor degree that a script sees in this configuration."""
    size = get(config, "tensor_parallel.autotp_size", 1)
    return size if type(size) is int and size >= 1 else 1


def odd_model(rng: random.Random, case: Case) -> Case:
    """A model whose shape does not go with the degrees; as a spec, since a JSON has no model."""
    if case.sequence > 1:
        model = rng.choice(
            (
                {"kind": "llama", "num_attention_heads": 3, "num_key_value_heads": 3, "hidden_size": 48},
                {"kind": "llama", "num_attention_heads": 6, "num_key_value_heads": 3, "hidden_size": 96},
                {"kind": "llama", "attn_implementation": "eager"},
            )
        )
    else:
        model = rng.choice(
            (
                {"kind": "llama", "num_attention_heads": 3, "num_key_value_heads": 3, "hidden_size": 48},
                {"kind": "llama", "num_key_value_heads": 1},
                {"kind": "llama", "intermediate_size": 129},
                {"kind": "llama", "vocab_size": 257},
                {"kind": "llama", "tie_word_embeddings": True},
                {"kind": "gpt2"},
                {"kind": "mixtral"},
                {"kind": "mixtral", "num_local_experts": 3},
            )
        )
        if case.tensor == 1 and case.pipeline == 1 and rng.random() < 0.7:
            config = clone(case.config)
            for key in ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"):
                config.pop(key, None)
            config |= {"train_micro_batch_size_per_gpu": 1, "tensor_parallel": {"autotp_size": 2}}
            case = replace(case, config=config, tensor=2, world=max(2, case.world // 2 * 2))
    if case.pipeline > 1:
        return replace(case, form="spec", faults=(*case.faults, "MD:none"))
    return replace(case, form="spec", model=model, faults=(*case.faults, f"MD:{model}"))


def syntax(rng: random.Random, case: Case) -> Case:
    """The JSON file written in a way that hjson takes, or takes for something else."""
    lines = json.dumps(case.config, indent=2).split("\n")
    plain = [i for i, line in enumerate(lines) if re.fullmatch(r' +"\w+": [^{\[]*[^,{\[],?', line)]
    kind = rng.choice(("comment", "slashes", "trailing comma", "duplicate", "python", "point", "bom", "quotes"))
    at = rng.choice(plain)
    if kind == "comment":
        lines[at] = "# what follows was tuned\n" + lines[at]
    elif kind == "slashes":
        lines[at] = "// what follows was tuned\n" + lines[at]
    elif kind == "trailing comma":
        lines[-2] += ","
    elif kind == "duplicate":
        lines[at] = lines[at].rstrip(",") + ",\n" + lines[at]
    elif kind == "python":
        lines = [line.replace(": true", ": True").replace(": false", ": False") for line in lines]
    elif kind == "point":
        lines = [line.replace(": 0.01", ": .01").replace(": 0.0", ": .0") for line in lines]
    elif kind == "bom":
        lines[0] = "\ufeff" + lines[0]
    else:
        lines[at] = lines[at].replace('"', "'")
    text = "\n".join(lines) + "\n"
    return replace(case, text=text, faults=(*case.faults, f"SP:written with {kind}"))


def misspell(rng: random.Random, case: Case) -> Case:
    """One key with a letter left out, doubled or swapped, or in another place; `meant` keeps what was wanted."""
    paths = [p for p, _ in leaves(case.config, "") if p]
    blocks = sorted({p.partition(".")[0] for p in paths if "." in p})
    path = rng.choice([*paths, *blocks])
    parent, _, name = path.rpartition(".")
    value = get(case.config, path)
    if len(name) < 3:
        name = name + name[-1]
    at = rng.randrange(1, len(name) - 1)
    wrong = rng.choice(
        (
            name[:at] + name[at + 1 :],
            name[:at] + name[at] + name[at:],
            name[: at - 1] + name[at] + name[at - 1] + name[at + 1 :],
        )
    )
    if wrong in (name, path.rpartition(".")[2]):
        wrong = name + "s"
    config = clone(case.config)
    drop(config, path)
    put(config, f"{parent}.{wrong}" if parent else wrong, value)
    meant = clone(case.config)
    return replace(case, config=config, meant=meant, faults=(*case.faults, f"SP:{path} written as {wrong}"))
