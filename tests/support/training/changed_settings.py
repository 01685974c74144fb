# SPDX-License-Identifier: Apache-2.0
"""Settings that a resume may change, and the step that plain torch takes with them from the same checkpoint."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, inject_adapter_in_model
from transformers import AutoConfig, AutoModelForCausalLM, get_scheduler

from harness.checkpoints.manifest import read_manifest
from harness.runtime.checkpoint.consolidate import FullWeights, open_checkpoint
from harness.runtime.tokenizer import byte_tokenizer
from tests.support.changed_keys import SAVED
from tests.support.training.model_shapes import LLAMA
from tests.support.training.plain_optimizers import make
from tests.support.training.plain_reference import Rows, _gradients

Tensors = dict[str, torch.Tensor]


def write_model(folder: Path) -> Path:
    """A tiny Llama without dropout, its embeddings tied, and the byte tokenizer."""
    torch.manual_seed(0)
    config = AutoConfig.for_model("llama", tie_word_embeddings=True, **LLAMA)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


def read_weights(checkpoint: Path) -> FullWeights:
    """The whole tensors of a checkpoint."""
    return open_checkpoint(checkpoint, read_manifest(checkpoint).body)


def take_plain_step(
    checkpoint: Path, spec: dict[str, Any], drawn: list[dict[str, Any]], steps_per_epoch: int
) -> Tensors:
    """The trained weights after one step of torch from the state of a checkpoint, by name."""
    saved = read_weights(checkpoint)
    fields = spec["model"].get("config")
    config = AutoConfig.for_model(**fields) if fields else AutoConfig.from_pretrained(checkpoint / "huggingface")
    model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32).train()
    lora = spec["model"].get("lora")
    if lora:
        names = ("r", "lora_alpha", "lora_dropout", "target_modules", "use_rslora", "alpha_pattern")
        model = inject_adapter_in_model(LoraConfig(**{name: lora[name] for name in names}), model)
    named = dict(model.named_parameters())
    stored = {**saved.tied, **{other: name for name, other in saved.tied.items()}}
    with torch.no_grad():
        for name, parameter in named.items():
            parameter.copy_(saved.get(name if name in saved.shapes else stored[name]))
    frozen, only = spec["model"].get("freeze") or [], spec["model"].get("train_only") or ["*"]
    trained = {
        name: p
        for name, p in named.items()
        if name in saved.states and not _matches(name, frozen) and _matches(name, only)
    }
    for name, parameter in named.items():
        parameter.requires_grad_(name in trained)
    tables = {id(m.weight) for m in model.modules() if isinstance(m, torch.nn.Embedding)}
    tables.add(id(model.get_output_embeddings().weight))
    block = spec["deepspeed"].get("optimizer")
    section = {**block["params"], "learning_rate": block["params"]["lr"]} if block else spec["optimizer"]
    section = {"type": "adamw", **section}
    optimizer = make(section, trained.items(), {name for name, p in trained.items() if id(p) in tables})
    _load_states(optimizer, trained, saved)
    block = spec["deepspeed"].get("scheduler")
    steps = spec["train"]["max_steps"] or math.ceil(spec["train"]["num_train_epochs"] * steps_per_epoch)
    share = _warmup_rate(block["params"]) / section["learning_rate"] if block else _schedule(spec, steps)
    for group in optimizer.param_groups:
        adam = section["type"] == "muon" and "momentum" not in group and section.get("adam_learning_rate")
        group["lr"] = share * (adam or section["learning_rate"])
    parts = [Rows(**part) for part in drawn]
    weights = list(trained.values())
    _gradients(model, weights, weights, parts)
    torch.nn.utils.clip_grad_norm_(weights, spec["train"]["max_grad_norm"] or math.inf)
    optimizer.step()
    return {name: parameter.detach() for name, parameter in trained.items()}


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch(name, pattern) for pattern in patterns)


def _load_states(optimizer: Any, trained: Mapping[str, torch.nn.Parameter], saved: FullWeights) -> None:
    names = {id(parameter): name for name, parameter in trained.items()}
    for part in getattr(optimizer, "_parts", (optimizer,)):
        for group in part.param_groups:
            for parameter in group["params"]:
                name = names[id(parameter)]
                keys = [key for key in saved.states[name] if key != "fp32"]
                state = {key: saved.get(name, key) for key in keys}
                if type(part).__name__ in ("Lion", "Muon"):
                    state = {"momentum": state.get("momentum_buffer", state.get("exp_avg"))}
                elif not isinstance(part, torch.optim.SGD):
                    state["step"] = torch.tensor(float(SAVED))
                part.state[parameter] = state


def _warmup_rate(params: Mapping[str, Any]) -> float:
    """The rate that DeepSpeed's `WarmupLR` has after the saved steps: it counts them from 0."""
    low, high = params["warmup_min_lr"], params["warmup_max_lr"]
    return float(low + (high - low) * min(1.0, (SAVED - 1) / params["warmup_num_steps"]))


def _schedule(spec: dict[str, Any], steps: int) -> float:
    """The share of the peak rate in the first step after the checkpoint, as `transformers` has it."""
    fields = spec["scheduler"]
    kind, low = fields["type"], fields.get("min_lr_ratio", 0.0)

    def count(name: str, default: float = 0.0) -> int:
        given = fields.get(f"{name}_steps")
        return int(given if given is not None else math.ceil(fields.get(f"{name}_ratio", default) * steps))

    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    options: dict[str, Any] = {
        "cosine": {"min_lr_rate": low} if low else {},
        "cosine_with_restarts": {"num_cycles": fields.get("num_cycles", 1)},
        "polynomial": {"lr_end": low, "power": fields.get("power", 1.0)},
        "warmup_stable_decay": {
            "num_decay_steps": count("decay", 0.1),
            "decay_type": fields.get("decay_type", "linear"),
            "min_lr_ratio": low,
        },
    }.get(kind, {})
    names = {"cosine": "cosine_with_min_lr" if low else kind, "constant": "constant_with_warmup"}
    scheduler = get_scheduler(
        names.get(kind, kind), optimizer, count("warmup"), steps, scheduler_specific_kwargs=options
    )
    for _ in range(SAVED):
        optimizer.step()
        scheduler.step()
    return float(optimizer.param_groups[0]["lr"])


def difference(one: Tensors, other: Tensors, start: FullWeights) -> float:
    """How far two updates from the same weights are apart, as a share of the second one's norm."""
    apart = math.sqrt(sum(float((one[n] - other[n]).double().square().sum()) for n in other))
    return apart / math.sqrt(sum(float((other[n] - start.get(n)).double().square().sum()) for n in other))
