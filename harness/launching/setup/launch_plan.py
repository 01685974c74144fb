"""What a launch will do, as one value: files of the run directory, environment of every host, the exact command.

Arithmetic on plain values. It reads no file, asks no host and starts nothing; `rundir` writes it and `execute` runs it.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.facts.required_ops import required_ops
from harness.interpreter import SAFE_PATH
from harness.launching.hosts.local_host import LocalHost
from harness.launching.setup import core_binding
from harness.launching.setup.backends import BACKENDS, LauncherBackend, backend_args, backend_env
from harness.launching.setup.debug_env import distributed_debug_env
from harness.launching.setup.plugin_trust import ALLOWED_CODE_VARIABLE
from harness.plan.resolved_run import ResolvedRun
from harness.spec.hostfile import Cluster

FORMAT_VERSION = 1
DEFAULT_PORT = 29500
"""DeepSpeed's own, used with several hosts, where no one can know which port is free on the first of them."""
FORWARDED_BY_DEEPSPEED = ("MLFLOW", "PYTHON", "MV2", "UCX")
"""Prefixes of the variables that DeepSpeed sends to every host (`launcher/runner.py`, EXPORT_ENVS); CUDA adds NCCL."""
FORWARDED_BY_HARNESS = (
    "DS_ACCELERATOR",
    "TORCH_EXTENSIONS_DIR",
    "HARNESS_NO_PATCH",
    "OMP_NUM_THREADS",
    "HF_HOME",
    "HF_HUB_CACHE",
    "HF_HUB_OFFLINE",
    "HF_ENDPOINT",
)
"""Settings of the shell that ranks here would obey, and so ranks on other hosts have to. No secrets among them."""
RESERVED_VARIABLES = ("PATH", "HARNESS_RUN_DIR", "HARNESS_SUPERVISOR", "HARNESS_LEADER")
"""Variables of the plan's own; `launch.env` can say what PATH is, and nothing of the others (gate SE002)."""
SSH_OPTIONS = "-o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=5 -o ServerAliveCountMax=4"
"""For pdsh: no questions, and a connection to a host that was cut off ends by itself."""


@dataclass(frozen=True, slots=True)
class Variable:
    """One environment variable of the ranks and where its value comes from."""

    name: str
    value: str
    origin: str


@dataclass(frozen=True, slots=True)
class HostPlan:
    """One machine, the global ranks on it and the variables that they get beyond the shell's own."""

    name: str
    ranks: tuple[int, ...]
    variables: tuple[Variable, ...]
    is_local: bool = False
    """Whether it is the machine that launches."""


@dataclass(frozen=True, slots=True)
class RunTarget:
    """Where a run is to be: its directory, the documents in it by name, and a complete checkpoint to go on from."""

    run_dir: Path
    documents: Mapping[str, str]
    resume: Path | None = None
    allowed_changes: tuple[str, ...] = ()
    """Keys of the spec that may differ from the checkpoint's (`--allow-change`)."""
    code_sha256: str | None = None
    """The sha256 of the plug-in's file (`--allow-local-code`)."""


