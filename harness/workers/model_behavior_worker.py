# SPDX-License-Identifier: Apache-2.0
"""Builds a tiny copy of the configuration on standard input, asks it, and prints the answers as a line of JSON.

The configuration may be a stranger's: memory and time are limited, and no code but that of `transformers` runs.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import resource
import sys
from pathlib import Path
from typing import Any

_MEMORY_BYTES = 3 << 30
_CPU_SECONDS = 100


def main() -> int:
    """Ask; returns the exit code."""
    fields: dict[str, Any] = json.load(sys.stdin)
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from harness.interpreter import remove_repeated_root

    remove_repeated_root()
    import torch
    from transformers import AutoConfig, masking_utils
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    from harness.hostinfo.model_answers import unknown_answers
    from harness.runtime.model_behavior import ask_model

    torch.set_num_threads(2)
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + _MEMORY_BYTES, used + _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_SECONDS, _CPU_SECONDS))
    kind = fields.pop("model_type", None)
    sources = [masking_utils]
    if kind not in CONFIG_MAPPING:
        answers = unknown_answers("the installed `transformers` does not know its type")
    else:
        try:
            config = AutoConfig.for_model(kind, **fields)
        except Exception as error:  # a configuration is checked by code of its class
            answers = unknown_answers(
                f"its configuration is refused: {(str(error).strip() or 'no message').splitlines()[0][:160]}"
            )
        else:
            answers = ask_model(config)
            sources.append(sys.modules[type(config).__module__])
            if type(config) in MODEL_FOR_CAUSAL_LM_MAPPING:
                sources.append(sys.modules[MODEL_FOR_CAUSAL_LM_MAPPING[type(config)].__module__])
    files = [inspect.getsourcefile(module) for module in sources]
    digests = {file: hashlib.sha256(Path(file).read_bytes()).hexdigest() for file in files if file is not None}
    print(f"\n{json.dumps({'answers': answers, 'sources': digests})}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
