# SPDX-License-Identifier: Apache-2.0
"""Comparison of a configuration with the engine's settings and steps. A difference is a string; `large` ones change what
is trained.

Reads reports alone; imports no torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from .case import Json, get, leaves

CLASSES = {
    "adamw": ("FusedAdam", "DeepSpeedCPUAdam", "AdamW"),
    "adam": ("FusedAdam", "DeepSpeedCPUAdam", "AdamW", "Adam"),
    "fusedadam": ("FusedAdam",),
    "adagrad": ("DeepSpeedCPUAdagrad", "Adagrad"),
    "lion": ("DeepSpeedCPULion", "FusedLion"),
    "muon": ("MuonWithAuxAdam", "Muon", "MuonWithAuxCPUAdam"),
}
BY_TRUTH = """prescale_gradients zero_allow_untested_optimizer zero_force_ds_cpu_optimizer dump_state memory_breakdown
    disable_allgather dataloader_drop_last managed_gradient_accumulation use_data_before_expert_parallelism
    torch_autocast.enabled checkpoint.load_universal checkpoint.use_node_local_storage data_efficiency.enabled
    expert_parallel.enabled""".split()
"""Switches that DeepSpeed does not parse: any text is on."""
MUON = {"lr", "muon_lr", "adam_lr", "momentum", "weight_decay", "ns_method", "betas", "eps"}
NO_KEYS = """data_types.grad_acc_dtype optimizer.typ optimizer.param scheduler.name checkpoint.async activation_checkpointing.cpu_checkpoint
    aio.thread_count torch_autocast.enable""".split()
"""Keys of `space.py` that DeepSpeed does not have, or no longer, in blocks that swallow them."""
PRESETS = ("llama", "bloom", "chatglm", "mixtral", "deepseek_v2", "qwen2", "phi3")
UNREAD = {
    "zero_optimization.stage3_param_persistence_threshold",
    "zero_optimization.overlap_comm",
    "zero_optimization.leaf_module.classes",
    "tensor_parallel.tp.tp_size",
    *BY_TRUTH,
}
"""Keys whose effective value is completed by DeepSpeed in ways that say nothing."""


@dataclass(frozen=True)
class Difference:
    """Something that is not as asked."""

    what: str
    large: bool = True


def asked_of(config: Json, world: int, degrees: Json) -> Json:
    """Degrees and batch as the user means them; None for a corner that does not come out whole."""
    tensor, pipeline, sequence = (max(1, int(degrees.get(k) or 1)) for k in ("tensor", "pipeline", "sequence"))
    data = world / (tensor * pipeline * sequence)
    micro, parts, total = (
        _count(config.get(k))
        for k in ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "train_batch_size")
    )
    if micro is None and total is not None:
        micro = total / (data * (parts or 1))
    if parts is None:
        parts = total / (data * micro) if total is not None and micro else 1
    found = {"micro": micro, "accumulation": parts, "data": data}
    return {
        "tensor": tensor,
        "pipeline": pipeline,
        "sequence": sequence,
        **{k: int(v) if v is not None and v >= 1 and float(v).is_integer() else None for k, v in found.items()},
    }


def _count(value: Any) -> float | None:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if number and math.isfinite(value) else None


def differences(meant: Json, asked: Json, answer: Json, job: Json) -> list[Difference]:
    """Everything that is not as asked, of a job that ran to its end."""
    first = answer["ranks"][0]
    facts = first["facts"]
    found = [*_engine(meant, facts), *_utilities(meant, facts), *_batch(asked, facts), *_numbers(meant, facts, first)]
    found += [*_training(answer, facts, job), *_saved(job, first), *_effective(meant, facts)]
    return found


def _engine(meant: Json, facts: Json) -> list[Difference]:
    found = []

    def expect(name: str, wanted: Any, has: Any, large: bool = True) -> None:
        if wanted is not None and has != wanted:
            found.append(Difference(f"{name}: asked {wanted!r}, the engine has {has!r}", large))

    stage = get(meant, "zero_optimization.stage", 0)
    expect("stage", stage, facts["stage"])
    expect("offload_optimizer", _device(meant, "offload_optimizer"), facts["offload_optimizer"])
    expect("offload_param", _device(meant, "offload_param"), facts["offload_param"])
    expect("dtypes", [_dtype(meant)], facts["dtypes"])
    if facts.get("masters"):
        expect("master weights", [_master(meant)], facts["masters"])
    if get(meant, "torch_autocast.enabled") is True:
        wanted = get(meant, "torch_autocast.dtype")
        expect("autocast", [True, wanted], facts["autocast"])
    kind = get(meant, "optimizer.type")
    if isinstance(kind, str):
        classes = CLASSES.get(kind.lower(), (kind,))
        if facts["base_optimizer"] not in classes and facts["optimizer"] not in classes:
            found.append(Difference(f"optimizer: asked {kind}, the engine has {facts['base_optimizer']}"))
    expect("scheduler", get(meant, "scheduler.type"), facts["scheduler"])
    experts = meant.get("expert_parallel")
    if isinstance(experts, dict) and (experts.get("enabled") or experts.get("autoep_size", 1) != 1):
        expect("experts shared by", experts.get("autoep_size", 1), facts.get("experts"))
    hpz = get(meant, "zero_optimization.zero_hpz_partition_size")
    if isinstance(hpz, int) and hpz > 1:
        expect("hpZ", hpz, facts["hpz"], large=False)
    return found


def _utilities(meant: Json, facts: Json) -> list[Difference]:
    asked: Json = {}
    if isinstance(meant.get("comms_logger"), dict):
        asked["comms_logger"] = get(meant, "comms_logger.enabled") is True
    curriculum = get(meant, "data_efficiency.data_sampling.curriculum_learning")
    if curriculum and get(curriculum, "enabled") is not False:
        asked["curriculum"] = True
    return [
        Difference(f"{name}: asked {wanted}, the engine has {facts[name]}", large=False)
        for name, wanted in asked.items()
        if facts[name] != wanted
    ]


def _device(meant: Json, block: str) -> str | None:
    inner = get(meant, f"zero_optimization.{block}")
    if inner is None:
        old = {"offload_optimizer": "cpu_offload", "offload_param": "cpu_offload_param"}[block]
        return "cpu" if get(meant, f"zero_optimization.{old}") is True else "none"
    if not isinstance(inner, dict):
        return str(inner)
    return str(inner.get("device", "something")) if inner else "something"


def _master(meant: Json) -> str:
    for block, name in (("bf16", "bfloat16"), ("fp16", "float16")):
        if get(meant, f"{block}.enabled") is True and get(meant, f"{block}.{block}_master_weights_and_grads") is True:
            return name
    return "float32"


def _dtype(meant: Json) -> str:
    for block, name in (("bf16", "bfloat16"), ("bfloat16", "bfloat16"), ("fp16", "float16")):
        inner = meant.get(block)
        if isinstance(inner, dict) and inner.get("enabled") not in (False, None):
            return name
    return "float32"


def _batch(asked: Json, facts: Json) -> list[Difference]:
    found = []
    for name in ("micro", "accumulation", "data", "tensor", "pipeline", "sequence"):
        wanted, has = asked.get(name), facts.get(name)
        if wanted is None:
            found.append(Difference(f"{name}: not a whole number as asked, the engine has {has}"))
        elif has != wanted:
            found.append(Difference(f"{name}: asked {wanted}, the engine has {has}"))
    if asked["tensor"] == 1 and None not in (asked["micro"], asked["accumulation"], asked["data"]):
        total = asked["micro"] * asked["accumulation"] * asked["data"]
        if facts["global"] != total:
            found.append(Difference(f"global batch: asked {total}, the engine has {facts['global']}"))
    if asked["tensor"] > 1 and not facts.get("resharded"):
        found.append(Difference("tensor parallel asked, no weight is sharded"))
    return found


def _numbers(meant: Json, facts: Json, first: Json) -> list[Difference]:
    found = []
    rate = get(meant, "optimizer.params.lr")
    seen = [r[0] for r in first["lr"] if r]
    if "scheduler" not in meant and rate is not None and any(not _close(r, rate) for r in seen):
        found.append(Difference(f"lr: asked {rate}, trained with {seen}"))
    found += _peak(meant, rate, seen)
    clip = meant.get("gradient_clipping")
    if clip is not None and facts["clipping"] != clip:
        found.append(Difference(f"gradient_clipping: asked {clip!r}, the engine has {facts['clipping']!r}"))
    for name in ("weight_decay", "eps", "betas"):
        wanted, has = get(meant, f"optimizer.params.{name}"), (facts["hyper"] or {}).get(name)
        if wanted is not None and has is not None and not _close(has, wanted):
            found.append(Difference(f"{name}: asked {wanted}, the engine has {has}"))
    return found


def _peak(meant: Json, rate: Any, seen: list[float]) -> list[Difference]:
    """DeepSpeed's warm-ups of 2 steps are at their peak, or half of it, in the third step."""
    kind, params = get(meant, "scheduler.type"), get(meant, "scheduler.params") or {}
    if kind not in ("WarmupLR", "WarmupDecayLR") or params.get("warmup_num_steps") not in (1, 2) or len(seen) < 3:
        return []
    peak = params.get("warmup_max_lr", rate)
    if isinstance(peak, (int, float)) and max(seen) < 0.4 * peak:
        return [Difference(f"peak rate: asked {peak}, trained with {seen}")]
    return []


