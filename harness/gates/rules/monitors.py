# SPDX-License-Identifier: Apache-2.0
"""Monitors, profilers and print-outs."""

from __future__ import annotations

import importlib.util

from harness.gates.registry import Cite, Context, Findings, Fix, gate

_ENABLED_SPELLINGS = frozenset(("enabled", "enable", "Enabled", "enabeld", "is_enabled"))
"""The key, and misspellings of it, for which the loader has findings."""
_UTILITY_BLOCKS = ("tensorboard", "wandb", "csv_monitor", "comet", "flops_profiler", "autotuning")


@gate(
    "UT001 block-without-enabled",
    severity="warning",
    cites=Cite("monitor/config.py", "enabled: bool = False"),
)
def utility_block_without_enabled(ctx: Context) -> Findings:
    """A utility block that is not switched on.

    `tensorboard`, `wandb`, `csv_monitor`, `comet`, `flops_profiler` and `autotuning` blocks that set something and have
    no `enabled`.

    Why: `enabled` is false unless it is written. The block is accepted, and nothing is monitored or profiled (run on
    0.19.8). `comms_logger` is the exception: `comms-logger-that-is-on-after-all`.

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
            yield ctx.unread(
                f"{ctx.key(key)} has no `enabled: true`, so nothing in it is read",
                key,
                fix=Fix(
                    f"write `enabled: true` in it, or remove {ctx.key(key)}",
                    {key: None},
                    effect="the same as now, without the block",
                ),
                of_key=True,
            )


@gate(
    "UT019 comms-logger-that-is-on-after-all",
    severity="warning",
    cites=(
        Cite("comm/config.py", "self.comms_logger_enabled = 'comms_logger' in ds_config"),
        Cite("utils/comms_logging.py", "self.enabled = comms_config.comms_logger_enabled"),
    ),
    when=lambda ctx: isinstance(ctx.ds("comms_logger"), dict),
)
def comms_logger_that_is_on(ctx: Context) -> Findings:
    """A `comms_logger` block that is not switched on.

    A `comms_logger` block whose `enabled` is false or left out.

    Why: DeepSpeed checks that the block is there and never reads its `enabled`. With `enabled: false`, and with an
    empty block, every collective is timed, for which the device is synchronised after each of them (run on 0.19.8:
    `all_reduce` and `broadcast` are in the log).

    Example:
        deepspeed.comms_logger.enabled: false

    Use instead:
        telemetry.comms_logger: false
    """
    if not ctx.is_enabled("comms_logger") and _ENABLED_SPELLINGS.isdisjoint(set(ctx.ds("comms_logger")) - {"enabled"}):
        key = "deepspeed.comms_logger"
        state = "is false" if ctx.has_key("comms_logger.enabled") else "is not written"
        yield ctx.finding(
            f"{ctx.key(key)} logs every collective although its `enabled` {state}",
            key,
            label="the block alone switches it on",
            notes=["the device is synchronised after each collective"],
            fix=ctx.fix_to_remove(key, effect="collectives are not timed"),
            of_key=True,
        )


_LOGGED_OPERATIONS = frozenset(
    """all_gather all_gather_into_tensor all_gather_object all_reduce all_reduce_coalesced all_to_all all_to_all_single
    allgather_fn barrier batch_isend_irecv broadcast broadcast_object_list gather inference_all_reduce irecv isend
    monitored_barrier recv reduce reduce_scatter reduce_scatter_fn reduce_scatter_tensor scatter send""".split()
)
"""Names under which DeepSpeed's collectives are logged (`comm/comm.py`, `log_name`)."""


