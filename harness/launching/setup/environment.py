# SPDX-License-Identifier: Apache-2.0
"""Environment variables of the ranks: the harness's own, those of `launch.env`, and forwarded ones of this shell.

Plain values, except for the search for files that DeepSpeed does not read.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.facts.environment_variables import is_secret
from harness.interpreter import SAFE_PATH
from harness.launching.hosts.local_host import LocalHost
from harness.launching.setup.backends import BACKENDS
from harness.patches.patch_registry import PatchFacts, find_patch, select_patch
from harness.planted_files import TRUSTED_ACCOUNTS
from harness.secret_text import HIDDEN
from harness.spec.pinned_memory import BACKEND_VARIABLE
from harness.spec.sections.launch_spec import LaunchSpec
from harness.spec.sections.telemetry_spec import TelemetrySpec
from harness.spec.sections.zero_spec import ZeroSpec

ALLOWED_CODE_VARIABLE = "HARNESS_ALLOWED_CODE"
"""The variable with the sha256 of the one file that the ranks may run."""
LEADER_VARIABLE = "HARNESS_LEADER"
"""With per-node launches: the first host's supervisor, which holds the run directory."""
PROCESS_VARIABLES = ("HARNESS_SUPERVISOR", LEADER_VARIABLE)
"""Variables that name a process of one launch: of no use to a reader."""
RESERVED_VARIABLES = ("PATH", "HARNESS_RUN_DIR", *PROCESS_VARIABLES)
"""The plan's own variables; of these `launch.env` can set PATH alone (gate SE002)."""
SSH_OPTIONS = "-o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=5 -o ServerAliveCountMax=4"
"""For pdsh: no prompts, and a connection to an unreachable host ends by itself."""
_FORWARDED_BY_DEEPSPEED = ("MLFLOW", "PYTHON", "MV2", "UCX")
"""Prefixes of the variables that DeepSpeed sends to every host (`launcher/runner.py`, EXPORT_ENVS); CUDA adds NCCL."""
_FORWARDED_BY_HARNESS = (
    "DS_ACCELERATOR",
    "TORCH_EXTENSIONS_DIR",
    "OMP_NUM_THREADS",
    "HF_HOME",
    "HF_HUB_CACHE",
    "HF_HUB_OFFLINE",
    "HF_ENDPOINT",
    "WANDB_MODE",
    "WANDB_PROJECT",
    "WANDB_ENTITY",
    TRUSTED_ACCOUNTS,
)
"""Settings of the shell that ranks on this machine see, so that ranks on other hosts need them too. No secrets."""
_OF_THE_DEVICE = (
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "TORCH_NCCL_",
    "GLOO_",
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_LAUNCH_BLOCKING",
    "CUBLAS_WORKSPACE_CONFIG",
    "NVIDIA_TF32_OVERRIDE",
)
"""Such settings, by prefix, of what computes and communicates; srun takes all of the shell anyway. Numbers of devices
and paths of toolkits are a host's own.
"""
_BY_DEEPSPEED = "forwarded by DeepSpeed"


@dataclass(frozen=True, slots=True)
class Variable:
    """One environment variable of the ranks and where its value comes from."""

    name: str
    value: str
    origin: str


