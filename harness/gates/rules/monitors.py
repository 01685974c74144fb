# SPDX-License-Identifier: Apache-2.0
"""Monitors, profilers and print-outs."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate

_ENABLED_SPELLINGS = frozenset(("enabled", "enable", "Enabled", "enabeld", "is_enabled"))
"""The key, and misspellings of it, for which the loader has findings."""
_UTILITY_BLOCKS = ("tensorboard", "wandb", "csv_monitor", "comet", "flops_profiler", "comms_logger", "autotuning")


@gate(
    "UT001",
    "block-without-enabled",
    upstream="silent",
    severity="warning",
    cites=(Cite("monitor/config.py", "enabled: bool = False"),),
)
def utility_block_without_enabled(ctx: Context) -> Iterator[Finding]:
    """A utility block that is not switched on.

    `tensorboard`, `wandb`, `csv_monitor`, `comet`, `flops_profiler`, `comms_logger` and `autotuning` blocks that set
    something and have no `enabled`.

    Why: `enabled` is false unless it is written. The block is accepted, and nothing is monitored or profiled (run on
    0.19.8).

    Example:
        deepspeed.csv_monitor.output_path: /shared/metrics

    Use instead:
        deepspeed.csv_monitor.enabled: true
        deepspeed.csv_monitor.output_path: /shared/metrics
    """
    for name in _UTILITY_BLOCKS:
        block = ctx.ds(name)
        if isinstance(block, dict) and block and _ENABLED_SPELLINGS.isdisjoint(block):
            key = f"deepspeed.{name}"
            yield ctx.finding(
                f"{ctx.key(key)} has no `enabled: true`, so nothing in it is read",
                key,
                label="has no effect",
                fix=Fix(
                    f"write `enabled: true` in it, or remove {ctx.key(key)}",
                    {key: None},
                    effect="the same as now, without the block",
                ),
                of_key=True,
            )


@gate(
    "UT002",
    "monitor-without-output-path",
    upstream="silent",
    severity="warning",
    cites=(Cite("monitor/csv_monitor.py", "log_dir = os.path.join(self.output_path, self.job_name)"),),
)
def monitor_without_output_path(ctx: Context) -> Iterator[Finding]:
    """A monitor that writes where the script was started.

    `tensorboard` and `csv_monitor` that are enabled without an `output_path`.

    Why: Without a path the files go to a folder `DeepSpeedJobName`, or as `job_name` says, below the folder in which
    the ranks were started: runs mix, and with several hosts it is on the first one's disk (read in 0.19.8).

    Example:
        deepspeed.csv_monitor.enabled: true
        deepspeed.csv_monitor.job_name: demo
    """
    for name in ("tensorboard", "csv_monitor"):
        if ctx.is_enabled(name) and not ctx.ds(f"{name}.output_path"):
            key = f"deepspeed.{name}.output_path"
            yield ctx.finding(
                f"{ctx.key(key)} is not given, so the files go to a folder of DeepSpeed's choice",
                f"deepspeed.{name}",
                notes=["runs without a path of their own mix"],
                fix=Fix(
                    f"set {ctx.key(key)} to an absolute path", {key: "/shared/metrics"}, effect="the files go there"
                ),
                of_key=True,
            )


_KERNEL_PATHS = ("/proc/", "/sys/", "/dev/null/")


@gate(
    "UT017",
    "monitor-path-that-cannot-be-made",
    upstream="raises",
    cites=(Cite("monitor/csv_monitor.py", "os.makedirs(log_dir, exist_ok=True)"),),
)
def monitor_path_of_the_kernel(ctx: Context) -> Iterator[Finding]:
    """A monitor that writes where nobody can.

    `output_path` of an enabled `csv_monitor` or `tensorboard` is not below `/proc`, `/sys` or `/dev/null`.

    Why: Rank 0 makes the folder when the engine is built: FileNotFoundError (run on 0.19.8), while the other ranks wait
    for it. Whether another folder can be written to is not in the file.

    Example:
        deepspeed.csv_monitor.enabled: true
        deepspeed.csv_monitor.output_path: /proc/metrics
    """
    for name in ("csv_monitor", "tensorboard"):
        path = ctx.ds(f"{name}.output_path")
        if ctx.is_enabled(name) and isinstance(path, str) and f"{path}/".startswith(_KERNEL_PATHS):
            key = f"deepspeed.{name}.output_path"
            yield ctx.finding(
                f"{ctx.key(key)} is `{path[:60]}`, where no folder can be made",
                key,
                fix=Fix(
                    "name a folder that rank 0 can write to", {key: "/shared/metrics"}, effect="the files go there"
                ),
            )


@gate(
    "UT013",
    "monitor-without-its-package",
    upstream="raises",
    cites=(Cite("monitor/comet.py", "import comet_ml"),),
    needs=("a run spec", "a launch"),
    unseen="depends on what is installed",
)
def monitor_without_its_package(ctx: Context) -> Iterator[Finding]:
    """A monitor whose package is not installed.

    On `harness launch`, on this machine: `tensorboard`, `wandb` and `comet` that are enabled can be imported.

    Why: The monitor imports its package when the engine is built: ModuleNotFoundError, after every rank has built its
    weights (run on 0.19.8).

    Example:
        deepspeed.comet.enabled: true
        deepspeed.comet.project: demo

    Use instead:
        logging.logging_steps: 1
    """
    for name, package in (("tensorboard", "tensorboard"), ("wandb", "wandb"), ("comet", "comet_ml")):
        if ctx.is_enabled(name) and importlib.util.find_spec(package) is None:
            key = f"deepspeed.{name}.enabled"
            yield ctx.finding(
                f"{ctx.key(key)} needs the package `{package}`, which is not installed here",
                key,
                fix=Fix(
                    f"install `{package}` on every host, or switch it off", {key: False}, effect="nothing is sent to it"
                ),
            )


@gate(
    "UT004",
    "print-interval-of-zero",
    upstream="raises",
    cites=(Cite("runtime/engine.py", "(self.global_steps + 1) % self.steps_per_print() == 0"),),
)
def print_interval_of_zero(ctx: Context) -> Iterator[Finding]:
    """Progress printed every 0 steps.

    `steps_per_print: 0`.

    Why: DeepSpeed takes the step count modulo this number: ZeroDivisionError at the end of the first step (run on
    0.19.8). Null switches the print-out off.

    Example:
        deepspeed.steps_per_print: 0

    Use instead:
        logging.logging_steps: 10
    """
    interval = ctx.ds("steps_per_print")
    if interval == 0 and interval is not False:
        key = "deepspeed.steps_per_print"
        yield ctx.finding(
            f"{ctx.key(key)} is 0, by which DeepSpeed divides at the first step",
            key,
            notes=["null, not 0, switches the print-out off"],
            fix=ctx.fix_to_remove(key, safe=True),
        )


@gate(
    "UT003",
    "profiler-that-times-every-step",
    upstream="silent",
    severity="info",
    cites=(Cite("runtime/config.py", "get_wall_clock_breakdown(param_dict) | self.flops_profiler_config.enabled"),),
)
def profiler_that_times_every_step(ctx: Context) -> Iterator[Finding]:
    """The FLOPS profiler also times every step.

    `flops_profiler.enabled: true` while `wall_clock_breakdown` is not written.

    Why: DeepSpeed switches `wall_clock_breakdown` on together with the profiler, not for the profiled step alone but
    for the whole run: each phase of each step then waits for the device (read in 0.19.8). Worth knowing before speeds
    are compared.

    Example:
        deepspeed.flops_profiler.enabled: true
    """
    if ctx.is_enabled("flops_profiler") and not ctx.has_key("wall_clock_breakdown"):
        key = "deepspeed.flops_profiler.enabled"
        breakdown_key = "deepspeed.wall_clock_breakdown"
        yield ctx.finding(
            f"{ctx.key(key)} switches {ctx.key(breakdown_key)} on for the whole run",
            key,
            notes=["each phase of each step then waits for the device, also long after the profiled step"],
            fix=Fix(f"write {ctx.key(breakdown_key)}: true", {breakdown_key: True}, effect="says what happens anyway"),
        )


@gate(
    "UT015",
    "memory-report-at-every-step",
    upstream="silent",
    severity="warning",
    cites=(Cite("runtime/engine.py", 'see_memory_usage("Engine before forward", force=self.memory_breakdown())'),),
)
def memory_report_at_every_step(ctx: Context) -> Iterator[Finding]:
    """A memory report at every forward and backward.

    `memory_breakdown: true`.

    Why: DeepSpeed then prints the memory in use before and after each forward and backward, and collects Python's
    garbage each time: at least four times a micro-batch on rank 0, while the other ranks wait (run on 0.19.8: seconds a
    step with a tiny model on the CPU). Good for a look, slow for a run.

    Example:
        deepspeed.memory_breakdown: true

    Use instead:
        logging.deepspeed_level: info
    """
    if ctx.ds("memory_breakdown") is True:
        key = "deepspeed.memory_breakdown"
        yield ctx.finding(
            f"{ctx.key(key)} prints a memory report four times a micro-batch",
            key,
            notes=["each collects Python's garbage on rank 0 while the others wait: fine for a look"],
            fix=ctx.fix_to_remove(key, effect="no memory report"),
        )
