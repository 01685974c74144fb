# SPDX-License-Identifier: Apache-2.0
"""Requests in which races are looked for: every way to train, every shipped recipe in miniature, every seeded fault."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from tests.simulation.seeded_faults import FAULTS, SeededFault
from tests.support.training.forked_ranks import ForkedRanks
from tests.support.training.simulated_ranks import simulate_cases
from tests.support.training.simulation_requests import RECIPES, small_request


class SmallRun(NamedTuple):
    """A recipe in miniature, with overrides, and with fields of the model's configuration."""

    recipe: str
    overrides: tuple[str, ...] = ()
    model: dict[str, Any] = {}  # noqa: RUF012 - never changed

    def request(self) -> dict[str, Any]:
        """The worker's request, which looks for races."""
        body = small_request(self.recipe, self.overrides, races=True)
        return {**body, "model_config": {**body["model_config"], **self.model}}


_CATALOGUE = "model.name_or_path=meta-llama/Llama-3.1-8B"
_LORA = ("model.lora.r=4", "model.lora.target_modules=all-linear")
_GATHERED = "zero.stage3_param_persistence_threshold=0"
_MOE = {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}
_SMALL_BUCKET = "zero.reduce_bucket_size=4000"
"""Smaller than most gradients of the miniature, of which some belong to two other ranks."""
_HEADS = {"num_attention_heads": 8}
"""One for each of the 8 ranks that share a sequence."""
_EARLY = ("zero.sub_group_size=2000", "zero.offload_optimizer.overlap_step_gib=1")
WAYS: dict[str, SmallRun] = {
    "zero0": SmallRun("pretrain-tiny", ("zero.stage=0",)),
    "zero1": SmallRun("pretrain-tiny"),
    "zero2": SmallRun("llama-3.1-8b-zero2-two-nodes"),
    "zero2_small_bucket": SmallRun("llama-3.1-8b-zero2-two-nodes", (_SMALL_BUCKET,)),
    "zero3": SmallRun("llama-3.1-8b-zero3", (_GATHERED,)),
    "zero3_cpu": SmallRun("llama-3.1-70b-zero3-cpu-offload", (_GATHERED,)),
    "zero3_cpu_groups": SmallRun("llama-3.1-70b-zero3-cpu-offload", (_GATHERED, "zero.sub_group_size=2000")),
    "zero3_cpu_early": SmallRun("llama-3.1-70b-zero3-cpu-offload", (_GATHERED, *_EARLY)),
    "zero3_cpu_early_cancelled": SmallRun(
        "llama-3.1-70b-zero3-nvme", (_EARLY[0], "zero.offload_optimizer={device: cpu, overlap_step_gib: 1}")
    ),
    "zero3_nvme": SmallRun("llama-3.1-70b-zero3-nvme"),
    "zero3_nvme_params": SmallRun("llama-3.1-70b-zero3-nvme-all"),
    "zero2_cpu": SmallRun("llama-3.1-8b-zero2-two-nodes", ("zero.offload_optimizer.device=cpu",)),
    "lora": SmallRun("llama-3.1-8b-zero3", (_GATHERED, *_LORA)),
    "tensor": SmallRun("autotp-tiny"),
    "pipeline": SmallRun("pipeline-tiny"),
    "sequence": SmallRun("llama-3.1-70b-zero3-long-context", (_GATHERED,), _HEADS),
    "experts": SmallRun("llama-3.1-8b-zero3", (_GATHERED,), _MOE),
    "offloaded_activations": SmallRun(
        "llama-3.1-8b-zero2-two-nodes",
        ("train.offload_activations=true", "data.packing=true"),
        {"num_hidden_layers": 3},
    ),
}
"""Every way to train that is simulated, by the names of `seeded_faults`."""
WITHOUT_PATCH: dict[str, SmallRun] = {
    name: SmallRun(way.recipe, (*way.overrides, f"launch.patches.{name}=off", "ignore.EN055=shows the fault"))
    for name, way in {
        "zero12-oversized-grads": WAYS["zero2_small_bucket"],
        "zero3-updated-shards": WAYS["zero3"],
    }.items()
}
"""Ways that have a race without one of the patches."""
_SETTINGS_OF_RECIPE: dict[str, tuple[str, ...]] = {
    "lora-chat": (_CATALOGUE,),  # they train a model that an earlier recipe exported
    "sft-chat": (_CATALOGUE,),
    "nvme-offload-tiny": ("zero.offload_param.buffer_size=70000000",),
}
ALL_RECIPES: dict[str, SmallRun] = {
    name: SmallRun(name, _SETTINGS_OF_RECIPE.get(name, ()), _HEADS if "long-context" in name else {})
    for name in sorted(file.stem for file in RECIPES.glob("*.yaml"))
}
_EARLY_PLACE = "zero.offload_optimizer={device: cpu, pin_memory: true, overlap_step_gib: 1}"
ALL_RECIPES |= {
    f"{name} early": SmallRun(name, (*ALL_RECIPES[name].overrides, _EARLY[0], _EARLY_PLACE), ALL_RECIPES[name].model)
    for name in ALL_RECIPES
    if name.startswith(("llama-3.1-70b-zero3", "llama-3.1-8b-zero3", "qwen2.5-72b-zero3")) and name[-4:] != "-all"
}
"""And each of ZeRO-3 in bf16 whose parameters are in memory, with sub-groups stepped beside the backward pass."""
_SETTINGS_OF_FAULT: dict[str, SmallRun] = {
    "stage12-reduction-not-waited-for": WAYS["zero2"],
    "stage12-bucket-not-flipped": SmallRun("llama-3.1-8b-zero2-two-nodes", ("zero.reduce_bucket_size=20000",)),
    "loss-read-in-flight": WAYS["zero2"],
    "pinned-batch-cleared-in-flight": WAYS["zero2"],
    "inputs-left-on-host": WAYS["zero2"],
    "weights-buffer-written-while-copied": WAYS["zero3_cpu_groups"],
    "weights-buffer-not-flipped": WAYS["zero3_cpu_groups"],
    "weights-copy-marked-before-it-begins": WAYS["zero3_cpu_groups"],
    "weights-copy-marked-on-another-stream": WAYS["zero3_cpu_groups"],
    "gradients-written-while-stepped": WAYS["zero3_cpu_early"],
    "activation-offloaded-before-computed": WAYS["offloaded_activations"],
}


