# SPDX-License-Identifier: Apache-2.0
"""A launch without ssh (`--no-ssh`): each host starts its own ranks, by the same command.

The first host makes the run directory on a shared file system; the others wait for it and resume as it does.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from harness.errors import ExitCode, UserError, user_error
from harness.launching.hosts.local_host import LocalHost
from harness.launching.setup.environment import LEADER_VARIABLE, Variable
from harness.launching.setup.launch_plan import LaunchPlan
from harness.run_records.rank_statuses import read_statuses
from harness.run_records.run_files import text_of
from harness.spec.hostfile import Cluster
from harness.units import format_seconds

_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_IDENTICAL_FILES = ("spec.resolved.json", "ds_config.json")
_POLL_SECONDS = 0.5
_LOG_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class PerNodeLaunch:
    """The options of each host: the name of the job, which is the same on all, the index of this host if its name does
    not tell, the address of the first host, and how long to wait for the run directory.
    """

    run_id: str
    node_rank: int | None = None
    master_addr: str | None = None
    wait_seconds: float = 600.0


def resolve_node_rank(options: PerNodeLaunch, cluster: Cluster | None, local_host: LocalHost) -> int:
    """The index of this host among the hosts of the run. Raises UserError (EN013)."""
    hosts = cluster.hosts if cluster else ()
    if len(hosts) < 2:
        raise _no_ssh_error("`--no-ssh` is for several hosts, and only one is given", "give `--hostfile` or `--hosts`")
    if not _RUN_ID.fullmatch(options.run_id):
        message = f"`--run-id {options.run_id[:70]}` cannot be part of a folder name"
        raise _no_ssh_error(message, "use up to 64 letters, digits and `._-`, such as the number of the job")
    if options.node_rank is not None:
        if options.node_rank >= len(hosts):
            message = f"`--node-rank {options.node_rank}`: there are {len(hosts)} hosts, counted from 0"
            raise _no_ssh_error(message, f"give 0 to {len(hosts) - 1}, in the order of the hosts")
        return options.node_rank
    matches = [index for index, host in enumerate(hosts) if host.name in local_host.local_names]
    if len(matches) != 1:
        count = "none" if not matches else "more than one"
        raise _no_ssh_error(f"this machine, {local_host.hostname}, is {count} of the given hosts", "give `--node-rank`")
    return matches[0]


def shared_run_dir(options: PerNodeLaunch, output_dir: Path, name: str, node: int) -> Path:
    """The run directory of this job. Raises UserError (EN013) on the first host when it exists."""
    run_dir = output_dir / f"{name}-{options.run_id}"
    if node == 0 and run_dir.exists():
        message = f"`{run_dir}` exists: another job used this `--run-id`"
        raise _no_ssh_error(message, "give each job its own name, including one that resumes another")
    return run_dir


def wait_for_leader(plan: LaunchPlan, seconds: float, log: Callable[[str], None]) -> LaunchPlan:
    """On another host than the first: wait for the run directory, and resume from the same checkpoint.

    Raises UserError (EN013) when it does not come, is one of a job that has ended, or differs from the plan of this
    host.
    """
    start = last_log = time.monotonic()
    while not (plan.run_dir / "launch.json").is_file():
        now = time.monotonic()
        if now - start > seconds:
            first = plan.hosts[0].name
            message = f"{first} has not made `{plan.run_dir}` within {format_seconds(seconds)}"
            fix = "start the same command there, with a folder that all hosts share as `launch.output_dir`"
            raise _no_ssh_error(message, fix)
        if last_log == start or now - last_log > _LOG_SECONDS:
            log(f"waiting for {plan.hosts[0].name} to make {plan.run_dir}")
            last_log = now
        time.sleep(_POLL_SECONDS)
    if any(status.is_final for status in read_statuses(plan.run_dir).values()):
        raise _no_ssh_error(f"the run in `{plan.run_dir}` has ended", "give each job its own `--run-id`")
    for name in _IDENTICAL_FILES:
        if text_of(plan.run_dir / name) != plan.documents.get(name):
            message = f"this host renders a different `{name}` than {plan.hosts[0].name}"
            raise _no_ssh_error(message, "give the same command, spec and harness on every host")
    first = json.loads(text_of(plan.run_dir / "launch.json") or "{}")
    supervisor = next((v["value"] for v in first.get("environment", ()) if v["name"] == "HARNESS_SUPERVISOR"), "")
    leader = Variable(LEADER_VARIABLE, str(supervisor), "the first host, which holds the run directory")
    plan = replace(plan, hosts=tuple(replace(host, variables=(*host.variables, leader)) for host in plan.hosts))
    if first.get("resume") is None:
        return plan
    return replace(plan, argv=(*plan.argv, "--resume", str(first["resume"])), resume=Path(first["resume"]))


def _no_ssh_error(message: str, fix: str) -> UserError:
    return user_error("EN013", message, fix=fix, code=ExitCode.PREFLIGHT)