def _training(answer: Json, facts: Json, job: Json) -> list[Difference]:
    first = answer["ranks"][0]
    found = []
    losses, norms, skipped = first["losses"], first["norms"], first["skipped"]
    if not all(math.isfinite(x) for x in losses):
        found.append(Difference(f"losses {losses}"))
    if any(isinstance(n, str) or (n is not None and n > 1e4) for n in norms) and not (skipped and skipped[-1]):
        found.append(Difference(f"gradient norms {norms}"))
    if skipped and skipped[-1] >= len(losses):
        found.append(Difference(f"every step was skipped, loss scale {first.get('scale')}"))
    if first["global_steps"] != len(losses):
        found.append(Difference(f"{len(losses)} steps asked, the engine made {first['global_steps']}"))
    changed = facts.get("changed_by_initialize") or {}
    if changed:
        found.append(Difference(f"`initialize` changed {len(changed)} weights, such as {next(iter(changed.items()))}"))
    digests = [r.get("digest") for r in answer["ranks"]]
    if facts["pipeline"] == 1 and None not in digests and max(digests) - min(digests) > 1e-3:
        found.append(Difference(f"ranks hold other weights: {digests}"))
    return found + _reference(answer, facts, is_small=(job.get("model") or {}).get("kind") == "mlp")


