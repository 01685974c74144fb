# SPDX-License-Identifier: Apache-2.0
"""Everything a launch does, as one value: files of the run directory, environment of every host, the exact command of
DeepSpeed's launcher and the worker, and `launch.sh`.

Arithmetic on plain values: it reads no file, contacts no host and starts nothing. `run_dir` writes the plan,
`harness.launching.supervise.launch_runner` runs it.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from harness.facts.environment_variables import is_secret
from harness.facts.required_ops import required_ops
from harness.hostinfo.host_survey import Survey
from harness.launching.hosts.local_host import DEFAULT_PORT, LocalHost, visible_devices
from harness.launching.setup import environment
from harness.launching.setup.backends import BACKENDS, backend_args, backend_env
from harness.launching.setup.code_trust import AllowedCode
from harness.launching.setup.core_binding import core_binding_args
from harness.launching.setup.environment import (
    ALLOWED_CODE_VARIABLE,
    EXACT_FILES,
    SECRETS_FILE,
    Variable,
    find_secrets,
    hide_secrets,
    own_variables,
    redacted_value,
    render_secrets,
)
from harness.patches.patch_registry import is_planned
from harness.plan.settings.patch_facts import patch_facts
from harness.run.resolved_run import ResolvedRun
from harness.secret_text import hide_passwords
from harness.spec.hostfile import Host
from harness.spec.pinned_memory import pins_natively
from harness.training_lineage import TrainingPart

FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class HostPlan:
    """One machine, its global ranks, and the variables that they get beyond the shell's own."""

    name: str
    ranks: Sequence[int]
    variables: tuple[Variable, ...]
    is_local: bool = False
    """True for the machine that launches."""


@dataclass(frozen=True, slots=True)
class RunTarget:
    """The run directory, its documents by name, and the complete checkpoint that the run resumes from."""

    run_dir: Path
    documents: Mapping[str, str]
    resume: Path | None = None
    allowed_changes: tuple[str, ...] = ()
    """Keys of the spec that may differ from the checkpoint's (`--allow-change`)."""
    allowed_code: AllowedCode = field(default_factory=AllowedCode)
    """The code that `--allow-local-code` allowed."""
    node_rank: int | None = None
    """The index of this host, in a job whose hosts start their own ranks: the plan is of that host alone."""
    training: TrainingPart | None = None
    """Its place among the runs of one training. None: a training of its own."""


