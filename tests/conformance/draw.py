# SPDX-License-Identifier: Apache-2.0
"""Draws cases: a configuration that should be good, and then, in most of them, one thing made odd or wrong.

Everything follows from the seed and the number: `draw(seed, number)`. Which family a fault comes from goes round, so that
each is there in every sample. Nothing here knows what DeepSpeed or a gate will say.
"""

from __future__ import annotations

import random

from . import faults, pairs
from .case import Case, Json, clone, get, put
from .space import KEYS

MODES = ("plain", "plain", "plain", "plain", "tensor", "plain", "pipeline", "plain", "sequence", "plain")
PLANS = ("good", "fault", "fault", "typo", "fault", "fault", "combine", "fault", "good", "fault", "wild", "fault")


WORLDS = (1, 2, 2, 2, 2, 2, 3, 4, 4)


def draw(seed: int, number: int, modes: tuple[str, ...] = MODES, worlds: tuple[int, ...] = WORLDS) -> Case:
    """The case of this number; its id is `SEED-NUMBER`."""
    rng = random.Random(f"{seed}/{number}")  # noqa: S311
    mode = modes[(number * 7 + rng.randrange(len(modes)) * (number % 2)) % len(modes)]
    case = base(rng, f"{seed}-{number:05d}", mode, worlds)
    plan = PLANS[number % len(PLANS)]
    if plan == "good":
        return case
    if plan == "typo" and case.form == "json" and "optimizer" in case.config and rng.random() < 0.7:
        return faults.syntax(rng, case)
    if plan == "typo":
        return faults.misspell(rng, case)
    if plan == "combine":
        return pairs.combine(rng, case)
    if plan == "wild":
        for _ in range(rng.choice((2, 3))):
            case = faults.one(rng, case, None)
        return case
    order = faults.FAMILIES
    return faults.one(rng, case, order[(number // len(PLANS) * 7 + number) % len(order)])


def base(rng: random.Random, name: str, mode: str, worlds: tuple[int, ...] = WORLDS) -> Case:
    """A configuration that should be good."""
    degrees = {"tensor": 1, "pipeline": 1, "sequence": 1}
    world = rng.choice(worlds)
    if mode != "plain":
        degrees[mode] = 2
        world = rng.choice((2, 2, 4))
    data = world // 2 if mode != "plain" else world
    config: Json = {}
    stage = rng.choice(
        {"plain": (0, 1, 2, 2, 3, 3, 3), "tensor": (0, 1, 2), "pipeline": (0, 1, 1)}.get(mode, (0, 1, 2, 3))
    )
    features = [mode, f"stage-{stage}"]
    _batch(rng, config, data, mode)
    features += _precision(rng, config, stage, mode)
    features += _zero(rng, config, stage, mode)
    features += _optimizer(rng, config, stage)
    features += _scheduler(rng, config)
    if rng.random() < 0.85:
        config.setdefault("gradient_clipping", rng.choice((0.0, 0.5, 1.0, 1.0)))
    if mode == "tensor":
        put(config, "tensor_parallel.autotp_size", 2)
    if mode == "pipeline" and stage == 0 and "bf16" not in config:
        config["gradient_clipping"] = 0.0
    if mode == "sequence":
        config |= {"sequence_parallel_size": 2, "data_parallel_size": data}
    features += _extras(rng, config, stage, mode)
    options = _options(rng, config, stage, mode)
    model = _model(rng, mode)
    form = "json" if mode in ("plain", "tensor") and rng.random() < 0.4 else "spec"
    if form == "json":
        model = {"kind": "llama"}
    elif "optimizer" not in config:  # a spec always has one
        config["optimizer"] = {"type": "AdamW", "params": {"lr": 0.01}}
    return Case(name, form, config, world, (), tuple(features), **degrees, model=model, options=options)


def _batch(rng: random.Random, config: Json, data: int, mode: str) -> None:
    micro, accumulation = rng.choice((1, 2, 2, 3)), rng.choice((1, 1, 2, 3))
    if mode == "pipeline":
        accumulation = rng.choice((2, 2, 4))
    total = micro * accumulation * data
    full = {
        "train_batch_size": total,
        "train_micro_batch_size_per_gpu": micro,
        "gradient_accumulation_steps": accumulation,
    }
    ways = [(1, 2), (0, 1, 2), (0, 1), (0, 2), (1, 2)]
    if accumulation == 1:
        ways += [(0,), (1,)]
    if mode == "tensor":  # DeepSpeed counts the whole world there, so that the true global batch is refused
        ways = [(1, 2)]
    names = list(full)
    config |= {names[i]: full[names[i]] for i in rng.choice(ways)}


def _precision(rng: random.Random, config: Json, stage: int, mode: str) -> list[str]:
    kinds = ("fp32", "fp32", "bf16", "bf16", "bf16", "fp16", "autocast") if stage else ("fp32", "fp32", "autocast")
    kind = rng.choice(kinds)
    if mode == "pipeline" and kind == "autocast":
        kind = "bf16" if stage else "fp32"
    if kind == "bf16":
        config["bf16"] = {"enabled": True}
    elif kind == "fp16":
        config["fp16"] = {"enabled": True} | rng.choice(({}, {"initial_scale_power": 12}, {"loss_scale": 128}))
    elif kind == "autocast":
        config["torch_autocast"] = {"enabled": True, "dtype": "bfloat16"}
    return [kind]


def _zero(rng: random.Random, config: Json, stage: int, mode: str) -> list[str]:
    if stage == 0:
        if rng.random() < 0.5:
            config["zero_optimization"] = {"stage": 0}
        return []
    zero: Json = {"stage": stage}
    config["zero_optimization"] = zero
    found = []
    where = rng.choice(("none", "none", "cpu") if stage < 3 else ("none", "cpu", "cpu", "nvme"))
    if mode == "pipeline" and where == "nvme":
        where = "cpu"
    if where != "none":
        zero["offload_optimizer"] = {"device": where, "pin_memory": rng.random() < 0.3}
        found.append(f"optimizer-{where}")
    if where == "nvme":
        zero["offload_optimizer"] |= {"nvme_path": "{DIR}/nvme", "buffer_count": rng.choice((4, 5, 8))}
    if stage == 3 and rng.random() < 0.35:
        device = rng.choice(("cpu", "cpu", "nvme"))
        zero["offload_param"] = {"device": device, "pin_memory": False}
        if device == "nvme":
            zero["offload_param"] |= {"nvme_path": "{DIR}/nvme", "buffer_count": 12, "buffer_size": 1000000}
        found.append(f"param-{device}")
    return found


def _optimizer(rng: random.Random, config: Json, stage: int) -> list[str]:
    offload = get(config, "zero_optimization.offload_optimizer.device", "none") != "none"
    kinds = ["AdamW"] * 6 + ["Adam", "Adam", "SGD", "Adagrad", "torch", "RMSprop", "Muon", "client"]
    kinds += ["Lion"] if offload else []
    kind = rng.choice(kinds)
    if offload and kind in ("SGD", "RMSprop", "Muon", "torch"):
        kind = "AdamW"
    block: Json = {"type": kind, "params": {"lr": 0.01}}
    if kind in ("AdamW", "Adam", "torch"):
        block["params"] |= rng.choice(({}, {"weight_decay": 0.1}, {"betas": [0.9, 0.95], "eps": 1e-8}))
    if kind == "torch":
        block = {"type": "AdamW", "params": {**block["params"], "torch_adam": True, "weight_decay": 0.0}}
    if kind == "SGD":
        block["params"] = {"lr": 0.5, "momentum": rng.choice((0.0, 0.9))}
    if kind == "Lion":
        block["params"]["lr"] = 0.002
    if kind == "Muon":
        block["params"] = {"lr": 0.02}
        config["gradient_clipping"] = 0.0
        if stage == 3:
            put(config, "zero_optimization.reduce_scatter", False)
    if kind in ("SGD", "RMSprop") and stage:
        config["zero_allow_untested_optimizer"] = True
    if kind != "client":
        config["optimizer"] = block
    return [f"optimizer-{kind}"]


def _scheduler(rng: random.Random, config: Json) -> list[str]:
    if rng.random() < 0.75 or "optimizer" not in config:
        return []
    rate = config["optimizer"]["params"]["lr"]
    block: Json = rng.choice(
        (
            {"type": "WarmupLR", "params": {"warmup_min_lr": rate / 10, "warmup_max_lr": rate, "warmup_num_steps": 2}},
            {
                "type": "WarmupDecayLR",
                "params": {
                    "warmup_min_lr": rate / 10,
                    "warmup_max_lr": rate,
                    "warmup_num_steps": 2,
                    "total_num_steps": 20,
                },
            },
            {
                "type": "WarmupCosineLR",
                "params": {"warmup_min_ratio": 0.1, "warmup_num_steps": 2, "total_num_steps": 20},
            },
        )
    )
    config["scheduler"] = block
    return [block["type"]]


def _extras(rng: random.Random, config: Json, stage: int, mode: str) -> list[str]:
    """Up to four settings with good values; blocks that are there are added to, never made."""
    found = []
    for key in rng.sample(KEYS, 24):
        if not key.good or stage not in key.stages or len(found) == 4:
            continue
        parent = key.path.rpartition(".")[0]
        if parent and not isinstance(get(config, parent), dict):
            continue
        if get(config, key.path, ...) is not ... or key.path.startswith("zero_optimization.reduce_scatter"):
            continue
        if key.path == "communication_data_type" and "torch_autocast" in config:
            continue
        if key.path == "wall_clock_breakdown" and mode == "pipeline":
            continue
        if key.path.startswith("optimizer.") and get(config, "optimizer.type") not in ("Adam", "AdamW"):
            continue
        put(config, key.path, clone(rng.choice(key.good)))
        found.append(f"with {key.path}")
    return found


def _options(rng: random.Random, config: Json, stage: int, mode: str) -> Json:
    options: Json = {}
    nvme = get(config, "zero_optimization.offload_optimizer.device") == "nvme"
    if rng.random() < 0.3 and not nvme:
        options["load"] = True
    if stage == 3 and rng.random() < 0.25:
        options["creation"] = "shards"
    if mode == "plain" and rng.random() < 0.15:
        options["recompute"] = True
    return options


def _model(rng: random.Random, mode: str) -> Json:
    if mode == "pipeline":
        return {"kind": "pipe", "layers": rng.choice((4, 6))}
    if mode == "plain" and rng.random() < 0.2:
        return {"kind": rng.choice(("gpt2", "mixtral"))}
    if mode == "plain" and rng.random() < 0.15:
        return {"kind": "llama", "tie_word_embeddings": True}
    return {"kind": "llama"}
