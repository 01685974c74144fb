# SPDX-License-Identifier: Apache-2.0
"""A model that `transformers` builds on the meta device, in a process of its own, for its sizes and parameters.

Imports neither torch nor transformers into this process, loads no weights, runs no code of a repository and connects
to nothing. The configuration may be a stranger's: a model without an end is not built.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from harness.hostinfo.machine import package_version
from harness.interpreter import python_command

_TIMEOUT_SECONDS = 120
_MAX_COUNT = 3_000
"""Layers, blocks or experts; models have hundreds."""
_COUNTED = ("layer", "depth", "block", "expert")
_SIZED = ("size", "dim", "window", "type", "length", "capacity")
_CHOICE = "_implementation"
"""The end of keys that choose kernels: `owner/name` there is code on the Hub, which transformers would load and run."""
_PROGRAM = """
import json, resource, sys
sys.path.insert(0, sys.argv[1])
from harness.interpreter import remove_repeated_root
remove_repeated_root()
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from harness.runtime.text_part import find_text_part
fields = json.load(sys.stdin)
pages = int(open("/proc/self/statm").read().split()[5])
limit = pages * resource.getpagesize() + (2 << 30)
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
config = AutoConfig.for_model(fields.pop("model_type"), **fields)
config = find_text_part(config).config or config
with torch.device("meta"):
    model = AutoModelForCausalLM.from_config(config)
text = config.get_text_config()
first = lambda *names: next((v for v in (getattr(text, n, None) for n in names) if isinstance(v, int) and v), 0)
sizes = {
    "hidden": first("hidden_size"),
    "heads": first("num_attention_heads"),
    "kv_heads": first("num_key_value_heads", "num_attention_heads"),
    "head_dim": first("head_dim"),
    "intermediate": first("moe_intermediate_size", "intermediate_size", "ffn_dim", "ffn_hidden_size"),
    "vocab": first("vocab_size"),
    "tied": bool(getattr(text, "tie_word_embeddings", False)),
    "experts": first("num_local_experts", "num_experts", "n_routed_experts"),
    "experts_per_token": first("num_experts_per_tok", "num_experts_per_token", "top_k"),
}
json.dump({"sizes": sizes, "parameters": [[n, list(p.shape)] for n, p in model.named_parameters()]}, sys.stdout)
"""


class ModelProbe(NamedTuple):
    """The sizes that `ModelFacts` takes, and the name and shape of every parameter, in the model's order."""

    sizes: dict[str, Any]
    parameters: tuple[tuple[str, tuple[int, ...]], ...]


def probe_model(config: Mapping[str, Any]) -> ModelProbe | str:
    """The model of a configuration, or the reason why it cannot be built, in a few words."""
    missing = [name for name in ("torch", "transformers") if package_version(name) is None]
    if missing:
        return f"with {' and '.join(missing)} installed it could be built and counted"
    if is_endless(config):
        return f"it has more than {_MAX_COUNT:,} layers or experts"
    text = _run_program(without_choices(config))
    if text is None:
        return "transformers could not build it either"
    body = json.loads(text)
    sizes = body["sizes"]
    if not (sizes["hidden"] and sizes["heads"] and sizes["vocab"]):
        return "transformers built something that is not a language model"
    sizes["head_dim"] = sizes["head_dim"] or sizes["hidden"] // sizes["heads"]
    sizes["intermediate"] = sizes["intermediate"] or 4 * sizes["hidden"]
    return ModelProbe(sizes, tuple((name, tuple(shape)) for name, shape in body["parameters"]))


def _run_program(config: Mapping[str, Any]) -> str | None:
    """The program's output; None when it fails, for a wrong value as well as for an unknown type."""
    try:
        process = subprocess.run(  # noqa: S603
            python_command("-c", _PROGRAM, str(Path(__file__).resolve().parents[2])),
            input=json.dumps(config),
            env={**os.environ, "HF_HUB_OFFLINE": "1", "USE_HUB_KERNELS": "0"},
            text=True,
            capture_output=True,
            timeout=_TIMEOUT_SECONDS,
            check=False,
        )
    except (OSError, ValueError, TypeError, RecursionError, subprocess.TimeoutExpired):
        return None
    return process.stdout if process.returncode == 0 and process.stdout.startswith("{") else None


def is_endless(value: Any, key: str = "") -> bool:
    """Does it count more layers, blocks or experts than any model has? Keys of sizes do not count."""
    if isinstance(value, Mapping):
        return any(is_endless(item, str(name)) for name, item in value.items())
    if isinstance(value, list):
        return any(is_endless(item, key) for item in value)
    is_count = any(word in key for word in _COUNTED) and not any(word in key for word in _SIZED)
    return is_count and isinstance(value, int | float) and value > _MAX_COUNT


def without_choices(value: Any) -> Any:
    """The configuration without the kernels that it chooses, at every level: they change no shape."""
    if isinstance(value, Mapping):
        return {name: without_choices(item) for name, item in value.items() if not str(name).endswith(_CHOICE)}
    return [without_choices(item) for item in value] if isinstance(value, list) else value
