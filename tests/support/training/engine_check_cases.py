# SPDX-License-Identifier: Apache-2.0
"""Runs with engine checks: healthy runs that pass every check, and faulty runs that fail one.

A faulty run has another DeepSpeed JSON than its spec renders to (`json`), or a fault of `jobs/engine_checks_many.py`
(`fault`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.render import render_ds_config
from harness.run.resolved_run import resolve_run
from harness.spec.run_spec import RunSpec
from tests.support.training.parity_cases import write_text
from tests.support.training.runtime_helpers import JOBS

JOB = JOBS / "engine_checks_many.py"
TINY = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "max_position_embeddings": 64,
    "bos_token_id": 256,
    "eos_token_id": 256,
    "pad_token_id": 257,
}
WIDE = TINY | {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 1}
"""Its matrices are larger than `MAX_ELEMENTS`."""
BF16: dict[str, Any] = {"precision": {"bf16": True}}


def zero(stage: int, **more: Any) -> dict[str, Any]:
    """The sections `launch` and `zero`."""
    return {"launch": {"engine_checks": "stop"}, "zero": {"stage": stage, **more}}


CPU = {"device": "cpu", "pin_memory": False}


@dataclass(frozen=True)
class Case:
    """`spec` is laid over the common one, section by section, `json` over the rendered DeepSpeed JSON; None removes."""

    name: str
    spec: dict[str, Any] = field(default_factory=dict)
    ranks: int = 2
    json: dict[str, Any] = field(default_factory=dict)
    fault: str = ""
    check: str = ""
    """The check that must fail."""
    resume: str = ""
    """The case whose checkpoint this one resumes from."""
    launch_json: dict[str, Any] = field(default_factory=dict)
    """The content of `launch.json`."""


def body(case: Case, text: Path) -> dict[str, Any]:
    """The run spec."""
    common: dict[str, Any] = {
        "name": case.name.replace(" ", "-"),
        "model": {"config": TINY, "tokenizer": "bytes"},
        "data": {
            "train": str(text),
            "max_length": 32,
            "eval_fraction": 0.0,
            "cache_dir": str(text.parent / "cache"),
        },
        "train": {
            "max_steps": 3,
            "per_device_train_batch_size": 2,
            "gradient_accumulation_steps": 2,
            "seed": 11,
        },
        "optimizer": {"learning_rate": 1e-3, "weight_decay": 0.1},
        "scheduler": {"type": "constant"},
        "checkpoint": {"save_at_end": False},
    }
    for section, more in case.spec.items():
        common[section] = {**common.get(section, {}), **more} if isinstance(more, dict) else more
    return common


def merge_config(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """`above` wins, key by key; None takes a key away."""
    merged = dict(below)
    for key, value in above.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, dict) and isinstance(merged.get(key), dict):
            merged[key] = merge_config(merged[key], value)
        else:
            merged[key] = value
    return merged


def write_run(folder: Path, case: Case, text: Path) -> Path:
    """Write the run directory of a case, as the launching side does, with the fault of its `json`."""
    folder.mkdir(parents=True)
    run = resolve_run(RunSpec.model_validate_json(json.dumps(body(case, text))), world_size=case.ranks)
    (folder / "spec.resolved.json").write_text(json.dumps(run.to_json()))
    config = merge_config(json.loads(json.dumps(dict(render_ds_config(run).config))), case.json)
    (folder / "ds_config.json").write_text(json.dumps(config, indent=2))
    if case.launch_json:
        (folder / "launch.json").write_text(json.dumps(case.launch_json))
    return folder


_LORA: dict[str, Any] = {"model": {"lora": {"r": 4, "target_modules": ["q_proj", "v_proj"]}}}
_WARM: dict[str, Any] = {"scheduler": {"type": "constant", "warmup_steps": 1}}
_ONE_CYCLE: dict[str, Any] = {
    "optimizer": {"betas": [0.9, 0.95]},
    "deepspeed": {
        "scheduler": {
            "type": "OneCycle",
            "params": {"cycle_min_lr": 1e-4, "cycle_max_lr": 1e-3, "cycle_first_step_size": 4},
        }
    },
}
_TENSOR: dict[str, Any] = {"parallel": {"tensor_parallel_size": 2}}
_SEQUENCE: dict[str, Any] = {"parallel": {"sequence_parallel_size": 2}}
_PIPELINE: dict[str, Any] = {"parallel": {"pipeline_parallel_size": 2}}
_BOTH: dict[str, Any] = {"offload_optimizer": CPU, "offload_param": CPU}

HEALTHY = (
    Case("alone", zero(0), ranks=1),
    Case("zero0", zero(0), launch_json={"accelerated": False}),
    Case("zero0-bf16", zero(0) | BF16),
    Case("zero1-bf16", zero(1) | BF16),
    Case("zero2-cpu", zero(2, offload_optimizer=CPU) | BF16),
    Case("zero3-cpu", zero(3, **_BOTH) | BF16),
    Case("zero3-lora", zero(3) | BF16 | _LORA),
    Case("saves", zero(2) | _WARM | {"train": {"max_steps": 2}, "checkpoint": {"save_at_end": True}}),
    Case("resumes", zero(2) | _WARM | {"train": {"max_steps": 4}}, resume="saves"),
    Case("tensor", zero(1) | _TENSOR),
    Case("sequence", zero(3) | _SEQUENCE),
    Case("pipeline", zero(1) | BF16 | _PIPELINE),
    Case("tensor-and-data", zero(2) | _TENSOR, ranks=4),
    Case("one-cycle", zero(1) | _ONE_CYCLE, ranks=1),
    Case("tensor-wide", zero(1) | _TENSOR | {"model": {"config": WIDE}}),
)
"""Runs that pass every check."""

_ONE: dict[str, Any] = {"train_batch_size": 2, "gradient_accumulation_steps": 1}
_SKIPPING = {"max_steps": 21, "max_consecutive_skipped_steps": None}  # else the run ends by OP112
FAULTY = (
    Case("AT001-stage", zero(2), 1, {"zero_optimization": {"stage": 1}}, check="AT001"),
    Case("AT001-no-stage", zero(2), 1, {"zero_optimization": {"stage": "auto"}}, check="AT001"),
    Case("AT002-decay", zero(1), 1, {"optimizer": {"type": "Adam", "params": {"adam_w_mode": False}}}, check="AT002"),
    Case(
        "AT003-place",
        zero(2, offload_optimizer=CPU),
        1,
        {"zero_optimization": {"offload_optimizer": None}},
        check="AT003",
    ),
    Case("AT004-place", zero(2, offload_param=CPU), 1, check="AT004"),
    Case("AT005-format", zero(1) | BF16, 1, {"bf16": {"enabled": "auto"}}, check="AT005"),
    Case("AT006-clipping", zero(1), 1, {"gradient_clipping": 0.25}, check="AT006"),
    Case("AT007-batch", zero(1), 1, _ONE, check="AT007"),
    Case(
        "AT008-degree",
        zero(1) | _TENSOR,
        2,
        {"tensor_parallel": {"autotp_size": None, "tp": {"tp_size": 2}}},
        check="AT008",
    ),
    Case("AT009-preset", zero(1) | _TENSOR, 2, {"tensor_parallel": {"preset_model": "bloom"}}, check="AT009"),
    Case("AT010-forgotten", zero(0), 1, fault="forgotten-parameter", check="AT010"),
    Case("AT010-thawed", zero(0) | {"model": {"freeze": ["model.norm.*"]}}, 1, fault="thawed-parameter", check="AT010"),
    Case("AT011-scrambled", zero(0), 1, fault="scramble", check="AT011"),
    Case("AT012-initialisation", zero(0), 1, fault="other-initialisation", check="AT012"),
    Case("AT013-step", zero(0), 1, fault="hidden-step", check="AT013"),
    Case("AT014-decay", zero(1), 1, fault="decay", check="AT014"),
    Case("AT015-compile", zero(0) | {"deepspeed": {"compile": {"deepcompile": True}}}, 1, check="AT015"),
    Case("AT016-experts", zero(1) | {"deepspeed": {"expert_parallel": {"autoep_size": 2}}}, check="AT016"),
    Case("AT018-on-the-cpu", zero(1), launch_json={"accelerated": True}, check="AT018"),
    Case("AT020-loss", zero(0), 1, fault="steep-head", check="AT020"),
    Case("AT021-rate", zero(1), 1, fault="rate", check="AT021"),
    Case("AT022-norm", zero(1), 1, fault="huge-norm", check="AT022"),
    Case("AT023-frozen", zero(0), 1, fault="frozen-weights", check="AT023"),
    Case("AT023-long", zero(0), 1, fault="long-steps", check="AT023"),
    Case("AT024-skipped", zero(1) | {"train": _SKIPPING}, 1, fault="all-skipped", check="AT024"),
    Case("AT025-same-rows", zero(1), fault="same-rows", check="AT025"),
    Case("AT025-own-rows", zero(1) | _SEQUENCE, fault="own-rows", check="AT025"),
    Case("AT026-drift", zero(0), fault="drift", check="AT026"),
    Case("AT027-lost-step", zero(1), 1, fault="lost-step", check="AT027"),
    Case("warned", zero(1) | {"launch": {"engine_checks": "warn"}}, 1, {"gradient_clipping": 0.25}),
    Case("ignored", zero(1) | {"ignore": {"AT006": "tried on purpose"}}, 1, {"gradient_clipping": 0.25}),
    Case("not-asked", zero(1) | {"launch": {"engine_checks": "off"}}, 1, {"gradient_clipping": 0.25}),
)
"""Runs that fail the check of their case."""


def run(cases: Sequence[Case], folder: Path, start: Callable[..., Any]) -> dict[str, dict[str, Any]]:
    """Run all cases. Returns the outcome by case, as `jobs/engine_checks_many.py` writes it, with "claims": the results
    of engine_checks.json by id. `start(script, *arguments, ranks=N)` runs a script on ranks. Cases of the same degrees
    share processes: DeepSpeed keeps its groups.
    """
    folder.mkdir(parents=True, exist_ok=True)
    text = folder / "text.txt"
    write_text(text)
    for case in cases:
        write_run(folder / case.name, case, text)
    for degrees in sorted({_degrees(c) for c in cases}):
        pending = [c for c in cases if _degrees(c) == degrees]
        while pending:  # one that fails in an unforeseen way ends its processes
            file = folder / "jobs.json"
            file.write_text(json.dumps([_job(folder, c) for c in pending]))
            process = start(JOB, str(file), ranks=degrees[0], check=False)
            finished = [c for c in pending if (folder / c.name / "outcome.json").exists()]
            if not finished:
                raise RuntimeError(
                    f"{pending[0].name}: {process['codes']}\n{process['output'][process['first']][-4000:]}"
                )
            pending = [c for c in pending if c not in finished]
    return {case.name: _outcome(folder / case.name) for case in cases}


def _degrees(case: Case) -> tuple[int, str]:
    """DeepSpeed keeps groups, and whether autocast is on, for the whole process."""
    autocast = "torch_autocast" in {**case.json, **case.spec.get("deepspeed", {})}
    groups = [case.spec.get("parallel"), "tensor_parallel" in case.json, case.name if autocast else ""]
    return case.ranks, json.dumps(groups)


def _job(folder: Path, case: Case) -> dict[str, Any]:
    checkpoint = folder / case.resume / "checkpoints" / "step-00000002"
    return {"run": str(folder / case.name), "resume": str(checkpoint) if case.resume else None, "fault": case.fault}


def _outcome(run: Path) -> dict[str, Any]:
    file = run / "engine_checks.json"
    document = json.loads(file.read_text()) if file.exists() else {"claims": [], "patches": None}
    outcome = json.loads((run / "outcome.json").read_text())
    claims = {result["id"]: result for result in document["claims"]}
    return {**outcome, "claims": claims, "patches": document["patches"]}
