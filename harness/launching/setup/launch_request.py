# SPDX-License-Identifier: Apache-2.0
"""Input and results of `prepare`: a launch request, a launch setup, or a rejection with its findings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from harness.errors import ExitCode
from harness.findings import Finding, LinesOf, Report
from harness.hostinfo.host_survey import Survey
from harness.launching.hosts.local_host import LocalHost
from harness.launching.setup.launch_plan import LaunchPlan, RunTarget
from harness.launching.setup.no_ssh import PerNodeLaunch
from harness.launching.setup.prewarmed_launcher import PrewarmedLauncher
from harness.launching.setup.slurm import SlurmContainer
from harness.run.resolved_run import ResolvedRun
from harness.spec.host_selection import HostSelection
from harness.verdicts import Verdict

NOTHING_WRITTEN = "Nothing was written or started"


class LaunchLog(Protocol):
    """Receives notes and warnings while a launch is prepared, in order."""

    def on_note(self, text: str) -> None:
        """Log a line."""

    def on_findings(self, findings: Sequence[Finding], lines_of: LinesOf | None) -> None:
        """Log warnings."""


@dataclass(frozen=True, slots=True)
class SlurmSubmission:
    """A launch to submit as a Slurm job: the arguments of the command line, options of sbatch, and the container of
    each host.
    """

    arguments: tuple[str, ...]
    sbatch_options: tuple[str, ...] = ()
    container: SlurmContainer | None = None


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """The options of one launch. With `per_node` this host starts only its own ranks; with `survey` all hosts are
    surveyed first; in a dry run missing programs are warnings. With `submission` the launch is a Slurm job, which
    knows its hosts when it starts. `allow_script`: the command names `plugins.script`, which may run.
    """

    spec: str
    overrides: tuple[str, ...] = ()
    hostfile: str | None = None
    hosts: HostSelection | None = None
    resume: str = "never"
    allow_change: tuple[str, ...] = ()
    allow_local_code: bool = False
    allow_script: bool = False
    per_node: PerNodeLaunch | None = None
    survey: bool = False
    dry_run: bool = False
    submission: SlurmSubmission | None = None
    notify: str | None = None
    """The URL or the command that hears of a stall, a failure and the end."""


@dataclass(frozen=True, slots=True)
class LaunchSetup:
    """A validated launch; nothing of it is written yet."""

    request: LaunchRequest
    run: ResolvedRun
    local_host: LocalHost
    plan: LaunchPlan
    target: RunTarget
    survey: Survey | None = None
    prewarmed_launcher: PrewarmedLauncher | None = None


@dataclass(frozen=True, slots=True)
class RunComplete:
    """A launch that resumes a run which is complete by the same spec: nothing is started."""

    run_dir: Path
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class LaunchRejected:
    """A rejected launch: its findings, the exit code, and the last line of the output. `report` has the
    totals where the check of the spec failed.
    """

    findings: tuple[Finding, ...]
    lines_of: LinesOf | None
    code: ExitCode
    closing: str
    report: Report | None = None