@dataclass(frozen=True, slots=True)
class Network:
    """What preflight found out about the hosts and the way between them; None: not known, or not one thing."""

    interface: str | None = None
    master_address: str | None = None
    accelerated: bool | None = None


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """Everything a launch does, before any of it is done."""

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
    has_local_ranks: bool = True
    """Whether the machine that launches is also one that has ranks."""
    attempt: int = 1
    node_rank: int | None = None
    """Which of the hosts this is, where none is reached from another: each starts its own ranks (`--no-ssh`)."""
    accelerated: bool | None = None
    """Whether ranks have accelerators, as far as devices were counted; None where nobody asked the hosts."""

    def for_attempt(self, attempt: int, resume: Path | None, port: int) -> LaunchPlan:
        """The same run in the same run directory, started for the `attempt`-th time, going on from `resume`."""
        argv = list(self.argv)
        for option in ("--resume", "--attempt"):
            if option in argv:
                del argv[argv.index(option) : argv.index(option) + 2]
        if "--master_port" in argv:
            argv[argv.index("--master_port") + 1] = str(port)
        argv += ["--attempt", str(attempt), *(["--resume", str(resume)] if resume else [])]
        return replace(self, argv=tuple(argv), resume=resume, port=port, attempt=attempt)

    @property
    def starts_remote_ranks(self) -> bool:
        """Whether ranks on other hosts are started and watched over from here."""
        return not self.local and self.node_rank is None

    @property
    def is_leader(self) -> bool:
        """Whether this launch keeps the run's books: makes its directory, holds it, exports and reports."""
        return self.node_rank in (None, 0)

    @property
    def local_ranks(self) -> tuple[int, ...]:
        """The ranks that are processes of this machine, so far as this launch starts them here itself."""
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
        """What every host gets; hosts differ in their ranks alone."""
        return self.hosts[0].variables

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """The launcher's own environment on this machine: `base` with the plan's variables on top.

        With several hosts DeepSpeed sends the variables of the file that DS_ENV_FILE names, and none of the others.
        """
        merged = dict(base) | {v.name: v.value for v in self.variables}
        merged["PATH"] = merged["PATH"].replace("$PATH", base.get("PATH", os.defpath))
        if not self.starts_remote_ranks:
            return merged
        ssh = f"{base.get('PDSH_SSH_ARGS_APPEND', '')} {SSH_OPTIONS}".strip()
        return merged | {"DS_ENV_FILE": str(self.run_dir / "deepspeed.env"), "PDSH_SSH_ARGS_APPEND": ssh}

    def files(self) -> dict[str, str]:
        """Name and content of each file that the run directory starts with."""
        env = "".join(f"{v.name}={v.value}\n" for v in self.variables if v.origin != "forwarded by DeepSpeed")
        return {
            **self.documents,
            "deepspeed.env": env,
            "launch.json": json.dumps(self.to_json(), indent=2) + "\n",
            "launch.sh": self.script(),
        }

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
            "hosts": [{"name": h.name, "ranks": list(h.ranks)} for h in self.hosts],
            "environment": [{"name": v.name, "value": redacted_value(v), "origin": v.origin} for v in self.variables],
            "files": [*self.documents, "deepspeed.env", "launch.json", "launch.sh"],
        }

    def script(self) -> str:
        """The content of `launch.sh`: the same command for a shell, without supervision."""
        own = [v for v in self.variables if v.name != "HARNESS_SUPERVISOR" and v.origin != "forwarded by DeepSpeed"]
        exports = [f"export {v.name}={_quote_for_shell(v.value)}" for v in own]
        if self.starts_remote_ranks:
            exports.append(f"export DS_ENV_FILE={shlex.quote(str(self.run_dir / 'deepspeed.env'))}")
        head = ["#!/bin/sh", "# The command that `harness launch` ran. Run by hand, nobody watches over the ranks."]
        return (
            "\n".join([*head, f"cd {shlex.quote(str(self.cwd))} || exit 2", *exports, f"exec {shlex.join(self.argv)}"])
            + "\n"
        )


def _quote_for_shell(value: str) -> str:
    """For a shell; `:$PATH` at the end stays a reference to the shell's own."""
    head = value.removesuffix(":$PATH")
    return shlex.quote(value) if head == value else f'{shlex.quote(head)}:"$PATH"'


def redacted_value(variable: Variable) -> str:
    """A variable's value for people and files: what looks like a secret and does not stand in the spec is withheld."""
    secret = any(word in variable.name.upper() for word in ("TOKEN", "SECRET", "PASSWORD", "API_KEY", "CREDENTIAL"))
    return "(withheld)" if secret and variable.origin != "launch.env" else variable.value


