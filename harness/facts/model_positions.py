# SPDX-License-Identifier: Apache-2.0
"""The positions that a model was made for: of its configuration, or of published configurations by name.

`max_position_embeddings` of the `config.json` on the Hub; with scaled rotary positions the scaled length.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_BY_NAME: tuple[tuple[str, int], ...] = (
    (r"llama-?3\.[123]-", 131072),
    (r"llama-3-", 8192),
    (r"llama-2-", 4096),
    (r"tinyllama", 2048),
    (r"smollm2", 8192),
    (r"mistral-nemo|mistral-large", 131072),
    (r"mistral-(7b|small-24b)|mixtral-8x7b", 32768),
    (r"mixtral-8x22b", 65536),
    (r"qwen2\.5-(0\.5|1\.5|3)b|qwen2\.5-.*instruct|qwen1\.5", 32768),
    (r"qwen2(\.5)?-", 131072),
    (r"qwen3-", 40960),
    (r"gemma-3-1b", 32768),
    (r"gemma-3-", 131072),
    (r"gemma-", 8192),
    (r"phi-2|pythia|gpt-neox|falcon", 2048),
    (r"phi-3-.*4k", 4096),
    (r"phi-3\.5|phi-4-mini|gpt-oss", 131072),
    (r"phi-4", 16384),
    (r"gpt2", 1024),
    (r"deepseek-(v3|r1)$|deepseek-v2", 163840),
)


def find_positions(name: str | None, config: Mapping[str, Any] | None) -> int | None:
    """Positions of a spec's own configuration, else of a model of this name; None where neither says them."""
    own = (config or {}).get("max_position_embeddings") or (config or {}).get("n_positions")
    if isinstance(own, int):
        return own
    if not name:
        return None
    plain = name.lower().rpartition("/")[2].removeprefix("meta-")
    return next((positions for pattern, positions in _BY_NAME if re.match(pattern, plain)), None)
