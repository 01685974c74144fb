# SPDX-License-Identifier: Apache-2.0
"""Builds a tiny copy of the configuration on standard input and asks it. FOLDER/answers gets a line of JSON for each
answer, `{"answers": {question: [holds, reason, names]}}`, and one with the `sources` that they hold for.

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
    folder, fields = Path(sys.argv[1]), json.load(sys.stdin)
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from harness.interpreter import remove_repeated_root

    remove_repeated_root()
    prepare()
    limit_resources()
    with (folder / "answers").open("w") as file:

        def report(**fields: Any) -> None:
            file.write(f"{json.dumps(fields)}\n")
            file.flush()

        ask(fields, folder, report)
    return 0


def prepare() -> None:
    """Import what the questions need, which takes most of the time."""
    from harness.patches.no_mlflow import import_deepspeed

    import_deepspeed()
    import torch

    torch.set_num_threads(1)
    import harness.runtime.model_questions.question_list  # noqa: F401


def limit_resources() -> None:
    """Of this process, from here on."""
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + _MEMORY_BYTES, used + _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_SECONDS, _CPU_SECONDS))


def ask(fields: dict[str, Any], folder: Path, report: Any) -> None:
    """Report the sources, and then the answers as they come."""
    from transformers import AutoConfig, masking_utils
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    from harness.hostinfo.model_answers import QUESTIONS
    from harness.runtime.model_questions.full_size import count_parameters
    from harness.runtime.model_questions.question_list import ask_all

    def refuse(reason: str) -> None:
        report(sources=_digests([masking_utils]), answers={name: [None, reason, []] for name in QUESTIONS})

    fields = dict(fields)
    kind = fields.pop("model_type", None)
    if kind not in CONFIG_MAPPING:
        refuse("the installed `transformers` does not know its type")
        return
    try:
        config = AutoConfig.for_model(kind, **fields)
    except Exception as error:  # a configuration is checked by code of its class
        first_line = (str(error).strip() or "no message").splitlines()[0][:160]
        refuse(f"its configuration is refused: {first_line}")
        return
    classes: list[Any] = [type(config)]
    if type(config) in MODEL_FOR_CAUSAL_LM_MAPPING:
        classes.append(MODEL_FOR_CAUSAL_LM_MAPPING[type(config)])
    report(sources=_digests([masking_utils, *(sys.modules[each.__module__] for each in classes)]))
    ask_all(config, folder, lambda name, answer: report(answers={name: answer}))
    count, reason = count_parameters(config)
    size = [count is not None, f"{count:,} parameters, `{reason}`" if count else reason, [str(count)] if count else []]
    report(answers={"size": size})


def _digests(modules: list[Any]) -> dict[str, str]:
    files = [inspect.getsourcefile(module) for module in modules]
    return {file: hashlib.sha256(Path(file).read_bytes()).hexdigest() for file in files if file is not None}


if __name__ == "__main__":
    sys.exit(main())