@dataclass(frozen=True, slots=True)
class Network:
    """Facts of the survey about the hosts and their network; None: unknown, or different between hosts."""

    interface: str | None = None
    master_address: str | None = None
    accelerated: bool | None = None

    @classmethod
    def from_survey(cls, survey: Survey) -> Network:
        """The facts of a survey that a plan depends on."""
        return cls(survey.shared_interface, survey.master_address, survey.has_accelerators)


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """Everything that a launch will do."""

    name: str
    run_dir: Path
    cwd: Path
    argv: tuple[str, ...]
    hosts: tuple[HostPlan, ...]
    local: bool
    port: int
    ops: tuple[str, ...]
    documents: Mapping[str, str]
    resume: Path | None = None
    training: TrainingPart | None = None
    has_local_ranks: bool = True
    """True if the machine that launches has ranks."""
    attempt: int = 1
    node_rank: int | None = None
    """The index of this host, where each host starts its own ranks (`--no-ssh`)."""
    accelerated: bool | None = None
    """True if ranks have accelerators; None where the hosts were not surveyed."""
    allowed_code: tuple[str, ...] = ()
    """The code that `--allow-local-code` allowed, a sentence for each."""
    shared_disk: bool = True
    """False: each host has only its own disk."""

    def for_attempt(self, attempt: int, resume: Path | None, port: int) -> LaunchPlan:
        """The plan of attempt number `attempt` in the same run directory; it resumes from `resume`."""
        argv = with_attempt(self.argv, attempt, resume, port)
        return replace(self, argv=argv, resume=resume, port=port, attempt=attempt)

    @property
    def starts_remote_ranks(self) -> bool:
        """True if this launch starts and monitors ranks on other hosts."""
        return not self.local and self.node_rank is None

    @property
    def is_leader(self) -> bool:
        """True if this launch owns the run directory: it makes it, holds its lock, exports and reports."""
        return self.node_rank in (None, 0)

    @property
    def local_ranks(self) -> tuple[int, ...]:
        """The ranks that this launch itself starts as processes of this machine."""
        hosts = (
            self.hosts
            if self.local
            else self.hosts[self.node_rank : self.node_rank + 1]
            if self.node_rank is not None
            else ()
        )
        return tuple(rank for host in hosts for rank in host.ranks)

    @property
    def world_size(self) -> int:
        """Ranks on all hosts."""
        return sum(len(host.ranks) for host in self.hosts)

    @property
    def variables(self) -> tuple[Variable, ...]:
        """The variables of every host; hosts differ in their ranks alone."""
        return self.hosts[0].variables

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """The launcher's own environment on this machine: `base` with the plan's variables on top."""
        return environment.launcher_environment(base, self.variables, self._env_file)

    def files(self) -> dict[str, str]:
        """Name and content of each file that the run directory starts with."""
        secrets = find_secrets(self.variables)
        texts = {
            **self.documents,
            "deepspeed.env": environment.env_file_text(self.variables),
            "launch.json": json.dumps(self.to_json(), indent=2) + "\n",
            "launch.sh": self.script(),
        }
        texts = {
            n: text if n in EXACT_FILES else hide_passwords(hide_secrets(text, secrets)) for n, text in texts.items()
        }
        return texts | ({SECRETS_FILE: render_secrets(secrets)} if self._has_secrets_file else {})

    @property
    def file_names(self) -> tuple[str, ...]:
        """The names of `files`, in another order."""
        own_files = ("deepspeed.env", "launch.json", "launch.sh", *([SECRETS_FILE] if self._has_secrets_file else []))
        return (*self.documents, *own_files)

    def to_json(self) -> dict[str, Any]:
        """The content of `launch.json`, and of `harness launch --dry-run --format json`."""
        return {
            "format_version": FORMAT_VERSION,
            "name": self.name,
            "run_dir": str(self.run_dir),
            "folder": str(self.cwd),
            "argv": list(self.argv),
            "world": self.world_size,
            "local": self.local,
            "node": self.node_rank,
            "port": self.port,
            "ops": list(self.ops),
            "trains_here": self.has_local_ranks,
            "accelerated": self.accelerated,
            "resume": str(self.resume) if self.resume else None,
            **asdict(self.training or TrainingPart(self.run_dir.name)),
            "allowed_code": list(self.allowed_code),
            "hosts": [{"name": h.name, "ranks": list(h.ranks)} for h in self.hosts],
            "environment": [{"name": v.name, "value": redacted_value(v), "origin": v.origin} for v in self.variables],
            "files": list(self.file_names),
        }

    def script(self) -> str:
        """The content of `launch.sh`: the same command for a shell, without supervision."""
        return launch_script(self.argv, self.cwd, self.variables, self._env_file)

    @property
    def _has_secrets_file(self) -> bool:
        return self.starts_remote_ranks and bool(find_secrets(self.variables))

    @property
    def _env_file(self) -> Path | None:
        """The variables that DeepSpeed sends to other hosts, where the launcher starts ranks there."""
        return self.run_dir / "deepspeed.env" if self.starts_remote_ranks else None


