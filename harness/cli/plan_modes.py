# SPDX-License-Identifier: Apache-2.0
"""The questions of `harness plan` and its like, and the options that each one reads."""

from __future__ import annotations

from typing import NamedTuple

DEGREES = "degrees of parallelism"
_DEGREE_STARTERS = ("tensor", "pipeline", "context", "expert", "virtual_stages", "schedule", "timeline", "scaling")
DEGREE_OPTIONS = {*_DEGREE_STARTERS, "micro_batch", "precision", "checkpointing", "states", "sequence_parallel"}
DEGREE_OPTIONS |= {"gradients"}
_ADAPTERS = {"lora", "qlora"}
_RUN = {"model", "gpus", "gpu", "zero_stage", "max_length", "batch_tokens", "precision"}
_MACHINE = {"gpus_per_node", "host_memory", "nvme"}
_SPEC = {"spec", "overrides", "hostfile", "world_size", "here"}
_PRICED = {"overrides", "network", "tokens", "epochs", "prices"}
_PLAN = {*_PRICED, "deadline", "measured", "search", "write", "plot", "html", "calibration", "long", "trainer"}
_CHEAPEST = {*_PRICED, "gpus", "gpu", "host_memory", "price_file", "deadline", "write"}
_SIMULATION = {"rank", "layers", "races", "trace"}


class Mode(NamedTuple):
    """A question, as a sentence names it, and the names of the options that its answer depends on."""

    name: str
    reads: frozenset[str]


def _mode(name: str, *options: str | set[str]) -> Mode:
    names = (option if isinstance(option, set) else {option} for option in options)
    reads = frozenset().union({"format"}, *names)
    return Mode(name, reads | {"offline"} if "model" in reads else reads)


_BY_OPTION = {
    "table": _mode("--table", "table", "precision", "states", "params", "model", "gpus"),
    "non_state_peak": _mode(
        "--non-state-peak", "non_state_peak", "precision", "states", "params", "model", "gpus", "gpu", "gpus_per_node"
    ),
    "params": _mode("--params", "params", "gpus", "gpu", "zero_stage", "network", "gradients"),
    "calibrate": _mode("--calibrate", "calibrate", "calibration"),
    "min_gpus": _mode("--min-gpus", "min_gpus", _RUN - {"gpus"}, _MACHINE, _PRICED),
    "largest_model": _mode(
        "--largest-model", "largest_model", _RUN - {"model"}, _MACHINE, _ADAPTERS, "overrides", "write"
    ),
}
_BY_OPTION_AND_SOURCE = {  # about a spec, and without one
    "cheapest": (
        _mode("--cheapest", "cheapest", _CHEAPEST, "spec"),
        _mode("--cheapest", "cheapest", _CHEAPEST, _RUN, _ADAPTERS),
    ),
    "longest": (
        _mode("--longest", "longest", _SPEC, "write"),
        _mode("--longest", "longest", _MACHINE, _ADAPTERS, "model", "gpus", "gpu", "precision", "overrides", "write"),
    ),
    "simulate": (
        _mode("--simulate", "simulate", _SPEC, _SIMULATION),
        _mode("--simulate", "simulate", _SPEC, _SIMULATION),
    ),
}
QUESTIONS = (*_BY_OPTION, *_BY_OPTION_AND_SOURCE)
OF_DEGREES = _mode(DEGREES, DEGREE_OPTIONS, _RUN, "gpus_per_node", "network", "tokens", "prices")
OF_SPEC = _mode("a spec", _SPEC, _PLAN, "allow_local_code")
OF_WORDS = _mode("a plan without a spec", _RUN, _MACHINE, _ADAPTERS, _PLAN)
NEEDS = {
    **dict.fromkeys(_SIMULATION, "`--simulate`"),
    "price_file": "`--cheapest`",
    **dict.fromkeys(("hostfile", "world_size", "here", "allow_local_code"), "a spec"),
    "offline": "`--model`",
}
_RECIPE = {"precision", "states"}


def find_mode(given: frozenset[str]) -> Mode:
    """The question that options of these names ask."""
    if given & set(_DEGREE_STARTERS):
        return OF_DEGREES
    if "params" in given and given & _RECIPE and "non_state_peak" not in given:
        return _without_model(_BY_OPTION["table"])
    for name, mode in _BY_OPTION.items():
        if name in given:
            return _without_model(mode) if "params" in given else mode
    for name, (about_spec, without) in _BY_OPTION_AND_SOURCE.items():
        if name in given:
            return about_spec if "spec" in given else without
    return OF_SPEC if "spec" in given else OF_WORDS


def _without_model(mode: Mode) -> Mode:
    """The question about a bare count of parameters."""
    return mode._replace(reads=mode.reads - {"model", "offline"})
