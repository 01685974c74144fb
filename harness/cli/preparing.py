"""What comes before a launch: the checked spec, its plan and documents, and what speaks against it; and the same anew
for the hosts that are left when some were lost.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial

from harness.cli.asking import hosts_are_well, network_of, say_what_is_unresolved
from harness.cli.common import Checked, check_file, exit_with, print_findings, stop_on_errors
from harness.errors import Exit, Refused
from harness.facts.survey import Survey
from harness.facts.torch_devices import kinds
from harness.findings import Finding, Fix
from harness.launching.ahead import Ahead
from harness.launching.apart import Apart, node_of
from harness.launching.apart import new_run_dir as run_dir_apart
from harness.launching.debugging import with_profile
from harness.launching.here import Here, look_here, unread_env_files
from harness.launching.local_code import allowed_code
from harness.launching.plan import LaunchPlan, Network, Target, hostfile_text, is_local, make_plan
from harness.launching.refusals import INSTALLABLE, refusals
from harness.launching.resuming import resume_from
from harness.launching.rundir import new_run_dir, rewrite
from harness.plan.choices.choosing import with_choices
from harness.plan.plan import make_plan as plan_of_run
from harness.plan.run import Run
from harness.render import DSConfig, render
from harness.spec.host_selection import Selection
from harness.swap_folders import with_own_folders
from harness.views import launch as view
from harness.views.machine_readable import report_json

NOTHING = "Nothing was written or started"


@dataclass(frozen=True)
class Prepared:
    """A launch that nothing speaks against."""

    run: Run
    here: Here
    plan: LaunchPlan
    target: Target
    survey: Survey | None = None
    ahead: Ahead | None = None


def prepare(
    spec: str,
    overrides: Sequence[str],
    hostfile: str | None,
    resume: tuple[str, tuple[str, ...]],
    *,
    dry_run: bool,
    code: bool = False,
    ask: bool = False,
    chosen: Selection | None = None,
    apart: Apart | None = None,
) -> Prepared:
    """Everything before anything is written: the checked spec and its plan. `resume` is what `--resume` and
    `--allow-change` say, `code` is `--allow-local-code`; with `ask` other hosts are asked what they have. Prints what
    speaks against it and exits. `chosen` says more about who takes part than the hostfile; with `apart` this host
    starts its own ranks alone.
    """
    asked, allowed = resume
    check = partial(check_file, spec, launching=True, allow_code=code)
    checked = check(overrides=overrides, hostfile=hostfile, selection=chosen)
    if checked.run is not None and checked.run.cluster is None and chosen is not None and chosen.num_gpus is not None:
        overrides = [*overrides, f"launch.num_gpus={chosen.num_gpus}"]
        checked = check(overrides=overrides)
    here = _look(checked)
    if checked.run is not None and checked.run.degrees.world is None:
        world = here.num_accelerators or 1
        checked = check(overrides=overrides, hostfile=hostfile, world_size=world)
    run = stop_on_errors(checked, NOTHING)
    say_what_is_unresolved(here)
    output_dir = here.folder / run.spec.launch.output_dir
    try:
        node = node_of(apart, run, here) if apart else None
        own = run_dir_apart(apart, output_dir, run.name, node) if apart and node is not None else None
        run_dir = own or new_run_dir(output_dir, run.name)
        _refuse([*_not_a_run(run, spec), *refusals(run, here, run_dir, node)], dry_run=dry_run)
        sha256 = allowed_code(run, here.folder, allowed=code)
        asked = "never" if node else asked  # the first host decides where it goes on from
        found = resume_from(asked, output_dir, run.name, run.spec.model_dump(mode="json"), allowed, _tell_resume)
    except Refused as refused:
        print_findings(refused.findings, checked.source)
        print(f"{NOTHING}.", file=sys.stderr)
        exit_with(refused.code)
    if asked != "never":
        origin = found.checkpoint
        _tell_resume(f"going on from {view.relative(origin)}" if origin else "no earlier checkpoint, starting anew")
    _say_what_is_not_read(run, here, node)
    _say_what_is_not_used(run, here, node)
    run = with_choices(run, here.folder)
    config = DSConfig(with_profile(with_own_folders(render(run).config, run_dir), run_dir), {})
    documents = _documents(checked, run, config.text, here, overrides)
    target = Target(run_dir, documents, found.checkpoint, allowed, sha256)
    survey = ahead = None
    if ask and node is None and not is_local(run, here):
        ahead = Ahead.start(here, run.spec.launch.env)
        survey = hosts_are_well(checked, run, here, config.config)
    network = Network(None, apart.master_addr) if apart else network_of(survey)
    plan = make_plan(run, config.config, here, target, network, node)
    return Prepared(run, here, plan, target, survey, ahead)


def without_hosts(
    prepared: Prepared, spec: str, overrides: Sequence[str], lost: Collection[str]
) -> tuple[LaunchPlan, Run] | str:
    """The same run on the hosts that are left, written to its run directory; or why that cannot be.

    The global batch stays what it was: accumulation makes up for the ranks that are gone.
    """
    old, run_dir = prepared.run, prepared.plan.run_dir
    hosts = [h for h in (old.cluster.hosts if old.cluster else ()) if h.name not in lost]
    if any(host.devices is not None for host in hosts):
        return "its devices were chosen one by one"
    batch = [
        f"train.global_batch_size={old.batch.global_batch}",
        f"train.per_device_train_batch_size={old.batch.per_device}",
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
    here = prepared.here
    run = with_choices(checked.run, here.folder)
    config = DSConfig(with_own_folders(render(run).config, run_dir), {})
    same = ("global_batch_size", "per_device_train_batch_size", "gradient_accumulation_steps")
    allowed = (*prepared.target.allowed, *(f"train.{key}" for key in same))  # written otherwise, the batch is the same
    documents = _documents(checked, run, config.text, here, changes)
    target = replace(prepared.target, documents=documents, allowed=allowed)
    network = network_of(prepared.survey.without(lost) if prepared.survey else None)
    plan = make_plan(run, config.config, here, target, network)
    rewrite(plan)
    return plan, run


def _look(checked: Checked) -> Here:
    if checked.run is None:
        return look_here()
    hosts = checked.run.cluster.hosts if checked.run.cluster else ()
    return look_here((host.name for host in hosts), checked.run.spec.launch.env)


def _tell_resume(text: str) -> None:
    print(text, file=sys.stderr)


def _say_what_is_not_read(run: Run, here: Here, node: int | None) -> None:
    if node is None and not is_local(run, here):
        for file in unread_env_files(here.folder):
            print(
                f"note: {file} is not read: its variables do not reach the hosts, put them into `launch.env`",
                file=sys.stderr,
            )


def _say_what_is_not_used(run: Run, here: Here, node: int | None) -> None:
    if here.devices and not here.accelerated and (node is not None or is_local(run, here)):
        print(f"note: DS_ACCELERATOR=cpu: the ranks run on the CPU, not on {kinds(here.devices)}", file=sys.stderr)


def _refuse(found: list[Finding], *, dry_run: bool) -> None:
    """Raise what speaks against the launch. For a look at the plan, programs that are missing here do not matter."""
    lacking = [f for f in found if dry_run and f.gate in INSTALLABLE]
    if lacking:
        print_findings([f._replace(severity="warning") for f in lacking], None)
    against = [f for f in found if f not in lacking]
    if against:
        raise Refused(against, Exit.FINDINGS if against[0].gate.startswith("SP") else Exit.PREFLIGHT)


def _documents(checked: Checked, run: Run, config: str, here: Here, overrides: Sequence[str]) -> dict[str, str]:
    """The files of the run directory that are not about launching."""
    expected = plan_of_run(run, here.folder, None if here.num_accelerators else "cpu")
    documents = {
        "spec.yaml": checked.source.text if checked.source else "",
        "spec.resolved.json": json.dumps(run.to_json(), indent=2) + "\n",
        "ds_config.json": config,
        "plan.json": json.dumps(expected.to_json(), indent=2) + "\n",
        "findings.json": json.dumps(report_json(checked.report), indent=2) + "\n",
    }
    if overrides:
        documents["overrides.txt"] = "".join(f"{text}\n" for text in overrides)
    if run.cluster is not None:
        documents["hostfile"] = hostfile_text(run.cluster)
    return documents


def _not_a_run(run: Run, file: str) -> list[Finding]:
    if run.kind == "spec":
        return []
    message = f"`{file}` is a DeepSpeed JSON, which says nothing about model and data"
    return [
        Finding("SP020", "error", message, fix=Fix("write a run spec; `harness schema` and `ds_configs/` show how"))
    ]
