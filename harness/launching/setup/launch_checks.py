# SPDX-License-Identifier: Apache-2.0
"""Checks before a launch writes anything: the environment of this machine and of the ranks.

Not gates: they judge where and how a run starts, not what it trains.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from harness.check.environment_fit import check_environment
from harness.check.missing_software import find_missing_software
from harness.check.planned_machine import check_devices, check_weights
from harness.errors import UserError
from harness.findings import Finding, Fix
from harness.hostinfo import machine
from harness.hostinfo.deepspeed_accelerator import find_other_devices
from harness.hostinfo.torch_devices import format_device_names
from harness.hostinfo.training_packages import missing_packages_finding
from harness.launching.hosts.local_host import DEFAULT_PORT, LocalHost, find_program, is_port_taken
from harness.launching.setup import core_binding, device_checks
from harness.launching.setup.backends import BACKENDS, PDSH, LauncherBackend
from harness.launching.setup.environment import forwarded_variables, ignored_env_files
from harness.launching.setup.host_count import check_host_count
from harness.launching.setup.launch_plan import is_local
from harness.launching.setup.launch_request import LaunchRequest
from harness.launching.setup.resume import find_resume_folder
from harness.object_stores.store_url import is_store_url
from harness.run.resolved_run import ResolvedRun
from harness.spec.pinned_memory import pins_natively
from harness.spec.sections.zero_spec import ZeroSpec
from harness.units import format_bytes

_INSTALLABLE = {"EN002", "EN009", "EN014", "EN016", "EN023", "EN027", "HO018", "MD154", "MD162"}
"""Findings about programs, devices and a port that this machine lacks, now."""
_NAMED_BY_SPEC = {"EN016", "MD154", "MD162"}
"""Those about what a key of the spec needs."""
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_UNQUOTABLE = re.compile(r"""["`$\\%\n\r]|^\s|\s$""")
_UNQUOTABLE_BY_BACKEND = {"openmpi": re.compile(r"[^\w@%+=:,./-]"), "slurm": re.compile(r"[^\w@%+=:./-]")}
"""Characters that DeepSpeed quotes for mpirun and srun (`add_export`); a comma ends a value of srun's `--export`."""
_SAFE_PATH_TEXT = re.compile(r"[A-Za-z0-9_@+=:,./-]+")


def check_launch(
    run: ResolvedRun, local_host: LocalHost, run_dir: Path, node_rank: int | None = None
) -> tuple[Finding, ...]:
    """The errors that keep this machine from starting this launch. `node_rank`: this host of a
    job whose hosts start their own ranks.
    """
    findings = [
        *_check_python_optimize(run, local_host),
        *_check_installed(local_host),
        *_check_variable_names(run),
    ]
    local_ranks = _local_rank_count(run, local_host, node_rank)
    missing = find_missing_software(run.spec.model, run.spec.data, run.spec.telemetry, run.spec.launch.env)
    findings += [f for f in missing if local_ranks is not None or f.gate in ("MD154", "MD162")]
    findings += [
        *device_checks.check_device_ids(local_host, local_ranks),
        *core_binding.check_core_binding(run.spec.launch, local_host, local_ranks),
        *check_locked_memory(run.spec.zero, run.spec.launch.env, local_ranks),
    ]
    if "EN053" not in run.spec.ignore:
        findings += core_binding.suggest_core_binding(run.spec.zero, run.spec.launch, local_ranks)
    if not {f.gate for f in findings} & {"EN003", "EN004", "EN005"}:
        findings += device_checks.check_torch_devices(run.spec.launch.env, local_host, local_ranks)
        health = device_checks.check_gpu_health(local_host, local_ranks)
        findings += [finding for finding in health if finding.gate not in run.spec.ignore]
    if local_ranks is not None and not any(finding.is_error for finding in findings):
        findings += check_environment(run)
    if local_ranks is not None and node_rank is None and not any(finding.is_error for finding in findings):
        findings += [*check_weights(run, planned=False), *check_devices(run)]
    findings += _check_own_disks(run, local_host, node_rank)
    if "HO018" not in run.spec.ignore:
        findings += _check_port(run, local_host, node_rank)
    hosts = run.cluster.hosts if run.cluster else ()
    if node_rank is not None:
        findings += [*_check_no_ssh(run), *check_host_count(hosts, None)]
    elif not is_local(run, local_host):
        backend = BACKENDS[run.spec.launch.launcher]
        findings += [
            *_check_quoting(run, backend),
            *_check_forwarded_variables(run, local_host, backend),
            *_check_paths(local_host, run_dir),
            *check_host_count(hosts, backend.name),
        ]
        findings += [*_check_backend_program(run, backend), *_check_rank_placement(run, local_host, backend)]
    return tuple(findings)