def build_launch_plan(
    run: ResolvedRun,
    config: Mapping[str, Any],
    local_host: LocalHost,
    target: RunTarget,
    network: Network | None = None,
    program: Sequence[str] | None = None,
) -> LaunchPlan:
    """The plan of one launch. `run` must have a known world size; `config` is the rendered DeepSpeed JSON.

    `network`: the result of preflight; DeepSpeed then gets `--no_ssh_check` and `--master_addr`. `program`: the command
    of every rank instead of training.
    """
    network, node_rank = network or Network(), target.node_rank
    hosts = _hosts_and_slots(run, local_host)
    local = node_rank is None and is_local(run, local_host)
    port = run.spec.launch.master_port or (local_host.port if local else DEFAULT_PORT)
    host_plans = _build_host_plans(run, local_host, target, network)
    is_of_this_machine = node_rank is not None or is_local(run, local_host)
    accelerated = local_host.accelerated if is_of_this_machine else network.accelerated
    launcher_args = []
    if local:
        launcher_args = local_args(hosts[0][1], local_host)
    elif node_rank is not None:
        launcher_args = hostfile_args(run.cluster.hosts if run.cluster else (), target.run_dir)
        launcher_args += node_args(node_rank, network.master_address or hosts[0][0])
    else:
        backend = BACKENDS[run.spec.launch.launcher]
        launcher_args = hostfile_args(run.cluster.hosts if run.cluster else (), target.run_dir)
        launcher_args += ["--force_multi"] if len(hosts) == 1 else []
        if network.master_address:
            launcher_args += ["--no_ssh_check", "--master_addr", network.master_address]
        launcher_args += backend_args(backend, hosts, network.interface)
        entries = backend_env(backend, network.master_address or hosts[0][0], port, is_root=local_host.is_root)
        extra = tuple(Variable(*entry) for entry in entries)
        host_plans = [replace(host, variables=(*host.variables, *extra)) for host in host_plans]
    argv = [*local_host.deepspeed, *launcher_args, *core_binding_args(run.spec.launch), "--master_port", str(port)]
    runs_script = run.spec.plugins.script is not None
    arguments = worker_args(target.run_dir, target.resume, target.allowed_changes, runs_script=runs_script)
    argv += program or (str(local_host.scripts / "train_worker.py"), *arguments)
    return LaunchPlan(
        name=run.name,
        run_dir=target.run_dir,
        cwd=local_host.cwd,
        argv=tuple(argv),
        hosts=tuple(host_plans),
        local=local,
        port=port,
        ops=ops_of_run(run, config, accelerated=local_host.accelerated if accelerated is None else accelerated),
        documents=target.documents,
        resume=target.resume,
        training=target.training,
        has_local_ranks=any(host.is_local for host in host_plans),
        node_rank=node_rank,
        accelerated=accelerated,
        allowed_code=target.allowed_code.sentences,
        shared_disk=run.spec.launch.shared_disk,
    )


def ops_of_run(run: ResolvedRun, config: Mapping[str, Any], *, accelerated: bool) -> tuple[str, ...]:
    """The compiled ops that the ranks of a run load."""
    return required_ops(
        config,
        accelerated=accelerated,
        pins_natively=pins_natively(run.spec.zero, run.spec.launch.env),
        steps_in_one_pass=is_planned("one-pass-adam", patch_facts(run), run.spec.launch.patches),
    )


def is_local(run: ResolvedRun, local_host: LocalHost) -> bool:
    """Whether all ranks run on this machine, so that no ssh is needed."""
    return run.cluster is None or (len(run.cluster.hosts) == 1 and run.cluster.hosts[0].name in local_host.local_names)


def _build_host_plans(run: ResolvedRun, local_host: LocalHost, target: RunTarget, network: Network) -> list[HostPlan]:
    """The hosts with their ranks, in the order in which ranks are numbered, and the variables of all."""
    hosts, node_rank = _hosts_and_slots(run, local_host), target.node_rank
    local = node_rank is None and is_local(run, local_host)
    local_slots = hosts[node_rank or 0][1] if local or node_rank is not None else None
    variables = environment.build_variables(
        run.spec.launch, run.spec.telemetry, run.spec.zero, local_host, target.run_dir, local_slots
    )
    if target.allowed_code.plugin_sha256 is not None:
        variables += (Variable(ALLOWED_CODE_VARIABLE, target.allowed_code.plugin_sha256, "--allow-local-code"),)
    if network.interface:
        variables += environment.interface_variables(run.spec.launch.env, network.interface)
    host_plans: list[HostPlan] = []
    ranks_before = 0
    for index, (name, slots) in enumerate(hosts):
        is_this_host = local or (name in local_host.local_names if node_rank is None else index == node_rank)
        host_plans.append(HostPlan(name, range(ranks_before, ranks_before + slots), variables, is_this_host))
        ranks_before += slots
    return host_plans