def build_variables(
    launch: LaunchSpec,
    telemetry: TelemetrySpec,
    zero: ZeroSpec,
    local_host: LocalHost,
    run_dir: Path,
    local_slots: int | None,
) -> tuple[Variable, ...]:
    """The variables that every rank gets. `local_slots`: the ranks of this machine, where it starts them itself; None
    when a launcher starts them on other hosts.
    """
    env = launch.env
    is_literal = local_slots is None and BACKENDS[launch.launcher].literal
    inherited_path = local_host.environ.get("PATH", os.defpath) if is_literal else "$PATH"
    path = env.get("PATH", f"{Path(local_host.python).parent}:{inherited_path}")
    variables = [
        Variable("HARNESS_RUN_DIR", str(run_dir), "harness, to find its processes"),
        Variable("PATH", path, "harness, for this Python's own ninja"),
        Variable("HARNESS_SUPERVISOR", local_host.supervisor_id, "harness, ranks exit without it"),
    ]
    if SAFE_PATH not in env:  # DeepSpeed starts its launcher on each host with `-m`, in the current folder
        variables.append(Variable(SAFE_PATH, "1", "harness, against imports from the current folder"))
    is_bound = launch.bind_cores_to_rank  # then DeepSpeed chooses the number of threads
    if local_slots is not None and not is_bound and "OMP_NUM_THREADS" not in {*env, *local_host.environ}:
        origin = f"harness, {local_host.cores} cores / {local_slots} ranks"
        variables.append(Variable("OMP_NUM_THREADS", str(max(1, local_host.cores // local_slots)), origin))
    if zero.pin_memory_backend == "native" and BACKEND_VARIABLE not in env:
        variables.append(Variable(BACKEND_VARIABLE, "native", "zero.pin_memory_backend"))
    debug_variables = distributed_debug_env(telemetry, run_dir)
    variables += [Variable(n, v, "telemetry.debug_distributed") for n, v in debug_variables.items() if n not in env]
    variables += [Variable(n, v, "launch.env") for n, v in env.items() if n not in RESERVED_VARIABLES]
    has_stub = (
        local_host.mlflow_stub_dir is not None
        and "PYTHONPATH" not in env
        and select_patch(find_patch("no-mlflow"), PatchFacts(), launch.patches).state == "applied"
    )
    if has_stub:
        folders = (str(local_host.mlflow_stub_dir), local_host.environ.get("PYTHONPATH", ""))
        origin = "harness, so that DeepSpeed's autotuner does not import mlflow"
        variables.append(Variable("PYTHONPATH", os.pathsep.join(filter(None, folders)), origin))
    if local_slots is None:
        own_names = {SAFE_PATH, "PYTHONPATH"} if has_stub else {SAFE_PATH}
        variables += [v for v in forwarded_variables(launch, local_host) if v.name not in own_names]
    return tuple(variables)


def forwarded_variables(launch: LaunchSpec, local_host: LocalHost) -> list[Variable]:
    """Variables of this shell that reach ranks on other hosts, except those that `launch.env` sets: DeepSpeed forwards
    some by their prefix, the plan some by their name.
    """
    env, environ = launch.env, local_host.environ
    prefixes = (*_FORWARDED_BY_DEEPSPEED, "NCCL") if local_host.accelerated else _FORWARDED_BY_DEEPSPEED
    by_prefix = [Variable(n, v, _BY_DEEPSPEED) for n, v in sorted(environ.items()) if n.startswith(prefixes)]
    names = [*_FORWARDED_BY_HARNESS]
    if launch.launcher != "slurm":  # which would end a value at a comma
        own = (*_OF_THE_DEVICE, *([] if local_host.accelerated else ["NCCL_"]))  # DeepSpeed's are those of a login node
        names += sorted(name for name in environ if name.startswith(own))
    by_name = [Variable(n, environ[n], "this shell") for n in names if environ.get(n)]
    return [variable for variable in (*by_prefix, *by_name) if variable.name not in env]


def interface_variables(env: Mapping[str, str], name: str) -> tuple[Variable, ...]:
    """The interface that all hosts share, for libraries that would guess it."""
    origin = "preflight, the only network that all hosts share"
    names = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
    return tuple(Variable(variable, name, origin) for variable in names if variable not in env)


def own_variables(variables: Sequence[Variable]) -> list[Variable]:
    """The variables that the plan itself has to set: all but those that DeepSpeed forwards."""
    return [variable for variable in variables if variable.origin != _BY_DEEPSPEED]


def env_file_text(variables: Sequence[Variable]) -> str:
    """The content of `deepspeed.env`, which DeepSpeed sends to every host on a command line: no secrets."""
    return "".join(f"{v.name}={v.value}\n" for v in own_variables(variables) if not is_secret(v.name, v.value))


def launcher_environment(
    base: Mapping[str, str], variables: Sequence[Variable], env_file: Path | None
) -> dict[str, str]:
    """The launcher's own environment on this machine: `base` with the plan's variables on top.

    `env_file`: with several hosts DeepSpeed sends the variables of the file that DS_ENV_FILE names, and none of the
    others.
    """
    environ = dict(base) | {v.name: v.value for v in variables}
    environ["PATH"] = environ["PATH"].replace("$PATH", base.get("PATH", os.defpath))
    if env_file is None:
        return environ
    ssh_options = f"{base.get('PDSH_SSH_ARGS_APPEND', '')} {SSH_OPTIONS}".strip()
    return environ | {"DS_ENV_FILE": str(env_file), "PDSH_SSH_ARGS_APPEND": ssh_options}


def redacted_value(variable: Variable) -> str:
    """A variable's value for people and files."""
    return HIDDEN if is_secret(variable.name, variable.value) else variable.value


def ignored_env_files(folder: Path) -> list[Path]:
    """Files of variables that DeepSpeed would have sent to other hosts, had DS_ENV_FILE not named the plan's instead.

    Source: `launcher/runner.py`, DEEPSPEED_ENVIRONMENT_PATHS (the home folder and the current one).
    """
    places = dict.fromkeys((Path.home(), folder))
    return [place / ".deepspeed_env" for place in places if (place / ".deepspeed_env").is_file()]


# Debugging aids of `telemetry`: variables that make torch and NCCL log more, and a file for DeepSpeed's FLOPs profile.
#
# The ranks themselves run torch's profiler.


_DEBUG_VARIABLES = {
    "TORCH_DISTRIBUTED_DEBUG": "DETAIL",
    "TORCH_SHOW_CPP_STACKTRACES": "1",
    "TORCH_CPP_LOG_LEVEL": "INFO",
    "NCCL_DEBUG": "INFO",
    "TORCH_NCCL_TRACE_BUFFER_SIZE": "20000",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
}
"""torch checks that collectives agree in shape and kind, NCCL logs its connections, and a collective that times out
writes the last ones of each rank to a file."""


def distributed_debug_env(spec: TelemetrySpec, run_dir: Path) -> dict[str, str]:
    """Variables of `telemetry.debug_distributed`; none where it is off."""
    if not spec.debug_distributed:
        return {}
    return {**_DEBUG_VARIABLES, "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": str(run_dir / "logs" / "nccl-trace-rank-")}


def with_flops_profiler_output(config: Mapping[str, Any], run_dir: Path) -> dict[str, Any]:
    """The DeepSpeed JSON with a file in the run directory for its FLOPs profiler, where that is on. A name that the
    spec gives is kept and its folder is not: DeepSpeed overwrites the file, and a spec may come from somebody else.
    """
    profiler = config.get("flops_profiler")
    if not isinstance(profiler, Mapping) or not profiler.get("enabled"):
        return dict(config)
    name = Path(str(profiler.get("output_file") or "")).name
    name = "flops.txt" if name in ("", "..") else name
    return {**config, "flops_profiler": {**profiler, "output_file": str(run_dir / "profile" / name)}}


# Secrets in `launch.env`: no file of the run directory shows them but one, which only the user can read.
#
# Ranks on this machine inherit them. For ranks on other hosts DeepSpeed would write them into a command line that every
# user of the host can list; the ranks read them from `secrets.json` instead, which the launch removes at its end.


SECRETS_FILE = "secrets.json"
EXACT_FILES = ("spec.resolved.json", "ds_config.json")
"""The ranks read these and hosts compare them: they are written as they are. The first is made without the secrets."""
_MIN_LENGTH = 5
"""A shorter value is not searched for in texts: it may be any word of them."""


def find_secrets(variables: Sequence[Variable]) -> tuple[Variable, ...]:
    """The variables of the spec that hold secrets."""
    return tuple(v for v in variables if v.origin == "launch.env" and is_secret(v.name, v.value))


def hide_secrets(text: str, secrets: Sequence[Variable]) -> str:
    """A text without the values of secrets, as they are and as JSON and YAML write them."""
    for value in sorted((v.value for v in secrets if len(v.value) >= _MIN_LENGTH), key=len, reverse=True):
        for written in dict.fromkeys((value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1])):
            text = text.replace(written, HIDDEN)
    return text


def render_secrets(secrets: Sequence[Variable]) -> str:
    """The content of `secrets.json`."""
    return json.dumps({v.name: v.value for v in secrets}) + "\n"