_NOT_A_JOB = "this is not a Slurm job"
"""Outside of a job a dry run shows the command of srun."""


def soften_for_dry_run(findings: Iterable[Finding], *, has_local_ranks: bool) -> list[Finding]:
    """The findings of a dry run, which is for machines without the training packages and the launcher's programs, too:
    what they lack is a warning. Where this machine could train its ranks, what a key of the spec needs stays an error.
    """
    softened = _INSTALLABLE
    if has_local_ranks and missing_packages_finding() is None:
        softened = _INSTALLABLE - _NAMED_BY_SPEC
    return [f._replace(severity="warning") if f.gate in softened or _NOT_A_JOB in f.message else f for f in findings]


def _check_port(run: ResolvedRun, local_host: LocalHost, node_rank: int | None) -> Iterator[Finding]:
    """The port of the rendezvous, where rank 0 is on this machine: a survey of hosts asks the first of them."""
    listens = is_local(run, local_host) if node_rank is None else node_rank == 0
    port = run.spec.launch.master_port or (None if node_rank is None else DEFAULT_PORT)
    if listens and port is not None and is_port_taken(port):
        message = f"port {port} of this machine is taken, and rank 0 has to listen there for all others"
        key = "launch.master_port"
        free = ", or leave it out: a launch here takes a free one" if node_rank is None else ""
        fix = Fix(f"end what listens there (`ss -ltnp`), or set `launch.master_port` to another port{free}")
        yield Finding("HO018", "error", message, key, fix=fix)


def find_other_obstacles(request: LaunchRequest, run: ResolvedRun, local_host: LocalHost) -> list[Finding]:
    """The packages and the folder of `--resume` that a rejected launch lacks, too: one pass tells all mistakes."""
    findings: list[Finding] = []
    if is_local(run, local_host):
        findings += find_missing_software(run.spec.model, run.spec.data, run.spec.telemetry, run.spec.launch.env)
    if request.dry_run:
        findings = soften_for_dry_run(findings, has_local_ranks=True)
    if request.resume not in ("never", "auto") and not is_store_url(request.resume):
        try:
            find_resume_folder(request.resume, local_host.cwd / run.spec.launch.output_dir)
        except UserError as error:
            findings += error.findings
    return findings


def _local_rank_count(run: ResolvedRun, local_host: LocalHost, node: int | None) -> int | None:
    """The number of ranks that this machine starts itself; None when a launcher starts them on other hosts."""
    if node is not None and run.cluster is not None:
        return run.cluster.hosts[node].slots
    return run.parallel_dims.world_size or 1 if is_local(run, local_host) else None


def _check_python_optimize(run: ResolvedRun, local_host: LocalHost) -> Iterator[Finding]:
    spec_value = run.spec.launch.env.get("PYTHONOPTIMIZE", "")
    if sys.flags.optimize or local_host.environ.get("PYTHONOPTIMIZE") or spec_value:
        place = (
            "`launch.env`"
            if spec_value
            else "the environment"
            if local_host.environ.get("PYTHONOPTIMIZE")
            else "`python -O`"
        )
        yield Finding(
            "EN001",
            "error",
            f"assertions are switched off by {place}",
            key="launch.env.PYTHONOPTIMIZE" if spec_value else "",
            notes=("DeepSpeed refuses wrong batch sizes by `assert`; without assertions it trains something else",),
            fix=Fix("unset PYTHONOPTIMIZE and start Python without -O"),
        )


def _check_installed(local_host: LocalHost) -> Iterator[Finding]:
    note = "training needs it; validating, planning and rendering do not"
    missing = missing_packages_finding(notes=(note,))
    if missing is not None:
        yield missing
    elif not (local_host.scripts / "train_worker.py").is_file():
        yield Finding(
            "EN003",
            "error",
            f"the launch scripts are not in {local_host.scripts}",
            fix=Fix("reinstall the project"),
        )


