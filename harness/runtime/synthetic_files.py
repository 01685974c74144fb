# SPDX-License-Identifier: Apache-2.0
"""Files for a rehearsal: a sharded model folder with random weights, a small tokenizer, and synthetic records.

The weights are drawn as the family itself initialises them, one parameter at a time; no model is built in memory.
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

from harness.runtime.hub_kernels import refuse_hub_kernels
from harness.runtime.text_part import find_text_part
from harness.runtime.tokenizer import byte_tokenizer

SHARD_BYTES = 2 << 30
_MIN_SHARDS = 3
"""So that a small folder is sharded too."""
_WORDS = "the a run of each step loss and its rank weights are in two files on one disk that is read again".split()


def write_model(folder: Path, config: Mapping[str, Any], dtype: torch.dtype, seed: int = 0) -> int:
    """`config.json`, `model-*-of-*.safetensors` with their index, a byte-level tokenizer. Returns bytes of weights."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = byte_tokenizer()
    fields = dict(config)
    config_object = AutoConfig.for_model(fields.pop("model_type"), **fields)
    refuse_hub_kernels(config_object)
    config_object = find_text_part(config_object).config or config_object
    config_object.eos_token_id, config_object.pad_token_id, config_object.bos_token_id = (
        tokenizer.eos_token_id,
        tokenizer.pad_token_id,
        None,
    )
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config_object, dtype=dtype)
    config_object.architectures = [type(model).__name__]
    config_object.dtype = dtype
    config_object.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    tied = set(getattr(model, "_tied_weights_keys", None) or {}) if config_object.tie_word_embeddings else set()
    parameters = [(name, p) for name, p in model.named_parameters() if name not in tied]
    total = sum(int(p.numel()) * dtype.itemsize for _, p in parameters)
    limit = min(SHARD_BYTES, -(-total // _MIN_SHARDS))
    generator = torch.Generator().manual_seed(seed)
    std = float(getattr(config_object, "initializer_range", 0.02) or 0.02)
    files = _split_into_shards(parameters, limit)
    index: dict[str, str] = {}
    for number, group in enumerate(files, 1):
        name = f"model-{number:05d}-of-{len(files):05d}.safetensors"
        save_file(
            {key: _random_weight(key, p, dtype, std, generator) for key, p in group},
            folder / name,
            metadata={"format": "pt"},
        )
        index |= {key: name for key, _ in group}
    index_json = {"metadata": {"total_size": total}, "weight_map": index}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index_json), encoding="utf-8")
    return total


def _split_into_shards(parameters: list[tuple[str, torch.Tensor]], limit: int) -> list[list[tuple[str, torch.Tensor]]]:
    files: list[list[tuple[str, torch.Tensor]]] = [[]]
    shard_bytes = 0
    for name, parameter in parameters:
        size = parameter.numel() * parameter.element_size()
        if files[-1] and shard_bytes + size > limit:
            files.append([])
            shard_bytes = 0
        files[-1].append((name, parameter))
        shard_bytes += size
    return files


def _random_weight(
    name: str, parameter: torch.Tensor, dtype: torch.dtype, std: float, generator: torch.Generator
) -> torch.Tensor:
    """Matrices from a normal distribution, norms one, biases zero: most families do so, and all can train from it."""
    if parameter.dim() > 1:
        return torch.randn(parameter.shape, generator=generator, dtype=torch.float32).mul_(std).to(dtype)
    return torch.full(parameter.shape, 0.0 if name.endswith("bias") else 1.0, dtype=dtype)


def write_records(
    file: Path, kind: str, tokens: int, columns: Mapping[str, str], *, max_length: int, seed: int = 0
) -> int:
    """Write JSON Lines of about `tokens` tokens (bytes) in the record format `kind` of `data.format`, each of at most
    about `max_length`. Returns the number of records.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    rng = random.Random(seed)  # noqa: S311 - made-up text
    count = num_tokens = 0
    with file.open("w", encoding="utf-8") as out:
        while num_tokens < tokens:
            question, answer = _random_text(rng, max_length // 3), _random_text(rng, max_length // 3)
            out.write(json.dumps(_make_record(kind, question, answer, columns)) + "\n")
            num_tokens += len(question) + len(answer)
            count += 1
    return count


def _random_text(rng: random.Random, max_length: int) -> str:
    """Words whose number is spread as in chats: many short, few long."""
    return " ".join(rng.choices(_WORDS, k=4 + int(rng.expovariate(1 / 60))))[: max(8, max_length)].strip()


def _make_record(kind: str, question: str, answer: str, columns: Mapping[str, str]) -> dict[str, Any]:
    if kind in ("messages", "sharegpt"):
        turns = (("user", question), ("assistant", answer))
        if kind == "sharegpt":
            names = {"user": "human", "assistant": "gpt"}
            return {"conversations": [{"from": names[role], "value": text} for role, text in turns]}
        return {columns.get("messages") or "messages": [{"role": role, "content": text} for role, text in turns]}
    if kind == "prompt-completion":
        return {columns["prompt"]: question, columns["completion"]: answer}
    if kind in ("alpaca", "alpaca-chat"):
        return {"instruction": question, "input": "", "output": answer}
    return {columns["text"]: f"{question} {answer}"}
