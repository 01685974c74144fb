"""Files for a rehearsal: a sharded model folder with random weights, a small tokenizer, and made-up records.

The weights are drawn as the family itself initialises them, a parameter at a time; no model is built in memory.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

from harness.runtime.tokenizer import byte_tokenizer

SHARD_BYTES = 2 << 30
_MIN_SHARDS = 3
"""So that a small folder is sharded too."""
_WORDS = "the a run of each step loss and its rank weights are in two files on one disk that is read again".split()


def write_model(folder: Path, config: Mapping[str, Any], dtype: torch.dtype, seed: int = 0) -> int:
    """`config.json`, `model-*-of-*.safetensors` with their index, a byte-level tokenizer. Returns bytes of weights."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = byte_tokenizer()
    kind = dict(config)
    made = AutoConfig.for_model(kind.pop("model_type"), **kind)
    made.eos_token_id, made.pad_token_id, made.bos_token_id = tokenizer.eos_token_id, tokenizer.pad_token_id, None
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(made, dtype=dtype)
    made.architectures = [type(model).__name__]
    made.dtype = dtype
    made.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    tied = set(getattr(model, "_tied_weights_keys", None) or {}) if made.tie_word_embeddings else set()
    named = [(name, p) for name, p in model.named_parameters() if name not in tied]
    total = sum(p.numel() * dtype.itemsize for _, p in named)
    limit = min(SHARD_BYTES, -(-total // _MIN_SHARDS))
    generator = torch.Generator().manual_seed(seed)
    std = float(getattr(made, "initializer_range", 0.02) or 0.02)
    files, index = _split_into_shards(named, limit), {}
    for number, group in enumerate(files, 1):
        name = f"model-{number:05d}-of-{len(files):05d}.safetensors"
        save_file(
            {key: _random_weight(key, p, dtype, std, generator) for key, p in group},
            folder / name,
            metadata={"format": "pt"},
        )
        index |= {key: name for key, _ in group}
    body = {"metadata": {"total_size": total}, "weight_map": index}
    (folder / "model.safetensors.index.json").write_text(json.dumps(body), encoding="utf-8")
    return total


def _split_into_shards(named: list[tuple[str, Any]], limit: int) -> list[list[tuple[str, Any]]]:
    files: list[list[tuple[str, Any]]] = [[]]
    held = 0
    for name, parameter in named:
        size = parameter.numel() * parameter.element_size()
        if files[-1] and held + size > limit:
            files.append([])
            held = 0
        files[-1].append((name, parameter))
        held += size
    return files


def _random_weight(
    name: str, parameter: Any, dtype: torch.dtype, std: float, generator: torch.Generator
) -> torch.Tensor:
    """Matrices from a normal distribution, norms one, biases zero: what most families do, and all can train from."""
    if parameter.dim() > 1:
        return torch.randn(parameter.shape, generator=generator, dtype=torch.float32).mul_(std).to(dtype)
    return torch.full(parameter.shape, 0.0 if name.endswith("bias") else 1.0, dtype=dtype)


def write_records(
    file: Path, kind: str, tokens: int, columns: Mapping[str, str], *, max_length: int, seed: int = 0
) -> int:
    """JSON Lines of about so many tokens (bytes) in the record format `kind` of `data.format`, each of at most about
    `longest`. Returns the records.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    drawn = random.Random(seed)  # noqa: S311 - made-up text
    count = written = 0
    with file.open("w", encoding="utf-8") as out:
        while written < tokens:
            ask, answer = _random_text(drawn, max_length // 3), _random_text(drawn, max_length // 3)
            out.write(json.dumps(_make_record(kind, ask, answer, columns)) + "\n")
            written += len(ask) + len(answer)
            count += 1
    return count


def _random_text(rng: random.Random, max_length: int) -> str:
    """Words whose number is spread as in chats: many short, few long."""
    return " ".join(rng.choices(_WORDS, k=4 + int(rng.expovariate(1 / 60))))[: max(8, max_length)].strip()


def _make_record(kind: str, ask: str, answer: str, columns: Mapping[str, str]) -> dict[str, Any]:
    if kind in ("messages", "sharegpt"):
        turns = (("user", ask), ("assistant", answer))
        if kind == "sharegpt":
            names = {"user": "human", "assistant": "gpt"}
            return {"conversations": [{"from": names[role], "value": text} for role, text in turns]}
        return {columns.get("messages") or "messages": [{"role": role, "content": text} for role, text in turns]}
    if kind == "prompt-completion":
        return {columns["prompt"]: ask, columns["completion"]: answer}
    if kind == "alpaca":
        return {"instruction": ask, "input": "", "output": answer}
    return {columns["text"]: f"{ask} {answer}"}
