# SPDX-License-Identifier: Apache-2.0
"""A patch of the pods of a JobSet (`--pod-patch FILE`): what a cluster wants of a pod and a run spec does not
say, such as a node selector, tolerations, RDMA devices, the host's network, and Secrets for the image's registry.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from itertools import islice
from pathlib import Path
from typing import Any

from harness.facts.environment_variables import is_secret
from harness.file_io import read_regular
from harness.findings import Finding, Fix
from harness.launching.setup.jobset import CONTAINER, Manifest
from harness.spec.suggestions import nearest_name

_MAX_FILE_BYTES = 1 << 20
_POD_FIELDS = frozenset(
    "activeDeadlineSeconds affinity automountServiceAccountToken containers dnsConfig dnsPolicy enableServiceLinks"
    " evictionResponders hostAliases hostIPC hostNetwork hostPID hostUsers hostname"
    " hostnameOverride imagePullSecrets initContainers nodeName nodeSelector os overhead preemptionPolicy priority"
    " priorityClassName readinessGates resourceClaims resources restartPolicy runtimeClassName schedulerName"
    " schedulingGates schedulingGroup securityContext serviceAccount serviceAccountName setHostnameAsFQDN"
    " shareProcessNamespace subdomain terminationGracePeriodSeconds tolerations topologySpreadConstraints"
    " volumes".split()
)
"""Fields of a pod's `spec`, 2026-11-29: `kubernetes.client.V1PodSpec.attribute_map` of `kubernetes` 37.0.0, without
`ephemeralContainers`, which no new pod may have."""
_LISTS_OF_MAPS = frozenset(
    "containers env envFrom evictionResponders hostAliases imagePullSecrets initContainers ports readinessGates"
    " resourceClaims schedulingGates tolerations topologySpreadConstraints volumeDevices volumeMounts volumes".split()
)
_MAPS = frozenset(
    "affinity annotations dnsConfig labels limits matchLabels nodeSelector os overhead requests resources"
    " schedulingGroup securityContext".split()
)
"""Such fields of a pod and its containers, wherever they stand, 2026-11-29: `model_fields` of `V1PodSpec` and
`V1Container`."""
_TEXTS = frozenset(("command", "args", "labels", "annotations", "nodeSelector", "matchLabels", "values"))
"""Fields whose entries are texts."""
_TEXT = frozenset(("name", "value", "key"))
_MAX_VALUES, _MAX_DEPTH = 10_000, 30
"""Of a patch; one whose anchors double from line to line has more."""
_FORM = (
    "write `spec:` with fields of a pod, `containers: [{name: harness, ...}]` among them; and `metadata:` with labels"
)


class PodPatchError(Exception):
    """A patch that cannot be applied, with its finding."""

    def __init__(self, message: str, fix: str, gate: str = "EN094") -> None:
        super().__init__(message)
        self.finding = Finding(gate, "error", message, fix=Fix(fix))


def read_pod_patch(file: str) -> Manifest:
    """The patch, with the form of a pod template (`metadata`, `spec`). Raises PodPatchError."""
    import yaml

    try:
        body = yaml.safe_load(read_regular(Path(file), _MAX_FILE_BYTES).decode())
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise PodPatchError(f"`{file}` cannot be read: {reason}", "name a YAML file") from None
    except (yaml.YAMLError, ValueError, RecursionError):
        raise PodPatchError(f"`{file}` is not YAML", _FORM) from None
    if not isinstance(body, dict) or not body or not body.keys() <= {"metadata", "spec"}:
        raise PodPatchError(f"`{file}` is no patch of a pod template", _FORM)
    metadata, spec = body.get("metadata") or {}, body.get("spec") or {}
    if not isinstance(metadata, dict) or not metadata.keys() <= {"labels", "annotations"}:
        raise PodPatchError(f"`{file}`: `metadata` may have `labels` and `annotations` alone", _FORM)
    if not isinstance(spec, dict):
        raise PodPatchError(f"`{file}`: `spec` is no map", _FORM)
    for field in spec:
        if field not in _POD_FIELDS:
            near = nearest_name(str(field), _POD_FIELDS)
            raise PodPatchError(
                f"`{file}`: `spec.{field}` is no field of a pod", f"did you mean `{near}`?" if near else _FORM
            )
    values = list(islice(_walk(body, ()), _MAX_VALUES + 1))
    if len(values) > _MAX_VALUES or any(len(path) > _MAX_DEPTH for path, _ in values):
        message = f"`{file}` has more than {_MAX_VALUES:,} values, or more than {_MAX_DEPTH} one in another"
        raise PodPatchError(message, _FORM)
    for path, value in values:
        _check_value(file, path, value)
    return {"metadata": metadata, "spec": spec}


def _walk(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Each value with its keys; an entry of a list has the keys of the list."""
    if len(path) > _MAX_DEPTH:
        return
    entries = value.items() if isinstance(value, dict) else ()
    for key, entry in entries:
        yield (*path, key), entry
        yield from _walk(entry, (*path, key))
    for entry in value if isinstance(value, list) else ():
        yield (*path, "-"), entry
        yield from _walk(entry, (*path, "-"))


