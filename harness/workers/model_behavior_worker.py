# SPDX-License-Identifier: Apache-2.0
"""Builds a tiny copy of the configuration on standard input and asks it. FOLDER/answers gets a line of JSON for each
answer, `{"answers": {question: [holds, reason, names]}}`, lines with the `sources` that they hold for, and one with the
questions that were lost to an `accident` of this machine.

The configuration may be a stranger's: memory and time are limited, and no code but that of `transformers` runs.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
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
    from harness.interpreter import freeze_imports

    with freeze_imports():  # also for ranks that are forked
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

    from harness.hostinfo.model_answers import QUESTIONS, Answer
    from harness.runtime.model_behavior import first_line
    from harness.runtime.model_questions.question_list import ask_all, count_parameters
    from harness.runtime.text_part import find_text_part

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
        refuse(f"its configuration is refused: {first_line(error)}")
        return
    part = find_text_part(config)  # a run trains the text model of a composite
    trained = part.config or config
    classes: list[Any] = [type(config), type(trained)]
    classes += [MODEL_FOR_CAUSAL_LM_MAPPING[each] for each in classes if each in MODEL_FOR_CAUSAL_LM_MAPPING]
    report(sources=_digests([masking_utils, *(sys.modules[each.__module__] for each in classes)]))

    def report_answer(name: str, answer: Answer) -> None:
        if name == "causal" and not answer.holds and part.why_not:
            answer = answer._replace(reason=f"{answer.reason}; {part.why_not}")
        report(answers={name: answer})

    accidents = ask_all(trained, folder, report_answer)
    count, reason = count_parameters(trained)
    size = [True, "parameters and class", [f"{count:,}", reason]] if count else [False, reason, []]
    report(answers={"size": size}, sources=_digests([]), accident=dict.fromkeys(accidents, True))


def _digests(modules: list[Any]) -> dict[str, str]:
    """The digest of each file of these modules, and of all of ours that this process has imported."""
    own = f"{Path(__file__).resolve().parents[1]}{os.sep}"
    imported = {getattr(module, "__file__", None) for module in [*sys.modules.values()]}
    folder_of = {file: file.rpartition(os.sep)[0] for file in imported if isinstance(file, str)}
    ours = {each for each in {*folder_of.values()} if f"{os.path.realpath(each)}{os.sep}".startswith(own)}
    files = {file for file, folder in folder_of.items() if folder in ours}
    files |= {file for file in map(inspect.getsourcefile, modules) if file is not None}
    return {file: hashlib.sha256(Path(file).read_bytes()).hexdigest() for file in sorted(files)}


if __name__ == "__main__":
    sys.exit(main())