def _check_variable_names(run: ResolvedRun) -> Iterator[Finding]:
    for name, value in run.spec.launch.env.items():
        if not _VARIABLE_NAME.fullmatch(name) or "\0" in value:
            message = (
                f"`{name}` is not the name of an environment variable"
                if "\0" not in value
                else f"the value of `{name}` holds a NUL byte"
            )
            yield Finding(
                "EN006",
                "error",
                message,
                key=f"launch.env.{name}",
                fix=Fix("use letters, digits and underscores, and text without NUL"),
            )


def _check_quoting(run: ResolvedRun, backend: LauncherBackend) -> Iterator[Finding]:
    for name, value in run.spec.launch.env.items():
        match = _find_unquotable(value, backend)
        if match and backend.literal:
            yield Finding(
                "EN007",
                "error",
                f"the value of `{name}` would reach the ranks changed, because of {match[0]!r}",
                key=f"launch.env.{name}",
                notes=(f"for {backend.program} DeepSpeed puts it between quotes, which become part of the value",),
                fix=Fix("set it in the login environment of the hosts, or start the ranks by pdsh"),
            )
        elif match:
            yield Finding(
                "EN007",
                "error",
                f"the value of `{name}` would reach the other hosts changed, because of {match[0]!r}",
                key=f"launch.env.{name}",
                notes=(
                    "DeepSpeed puts it into a remote shell command between double quotes, and pdsh replaces `%` words",
                ),
                fix=Fix(
                    "set it in the login environment of the hosts, or avoid quotes, `$`, backticks, backslashes and `%`"
                ),
            )


def _find_unquotable(value: str, backend: LauncherBackend) -> re.Match[str] | None:
    """The first character that would be changed on the way."""
    return (_UNQUOTABLE_BY_BACKEND[backend.name] if backend.literal else _UNQUOTABLE).search(value)


def _check_forwarded_variables(run: ResolvedRun, local_host: LocalHost, backend: LauncherBackend) -> Iterator[Finding]:
    """Check the shell's own variables, which DeepSpeed puts into the same kind of remote command."""
    for variable in sorted(forwarded_variables(run.spec.launch, local_host), key=lambda v: v.name):
        if _find_unquotable(variable.value, backend) or not _VARIABLE_NAME.fullmatch(variable.name):
            yield Finding(
                "EN007",
                "error",
                f"`{variable.name[:60]}` of the environment would be changed on the way to other hosts, or run there "
                "as a command",
                notes=(
                    "DeepSpeed sends it along and puts its value into a remote shell command between double quotes",
                ),
                fix=Fix("unset it where the run is launched, or set it in `launch.env` without quotes, `$` and `%`"),
            )


def _check_paths(local_host: LocalHost, run_dir: Path) -> Iterator[Finding]:
    for label, path in (
        ("the current folder", local_host.cwd),
        ("the run directory", run_dir),
        ("the launch scripts' folder", local_host.scripts),
    ):
        if not _SAFE_PATH_TEXT.fullmatch(str(path)):
            yield Finding(
                "EN008",
                "error",
                f"{label} `{path}` has a character that a remote shell would interpret",
                notes=("DeepSpeed writes paths into the remote command without quoting them",),
                fix=Fix("use paths of letters, digits and `@+=:,./-_` when there is more than one host"),
            )


def _check_backend_program(run: ResolvedRun, backend: LauncherBackend) -> Iterator[Finding]:
    if find_program(backend.program) is None:
        hosts = len(run.cluster.hosts) if run.cluster else 0
        others = "a host that is not this machine" if hosts == 1 else f"{hosts} hosts"
        over = "pdsh over ssh" if backend is PDSH else backend.program
        yield Finding(
            "EN009",
            "error",
            f"`{backend.program}` is not on PATH and the hostfile names {others}",
            notes=(f"DeepSpeed starts ranks on other hosts through {over}",),
            fix=Fix(
                f"install {backend.package} (apt install {backend.package}), or use a hostfile of this machine alone; "
                "without any such program start each host by `harness launch --no-ssh`"
            ),
        )


