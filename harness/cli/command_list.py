# SPDX-License-Identifier: Apache-2.0
"""The commands, in the groups of `harness --help`."""

from __future__ import annotations

from typing import NamedTuple


class Command(NamedTuple):
    """A command: the module below `harness.cli` whose function of the same name it is, and a few words for the list."""

    function: str
    summary: str


COMMAND_GROUPS: dict[str, dict[str, Command]] = {
    "Check a configuration": {
        "validate-config": Command("validate_config", "Check run specs and DeepSpeed JSONs (short: check)"),
        "upgrade-check": Command("upgrade_check", "Show what changes for a file under a newer DeepSpeed"),
        "adopt": Command("adopt", "Convert the configuration of another program to a run spec"),
        "explain": Command("explain", "Explain a finding, a key, or the log of a failed job"),
        "demo": Command("demo", "Show an idea of distributed training by a run on two CPU ranks"),
        "schema": Command("schema", "Print the JSON Schema of run specs, for editors"),
    },
    "Plan a run": {
        "plan": Command("plan", "Estimate memory and step time of a run spec; list alternatives"),
        "size": Command("size", "Plan a model on GPUs without a spec: fastest, fewest, cheapest"),
        "simulate": Command("simulate", "Run DeepSpeed at full size on a simulated GPU, beside the plan"),
        "calibrate": Command("calibrate", "Fit the plan's constants to runs of this machine"),
        "degrees": Command("degrees", "Plan any degrees of parallelism, as arithmetic"),
        "render": Command("render", "Print the DeepSpeed JSON of a run spec"),
        "rehearse": Command("rehearse", "Run all phases of a run in small, before a long one"),
        "tune": Command("tune", "Time the planner's best settings; write the fastest as a spec"),
    },
    "Run": {
        "doctor": Command("doctor", "Check this machine: versions, compilers, GPUs, memory"),
        "preflight": Command("preflight", "Check every host before a launch"),
        "data": Command("data", "Preview the tokenized training data"),
        "launch": Command("launch", "Train a run spec under the deepspeed launcher"),
    },
    "After a run": {
        "runs": Command("runs", "List runs with their state, step and speed"),
        "report": Command("report", "Write an HTML report of a run, or a comparison of several"),
        "checkpoint": Command("checkpoint", "List, verify, show, compare, remove checkpoints"),
        "export": Command("export", "Export a checkpoint as a Hugging Face folder"),
    },
}
"""The commands by name, under the headings of `harness --help`."""
COMMANDS = {name: command for group in COMMAND_GROUPS.values() for name, command in group.items()}
ALIASES = {"check": "validate-config"}
"""Short names of commands."""
