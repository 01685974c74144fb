# SPDX-License-Identifier: Apache-2.0
"""An exception that is not in the catalogue -> where it was raised, and the best next step. The cause stays unknown."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from harness.diagnosis.diagnosis_types import Frame, LogEvent

_TORCH, _SCRIPT = "torch", "the script's own code"
_AREAS: tuple[tuple[str, str, str], ...] = (
    (r"deepspeed/runtime/zero/partitioned_param_coordinator", "DeepSpeed's ZeRO-3 parameter coordinator",
     "run the same step at ZeRO stage 2: if that works, the order in which modules run differs between steps or ranks"),
    (r"deepspeed/runtime/zero/(?:partition_parameters|parameter_offload)", "DeepSpeed's ZeRO-3 parameter partitioning",
     "run the same script at ZeRO stage 2: if that works, code reads or builds parameters outside the model's "
     "forward pass"),
    (r"deepspeed/runtime/zero/(?:stage3|offload)", "DeepSpeed's ZeRO-3 optimizer", "run the same script at ZeRO "
     "stage 2"),
    (r"deepspeed/runtime/zero/stage_1_and_2", "DeepSpeed's ZeRO-1 and ZeRO-2 optimizer", "run the same script at "
     "ZeRO stage 0"),
    (r"deepspeed/runtime/zero/", "DeepSpeed's ZeRO", "run the same script at another ZeRO stage"),
    (r"deepspeed/runtime/swap_tensor|deepspeed/ops/aio|deepspeed/nvme", "DeepSpeed's NVMe swapping",
     "run once with `device: cpu` instead of `nvme`; `harness doctor` checks the disk and libaio"),
    (r"deepspeed/runtime/pipe", "DeepSpeed's pipeline engine", "run with one pipeline stage"),
    (r"deepspeed/runtime/checkpoint_engine|deepspeed/checkpoint|state_dict_factory", "DeepSpeed's checkpoint code",
     "check the files of the checkpoint: `harness checkpoint verify RUN`, or `ls -l` of the folder that `latest` "
     "names"),
    (r"deepspeed/runtime/(?:config\w*|config)\.py|deepspeed/runtime/zero/config|config_utils", "DeepSpeed's reader "
     "of the configuration",
     "check the file: `harness validate-config FILE`"),
    (r"deepspeed/moe|deepspeed/.*moe", "DeepSpeed's mixture of experts", "run with an expert group of one rank"),
    (r"deepspeed/module_inject|deepspeed/inference", "DeepSpeed's tensor parallelism and inference engine",
     "run without tensor parallelism"),
    (r"deepspeed/sequence|ulysses", "DeepSpeed's sequence parallelism", "run without sequence parallelism"),
    (r"deepspeed/compile", "DeepCompile", "run with `compile.deepcompile: false`"),
    (r"deepspeed/ops/op_builder|op_builder/", "DeepSpeed's builder of ops",
     "`ds_report` lists which ops can be built here; `harness doctor` checks compiler and CUDA"),
    (r"deepspeed/ops/", "one of DeepSpeed's ops", "use torch's own optimizer or kernel instead of the op"),
    (r"deepspeed/launcher", "DeepSpeed's launcher", "start the job on one host without a hostfile"),
    (r"deepspeed/comm", "DeepSpeed's communication layer", "set `NCCL_DEBUG=INFO` and "
     "`TORCH_DISTRIBUTED_DEBUG=DETAIL`"),
    (r"deepspeed/runtime/engine|deepspeed/__init__", "DeepSpeed's engine",
     "run the smallest configuration: no ZeRO, no offload, and add the blocks again one by one"),
    (r"deepspeed/", "DeepSpeed", "run the smallest configuration, and add the blocks again one by one"),
    (r"transformers/integrations/deepspeed|accelerate/utils/deepspeed", "the DeepSpeed integration of the Trainer "
     "and accelerate",
     "write `auto` for every value that the Trainer sets too, and check the file: `harness validate-config FILE`"),
    (r"transformers/models/|modeling_\w+\.py", "the code of the model", "run one batch on one GPU without DeepSpeed"),
    (r"transformers/modeling_utils|transformers/core_model_loading|safetensors", "the loading of weights",
     "load the model alone in a Python shell on the same host"),
    (r"transformers/(?:trainer|training_args)", "the Trainer of transformers", "run the same arguments on one GPU "
     "without DeepSpeed"),
    (r"transformers/tokenization|tokenizers/", "the tokenizer", "load the tokenizer alone in a Python shell"),
    (r"transformers/", "transformers", "run the same on one GPU without DeepSpeed"),
    (r"accelerate/", "accelerate", "`accelerate env` shows its configuration; run `accelerate test`"),
    (r"peft/", "PEFT", "run the model without the adapter once"),
    (r"trl/", "TRL", "run the same arguments on one GPU without DeepSpeed"),
    (r"bitsandbytes/", "bitsandbytes", "run `python -m bitsandbytes` on the same host"),
    (r"flash_attn", "flash-attention", "run with `attn_implementation: sdpa`"),
    (r"datasets/|pyarrow", "the datasets library", "read the dataset alone in a Python shell, without workers"),
    (r"pytorch_lightning|lightning/", "Lightning", "run the same with `strategy=\"auto\"` on one GPU"),
    (r"torch/distributed|torch/_C/_distributed", "torch's distributed layer",
     "set `NCCL_DEBUG=INFO` and `TORCH_DISTRIBUTED_DEBUG=DETAIL`, and read the logs of the other ranks"),
    (r"torch/utils/data", "the data loader", "run with `num_workers=0`: the error then shows its own traceback"),
    (r"torch/_dynamo|torch/_inductor|triton", "torch's compiler", "run without `torch.compile` "
     "(`TORCHDYNAMO_DISABLE=1`)"),
    (r"torch/", _TORCH, "print the shapes, dtypes and devices of the tensors at the line below"),
)  # fmt: skip
_ACCUSERS = {
    "LG064": r"(?:site|dist)-packages/",
    "LG083": r"(?:^|/)deepspeed/",
    "LG096": r"(?:site|dist)-packages/",
}
"""Causes that blame the script or the host for an error of Python's own, such as a TypeError. Where the last frame is
in a package like these, the pattern of the cause alone says nothing: packages may be incompatible, or one has a bug.
"""
_PACKAGE = re.compile(r"(?:site|dist)-packages/([\w-]+)")


def is_generic_evidence(event: LogEvent) -> bool:
    """Does only a generic pattern speak for the cause, against the place where the error was raised?"""
    place = _ACCUSERS.get(event.cause)
    if place is None or event.sure or event.title or event.change or not event.frames:
        return False
    return bool(re.search(place, event.frames[-1].file))


def describe_area(frames: Sequence[Frame]) -> tuple[str, str]:
    """(where it was raised, the next step) by the innermost frame, and its caller where that is torch; empty texts
    without a traceback.
    """
    own: tuple[str, str] = ("", "")
    for frame in reversed(frames):
        area, step = _area_of(frame)
        if area and area != _TORCH:
            return (f"{own[0]}, called by {area}", step if area != _SCRIPT else own[1]) if own[0] else (area, step)
        own = own if own[0] else (area, step)
    return own


def _area_of(frame: Frame) -> tuple[str, str]:
    file = frame.file.replace("\\", "/")
    for pattern, area, step in _AREAS:
        if re.search(rf"(?:^|/|-)(?:{pattern})", file):
            return area, step
    if match := _PACKAGE.search(file):
        return f"the package `{match[1]}`", f"check that its release fits the others: `pip show {match[1]}`"
    if not file.startswith(("/usr/", "<")) and "/lib/python3" not in file:
        return _SCRIPT, "read that line of the script, with the values that it had"
    return "", ""


def describe_next_step(text: str, frames: Sequence[Frame], versions: Mapping[str, str]) -> str:
    """Advice for an unknown exception: the next step, the releases seen, and what to search for."""
    area, step = describe_area(frames)
    parts = [step or "read the lines below; the first of them is the oldest"]
    if area != _SCRIPT and (query := _search_words(text)):
        where = "the issues of that project" if area else "the web"
        parts.append(f"search {where} for `{query}`")
    if versions:
        seen = ", ".join(f"{name} {version}" for name, version in sorted(versions.items())[:5])
        parts.append(f"name the releases in a report: {seen}")
    return "; ".join(parts)


def _search_words(text: str) -> str:
    """The message without what differs from job to job: numbers, paths, addresses, quoted values."""
    text = re.sub(r"^(?:[\w.]+\.)?(\w+(?:Error|Exception)): ", r"\1: ", text.strip())
    text = re.sub(r"(?:/[\w.~-]+){2,}|0x[0-9a-fA-F]+|\d+(?:\.\d+)*|['\"`][^'\"`]{25,}['\"`]", " ", text)
    words = " ".join(re.sub(r"[\[(][\s,]*[\])]", "", text).split())
    return words[:90].rsplit(" ", 1)[0] if len(words) > 90 else words if len(words) > 12 else ""