@gate(
    "UT021 operations-that-are-not-logged-alone",
    severity="info",
    cites=Cite("comm/comm.py", "in comms_logger.prof_ops"),
    when=lambda ctx: isinstance(ctx.ds("comms_logger.prof_ops"), list) and bool(ctx.ds("comms_logger.prof_ops")),
)
def operations_not_logged_alone(ctx: Context) -> Findings:
    """Operations that the communication logger does not know or select.

    `comms_logger.prof_ops` together with `prof_all: true`, which is the default, or with a name that none of
    DeepSpeed's collectives has.

    Why: The list counts only with `prof_all: false`. An unknown name is ignored: with `["all_reduce", "bogus"]` only
    `all_reduce` is in the log (run on 0.19.8). A script that passes its own `log_name` to collectives may list that.

    Example:
        deepspeed.comms_logger.enabled: true
        deepspeed.comms_logger.prof_all: false
        deepspeed.comms_logger.prof_ops: [all_reduce, allreduce]

    Use instead:
        deepspeed.comms_logger.enabled: true
        deepspeed.comms_logger.prof_all: false
        deepspeed.comms_logger.prof_ops: [all_reduce]
    """
    key = "deepspeed.comms_logger.prof_ops"
    if ctx.ds("comms_logger.prof_all", default=True) is True:
        all_key = "deepspeed.comms_logger.prof_all"
        yield ctx.unread(
            f"{ctx.key(key)} is read with {ctx.key(all_key)} false only; every collective is logged",
            key,
            fix=ctx.fix_to_set(all_key, False, effect="these operations alone are logged"),
        )
        return
    names = ctx.ds("comms_logger.prof_ops")
    unknown_names = [name for name in names if name not in _LOGGED_OPERATIONS]
    if unknown_names:
        shown_names = ", ".join(f"`{str(name)[:30]}`" for name in unknown_names[:2])
        yield ctx.finding(
            f"{ctx.key(key)} has {shown_names}, which none of DeepSpeed's collectives is called",
            key,
            notes=["only a script that passes it as `log_name` has such an operation"],
            fix=Fix("remove it, or write one of DeepSpeed's names, such as `all_reduce`", {key: None}, effect="as now"),
        )


@gate(
    "UT002 monitor-without-output-path",
    severity="warning",
    cites=Cite("monitor/csv_monitor.py", "log_dir = os.path.join(self.output_path, self.job_name)"),
)
def monitor_without_output_path(ctx: Context) -> Findings:
    """A monitor that writes where the script was started.

    `tensorboard` and `csv_monitor` that are enabled without an `output_path`.

    Why: Without a path the files go to a folder named by `job_name`, by default `DeepSpeedJobName`, in the working
    directory of the ranks: runs share it, and with several hosts it is on the first one's disk (read in 0.19.8).

    Example:
        deepspeed.csv_monitor.enabled: true
        deepspeed.csv_monitor.job_name: demo
    """
    for name in ("tensorboard", "csv_monitor"):
        if ctx.is_enabled(name) and not ctx.ds(f"{name}.output_path"):
            key = f"deepspeed.{name}.output_path"
            yield ctx.finding(
                f"{ctx.key(key)} is not given, so DeepSpeed writes below the working directory",
                f"deepspeed.{name}",
                notes=["runs without a path share one folder"],
                fix=Fix(
                    f"set {ctx.key(key)} to an absolute path", {key: "/shared/metrics"}, effect="the files go there"
                ),
                of_key=True,
            )


_KERNEL_PATHS = ("/proc/", "/sys/", "/dev/null/")


@gate(
    "UT017 monitor-path-that-cannot-be-made",
    upstream="raises",
    cites=Cite("monitor/csv_monitor.py", "os.makedirs(log_dir, exist_ok=True)"),
)
def monitor_path_of_the_kernel(ctx: Context) -> Findings:
    """A monitor whose path cannot be written.

    `output_path` of an enabled `csv_monitor` or `tensorboard` is not below `/proc`, `/sys` or `/dev/null`.

    Why: Rank 0 makes the folder when the engine is built: FileNotFoundError (run on 0.19.8), while the other ranks wait
    for it. Other folders are not checked.

    Example:
        deepspeed.csv_monitor.enabled: true
        deepspeed.csv_monitor.output_path: /proc/metrics

    Use instead:
        deepspeed.csv_monitor.enabled: true
        deepspeed.csv_monitor.output_path: /shared/metrics
    """
    for name in ("csv_monitor", "tensorboard"):
        path = ctx.ds(f"{name}.output_path")
        if ctx.is_enabled(name) and isinstance(path, str) and f"{path}/".startswith(_KERNEL_PATHS):
            key = f"deepspeed.{name}.output_path"
            yield ctx.finding(
                f"{ctx.key(key)} is `{path[:60]}`, where no folder can be made",
                key,
                fix=Fix("name a folder that rank 0 can write to"),
            )