def _reference(answer: Json, facts: Json, *, is_small: bool) -> list[Difference]:
    """The real change of the weights, and the losses, against plain torch in fp32. 16 bit moves the weights of the smallest
    model by a hundredth.
    """
    reference = answer.get("reference")
    if not reference:
        return []
    if "error" in reference:
        return [Difference(f"the reference failed: {reference['error'][-200:]}", large=False)]
    exact = facts["dtypes"] == ["float32"] and not (facts.get("autocast") or [False])[0]
    found = []
    ratio, cosine = reference.get("ratio"), reference.get("cosine")
    fine = exact or max((r[0] for r in answer["ranks"][0]["lr"] if r), default=0) >= 1e-3
    if ratio is not None and fine:  # 16-bit weights cannot show steps of 1e-5
        # rounding turns the sign of small gradients, which Adam and its like step by
        room, least = (0.02, 0.995) if exact else (0.03, 0.99) if is_small else (0.08, 0.75)
        if abs(ratio - 1) > room or (cosine is not None and cosine < least):
            found.append(Difference(f"weights moved {ratio:.3f} as far as asked, cosine {cosine:.3f}"))
    mine = _mean_losses(answer)
    if mine is not None and not answer["ranks"][0]["skipped"][-1]:
        gap = max(abs(a - b) for a, b in zip(mine, reference["losses"], strict=True))
        start = abs(mine[0] - reference["losses"][0])  # nothing has been trained yet: the model itself is another one
        if start > (0.0005 if exact else 0.015):
            found.append(Difference(f"first loss {mine[0]:.4f}, plain torch {reference['losses'][0]:.4f}"))
        moved = max(reference["losses"]) - min(reference["losses"])
        if gap > (0.003 if exact else 0.05 + 0.25 * moved):
            found.append(Difference(f"losses {_short(mine)}, plain torch {_short(reference['losses'])}"))
    return found