def run_of_fault(fault: SeededFault) -> SmallRun:
    """A run that reaches the fault: its first way, unless it needs certain settings."""
    early = "zero3_cpu_early" if fault.name.startswith("early-") else ""
    return _SETTINGS_OF_FAULT.get(fault.name) or WAYS[early or fault.ways[0]]


def cases_of_faults(names: Iterable[str] = ()) -> dict[str, dict[str, Any]]:
    """Cases for `find_races`: those of the named faults, or of all."""
    chosen = set(names)
    return {
        fault.name: {"request": run_of_fault(fault).request(), "fault": fault.name}
        for fault in FAULTS
        if not chosen or fault.name in chosen
    }


def cases_of_runs(runs: dict[str, SmallRun]) -> dict[str, dict[str, Any]]:
    """Cases without a fault."""
    return {name: {"request": run.request()} for name, run in runs.items()}


def find_races(cases: dict[str, dict[str, Any]], folder: Path, simulated: ForkedRanks) -> dict[str, Any]:
    """{"races": [...], "disk": {...}} of each case, or {"error": text}; of an empty one, the races of each sequence."""
    found = simulate_cases("race_cases.py", cases, folder, simulated)
    return {name: each.get("answer", each) for name, each in found.items()}


def is_found(fault: SeededFault, answer: dict[str, Any]) -> bool:
    """Is the fault reported as what it is: races, or a tensor on the wrong device?"""
    if fault.expected == "race":
        return bool(answer.get("races"))
    return "device" in answer.get("error", "").lower()