def build_launch_plan(
    run: ResolvedRun,
    config: Mapping[str, Any],
    here: LocalHost,
    target: RunTarget,
    network: Network | None = None,
    node_rank: int | None = None,
    program: Sequence[str] | None = None,
) -> LaunchPlan:
    """The plan of one launch. `run` must have a known world; `config` is the rendered DeepSpeed JSON. With `network`
    every host was asked already, and DeepSpeed need not ask the first one again. With `node` it is the plan of that
    host alone, in a job whose hosts start their own ranks. `program`: what every rank runs instead of training.
    """
    run_dir, resume = target.run_dir, target.resume
    hosts = _hosts_and_slots(run, here)
    local = node_rank is None and is_local(run, here)
    port = run.spec.launch.master_port or (here.port if local else DEFAULT_PORT)
    variables = _environment_variables(
        run, here, run_dir, None if node_rank is None and not local else hosts[node_rank or 0][1]
    )
    if target.code_sha256 is not None:
        variables += (Variable(ALLOWED_CODE_VARIABLE, target.code_sha256, "--allow-local-code"),)
    if network is not None and network.interface:
        variables += _interface_variables(run, network.interface)
    ranks_before = 0
    plans: list[HostPlan] = []
    for name, slots in hosts:
        ranks = tuple(range(ranks_before, ranks_before + slots))
        is_here = local or (name in here.local_names if node_rank is None else len(plans) == node_rank)
        plans.append(HostPlan(name, ranks, variables, is_here))
        ranks_before += slots
    tail = ["--run", str(run_dir), *(["--resume", str(resume)] if resume else [])]
    tail += [word for key in target.allowed_changes for word in ("--allow-change", key)]
    master = network.master_address if network is not None else None
    starter = _backend_of(run)
    if local:
        where = _local_args(hosts[0][1], here)
    elif node_rank is not None:
        where = [
            "--hostfile",
            str(run_dir / "hostfile"),
            *_include_args(run),
            "--no_ssh",
            "--node_rank",
            str(node_rank),
        ]
        where += ["--master_addr", master or hosts[0][0]]
    else:
        where = ["--hostfile", str(run_dir / "hostfile"), *_include_args(run)]
        where += ["--force_multi"] if len(hosts) == 1 else []
        where += ["--no_ssh_check", "--master_addr", master] if master else []
        where += backend_args(starter, hosts, network.interface if network is not None else None)
        extra = backend_env(starter, master or hosts[0][0], port, is_root=here.is_root)
        plans = [replace(host, variables=(*host.variables, *(Variable(*one) for one in extra))) for host in plans]
    where += core_binding.core_binding_args(run)
    worker = program or (str(here.scripts / "train_worker.py"), *tail)
    argv = [*here.deepspeed, *where, "--master_port", str(port), *worker]
    return LaunchPlan(
        name=run.name,
        run_dir=run_dir,
        cwd=here.cwd,
        argv=tuple(argv),
        hosts=tuple(plans),
        local=local,
        port=port,
        ops=required_ops(config, accelerated=here.accelerated),
        documents=target.documents,
        resume=resume,
        has_local_ranks=any(host.is_local for host in plans),
        node_rank=node_rank,
        accelerated=here.accelerated if local or node_rank is not None else network.accelerated if network else None,
    )


def _backend_of(run: ResolvedRun) -> LauncherBackend:
    return BACKENDS[run.spec.launch.launcher]


def _include_args(run: ResolvedRun) -> list[str]:
    """`--include` where a host's ranks do not take its first devices."""
    hosts = run.cluster.hosts if run.cluster else ()
    if all(host.devices is None for host in hosts):
        return []
    return ["--include", "@".join(f"{h.name}:{','.join(map(str, h.device_ids))}" for h in hosts)]


def hostfile_text(cluster: Cluster) -> str:
    """The hostfile that DeepSpeed reads: as many slots as the last device that is used asks for."""
    return "".join(f"{h.name} slots={max(h.device_ids) + 1}\n" for h in cluster.hosts)


def _interface_variables(run: ResolvedRun, name: str) -> tuple[Variable, ...]:
    """The interface that all hosts share, for the libraries that would guess."""
    origin = "preflight, the one network that all hosts share"
    wanted = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
    return tuple(Variable(variable, name, origin) for variable in wanted if variable not in run.spec.launch.env)