def _check_value(file: str, path: tuple[Any, ...], value: Any) -> None:
    """Raises PodPatchError for a value that Kubernetes does not take at this place, and for a secret in it."""
    names = [key for key in path if key != "-"]
    place, is_unset = ".".join(map(str, names))[:120], value is None and path[-1] != "-"
    parent = names[-1] if path[-1] == "-" else names[-2] if len(names) > 1 else ""
    is_text = parent in _TEXTS or (path[-1] in _TEXT and not isinstance(value, dict | list))
    if not isinstance(path[-1], str) or isinstance(value, date | bytes | set):
        raise PodPatchError(f"`{file}`: `{place}` is no text", "put it in quotes")
    if is_text and not is_unset and not isinstance(value, str):
        shown = str(value)[:40]
        raise PodPatchError(f"`{file}`: `{place}` is `{shown}`, and Kubernetes takes a text", "put it in quotes")
    if parent in _TEXTS or is_unset:
        return
    form = _form_at(path)
    if form is not None and not isinstance(value, form):
        kind = "one value" if form not in (dict, list) else "a map" if form is dict else "a list"
        raise PodPatchError(f"`{file}`: `{place}` must be {kind}", _FORM)
    name, text = (value.get("name"), value.get("value")) if isinstance(value, dict) else (None, None)
    if isinstance(text, str) and is_secret(str(name), text):
        message = f"`{file}` has the secret `{str(name)[:60]}`, which would be written into the manifest"
        raise PodPatchError(message, "`kubectl create secret generic NAME`, then `--env-from NAME`", "SE003")


def _form_at(path: tuple[Any, ...]) -> Any:
    """The type of the value at this place; None where it is not known."""
    is_entry, key = path[-1] == "-", path[-2] if path[-1] == "-" else path[-1]
    if key in _MAPS or key in _LISTS_OF_MAPS:
        return dict if is_entry or key in _MAPS else list
    if key in _TEXTS:
        return list
    return str | int | float if path[0] == "spec" and len(path) == len(("spec", "field")) else None


def apply_pod_patch(template: Manifest, patch: Manifest) -> None:
    """Merge the patch into a pod template: maps by key, lists by appending, containers by name. Raises PodPatchError
    for a value that the launch has set to another one, except `resources`.
    """
    patch = _with_cluster_dns(patch)
    if patch["metadata"]:
        _merge(template.setdefault("metadata", {}), patch["metadata"], "metadata")
    _merge(template["spec"], patch["spec"], "spec")


def _with_cluster_dns(patch: Manifest) -> Manifest:
    """On the host's network a pod asks the node's name server, which does not know the names of the pods."""
    spec = patch["spec"]
    if spec.get("hostNetwork") is True and "dnsPolicy" not in spec:
        return patch | {"spec": spec | {"dnsPolicy": "ClusterFirstWithHostNet"}}
    return patch


def _merge(target: Manifest, patch: Manifest, path: str) -> None:
    for key, value in patch.items():
        place = f"{path}.{key}"
        if isinstance(value, dict):
            target.setdefault(key, {})
        elif ".resources." in place and isinstance(value, int | float):
            value = str(value)  # noqa: PLW2901  (a quantity is a text)
        if key not in target:
            target[key] = value
        elif place == "spec.containers":
            _merge_container(target[key][0], value)
        elif isinstance(target[key], dict) and isinstance(value, dict):
            _merge(target[key], value, place)
        elif isinstance(target[key], list) and isinstance(value, list) and key != "command":
            _append(target[key], value, place)
        elif ".resources." in place:
            target[key] = value
        elif target[key] != value:
            message = f"the patch sets `{place}` to `{str(value)[:60]}`, and the launch has `{str(target[key])[:60]}`"
            raise PodPatchError(message, f"remove `{place}` from the patch")


def _merge_container(container: Manifest, patches: Any) -> None:
    if not isinstance(patches, list) or [patch.get("name") for patch in patches] != [CONTAINER]:
        message = f"`spec.containers` of the patch must have one entry, with `name: {CONTAINER}`"
        raise PodPatchError(message, "a pod ends when all of its containers end: run others in a pod of their own")
    if "args" in patches[0]:
        message = "the patch sets `spec.containers.args`, which would stand behind the launch's command"
        raise PodPatchError(message, "remove it, and give options to `harness launch` itself")
    _merge(container, patches[0], "spec.containers")


def _append(target: list[Any], entries: list[Any], place: str) -> None:
    """Entries behind those of the launch; one with the name or the mount path of another would replace it."""
    for entry in entries:
        for key in ("name", "mountPath") if isinstance(entry, dict) else ():
            is_key = key == "mountPath" or not place.endswith("volumeMounts")
            if is_key and entry.get(key) is not None and entry[key] in [old.get(key) for old in target]:
                message = f"the patch has `{place}` of `{key}: {entry[key]}`, which the launch has"
                raise PodPatchError(message, f"give it another `{key}`, or remove it")
    target += entries