@gate(
    "UT013 monitor-without-its-package",
    upstream="raises",
    cites=(
        Cite("monitor/utils.py", "import tensorboard"),
        Cite("monitor/comet.py", "import comet_ml", since="0.14.3"),
    ),
    needs=("a run spec", "a launch"),
    unseen="depends on what is installed",
)
def monitor_without_its_package(ctx: Context) -> Findings:
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
                fix=ctx.fix_to_set(key, False, f"or install `{package}` on every host", effect="nothing is sent to it"),
            )


@gate(
    "UT004 print-interval-of-zero",
    upstream="raises",
    cites=Cite("runtime/engine.py", "(self.global_steps + 1) % self.steps_per_print() == 0"),
)
def print_interval_of_zero(ctx: Context) -> Findings:
    """Progress printed every 0 steps.

    `steps_per_print: 0`, and `null` up to DeepSpeed 0.15.1.

    Why: DeepSpeed takes the step count modulo this number: ZeroDivisionError at the end of the first step (run on
    0.19.8), a TypeError for null up to 0.15.1 (run on 0.14.5 and 0.15.0). From 0.15.2 on null switches the print-out
    off.

    Example:
        deepspeed.steps_per_print: 0

    Use instead:
        logging.logging_steps: 10
    """
    interval, key = ctx.ds("steps_per_print"), "deepspeed.steps_per_print"
    if interval is None and ctx.has_key("steps_per_print") and ctx.target.version < (0, 15, 2):
        yield ctx.finding(
            f"{ctx.key(key)} is null, which DeepSpeed {ctx.target.text} takes for a number at the first step",
            key,
            notes=["null switches the print-out off from DeepSpeed 0.15.2 on"],
            fix=ctx.fix_to_set(key, 1_000_000, effect="prints hardly ever"),
        )
    if interval == 0 and interval is not False:
        yield ctx.finding(
            f"{ctx.key(key)} is 0: DeepSpeed divides by it in the first step",
            key,
            notes=["null, not 0, switches the print-out off"],
            fix=ctx.fix_to_remove(key, safe=True),
        )


@gate(
    "UT003 profiler-that-times-every-step",
    severity="info",
    cites=Cite("runtime/config.py", "get_wall_clock_breakdown(param_dict) | self.flops_profiler_config.enabled"),
)
def profiler_that_times_every_step(ctx: Context) -> Findings:
    """The FLOPS profiler also times every step.

    `flops_profiler.enabled: true` while `wall_clock_breakdown` is not written.

    Why: DeepSpeed switches `wall_clock_breakdown` on together with the profiler, not for the profiled step alone but
    for the whole run: each phase of each step then waits for the device (read in 0.19.8). Keep this in mind when you
    compare speeds.

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
            fix=Fix(f"write {ctx.key(breakdown_key)}: true", {breakdown_key: True}, effect="what happens anyway"),
        )


@gate(
    "UT015 memory-report-at-every-step",
    severity="warning",
    cites=Cite("runtime/engine.py", 'see_memory_usage("Engine before forward", force=self.memory_breakdown())'),
)
def memory_report_at_every_step(ctx: Context) -> Findings:
    """A memory report at every forward and backward.

    `memory_breakdown: true`.

    Why: DeepSpeed then prints the memory in use before and after each forward and backward, and collects Python's
    garbage each time: at least four times a micro-batch on rank 0, while the other ranks wait (run on 0.19.8: seconds a
    step with a tiny model on the CPU). Useful for debugging, too slow for a run.

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
            notes=["each collects Python's garbage on rank 0 while the others wait: for debugging only"],
            fix=ctx.fix_to_remove(key, effect="no memory report"),
        )
