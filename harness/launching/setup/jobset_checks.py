# SPDX-License-Identifier: Apache-2.0
"""Checks of a launch as a JobSet: names, image, volumes and secrets that a cluster would refuse or show to others.

Contacts no cluster.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from harness.facts.secret_names import is_secret
from harness.findings import Finding, Fix
from harness.launching.setup.jobset import (
    JOB_NAME,
    JobSetOptions,
    PodMemory,
    Pods,
    is_shared,
    nvme_folders,
    path_in_pod,
)
from harness.run.resolved_run import ResolvedRun

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_SERVICE_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(rf"{_LABEL.pattern}(\.{_LABEL.pattern})*")
_MAX_LABEL, _MAX_SUBDOMAIN = 63, 253
_SYSTEM_FOLDERS = tuple(
    f"/{name}" for name in "bin boot dev etc lib lib32 lib64 proc run sbin sys usr var/lib/kubelet var/run".split()
)
"""Folders of the image, the kernel or the node, which nothing else may lie in (Filesystem Hierarchy Standard 3.0)."""
_POD_SUFFIX = "-abcde"
"""Kubernetes ends the name of a pod by a `-` and five characters."""


def to_jobset_name(run_name: str) -> str:
    """The name of a run as a name of a JobSet: lower case, and `-` for what a DNS name cannot have."""
    return re.sub(r"[^a-z0-9]+", "-", run_name.lower()).strip("-") or "run"


def check_jobset(
    run: ResolvedRun, options: JobSetOptions, pods: Pods, memory: PodMemory, overrides: Sequence[str]
) -> list[Finding]:
    """All errors of the JobSet. `overrides`: those of `--set`."""
    return [
        *_check_image(options),
        *_check_names(options, pods),
        *_check_volumes(run, options, memory),
        *_check_mounts(run, options),
        *_check_secrets(run, overrides),
    ]


def _check_image(options: JobSetOptions) -> Iterator[Finding]:
    if not options.image or re.search(r"\s", options.image):
        message = f"`--image {options.image[:80]}` has a space" if options.image else "`--image` is not given"
        fix = Fix("give `--image REGISTRY/NAME:TAG`, an image with the harness, its train extra and `harness` on PATH")
        yield Finding("EN090", "error", message, fix=fix)


def _check_names(options: JobSetOptions, pods: Pods) -> Iterator[Finding]:
    longest = f"{pods.jobset}-{JOB_NAME}-0-{pods.count - 1}{_POD_SUFFIX}"
    if not _SERVICE_LABEL.fullmatch(pods.jobset):
        message = f"`{pods.jobset[:80]}` cannot be the name of a JobSet, which is part of the pods' DNS names"
        fix = Fix("give `--run-id NAME` of lower-case letters, digits and `-`, with a letter first")
        yield Finding("HO090", "error", message, fix=fix)
    elif len(longest) > _MAX_LABEL:
        allowed = len(pods.jobset) - (len(longest) - _MAX_LABEL)
        message = f"`{pods.jobset}` is too long: `{longest}`, a pod, would have more than {_MAX_LABEL} characters"
        yield Finding("HO090", "error", message, fix=Fix(f"give `--run-id NAME` of at most {allowed} characters"))
    if options.namespace is not None and not _LABEL.fullmatch(options.namespace):
        yield _name_finding("--namespace", options.namespace)
    for option, names in (("--pvc", [v.claim for v in options.volumes]), ("--env-from", options.env_from)):
        for name in names:
            if len(name) > _MAX_SUBDOMAIN or not _SUBDOMAIN.fullmatch(name):
                yield _name_finding(option, name)
    if options.nvme_class is not None and not _SUBDOMAIN.fullmatch(options.nvme_class):
        yield _name_finding("--nvme-class", options.nvme_class)


def _name_finding(option: str, name: str) -> Finding:
    fix = Fix("use lower-case letters, digits and `-`, as `kubectl get` shows it")
    return Finding("HO090", "error", f"`{option}`: `{name[:80]}` cannot be the name of a Kubernetes object", fix=fix)


def _check_volumes(run: ResolvedRun, options: JobSetOptions, memory: PodMemory) -> Iterator[Finding]:
    output_dir = path_in_pod(options, run.spec.launch.output_dir)
    if not is_shared(output_dir, options.volumes):
        yield Finding(
            "EN091",
            "error",
            f"the run directory `{output_dir}` lies on no volume that all pods share",
            key="launch.output_dir",
            notes=("the pods exchange files in the run directory, and a restart resumes from its checkpoints",),
            fix=Fix("give `--pvc CLAIM:PATH` of a ReadWriteMany claim, and `launch.output_dir` at PATH or below"),
        )
    if options.nvme_class is not None and memory.nvme is None and nvme_folders(run.spec, options):
        message = "`--nvme-class` needs the size of the volume, which the plan does not know"
        fix = Fix("name a model that `harness plan` knows, or leave `--nvme-class` out: the folder of the node")
        yield Finding("EN092", "error", message, fix=fix)


def _check_mounts(run: ResolvedRun, options: JobSetOptions) -> Iterator[Finding]:
    """A mount hides what the image has at its path; without a class, `nvme_path` is the node's own folder, too."""
    claims = [(f"--pvc {volume.claim}", Path(volume.path)) for volume in options.volumes]
    mounts = [*claims, *(("nvme_path", folder) for folder in nvme_folders(run.spec, options))]
    for index, (name, path) in enumerate(mounts):
        hidden = next((s for s in _SYSTEM_FOLDERS if path.is_relative_to(s) or Path(s).is_relative_to(path)), None)
        if hidden is not None:
            message = f"`{name}` mounts a volume at `{path}`, in the place of the system's `{hidden}`"
            fix = Fix("choose a folder of its own, such as `/mnt/runs` or `/local_nvme`")
            yield Finding("EN093", "error", message, fix=fix)
        elif path in [other for _, other in mounts[:index]]:
            message = f"`{name}` mounts a second volume at `{path}`, which Kubernetes refuses"
            yield Finding("EN093", "error", message, fix=Fix("give each volume a path of its own"))


def _check_secrets(run: ResolvedRun, overrides: Sequence[str]) -> Iterator[Finding]:
    """The manifest has `launch.env` and the overrides, and everybody who may list pods reads it."""
    pairs = list(run.spec.launch.env.items())
    for override in overrides:
        key, _, value = override.partition("=")
        pairs.append((key.strip().removeprefix("launch.env."), value.strip()))
    secrets = [name for name, value in pairs if is_secret(name.rpartition(".")[2], value)]
    for name in dict.fromkeys(secrets):
        variable = name.rpartition(".")[2][:60]
        yield Finding(
            "SE003",
            "error",
            f"`{name[:60]}` is a secret, and would be written into the manifest",
            key=name if "." in name else f"launch.env.{name}",
            notes=("everybody who may list pods reads it there",),
            fix=Fix(
                f"`kubectl create secret generic NAME --from-literal={variable}=...`, then `--env-from NAME`, and "
                "remove it from the spec"
            ),
        )