def _hosts_and_slots(run: ResolvedRun, local_host: LocalHost) -> list[tuple[str, int]]:
    if run.cluster is not None:
        return [(h.name, h.slots) for h in run.cluster.hosts]
    return [(local_host.hostname, run.parallel_dims.world_size or 1)]


def local_args(slots: int, local_host: LocalHost) -> list[str]:
    """Options that keep DeepSpeed on this machine.

    `--num_gpus` counts from device 0 and drops CUDA_VISIBLE_DEVICES, so a choice made there is passed as `--include`.
    DeepSpeed would read a hostfile at its default place; naming a file that is no regular one prevents that.
    """
    devices = visible_devices(local_host.environ) if local_host.accelerated else []
    options = ["--include", "localhost:" + ",".join(devices[:slots])] if devices else ["--num_gpus", str(slots)]
    return [*(["--hostfile", "/dev/null"] if local_host.has_default_hostfile else []), *options]


def hostfile_args(hosts: Sequence[Host], run_dir: Path) -> list[str]:
    """The hosts of the run: `--hostfile`, and `--include` where a host's ranks do not take its first devices."""
    args = ["--hostfile", str(run_dir / "hostfile")]
    if all(host.devices is None for host in hosts):
        return args
    return [*args, "--include", "@".join(f"{h.name}:{','.join(map(str, h.device_ids))}" for h in hosts)]


def node_args(node_rank: int, master: str) -> list[str]:
    """Options of a launcher that starts the ranks of its own host alone (`--no-ssh`)."""
    return ["--no_ssh", "--node_rank", str(node_rank), "--master_addr", master]


def worker_args(
    run_dir: Path, resume: Path | None, allowed_changes: Sequence[str], *, runs_script: bool = False
) -> list[str]:
    """The arguments of `train_worker.py`."""
    args = ["--run", str(run_dir), *(["--script"] if runs_script else [])]
    args += ["--resume", str(resume)] if resume else []
    return args + [word for key in allowed_changes for word in ("--allow-change", key)]


def with_attempt(argv: Sequence[str], attempt: int, resume: Path | None, port: int) -> tuple[str, ...]:
    """The command of another attempt, which resumes from `resume`."""
    args = list(argv)
    for option in ("--resume", "--attempt"):
        if option in args:
            del args[args.index(option) : args.index(option) + 2]
    if "--master_port" in args:
        args[args.index("--master_port") + 1] = str(port)
    return (*args, "--attempt", str(attempt), *(["--resume", str(resume)] if resume else []))


def launch_script(argv: Sequence[str], cwd: Path, variables: Sequence[Variable], env_file: Path | None) -> str:
    """The content of `launch.sh`: the same command for a shell, without supervision."""
    exports = [_export_line(v) for v in own_variables(variables) if v.name != "HARNESS_SUPERVISOR"]
    if env_file is not None:
        exports.append(f"export DS_ENV_FILE={shlex.quote(str(env_file))}")
    head = ["#!/bin/sh", "# The command that `harness launch` ran. Run by hand, it has no supervisor."]
    return "\n".join([*head, f"cd {shlex.quote(str(cwd))} || exit 2", *exports, f"exec {shlex.join(argv)}"]) + "\n"


def _export_line(variable: Variable) -> str:
    if is_secret(variable.name, variable.value):
        return f': "${{{variable.name}:?a secret of the launch, which this script does not have: export it first}}"'
    return f"export {variable.name}={_quote_for_shell(variable.value)}"


def _quote_for_shell(value: str) -> str:
    """Quote a value for a shell; `:$PATH` at the end still refers to the shell's own PATH."""
    head = value.removesuffix(":$PATH")
    return shlex.quote(value) if head == value else f'{shlex.quote(head)}:"$PATH"'
