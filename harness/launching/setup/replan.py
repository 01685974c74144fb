"""The plan of a run for the hosts that are left when some were lost."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from harness.check.check_file import check_file
from harness.launching.setup.launch_plan import LaunchPlan, Network, build_launch_plan
from harness.launching.setup.launch_request import LaunchSetup
from harness.launching.setup.prepare import build_run_files
from harness.launching.setup.run_dir import replace_files

_BATCH_KEYS = ("global_batch_size", "per_device_train_batch_size", "gradient_accumulation_steps")


def replan_without_hosts(setup: LaunchSetup, lost: Collection[str]) -> LaunchPlan | str:
    """The same run on the hosts that are left, written to its run directory; or why that cannot be.

    The global batch stays the same: more accumulation steps replace the ranks that are gone.
    """
    old, run_dir = setup.run, setup.plan.run_dir
    hosts = [host for host in (old.cluster.hosts if old.cluster else ()) if host.name not in lost]
    if any(host.devices is not None for host in hosts):
        return "its devices were chosen one by one"
    overrides = [
        *setup.request.overrides,
        f"train.global_batch_size={old.batch.global_batch}",
        f"train.per_device_train_batch_size={old.batch.micro_batch}",
        "train.gradient_accumulation_steps=null",
    ]
    hostfile = run_dir / "hostfile.left"
    hostfile.write_text("".join(f"{host.name} slots={host.slots}\n" for host in hosts), encoding="utf-8")
    # The code that runs already was allowed before.
    checked = check_file(
        setup.request.spec, overrides=overrides, hostfile=str(hostfile), launching=True, allow_code=True
    )
    hostfile.unlink()
    if checked.run is None or checked.source is None or not checked.report.ok:
        return next((f.message for f in checked.report.findings if f.is_error), "the spec cannot be read any more")
    files = build_run_files(checked.run, checked.source, checked.report, setup.local_host, run_dir, overrides)
    # The spec gives the batch in another way, but the batch is the same.
    allowed = (*setup.target.allowed_changes, *(f"train.{key}" for key in _BATCH_KEYS))
    target = replace(setup.target, documents=files.documents, allowed_changes=allowed)
    network = Network.from_survey(setup.survey.without(lost)) if setup.survey else None
    plan = build_launch_plan(files.run, files.config.config, setup.local_host, target, network)
    replace_files(plan)
    return plan
