# SPDX-License-Identifier: Apache-2.0
"""The YAML for `accelerate launch` that starts a script of one's own with the run's ranks and DeepSpeed JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness.convert.yaml_writer import format_document
from harness.errors import UserError, user_error
from harness.findings import Finding, Fix
from harness.run.resolved_run import ResolvedRun


def render_accelerate_config(run: ResolvedRun, json_file: Path, file: Path) -> str:
    """The text of `file`, which names `json_file`. Raises UserError for a run whose ranks are not known, and for AutoTP
    and pipeline stages, which accelerate does not start from its YAML.
    """
    dims = run.parallel_dims
    if dims.world_size is None:
        message = "accelerate wants `num_processes`, and the spec does not say on how many GPUs it runs"
        raise user_error("SP011", message, fix="add `--world-size N`, `--hostfile FILE` or `launch.num_gpus`")
    for key, size in (("tensor_parallel_size", dims.tensor), ("pipeline_parallel_size", dims.pipeline)):
        if size > 1:
            message = f"`parallel.{key}: {size}` is built by the harness's own loop: accelerate has no field for it"
            fix = Fix("launch it with `harness launch`, or leave the degree out")
            raise UserError([Finding("SP011", "error", message, f"parallel.{key}", fix=fix)])
    hosts = len(run.cluster.hosts) if run.cluster is not None else run.spec.cluster.num_nodes or 1
    deepspeed: dict[str, Any] = {
        "deepspeed_config_file": str(json_file.resolve()),
        "zero3_init_flag": run.spec.zero.stage == 3,
    }
    if hosts > 1:
        hostfile = run.cluster.file if run.cluster is not None else ""
        deepspeed["deepspeed_multinode_launcher"] = (run.spec.launch.launcher or "pdsh") if hostfile else "standard"
        if hostfile:
            deepspeed["deepspeed_hostfile"] = str(Path(hostfile).resolve())
    body: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "DEEPSPEED",
        "deepspeed_config": deepspeed,
        "num_machines": hosts,
        "num_processes": dims.world_size,
        "machine_rank": 0,
        **({"main_process_port": port} if (port := run.spec.launch.master_port) else {}),
    }
    if dims.sequence > 1:
        body["parallelism_config"] = {"parallelism_config_sp_size": dims.sequence}
    comments = [f"accelerate launch --config_file {file.name} train.py", f"Made by `harness render` of {run.name}."]
    if hosts > 1 and "deepspeed_hostfile" not in deepspeed:
        comments.append("On each machine, with its own --machine_rank and --main_process_ip, the address of machine 0.")
    if run.spec.launch.env:
        comments.append(f"Set by hand where the script needs it: {', '.join(sorted(run.spec.launch.env))}.")
    return format_document(body, comments)
