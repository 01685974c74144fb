# SPDX-License-Identifier: Apache-2.0
"""Safe fixes on the installed DeepSpeed: two ranks train, hold and store the same before and after each.

The configurations are the examples of all gates whose safe fix changes the DeepSpeed JSON and that two ranks on CPUs can
train; `tests/gates/test_fix_safety.py` has the others. The keys of optimizer, scheduler and number formats are changed
one by one in several engines, wherever `find_harm` sees no harm in it.
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from harness.check.autofix import apply_fixes
from harness.check.check_file import CheckedFile, check_file
from harness.facts.deepspeed_version import DeepSpeedTarget
from harness.findings import Fix
from harness.gates.context import Context
from harness.gates.fix_safety import find_harm
from harness.gates.registry import all_gates
from harness.render.ds_config import render_ds_config
from tests.support.gate_examples import example_of
from tests.support.training.forked_ranks import ForkedRanks

JOB = Path(__file__).parents[1] / "jobs" / "safe_fixes.py"
NEEDED = {
    "model": {"name_or_path": "some/model"},
    "data": {"train": "a.txt"},
    "train": {"max_steps": 100, "per_device_train_batch_size": 2},
}
NOT_ON_TWO_CPUS = {
    "EX": "experts need a model that has them",
    "PP": "a pipeline has an engine and a loop of its own",
    "TP012": "refused before",
    "HF": "read by the Trainer or accelerate",
}
MORE: dict[str, dict[str, Any]] = {
    "many idle keys": {
        "zero_optimization": {"stage": 2, "stage3_prefetch_bucket_size": 7, "sub_group_size": 9, "zero_quantized_weights": True,
                              "allgather_partitions": False, "round_robin_gradients": False},
        "pipeline": {"stages": 2}, "aio": {"queue_depth": 4}, "disable_allgather": True,
    },
    "old names and texts": {
        "zero_optimization": {"stage": "1", "cpu_offload": False, "stage3_gather_fp16_weights_on_model_save": True},
        "wall_clock_breakdown": False, "bf16": {"enabled": "true"},
    },
    "stage 3": {
        "zero_optimization": {"stage": 3, "round_robin_gradients": True, "allgather_bucket_size": 400, "parameter_alignment": True},
        "scheduler": {"params": {"warmup_num_steps": 10}},
    },
}  # fmt: skip

TARGET = DeepSpeedTarget("0.19.8", "asked for")
ENGINES: dict[str, dict[str, Any]] = {
    "fp32, stage 0": {"zero_optimization": {"stage": 0}},
    "bf16, stage 0": {"bf16": {"enabled": True}, "zero_optimization": {"stage": 0}},
    "bf16, stage 1": {"bf16": {"enabled": True}, "zero_optimization": {"stage": 1}},
    "bf16, stage 2, offload": {
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}},
    },
    "bf16, stage 3": {"bf16": {"enabled": True}, "zero_optimization": {"stage": 3}},
}
SCHEDULERS: dict[str, dict[str, Any]] = {
    "no scheduler": {},
    "WarmupLR": {"type": "WarmupLR", "params": {"warmup_min_lr": 1e-3, "warmup_max_lr": 0.02, "warmup_num_steps": 2}},
    "OneCycle": {
        "type": "OneCycle",
        "params": {"cycle_min_lr": 1e-3, "cycle_max_lr": 0.02, "cycle_first_step_size": 2},
    },
    "no type": {"params": {"warmup_max_lr": 0.02, "warmup_num_steps": 2}},
}
VALUES: dict[str, tuple[Any, Any]] = {
    "optimizer.params.lr": (0.01, 0.05),
    "optimizer.params.weight_decay": (0.1, 0.0),
    "optimizer.params.betas": ([0.9, 0.95], [0.5, 0.6]),
    "optimizer.params.adam_w_mode": (False, None),
    "optimizer.params.fp32_optimizer_states": (False, None),
    "optimizer.legacy_fusion": (True, None),
    "scheduler.params.warmup_num_steps": (3, None),
    "scheduler.params.cycle_momentum": (False, None),
    "fp16.loss_scale": (128, None),
    "fp16.loss_scale_window": (2, None),
    "fp16.initial_scale_power": (4, None),
    "bf16.check_grad_overflow": (True, None),
    "bf16.immediate_grad_update": (False, None),
    "communication_data_type": ("fp32", None),
}  # fmt: skip
"""A key, its value before and after."""


def make_key_pairs() -> Iterator[tuple[str, dict[str, Any]]]:
    """One key changed, in each engine in which a fix that changes it would be called safe."""
    cases = tuple(product(ENGINES, SCHEDULERS, ("AdamW", "Adam")))
    sample = (("bf16, stage 0", "WarmupLR", "AdamW"), ("bf16, stage 2, offload", "OneCycle", "Adam"))
    for (engine, scheduler, kind), key in product(cases if os.environ.get("HARNESS_NIGHTLY") else sample, VALUES):
        before: dict[str, Any] = {
            "train_micro_batch_size_per_gpu": 2,
            "optimizer": {"type": kind, "params": {"lr": 0.01, "weight_decay": 0.1}},
            **({"scheduler": copy.deepcopy(SCHEDULERS[scheduler])} if SCHEDULERS[scheduler] else {}),
            **copy.deepcopy(ENGINES[engine]),
        }
        after = copy.deepcopy(before)
        for config, value in zip((before, after), VALUES[key], strict=True):
            *blocks, name = key.split(".")
            block = config
            for outer in blocks:
                block = block.setdefault(outer, {})
            block.pop(name, None)
            if value is not None:
                block[name] = value
        checked = check_file("a.json", text=json.dumps(before), world_size=2, consumer="deepspeed", deepspeed=TARGET)
        is_wrong = any(f.is_error and f.gate != "OP022" for f in checked.report.findings)
        if checked.run is None or checked.source is None or is_wrong:
            continue
        ctx = Context(checked.run, checked.source, TARGET, "deepspeed")
        if find_harm(Fix("", {ctx.spec_key(key): VALUES[key][1]}, safe=True), ctx) is None:
            yield f"{engine}, {scheduler}, {kind}, {key}", {"before": before, "after": after}


def fix_safely(name: str, text: str) -> tuple[CheckedFile, Any]:
    def check(changed: str) -> CheckedFile:
        return check_file(name, text=changed, world_size=2, consumer="deepspeed")

    return check(text), apply_fixes(name, text, check, unsafe=False)


def rendered(checked: CheckedFile, text: str) -> dict[str, Any]:
    assert checked.run is not None
    return dict(render_ds_config(checked.run).config) if checked.run.kind == "spec" else json.loads(text)


def make_pairs() -> dict[str, dict[str, Any]]:
    pairs = {}
    base = {"train_micro_batch_size_per_gpu": 2, "gradient_clipping": 1.0,
            "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "weight_decay": 0.0}}}  # fmt: skip
    texts = {name: ("a.json", json.dumps({**base, **config})) for name, config in MORE.items()}
    for gate in all_gates():
        example = example_of(gate, "Example")
        rest = "".join(
            f"{name}: {json.dumps(value)}\n" for name, value in NEEDED.items() if f"{name}:" not in example.text
        )
        texts[gate.id] = (f"a.{example.kind}", example.text + (rest if example.kind == "yaml" else ""))
    for name, (file, text) in texts.items():
        if name.startswith(tuple(NOT_ON_TWO_CPUS)):
            continue
        before, fixed = fix_safely(file, text)
        was_refused = any(finding.is_error for finding in before.report.findings if finding.gate != "OP022")
        if fixed.changed and before.run is not None and not was_refused:
            pair = {"before": rendered(before, text), "after": rendered(fixed.checked, fixed.after)}
            for config in pair.values():
                config.setdefault("optimizer", base["optimizer"])
            if pair["before"] != pair["after"]:
                pairs[name] = pair
    one = {**base, "zero_optimization": {"stage": 1}}
    pairs["control: training"] = {"before": one, "after": {**one, "gradient_clipping": 0.01}}
    pairs["control: memory"] = {"before": one, "after": {**one, "zero_optimization": {"stage": 0}}}
    rates = [{**one, **ENGINES["bf16, stage 0"], "scheduler": SCHEDULERS["WarmupLR"]} for _ in range(2)]
    for config, rate in zip(rates, (0.01, 0.05), strict=True):
        config["optimizer"] = {"type": "AdamW", "params": {"lr": rate, "weight_decay": 0.1}}
    pairs["control: replaced rate"] = dict(zip(("before", "after"), rates, strict=True))
    return {**pairs, **{f"key: {name}": pair for name, pair in make_key_pairs()}}


@pytest.fixture(scope="module")
def pairs() -> dict[str, dict[str, Any]]:
    return make_pairs()


@pytest.fixture(scope="module")
def seen(forked: ForkedRanks, pairs, tmp_path_factory) -> dict[str, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("fixes")
    (folder / "pairs.json").write_text(json.dumps(pairs))
    forked.run(JOB, str(folder / "pairs.json"), str(folder / "out.json"), timeout=600)
    return dict(json.loads((folder / "out.json").read_text()))


def test_the_pairs_are_those_of_many_gates(pairs):
    assert len(pairs) >= 20
    assert {*MORE, "ZR002", "ZR003", "ZR024", "OF028", "OP008", "OP022", "PR016", "PR030", "OF024"} <= {*pairs}


def test_two_ranks_train_hold_and_store_the_same(seen):
    different = {
        f"{name}, {key}": (pair["before"].get(key), value)
        for name, pair in seen.items()
        for key, value in pair["after"].items()
        if pair["before"].get(key) != value and not (name.startswith("key: ") and key == "bytes")
    }  # the bytes of a long row of engines differ now and then by a tensor of the one before
    controls = {name for name in different if name.startswith("control")}
    assert {"control: training, losses", "control: memory, bytes", "control: memory, files"} <= controls
    assert "control: replaced rate, weights" in controls  # the hidden first step of 16-bit at stage 0 takes it
    assert {*different} == controls, different
    failed = {name: pair["after"]["error"] for name, pair in seen.items() if "error" in pair["after"]}
    assert failed == {}
    assert all(pair["after"]["files"] and pair["after"]["bytes"] > 0 for pair in seen.values())