def is_local(run: ResolvedRun, here: LocalHost) -> bool:
    """Whether all ranks run on this machine, so that no ssh is needed."""
    return run.cluster is None or (len(run.cluster.hosts) == 1 and run.cluster.hosts[0].name in here.local_names)


def _hosts_and_slots(run: ResolvedRun, here: LocalHost) -> list[tuple[str, int]]:
    if run.cluster is not None:
        return [(h.name, h.slots) for h in run.cluster.hosts]
    return [(here.hostname, run.parallel_dims.world_size or 1)]


def _local_args(slots: int, here: LocalHost) -> list[str]:
    """Options that keep DeepSpeed on this machine.

    `--num_gpus` counts from device 0 and drops CUDA_VISIBLE_DEVICES, so a choice made there is passed as `--include`.
    A hostfile at DeepSpeed's default place would be obeyed unasked; naming what is no regular file turns that off.
    """
    visible = [device for device in here.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if device.strip()]
    chosen = here.accelerated and visible
    options = ["--include", "localhost:" + ",".join(visible[:slots])] if chosen else ["--num_gpus", str(slots)]
    return [*(["--hostfile", "/dev/null"] if here.has_default_hostfile else []), *options]


def _environment_variables(run: ResolvedRun, here: LocalHost, run_dir: Path, slots: int | None) -> tuple[Variable, ...]:
    """`slots`: the ranks of this machine, where it starts them itself; None: they are started on other hosts."""
    asked = run.spec.launch.env
    rest = here.environ.get("PATH", os.defpath) if slots is None and _backend_of(run).literal else "$PATH"
    path = asked.get("PATH", f"{Path(here.python).parent}:{rest}")
    rows = [
        Variable("HARNESS_RUN_DIR", str(run_dir), "harness, to find its processes"),
        Variable("PATH", path, "harness, this Python's own ninja first"),
        Variable("HARNESS_SUPERVISOR", here.supervisor_id, "harness, ranks end when it is gone"),
    ]
    if SAFE_PATH not in asked:  # DeepSpeed starts its launcher on each host with `-m`, in the current folder
        rows.append(Variable(SAFE_PATH, "1", "harness, no module of the current folder is imported"))
    bound = run.spec.launch.bind_cores_to_rank  # then DeepSpeed says how many threads a rank has
    if slots is not None and not bound and "OMP_NUM_THREADS" not in asked and "OMP_NUM_THREADS" not in here.environ:
        why = f"harness, {here.cores} cores / {slots} ranks"
        rows.append(Variable("OMP_NUM_THREADS", str(max(1, here.cores // slots)), why))
    wanted = distributed_debug_env(run.spec.telemetry, run_dir)
    rows += [Variable(n, v, "telemetry.debug_distributed") for n, v in wanted.items() if n not in asked]
    rows += [Variable(name, value, "launch.env") for name, value in asked.items() if name not in RESERVED_VARIABLES]
    lean = (
        []
        if here.mlflow_stub_dir is None or "PYTHONPATH" in asked
        else [str(here.mlflow_stub_dir), here.environ.get("PYTHONPATH", "")]
    )
    if lean:
        told = "harness, mlflow is kept from DeepSpeed's autotuner"
        rows.append(Variable("PYTHONPATH", os.pathsep.join(filter(None, lean)), told))
    if slots is None:
        prefixes = (*FORWARDED_BY_DEEPSPEED, "NCCL") if here.accelerated else FORWARDED_BY_DEEPSPEED
        ours = {*asked, SAFE_PATH}
        sent = [(k, v) for k, v in sorted(here.environ.items()) if k.startswith(prefixes) and k not in ours]
        rows += [Variable(n, v, "forwarded by DeepSpeed") for n, v in sent if not (lean and n == "PYTHONPATH")]
        rows += [
            Variable(n, here.environ[n], "this shell")
            for n in FORWARDED_BY_HARNESS
            if here.environ.get(n) and n not in asked
        ]
    return tuple(rows)
