# SPDX-License-Identifier: Apache-2.0
"""Settings that a training program knows one by one, and refuses or ignores together with DeepSpeed: the file's own
faults, which its run spec does not have. From LLaMA-Factory's issues 3949 and 6075, ms-swift's issue 3681, TRL's pull
request 6403 and DeepSpeed's issue 3339.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from harness.convert.shell_command import ShellCommand
from harness.convert.trainer_file import is_on
from harness.spec.parse.source import Source

_DEEPSPEED = re.compile(r"(?m)^\s*(?:\S*/)?deepspeed\s(?![^#]*--no_local_rank)")
_LOST = re.compile(r"NPROC_PER_NODE=[^\n]*\\\n(?:\s*\w+=\S+ *\\\n)*\s*\n")
"""An empty line ends a continued one: what stands before it sets variables of the shell alone."""
_AT_STAGE_3 = {
    "use_unsloth": "Unsloth loads by a `device_map`, which ZeRO stage 3 refuses: `use_unsloth: false`, or a lower"
    " stage",
    "device_map": "`device_map`: `transformers` refuses it at ZeRO stage 3: leave it out",
    "precompute_ref_log_probs": "`precompute_ref_log_probs` reads weights before DeepSpeed has an engine, and ZeRO"
    " stage 3 has them partitioned: leave it out, or update TRL",
}
_DEVICES = re.compile(r"CUDA_VISIBLE_DEVICES=[\"']?(\d+(?:,\d+)+)")


def find_clashes(source: Source, command: ShellCommand | None, stage: int | None = None) -> Iterator[str]:
    """A sentence each: what happens, and what to write instead. `stage` is ZeRO's, where it is known."""
    data, text = source.data, command.source.text if command is not None else ""
    program, devices = command.program if command is not None else "", _DEVICES.search(text)
    if program == "llama-factory" and command is not None and command.config and _DEEPSPEED.search(text):
        yield (
            f"the `deepspeed` launcher puts `--local_rank` before `{command.config}`, and LLaMA-Factory reads a file "
            "only as its first argument: start `FORCE_TORCHRUN=1 llamafactory-cli train` with it on each host, or "
            "write its keys as options"
        )
    is_lost = "NPROC_PER_NODE=" not in text or _LOST.search(text)
    if program == "swift" and devices and is_lost and data.get("deepspeed"):
        count = devices[1].count(",") + 1
        yield (
            f"{count} GPUs are visible and one process starts: ms-swift then spreads the model over them, which it "
            f"refuses with `deepspeed`: write `NPROC_PER_NODE={count}` before the command, with no empty line between"
        )
    if (data.get("deepspeed") or data.get("config_file")) and stage in (None, 3):
        yield from (text for name, text in _AT_STAGE_3.items() if is_on(data.get(name)))
        if is_on(data.get("predict_with_generate")) and {"stage", "finetuning_type", "template"} & data.keys():
            yield "LLaMA-Factory refuses `predict_with_generate` at ZeRO stage 3: leave it out, or take a lower stage"
    if program == "megatron-deepspeed" and stage in (2, 3) and data.get("pipeline_parallel") is not False:
        yield (
            f"Megatron-DeepSpeed makes a PipelineModule even of one stage, which refuses ZeRO stage {stage}: add "
            "`--no-pipeline-parallel`, or take stage 1"
        )
    if is_on(data.get("only_optimize_lora")) and "lora_module_name" not in data:
        yield (
            "`only_optimize_lora` without `lora_module_name`: DeepSpeed-Chat's default, `decoder.layers.`, is OPT's; "
            "where no layer has this name nothing is trained: name the model's layers"
        )