def _check_rank_placement(run: ResolvedRun, local_host: LocalHost, backend: LauncherBackend) -> Iterator[Finding]:
    """mpirun and srun count: they take a host's first slots, and srun the same number on each."""
    hosts = run.cluster.hosts if run.cluster else ()
    why = ""
    if backend.literal and any(host.devices not in (None, tuple(range(host.slots))) for host in hosts):
        why = "it takes the first devices of a host, but other devices are selected"
    elif backend.name == "slurm" and len({host.slots for host in hosts}) > 1:
        why = "it starts as many ranks on each host, and the hosts have different numbers of slots"
    elif backend.name == "slurm" and "SLURM_JOB_ID" not in local_host.environ:
        why = f"{_NOT_A_JOB}, so srun would request other hosts and wait for them"
    if why:
        yield Finding(
            "EN012",
            "error",
            f"`{backend.program}` cannot start these ranks: {why}",
            key="launch.launcher",
            fix=Fix("start them by pdsh (`launch.launcher: pdsh`)"),
        )


def _check_own_disks(run: ResolvedRun, local_host: LocalHost, node_rank: int | None) -> Iterator[Finding]:
    """Hosts without a shared disk need ssh, pdsh, and this machine as the first host, whose disk has the run."""
    if run.spec.launch.shared_disk or run.cluster is None:
        return
    problem = ""
    if node_rank is not None:
        problem = "with `--no-ssh` no host can send the run directory to the others"
    elif run.spec.launch.launcher != "pdsh":
        problem = f"`launch.launcher: {run.spec.launch.launcher}` was not tested without a shared disk"
    elif run.cluster.hosts[0].name not in local_host.local_names:
        problem = (
            f"this machine is not the first host, {run.cluster.hosts[0].name}, whose disk has metrics and manifests"
        )
    if problem:
        fix = Fix("launch on the first host with pdsh, or put `launch.output_dir` on a shared disk")
        yield Finding("EN057", "error", f"`launch.shared_disk` is false: {problem}", key="launch.shared_disk", fix=fix)


def _check_no_ssh(run: ResolvedRun) -> Iterator[Finding]:
    if run.spec.launch.max_restarts:
        yield Finding(
            "EN012",
            "error",
            "`launch.max_restarts` does not work with `--no-ssh`",
            key="launch.max_restarts",
            notes=("no host can restart the ranks of another",),
            fix=Fix("let the scheduler restart all hosts, with `--resume auto` on the first"),
        )


def refuse_deepspeed_json(file: str) -> Finding:
    """The error of a command that needs a run spec and got a DeepSpeed JSON."""
    fix = Fix(f"`harness adopt {shlex.quote(file)} -o spec.yaml` makes a run spec of it")
    return Finding("SP020", "error", f"`{file}` is a DeepSpeed JSON, which has no model and no data", fix=fix)


def log_environment_notes(local_host: LocalHost, on_note: Callable[[str], None], *, reaches_hosts: bool) -> None:
    """Files of variables that DeepSpeed does not read, and devices that the ranks do not use."""
    if reaches_hosts:
        for file in ignored_env_files(local_host.cwd):
            on_note(f"note: {file} is ignored: its variables do not reach the hosts; put them into `launch.env`")
    elif local_host.device_names and not local_host.accelerated:
        devices = format_device_names(local_host.device_names)
        on_note(f"note: DS_ACCELERATOR=cpu: the ranks run on the CPU, not on {devices}")
    elif not local_host.device_names and (others := " and ".join(find_other_devices())):
        on_note(f"note: the ranks run on the CPU, not on {others}: the harness starts ranks on no such device")


def check_locked_memory(zero: ZeroSpec, env: Mapping[str, str], local_ranks: int | None) -> Iterator[Finding]:
    """A finding where a limit would end this machine's own ranks. `env`: `launch.env`."""
    limit = machine.memlock_limit()
    if local_ranks is None or limit is None or not pins_natively(zero, env) or not _pins(zero):
        return
    yield Finding(
        "EN024",
        "error",
        f"a process here may lock {format_bytes(limit)} of memory, and `native` locks all pinned buffers",
        key="zero.pin_memory_backend",
        notes=("DeepSpeed aborts where `mlock` fails: `Assertion 'nullptr != pinned_buffer' failed`, no Python error",),
        fix=Fix("raise the limit (`ulimit -l unlimited`, `--ulimit memlock=-1` of Docker), or set it to `torch`"),
    )


def _pins(zero: ZeroSpec) -> bool:
    offloads = (zero.offload_optimizer, zero.offload_param)
    return any(each is not None and each.device != "none" and each.pin_memory for each in offloads)