def _mean_losses(answer: Json) -> list[float] | None:
    """Mean over data-parallel replicas."""
    by_replica = {r["replica"]: r["losses"] for r in answer["ranks"]}
    if any(len(x) != len(answer["ranks"][0]["losses"]) for x in by_replica.values()):
        return None
    return [sum(step) / len(by_replica) for step in zip(*by_replica.values(), strict=True)]


def _saved(job: Json, first: Json) -> list[Difference]:
    found = []
    if job.get("save", True) and not first.get("saved"):
        found.append(Difference("no checkpoint was written"))
    if job.get("load") and not first.get("loaded"):
        found.append(Difference("the checkpoint was not loaded"))
    if job.get("save_16bit") and not first.get("saved_16bit"):
        found.append(Difference("save_16bit_model wrote nothing", large=False))
    return found


def _effective(meant: Json, facts: Json) -> list[Difference]:
    """Keys that DeepSpeed understood otherwise than they were written."""
    found = _ignored(meant)
    effective = facts.get("effective") or {}
    for path, wanted in leaves(meant, ""):
        if path in UNREAD or path.startswith(("optimizer.", "scheduler.", "train_", "gradient_acc")) or wanted is None:
            continue
        has = get(effective, path, ...)
        if "{DIR}" in str(wanted) or has is ... or _close(has, wanted) or _same_name(has, wanted):
            continue
        found.append(Difference(f"{path}: asked {wanted!r}, read as {has!r}", large=False))
    return found


def _ignored(meant: Json) -> list[Difference]:
    """What DeepSpeed takes and does not read as it is written."""
    texts = [p for p in BY_TRUTH if isinstance(get(meant, p), str)]
    found = [f"{path}: asked {get(meant, path)!r}, read as on" for path in texts]
    found += [f"{path}: no key of DeepSpeed, ignored" for path in NO_KEYS if get(meant, path, ...) is not ...]
    if get(meant, "zero_optimization") and get(meant, "zero_optimization.stage", ...) is ...:
        found.append("zero_optimization: no stage, read as 0")
    preset = get(meant, "tensor_parallel.preset_model")
    if preset is not None and preset not in PRESETS:
        found.append(f"tensor_parallel.preset_model: {preset!r} is unknown, ignored")
    if str(get(meant, "optimizer.type")).lower() == "muon":
        dropped = set(get(meant, "optimizer.params") or {}) - MUON
        found += [f"optimizer.params.{name}: dropped" for name in sorted(dropped)]
    return [Difference(what, large=False) for what in found]


def _same_name(has: Any, wanted: Any) -> bool:
    names = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}
    return isinstance(wanted, str) and str(has).lower() in (wanted.lower(), names.get(wanted.lower(), "?"))


def _close(has: Any, wanted: Any) -> bool:
    if isinstance(wanted, list) and isinstance(has, list):
        return len(wanted) == len(has) and all(_close(a, b) for a, b in zip(has, wanted, strict=True))
    if isinstance(has, bool) or isinstance(wanted, bool) or not isinstance(has, (int, float)):
        return bool(has == wanted)
    return isinstance(wanted, (int, float)) and math.isclose(has, wanted, rel_tol=1e-6, abs_tol=1e-12)


def _short(losses: list[float]) -> list[float]:
    return [round(x, 4) for x in losses]
