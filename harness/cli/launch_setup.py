"""What comes before a launch: the checked spec, its plan and documents, and what speaks against it; and the same anew
for the hosts that are left when some were lost.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial

from harness.check.check_file import CheckedFile, check_file
from harness.cli.console import exit_on_errors, exit_with, print_findings
from harness.cli.host_checks import network_from_survey, require_healthy_hosts, warn_unresolved_hosts
from harness.errors import ExitCode, UserError
from harness.findings import Finding, Fix
from harness.hostinfo.host_survey import Survey
from harness.hostinfo.torch_devices import format_device_names
from harness.launching.hosts.local_host import LocalHost, inspect_local_host
from harness.launching.setup.debug_env import with_flops_profiler_output
from harness.launching.setup.environment import ignored_env_files
from harness.launching.setup.launch_checks import INSTALLABLE, check_launch
from harness.launching.setup.launch_plan import (
    LaunchPlan,
    Network,
    RunTarget,
    build_launch_plan,
    is_local,
)
from harness.launching.setup.no_ssh import PerNodeLaunch, resolve_node_rank
from harness.launching.setup.no_ssh import shared_run_dir as run_dir_apart
from harness.launching.setup.plugin_trust import verify_plugin_allowed
from harness.launching.setup.prewarmed_launcher import PrewarmedLauncher
from harness.launching.setup.resume import resolve_resume
from harness.launching.setup.run_dir import new_run_dir, replace_files
from harness.nvme_dirs import with_run_swap_dirs
from harness.plan.plan_json import plan_json
from harness.plan.planner import make_plan as plan_of_run
from harness.plan.resolved_run import ResolvedRun
from harness.plan.tuned_defaults.rules import with_tuned_defaults
from harness.render import DSConfig, render_ds_config
from harness.spec.host_selection import HostSelection
from harness.spec.hostfile import hostfile_text
from harness.views import launch as view
from harness.views.findings_json import report_as_dict

NOTHING_WRITTEN = "Nothing was written or started"


@dataclass(frozen=True)
class LaunchSetup:
    """A launch that nothing speaks against."""

    run: ResolvedRun
    local_host: LocalHost
    plan: LaunchPlan
    target: RunTarget
    survey: Survey | None = None
    prewarmed_launcher: PrewarmedLauncher | None = None


def prepare(
    spec: str,
    overrides: Sequence[str],
    hostfile: str | None,
    resume: tuple[str, tuple[str, ...]],
    *,
    dry_run: bool,
    code: bool = False,
    ask: bool = False,
    host_selection: HostSelection | None = None,
    per_node: PerNodeLaunch | None = None,
) -> LaunchSetup:
    """Everything before anything is written: the checked spec and its plan. `resume` is what `--resume` and
    `--allow-change` say, `code` is `--allow-local-code`; with `ask` other hosts are asked what they have. Prints what
    speaks against it and exits. `chosen` says more about who takes part than the hostfile; with `apart` this host
    starts its own ranks alone.
    """
    asked, allowed = resume
    check = partial(check_file, spec, launching=True, allow_code=code)
    checked = check(overrides=overrides, hostfile=hostfile, selection=host_selection)
    if (
        checked.run is not None
        and checked.run.cluster is None
        and host_selection is not None
        and host_selection.num_gpus is not None
    ):
        overrides = [*overrides, f"launch.num_gpus={host_selection.num_gpus}"]
        checked = check(overrides=overrides)
    here = _inspect_local_host(checked)
    if checked.run is not None and checked.run.parallel_dims.world_size is None:
        world = here.num_accelerators or 1
        checked = check(overrides=overrides, hostfile=hostfile, world_size=world)
    run = exit_on_errors(checked, NOTHING_WRITTEN)
    warn_unresolved_hosts(here)
    output_dir = here.cwd / run.spec.launch.output_dir
    try:
        node = resolve_node_rank(per_node, run, here) if per_node else None
        own = run_dir_apart(per_node, output_dir, run.name, node) if per_node and node is not None else None
        run_dir = own or new_run_dir(output_dir, run.name)
        _raise_launch_findings(
            [*_check_is_run_spec(run, spec), *check_launch(run, here, run_dir, node)], dry_run=dry_run
        )
        sha256 = verify_plugin_allowed(run, here.cwd, allow_local_code=code)
        asked = "never" if node else asked  # the first host decides where it goes on from
        found = resolve_resume(asked, output_dir, run.name, run.spec.model_dump(mode="json"), allowed, _print_note)
    except UserError as refused:
        print_findings(refused.findings, checked.source)
        print(f"{NOTHING_WRITTEN}.", file=sys.stderr)
        exit_with(refused.code)
    if asked != "never":
        origin = found.checkpoint
        _print_note(f"going on from {view.format_path(origin)}" if origin else "no earlier checkpoint, starting anew")
    _warn_ignored_env_files(run, here, node)
    _warn_unused_devices(run, here, node)
    run = with_tuned_defaults(run, here.cwd)
    config = DSConfig(
        with_flops_profiler_output(with_run_swap_dirs(render_ds_config(run).config, run_dir), run_dir), {}
    )
    documents = _build_documents(checked, run, config.json_text, here, overrides)
    target = RunTarget(run_dir, documents, found.checkpoint, allowed, sha256)
    survey = ahead = None
    if ask and node is None and not is_local(run, here):
        ahead = PrewarmedLauncher.start(here, run.spec.launch.env)
        survey = require_healthy_hosts(checked, run, here, config.config)
    network = Network(None, per_node.master_addr) if per_node else network_from_survey(survey)
    plan = build_launch_plan(run, config.config, here, target, network, node)
    return LaunchSetup(run, here, plan, target, survey, ahead)


def replan_without_hosts(
    prepared: LaunchSetup, spec: str, overrides: Sequence[str], lost: Collection[str]
) -> tuple[LaunchPlan, ResolvedRun] | str:
    """The same run on the hosts that are left, written to its run directory; or why that cannot be.

    The global batch stays what it was: accumulation makes up for the ranks that are gone.
    """
    old, run_dir = prepared.run, prepared.plan.run_dir
    hosts = [h for h in (old.cluster.hosts if old.cluster else ()) if h.name not in lost]
    if any(host.devices is not None for host in hosts):
        return "its devices were chosen one by one"
    batch = [
        f"train.global_batch_size={old.batch.global_batch}",
        f"train.per_device_train_batch_size={old.batch.micro_batch}",
        "train.gradient_accumulation_steps=null",
    ]
    hostfile = run_dir / "hostfile.left"
    hostfile.write_text("".join(f"{h.name} slots={h.slots}\n" for h in hosts), encoding="utf-8")
    changes = [*overrides, *batch]
    # what runs already was allowed before
    checked = check_file(spec, overrides=changes, hostfile=str(hostfile), launching=True, allow_code=True)
    hostfile.unlink()
    if checked.run is None or not checked.report.ok:
        return next((f.message for f in checked.report.findings if f.is_error), "the spec cannot be read any more")
    here = prepared.local_host
    run = with_tuned_defaults(checked.run, here.cwd)
    config = DSConfig(with_run_swap_dirs(render_ds_config(run).config, run_dir), {})
    same = ("global_batch_size", "per_device_train_batch_size", "gradient_accumulation_steps")
    allowed = (
        *prepared.target.allowed_changes,
        *(f"train.{key}" for key in same),
    )  # written otherwise, the batch is the same
    documents = _build_documents(checked, run, config.json_text, here, changes)
    target = replace(prepared.target, documents=documents, allowed_changes=allowed)
    network = network_from_survey(prepared.survey.without(lost) if prepared.survey else None)
    plan = build_launch_plan(run, config.config, here, target, network)
    replace_files(plan)
    return plan, run


def _inspect_local_host(checked: CheckedFile) -> LocalHost:
    if checked.run is None:
        return inspect_local_host()
    hosts = checked.run.cluster.hosts if checked.run.cluster else ()
    return inspect_local_host((host.name for host in hosts), checked.run.spec.launch.env)


def _print_note(text: str) -> None:
    print(text, file=sys.stderr)


def _warn_ignored_env_files(run: ResolvedRun, here: LocalHost, node: int | None) -> None:
    if node is None and not is_local(run, here):
        for file in ignored_env_files(here.cwd):
            print(
                f"note: {file} is not read: its variables do not reach the hosts, put them into `launch.env`",
                file=sys.stderr,
            )


def _warn_unused_devices(run: ResolvedRun, here: LocalHost, node: int | None) -> None:
    if here.device_names and not here.accelerated and (node is not None or is_local(run, here)):
        print(
            f"note: DS_ACCELERATOR=cpu: the ranks run on the CPU, not on {format_device_names(here.device_names)}",
            file=sys.stderr,
        )


def _raise_launch_findings(found: list[Finding], *, dry_run: bool) -> None:
    """Raise what speaks against the launch. For a look at the plan, programs that are missing here do not matter."""
    lacking = [f for f in found if dry_run and f.gate in INSTALLABLE]
    if lacking:
        print_findings([f._replace(severity="warning") for f in lacking], None)
    against = [f for f in found if f not in lacking]
    if against:
        raise UserError(against, ExitCode.FINDINGS if against[0].gate.startswith("SP") else ExitCode.PREFLIGHT)


def _build_documents(
    checked: CheckedFile, run: ResolvedRun, config: str, here: LocalHost, overrides: Sequence[str]
) -> dict[str, str]:
    """The files of the run directory that are not about launching."""
    expected = plan_of_run(run, here.cwd, None if here.num_accelerators else "cpu")
    documents = {
        "spec.yaml": checked.source.text if checked.source else "",
        "spec.resolved.json": json.dumps(run.to_json(), indent=2) + "\n",
        "ds_config.json": config,
        "plan.json": json.dumps(plan_json(expected), indent=2) + "\n",
        "findings.json": json.dumps(report_as_dict(checked.report), indent=2) + "\n",
    }
    if overrides:
        documents["overrides.txt"] = "".join(f"{text}\n" for text in overrides)
    if run.cluster is not None:
        documents["hostfile"] = hostfile_text(run.cluster)
    return documents


def _check_is_run_spec(run: ResolvedRun, file: str) -> list[Finding]:
    if run.kind == "spec":
        return []
    message = f"`{file}` is a DeepSpeed JSON, which says nothing about model and data"
    return [
        Finding("SP020", "error", message, fix=Fix("write a run spec; `harness schema` and `ds_configs/` show how"))
    ]
