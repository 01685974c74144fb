# SPDX-License-Identifier: Apache-2.0
"""`--pod-patch`: what a cluster wants of the pods, merged into them. Needs nothing; no cluster is contacted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.launching.setup import pod_patch
from harness.launching.setup.pod_patch import PodPatchError, apply_pod_patch, read_pod_patch

PATCH = """\
metadata:
  annotations: {k8s.v1.cni.cncf.io/networks: rdma-net}
spec:
  nodeSelector: {gpu: h100}
  tolerations: [{key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}]
  hostNetwork: true
  imagePullSecrets: [{name: registry}]
  containers:
    - name: harness
      resources: {limits: {rdma/hca: 1}, requests: {memory: 200Gi}}
      securityContext: {capabilities: {add: [IPC_LOCK]}}
      env: [{name: NCCL_IB_HCA, value: mlx5}]
"""


def template() -> dict[str, Any]:
    container = {
        "name": "harness",
        "command": ["harness", "launch"],
        "env": [{"name": "NOTE", "value": "5"}],
        "resources": {"limits": {"nvidia.com/gpu": "8"}, "requests": {"memory": "136Gi"}},
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],  # noqa: S108
    }
    return {"spec": {"restartPolicy": "Never", "containers": [container], "volumes": [{"name": "shm"}]}}


def patched(folder: Path, text: str) -> dict[str, Any]:
    (folder / "pods.yaml").write_text(text)
    made = template()
    apply_pod_patch(made, read_pod_patch(str(folder / "pods.yaml")))
    return made


def test_the_pods_get_what_the_cluster_wants(tmp_path):
    made = patched(tmp_path, PATCH)
    pod = made["spec"]
    (container,) = pod["containers"]
    assert made["metadata"]["annotations"] == {"k8s.v1.cni.cncf.io/networks": "rdma-net"}
    assert (pod["nodeSelector"], pod["hostNetwork"]) == ({"gpu": "h100"}, True)
    assert pod["dnsPolicy"] == "ClusterFirstWithHostNet", "or the names of the pods would not resolve"
    assert container["resources"] == {
        "limits": {"nvidia.com/gpu": "8", "rdma/hca": "1"},
        "requests": {"memory": "200Gi"},
    }
    assert [entry["name"] for entry in container["env"]] == ["NOTE", "NCCL_IB_HCA"]
    assert (container["command"], pod["restartPolicy"]) == (["harness", "launch"], "Never")


def test_a_patched_pod_has_no_field_that_kubernetes_does_not_know(tmp_path):
    client = pytest.importorskip("kubernetes.client", reason="needs the extra `kubernetes`")
    made = patched(tmp_path, PATCH)
    made["spec"]["volumes"] = []
    assert client.V1PodTemplateSpec.model_validate(made).spec.node_selector == {"gpu": "h100"}
    assert set(client.V1PodSpec.attribute_map.values()) == pod_patch._POD_FIELDS | {"ephemeralContainers"}, (
        "write the list again"
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("spec: {nodeSelektor: {a: b}}", "`spec.nodeSelektor` is no field of a pod"),
        ("nodeSelector: {a: b}", "is no patch of a pod template"),
        ("spec: [a]", "`spec` is no map"),
        ("spec: {", "is not YAML"),
        ("metadata: {name: x}", "`labels` and `annotations` alone"),
        ("spec: {restartPolicy: Always}", "sets `spec.restartPolicy` to `Always`, and the launch has `Never`"),
        ("spec: {containers: [{name: other}]}", "must have one entry"),
        ("spec: {containers: [{name: harness, command: [sh]}]}", "spec.containers.command"),
        (
            "spec: {containers: [{name: harness, volumeMounts: [{name: a, mountPath: /dev/shm}]}]}",
            "mountPath: /dev/shm",
        ),
        ("spec: {containers: [{name: harness, env: [{name: NOTE, value: x}]}]}", "name: NOTE"),
        ("spec: {containers: [{name: harness, env: [{name: HF_TOKEN, value: hf_abc}]}]}", "the secret `HF_TOKEN`"),
        (
            "spec: {initContainers: [{name: a, env: [{name: HF_TOKEN, value: hf_abc}]}]}",
            "the secret `HF_TOKEN`",
        ),
        (
            "spec: {ephemeralContainers: [{name: a, env: [{name: HF_TOKEN, value: hf_abc}]}]}",
            "`spec.ephemeralContainers` is no field of a pod",
        ),
        ("spec: {containers: 5}", "`spec.containers` must be a list"),
        ("spec: {containers: [5]}", "`spec.containers` must be a map"),
        ("spec: {containers: [null]}", "`spec.containers` must be a map"),
        ("spec: {volumes: {name: a}}", "`spec.volumes` must be a list"),
        ("spec: {nodeSelector: [a]}", "`spec.nodeSelector` must be a map"),
        ("spec: {hostNetwork: [true]}", "`spec.hostNetwork` must be one value"),
        ("spec: {containers: [{name: harness, env: 5}]}", "`spec.containers.env` must be a list"),
        ("spec: {containers: [{name: harness, resources: {limits: 5}}]}", "limits` must be a map"),
        ("metadata: {labels: 5}", "`metadata.labels` must be a map"),
        ("metadata: {labels: {tier: 5}}", "`metadata.labels.tier` is `5`, and Kubernetes takes a text"),
        ("metadata: {annotations: {since: 2026-01-01}}", "`metadata.annotations.since` is no text"),
        ("spec: {nodeSelector: {gpu: true}}", "`spec.nodeSelector.gpu` is `True`"),
        ("spec: {nodeSelector: {5: a}}", "`spec.nodeSelector.5` is no text"),
        ("spec: {containers: [{name: harness, env: [{name: A, value: 1}]}]}", "`spec.containers.env.value` is `1`"),
        ("spec: {containers: [{name: harness, args: [--debug]}]}", "`spec.containers.args`"),
        ("spec: &a {affinity: *a}", "more than"),
    ],
)
def test_a_patch_that_cannot_hold_is_refused(tmp_path, text, said):
    with pytest.raises(PodPatchError) as refused:
        patched(tmp_path, text)
    assert said in refused.value.finding.message


def test_a_missing_file_is_one_finding(tmp_path):
    with pytest.raises(PodPatchError, match="cannot be read: no such file"):
        read_pod_patch(str(tmp_path / "none.yaml"))
