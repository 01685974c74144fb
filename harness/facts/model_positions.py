# SPDX-License-Identifier: Apache-2.0
"""The positions that a model was made for: of its configuration, or of published configurations by name.

`max_position_embeddings` of the `config.json` on the Hub; with scaled rotary positions the scaled length. Each row is
marked with where it was looked up: the default of the class of transformers 5.24, a copy of the published configuration
in a public repository, or memory. No file of the Hub was opened.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_BY_NAME: tuple[tuple[str, int], ...] = (
    (r"llama-?3\.[123]-", 131072),  # memory
    (r"llama-3-", 8192),  # memory
    (r"llama-2-", 4096),  # memory
    (r"tinyllama", 2048),  # memory
    (r"smollm2", 8192),  # memory
    (r"mistral-nemo|mistral-large", 131072),  # memory
    (r"mistral-(7b|small-24b)|mixtral-8x7b", 32768),  # memory
    (r"mixtral-8x22b", 65536),  # memory
    (r"qwen2\.5-(0\.5|1\.5|3)b|qwen2\.5-.*instruct|qwen1\.5", 32768),  # class
    (r"qwen2(\.5)?-", 131072),  # memory
    (r"qwen3-", 40960),  # copy
    (r"gemma-3-1b", 32768),  # memory
    (r"gemma-3-", 131072),  # class
    (r"gemma-", 8192),  # class
    (r"phi-2|pythia|gpt-neox|falcon", 2048),  # class
    (r"phi-3-.*4k", 4096),  # class
    (r"phi-3\.5|phi-4-mini|gpt-oss", 131072),  # class: gpt-oss; memory: the others
    (r"phi-4", 16384),  # memory
    (r"gpt2", 1024),  # class
    (r"deepseek-(v3|r1)$|deepseek-v2", 163840),  # copy: DeepSeek-V3; memory: V2, R1
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
