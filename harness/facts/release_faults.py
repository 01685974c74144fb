# SPDX-License-Identifier: Apache-2.0
"""Faults of DeepSpeed's releases, one row a fault, and the grid that found most of them.

The grid (`release_grid.json`, written by `python -m tests.releases`) compares each release with one plain torch
process over a covering array of settings. A row names the settings in which a fault was seen; a test holds that the
rows and the grid agree, release by release and cell by cell.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from harness.facts.deepspeed_version import parse_version

GRID_FILE = Path(__file__).with_name("release_grid.json")
CONFORMANCE_FILE = Path(__file__).with_name("release_conformance.json")


@dataclass(frozen=True, slots=True)
class ReleaseFault:
    """One fault. `first` and `last` are the releases that have it (`last` empty: the newest has it), `values` those
    of the grid's dimensions with which it was seen (a dimension that is not named has all), `fault` the words of the
    grid for what is trained instead. `hidden_by`: values with which the weights can be right all the same, as where
    gradients of the wrong length are clipped. `gate` is the finding of `validate-config`.
    """

    name: str
    first: str
    last: str
    settings: str
    effect: str
    way_round: str
    gate: str = ""
    values: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    hidden_by: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    fault: str = ""
    evidence: str = "the grid"

    def applies_to(self, release: str) -> bool:
        """Has this release the fault?"""
        version = parse_version(release)
        is_late_enough = not self.first or version >= parse_version(self.first)
        return is_late_enough and (not self.last or version <= parse_version(self.last))

    def is_about(self, cell: Mapping[str, str]) -> bool:
        """Is a cell of the grid among the settings?"""
        return bool(self.values) and all(cell[name] in values for name, values in self.values.items())

    def is_surely_seen(self, cell: Mapping[str, str]) -> bool:
        """Does it make such a cell red in any case?"""
        return self.is_about(cell) and not any(cell[name] in values for name, values in self.hidden_by.items())


@cache
def load_grid() -> dict[str, Any]:
    """`dimensions` (values by name), `cells` and `ops` (all cells as digits), `releases` (results by release)."""
    grid: dict[str, Any] = json.loads(GRID_FILE.read_text(encoding="utf-8"))
    return grid


@cache
def load_conformance() -> dict[str, Any]:
    """`seed`, `releases`: of each release `cases`, `parsed`, `counts` by class (`tests/conformance/README.md`), and
    `different`, the cases in which the gates and the release disagree.
    """
    results: dict[str, Any] = json.loads(CONFORMANCE_FILE.read_text(encoding="utf-8"))
    return results


def cell_of(code: str) -> dict[str, str]:
    """The cell of these digits: the number of its value in each dimension."""
    dimensions: dict[str, list[str]] = load_grid()["dimensions"]
    return {name: values[int(digit)] for (name, values), digit in zip(dimensions.items(), code, strict=True)}


_SEVERAL = ("2", "4")
_WITHOUT_CHECKPOINTING = ("once", "twice", "pair", "chain", "outside")

RELEASE_FAULTS: tuple[ReleaseFault, ...] = (
    ReleaseFault(
        "zero-2-keeps-the-last-micro-batch",
        "0.17.6",
        "0.18.2",
        "ZeRO-2 with more than one accumulation step, no offload",
        "trains only on the last micro-batch of each step",
        "stage 1, or 0.18.3 (0.18.4 under the Trainer)",
        "ZR040",
        {"stage": ("2",), "offload": ("none",), "accumulation": _SEVERAL},
        {},
        "the last micro-batch alone",
    ),
    ReleaseFault(
        "gradients-divided-twice",
        "0.18.3",
        "0.18.3",
        "the Trainer with more than one accumulation step, every stage",
        "gradients are divided by the accumulation steps a second time",
        "0.18.4",
        "HF012",
        {"accumulation": _SEVERAL, "caller": ("trainer",)},
        {"clipping": ("on",)},
        "gradients divided by the accumulation steps once more",
    ),
    ReleaseFault(
        "offload-loses-accumulated-gradients",
        "0.15.2",
        "0.18.9",
        "ZeRO-2 with the optimizer on the CPU and more than two accumulation steps",
        "trains only on the first and the last micro-batch of each step",
        "stage 3, or 0.19.0",
        "OF029",
        {"stage": ("2",), "offload": ("cpu",), "accumulation": ("4",)},
        {},
        "the first and the last micro-batch alone",
    ),
    ReleaseFault(
        "offload-loses-gradients-of-unused-parameters",
        "",
        "",
        "an offloaded optimizer at stages 2 and 3, accumulation, a parameter that the last micro-batch does not use",
        "the parameter is stepped with a gradient of 0",
        "one micro-batch a step, no offload, or add 0 times the parameter to the loss",
        "OF060",
        {"stage": ("2", "3"), "offload": ("cpu", "ratio", "nvme"), "accumulation": _SEVERAL, "unused": ("sometimes",)},
        {},
        "no gradient for what the last micro-batch does not use",
    ),
    ReleaseFault(
        "nvme-optimizer-that-deepspeed-cannot-resume",
        "0.18.0",
        "",
        "an optimizer on NVMe, saved and loaded by DeepSpeed",
        "training continues from the fp32 weights and moments of the new engine, not from those of the checkpoint",
        "keep the optimizer on the CPU, or launch a run spec: the harness saves these states itself",
        "CK003",
        {"offload": ("nvme",), "resumed": ("yes",)},
    ),
    ReleaseFault(
        "accumulation-counted-at-each-output",
        "0.18.3",
        "0.19.5",
        "accumulation in a script that uses a module outside the engine's forward pass too, or feeds an output back",
        "one of the two gradients has another scale, by the accumulation steps (#8224)",
        "0.19.6, or one micro-batch a step",
        "ZR060",
        {"accumulation": _SEVERAL, "caller": ("script",), "reuse": ("chain", "outside")},
        {},
        "divided by the accumulation steps at each output of the engine",
    ),
    ReleaseFault(
        "fp16-without-zero-never-steps",
        "0.17.6",
        "0.18.1",
        "fp16 at stage 0 with DeepSpeed's fused Adam",
        "the optimizer returns before it steps: no weight changes, and no step counts as skipped",
        "stage 1",
        "PR065",
        evidence="conformance",
    ),
    ReleaseFault(
        "bf16-autocast-clipped-by-a-loss-scale",
        "0.17.2",
        "0.17.5",
        "`torch_autocast` in bf16 at stages 1 and 2, with clipping",
        "gradients are clipped while still multiplied by a loss scale of 65536: almost nothing is left of them",
        "0.17.6, or no clipping",
        "PR066",
        evidence="conformance",
    ),
    ReleaseFault(
        "fp16-without-zero-is-not-scaled",
        "0.18.3",
        "",
        "fp16 at stage 0 with a loss scale other than 1",
        "gradients are divided by a loss scale that the loss was not multiplied with: almost nothing is trained",
        "stage 1",
        "PR002",
        evidence="conformance",
    ),
    ReleaseFault(
        "bf16-counts-a-gradient-twice",
        "0.16.5",
        "0.17.0",
        "bf16 at stage 0, a module used twice under reentrant activation checkpointing",
        "the gradient of the first use counts twice",
        "stage 1, or `bf16.immediate_grad_update: false`",
        "PR062",
        {"stage": ("0",), "format": ("bf16",), "reuse": ("checkpointed",)},
    ),
    ReleaseFault(
        "bf16-without-zero-keeps-old-gradients",
        "0.17.6",
        "0.18.2",
        "bf16 at stage 0",
        "the gradients of earlier steps are never cleared, and Adam counts one step too many",
        "stage 1",
        "PR061",
        {"stage": ("0",), "format": ("bf16",)},
        {},
        "Adam counts one step too many, and gradients of earlier steps stay",
    ),
    ReleaseFault(
        "bf16-without-zero-trains-nothing",
        "0.18.3",
        "0.18.5",
        "bf16 at stage 0",
        "gradients are divided by a loss scale of 65536 that the loss was not multiplied with: nothing is trained",
        "stage 1",
        "PR061",
        {"stage": ("0",), "format": ("bf16",)},
        {},
        "gradients of 0",
    ),
    ReleaseFault(
        "hidden-first-step-of-16-bit",
        "0.18.6",
        "",
        "bf16 at stage 0 with Adam",
        "Adam counts one step too many: the first update is a quarter too small",
        "stage 1",
        "PR003",
        {"stage": ("0",), "format": ("bf16",)},
        {},
        "Adam counts one step too many",
    ),
)

RELEASE_CHANGES: tuple[ReleaseFault, ...] = (
    ReleaseFault(
        "collectives-time-out-earlier",
        "0.19.6",
        "",
        "every launch that does not set `DEEPSPEED_TIMEOUT`",
        "a collective times out after 10 minutes instead of 30 (#8253)",
        "set DEEPSPEED_TIMEOUT=30, minutes, where saving or a first step takes longer",
        evidence="run: 30 on 0.18.4, 0.18.6 and 0.19.3, 10 on 0.19.8; read: 30 on 0.19.5, 10 on 0.19.6",
    ),
    ReleaseFault(
        "fp16-begins-at-a-scale-of-four-billion",
        "",
        "0.17.0",
        "fp16 at stages 1 to 3 without `initial_scale_power`, `loss_scale_window`, `hysteresis` or `min_loss_scale`",
        "the loss scale begins at 2 to the 32, and the first dozen steps or more are skipped until it fits",
        "set initial_scale_power: 16",
        evidence="conformance: run on 0.14.5 and 0.17.0, scale 2 to the 29 after three skipped steps; read: the default"
        " is gone in 0.17.1",
    ),
    ReleaseFault(
        "slow-zero-2-steps",
        "0.18.5",
        "0.18.6",
        "ZeRO-2 and a model with many parameters",
        "each gradient counts all parameters (#7882, #7885, #7886)",
        "0.18.4, or 0.18.7",
        evidence="run: processor time of a step with 300 parameters 16 to 20 ms on 0.18.4, 307 on 0.18.5, 291 on"
        " 0.18.6, 18 on 0.19.3, 25 to 29 on 0.19.8; 0.18.7 was read",
    ),
    ReleaseFault(
        "writer-of-unloadable-checkpoints",
        "0.17.1",
        "",
        "`checkpoint.writer` at stage 3 with torch 2.6 or newer",
        "what it saves cannot be loaded: `Weights only load failed` (#8500)",
        "leave `checkpoint.writer` out",
        "CK060",
        evidence="run with the type python on 0.18.4, 0.18.5, 0.18.6, 0.19.3 and 0.19.8, torch 2.13",
    ),
    ReleaseFault(
        "nvme-states-stay-in-host-memory",
        "",
        "",
        "optimizer on NVMe with `pipeline_write`",
        "after the first step all new optimizer states are in host memory, until the second step reads them",
        "room for 8 bytes a parameter of a rank, or the harness's own launch, which plans it",
        evidence="run on 0.19.8, at full size on the simulated device; read in 0.14.5 to 0.19.7",
    ),
)
