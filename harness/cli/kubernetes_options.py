# SPDX-License-Identifier: Apache-2.0
"""`harness launch --kubernetes` and the options that it needs, for typer, and their parser."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from harness.cli.options import is_given, option_of, refuse_unread
from harness.launching.setup.jobset import JobSetOptions, SharedVolume

_pod_option = option_of("Kubernetes")
_Text = str | None
_Texts = list[str] | None
KubernetesOption = Annotated[
    bool,
    _pod_option(
        "--kubernetes",
        help="Print a JobSet that runs the launch, one pod for each host; nothing is applied to a cluster. `--run-id` "
        "names the JobSet.",
    ),
]
ImageOption = Annotated[_Text, _pod_option(metavar="IMAGE", help="Image of the pods, with the harness.")]
NamespaceOption = Annotated[_Text, _pod_option(metavar="NS", help="Namespace of the JobSet.")]
PvcOption = Annotated[
    _Texts,
    _pod_option(
        metavar="CLAIM:PATH",
        help="Mount a PersistentVolumeClaim in all pods. One must hold `launch.output_dir`. Repeatable.",
    ),
]
WorkdirOption = Annotated[
    _Text,
    _pod_option(
        metavar="FOLDER",
        help="Current folder in the pods, where SPEC and relative paths start. Default: that of this shell.",
    ),
]
EnvFromOption = Annotated[
    _Texts,
    _pod_option(metavar="SECRET", help="A Secret of the cluster whose keys are variables of the pods. Repeatable."),
]
NvmeClassOption = Annotated[
    _Text,
    _pod_option(
        metavar="CLASS",
        help="StorageClass of an ephemeral volume to offload to. Default: the node's folder `nvme_path`.",
    ),
]
PodPatchOption = Annotated[
    _Text,
    _pod_option(
        metavar="FILE",
        help="A YAML file with `metadata` and `spec` of a pod, merged into the pods: nodeSelector, tolerations, "
        "hostNetwork, imagePullSecrets, resources of the container `harness`.",
    ),
]
OutputOption = Annotated[
    _Text, _pod_option("--output", "-o", metavar="FILE", help="File of the JobSet. Default: stdout.")
]


def find_conflicts(ctx: typer.Context) -> dict[str, bool]:
    """The options of `launch` that cannot be used with `--kubernetes`, and whether they are: pods always resume."""
    resume = ctx.params["resume"]
    return {
        "--slurm": ctx.params["slurm"],
        "--no-ssh": ctx.params["no_ssh"],
        "--no-preflight": ctx.params["no_preflight"],
        "--dry-run with --output": ctx.params["dry_run"] and ctx.params["output"] is not None,
        "--resume RUN": resume not in ("never", "auto"),
        "--resume never": resume == "never" and is_given(ctx, "resume"),
    }


def parse_kubernetes(params: Mapping[str, Any], conflicts: Mapping[str, bool]) -> JobSetOptions | None:
    """The options of the pods, from the parameters of `launch`; None without `--kubernetes`. Raises BadParameter for
    one that needs it, for one of `conflicts` with it, and for a value that is no `CLAIM:PATH` or no absolute folder.
    """
    names = ("image", "namespace", "pvc", "workdir", "env_from", "nvme_class", "pod_patch", "output")
    if not params["kubernetes"]:
        refuse_unread("needs `--kubernetes`", {f"--{name.replace('_', '-')}": params[name] or None for name in names})
        return None
    refuse_unread("cannot be used with `--kubernetes`", conflicts)
    image, namespace, pvc, workdir, env_from, nvme_class, pod_patch = (params[name] for name in names[:-1])
    volumes = []
    for text in pvc or ():
        claim, _, path = text.partition(":")
        if not claim or not path.startswith("/") or ":" in path:
            raise typer.BadParameter(f"`{text}` is not `CLAIM:PATH` with an absolute path", param_hint="--pvc")
        volumes.append(SharedVolume(claim, os.path.normpath(f"/{path.lstrip('/')}")))
    if workdir is not None and not workdir.startswith("/"):
        raise typer.BadParameter(f"`{workdir}` is not an absolute folder", param_hint="--workdir")
    folder = Path(os.path.normpath(workdir)) if workdir is not None else None
    return JobSetOptions(
        image, namespace, params["run_id"], tuple(volumes), folder, tuple(env_from or ()), nvme_class, pod_patch
    )
