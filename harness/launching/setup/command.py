# SPDX-License-Identifier: Apache-2.0
"""The command of a launch: the arguments of DeepSpeed's launcher and of the worker, and `launch.sh`. Starts nothing."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from harness.facts.secret_names import is_secret
from harness.launching.hosts.local_host import LocalHost, visible_devices
from harness.launching.setup.environment import Variable, own_variables
from harness.spec.hostfile import Host


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
