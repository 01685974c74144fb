# SPDX-License-Identifier: Apache-2.0
"""A launch as a JobSet: its pods by the typed models of the `kubernetes` client, their command by the harness itself.

The first needs the extra `kubernetes`. No cluster is contacted; twenty seconds.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from harness.cli.console import ConsoleLog
from harness.cli.kubernetes_options import parse_kubernetes
from harness.errors import ExitCode
from harness.launching.setup.jobset import JOB_UID_VARIABLE, JobSetOptions, Pods, SharedVolume, pod_command
from harness.launching.setup.jobset_checks import JobSetRequest, prepare_jobset
from harness.launching.setup.launch_request import LaunchRejected, LaunchRequest
from harness.spec.host_selection import HostSelection, parse_hosts
from harness.views.launch import render_jobset
from tests.support.jobset_pods import container_of, expand_command, pod_of

SPEC = """\
name: Tiny.Run
model: {config: {model_type: llama, hidden_size: 32, intermediate_size: 64, num_hidden_layers: 1, num_attention_heads: 2}, tokenizer: bytes}
data: {train: "builtin:python-docs", max_length: 32}
train: {max_steps: 2, per_device_train_batch_size: 1}
optimizer: {type: adamw}
zero: {stage: 2}
cluster: {num_nodes: 2, gpus_per_node: 4, gpu: H100-80GB}
checkpoint: {save_steps: 1}
launch: {output_dir: /shared/runs, max_restarts: 3, env: {NOTE: "5 each"}}
"""
UID = "3f2504e0-4f89-11d3-9a0c-0305e82c3301"
ALL = JobSetOptions("registry/harness:1", "team", None, (SharedVolume("runs", "/shared"),))


@pytest.fixture
def spec(tmp_path) -> str:
    (tmp_path / "tiny.yaml").write_text(SPEC)
    return str(tmp_path / "tiny.yaml")


def prepared(spec: str, *overrides: str, options: JobSetOptions = ALL, hosts: HostSelection | None = None) -> Any:
    arguments = ("launch", spec, "--kubernetes", *(word for text in overrides for word in ("--set", text)))
    request = LaunchRequest(spec, overrides, hosts=hosts or HostSelection())
    return prepare_jobset(JobSetRequest(request, options, arguments), ConsoleLog())


def ids(spec: str, *overrides: str, **more: Any) -> list[str]:
    rejected = prepared(spec, *overrides, **more)
    assert isinstance(rejected, LaunchRejected)
    return [finding.gate for finding in rejected.findings if finding.is_error]


NVME = "zero={stage: 3, offload_optimizer: {device: nvme, nvme_path: /local_nvme}, offload_param: {device: nvme, nvme_path: /local_nvme}}"
VARIANTS: dict[str, tuple[tuple[str, ...], JobSetOptions]] = {
    "plain": ((), ALL),
    "nvme of the node": ((NVME,), ALL),
    "nvme volume, secrets, two claims": (
        (NVME,),
        JobSetOptions(
            "i",
            None,
            "job-7",
            (SharedVolume("runs", "/shared"), SharedVolume("data", "/data")),
            Path("/w"),
            ("hub",),
            "fast",
        ),
    ),
    "locked memory, one pod": (("zero.pin_memory_backend=native", "cluster.num_nodes=1"), ALL),
    "cpu": (("launch.env.DS_ACCELERATOR=cpu",), ALL),
}
JOBSET_KEYS = {
    "": {"apiVersion", "kind", "metadata", "spec"},
    "metadata": {"name", "namespace"},
    "spec": {"network", "failurePolicy", "replicatedJobs"},
    "network": {"enableDNSHostnames", "subdomain"},
    "failurePolicy": {"maxRestarts", "rules"},
    "rules": {"name", "action", "onJobFailureReasons", "onJobFailureMessagePatterns"},
    "replicatedJobs": {"name", "replicas", "template"},
}
"""Fields of `api/jobset/v1alpha2/jobset_types.go` of JobSet 0.11 that a manifest has; read, not run."""


@pytest.mark.parametrize("name", VARIANTS)
def test_the_pods_have_no_field_that_kubernetes_does_not_know(spec, name):
    client = pytest.importorskip("kubernetes.client", reason="needs the extra `kubernetes`")
    overrides, options = VARIANTS[name]
    (job,) = yaml.safe_load(render_jobset(prepared(spec, *overrides, options=options)))["spec"]["replicatedJobs"]
    typed = client.V1JobTemplateSpec.model_validate(job["template"])
    # The models take numbers and texts as they are; what they do not know would be missing here.
    assert typed.model_dump(by_alias=True, exclude_none=True, mode="json") == job["template"]


def test_the_typed_models_refuse_an_unknown_field():
    client = pytest.importorskip("kubernetes.client", reason="needs the extra `kubernetes`")
    pod = {"spec": {"containers": [{"name": "a", "imagee": "b"}]}}
    with pytest.raises(ValueError, match="imagee"):
        client.V1PodTemplateSpec.model_validate(pod)


def test_the_jobset_around_them_has_its_own_fields(spec):
    made = prepared(spec)
    places = {"": [made], "metadata": [made["metadata"]], "spec": [made["spec"]]}
    places |= {key: [made["spec"][key]] for key in ("network", "failurePolicy")}
    places |= {"rules": made["spec"]["failurePolicy"]["rules"], "replicatedJobs": made["spec"]["replicatedJobs"]}
    assert all(set(value) <= JOBSET_KEYS[place] for place, values in places.items() for value in values)
    assert (made["apiVersion"], made["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    assert made["metadata"] == {"name": "tiny-run", "namespace": "team"}
    assert made["spec"]["network"] == {"enableDNSHostnames": True, "subdomain": "tiny-run"}
    assert "&id" not in render_jobset(made), "no anchors"


def test_a_pod_gets_what_the_plan_and_the_spec_say(spec):
    made = prepared(spec)
    pod, container = pod_of(made), container_of(made)
    (job,) = (item["template"]["spec"] for item in made["spec"]["replicatedJobs"])
    assert (job["completions"], job["parallelism"], job["completionMode"], job["backoffLimit"]) == (2, 2, "Indexed", 0)
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "4"}
    assert re.fullmatch(r"\d+Gi", container["resources"]["requests"]["memory"])
    assert pod["volumes"][0] == {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}
    assert pod["terminationGracePeriodSeconds"] == 150
    assert pod_of(prepared(spec, "launch.stop_grace_seconds=600"))["terminationGracePeriodSeconds"] == 630
    env = {item["name"]: item.get("value") for item in container["env"]}
    assert env == {JOB_UID_VARIABLE: None, "NOTE": "5 each"}
    assert made["spec"]["failurePolicy"]["maxRestarts"] == 3


def test_variants_of_a_pod(spec):
    assert pod_of(prepared(spec, NVME))["volumes"][-1] == {
        "name": "nvme-0",
        "hostPath": {"path": "/local_nvme", "type": "DirectoryOrCreate"},
    }
    overrides, options = VARIANTS["nvme volume, secrets, two claims"]
    made = prepared(spec, *overrides, options=options)
    claim = pod_of(made)["volumes"][-1]["ephemeral"]["volumeClaimTemplate"]["spec"]
    assert claim["storageClassName"] == "fast"
    assert claim["resources"]["requests"]["storage"] == "1Gi"
    assert container_of(made)["envFrom"] == [{"secretRef": {"name": "hub"}}]
    assert container_of(made)["workingDir"] == "/w"
    shared = prepared(spec, NVME.replace("/local_nvme", "/shared/nvme"))
    assert not [v for v in pod_of(shared)["volumes"] if v["name"].startswith("nvme")], "it is on a mounted volume"
    single = prepared(spec, *VARIANTS["locked memory, one pod"][0])
    assert container_of(single)["securityContext"] == {"capabilities": {"add": ["IPC_LOCK"]}}
    assert container_of(single)["command"][-6:] == [
        "--hosts",
        "localhost:4",
        "--resume",
        "auto",
        "--max-restarts",
        "0",
    ]
    assert "limits" not in container_of(prepared(spec, *VARIANTS["cpu"][0]))["resources"]


def test_hosts_are_counted_wherever_they_are_given(spec, tmp_path):
    (tmp_path / "hostfile").write_text("a slots=2\nb slots=2\nc slots=2\n")

    def numbers(*overrides: str, **hosts: Any) -> tuple[int, str]:
        made = prepared(spec, *overrides, hosts=HostSelection(**hosts))
        job = made["spec"]["replicatedJobs"][0]["template"]["spec"]
        return job["completions"], container_of(made)["resources"]["limits"]["nvidia.com/gpu"]

    assert numbers() == (2, "4")
    assert numbers(num_nodes=3, num_gpus=8) == (3, "8")
    assert numbers(hosts="a:2,b:2") == (2, "2")
    assert numbers("launch.hostfile=hostfile") == (3, "2")
    assert numbers("launch.hostfile=hostfile", num_nodes=2, num_gpus=1) == (2, "1")
    assert ids(spec, hosts=HostSelection(hosts="a:2,b:1")) == ["HO091"]
    assert ids(spec, "cluster.num_nodes=null") == ["HO091"]
    assert ids(spec, "cluster.gpus_per_node=null") == ["HO091"]


@pytest.mark.parametrize(
    ("options", "overrides", "expected"),
    [
        ({"image": None}, (), ["EN090"]),
        ({"image": "a b"}, (), ["EN090"]),
        ({"volumes": ()}, (), ["EN091"]),
        ({"volumes": (SharedVolume("runs", "/share"),)}, (), ["EN091"]),
        ({}, ("launch.output_dir=runs",), ["EN091"]),
        ({}, ("launch.output_dir=/shared/../scratch",), ["EN091"]),
        ({"workdir": Path("/shared")}, ("launch.output_dir=../scratch",), ["EN091"]),
        ({"workdir": Path("/w")}, ("launch.output_dir=../shared/runs", NVME.replace("/local_nvme", "/etc")), ["EN093"]),
        ({}, (NVME.replace("/local_nvme", "/shared/../etc/swap"),), ["EN093"]),
        ({"nvme_class": "fast"}, (NVME.replace("/local_nvme", "/run/swap"),), ["EN093"]),
        ({"volumes": (SharedVolume("runs", "/"),)}, (), ["EN093"]),
        ({"volumes": (ALL.volumes[0], SharedVolume("b", "/var"))}, (), ["EN093"]),
        ({"volumes": (*ALL.volumes, *ALL.volumes)}, (), ["EN093"]),
        ({"name": "a_b"}, (), ["HO090"]),
        ({"name": "1a"}, (), ["HO090"]),
        ({"name": "a" * 47}, (), ["HO090"]),
        ({"namespace": "Team"}, (), ["HO090"]),
        ({"volumes": (SharedVolume("my_runs", "/shared"),)}, (), ["HO090"]),
        ({"env_from": ("a/b",)}, (), ["HO090"]),
        ({"nvme_class": "A"}, (), ["HO090"]),
        ({}, ("launch.env.HF_TOKEN=s3cr3t",), ["SE003"]),
        ({}, ("launch.env.ADDRESS=https://me:secret@host",), ["SE003"]),
        ({"image": None, "volumes": (), "namespace": "-"}, ("launch.env.A_KEY=hf_1",), ["EN090", "EN091", "HO090", "SE003"]),
    ],
)  # fmt: skip
def test_mistakes_are_findings(spec, options, overrides, expected):
    values = {name: getattr(ALL, name) for name in ALL.__slots__} | options
    rejected = prepared(spec, *overrides, options=JobSetOptions(**values))
    assert isinstance(rejected, LaunchRejected)
    assert sorted(f.gate for f in rejected.findings if f.is_error) == expected
    assert rejected.code == ExitCode.PREFLIGHT
    assert not any("hf_1" in f.message or "s3cr3t" in f.message for f in rejected.findings)


def test_the_longest_name_fits(spec):
    values = {name: getattr(ALL, name) for name in ALL.__slots__} | {"name": "a" * 46}
    assert isinstance(prepared(spec, options=JobSetOptions(**values)), dict)


def test_a_mistake_of_the_spec_is_told_with_the_others(spec):
    rejected = prepared(spec, "train.global_batch_size=7", options=JobSetOptions())
    assert isinstance(rejected, LaunchRejected)
    assert rejected.code == ExitCode.FINDINGS
    errors = {f.gate for f in rejected.findings if f.is_error}
    assert errors > {"EN090", "EN091"}, errors


def action_after(made: dict[str, Any], code: int = 0, *, disrupted: bool = False) -> str:
    """The action of the JobSet after a pod's failure, as the Job and JobSet controllers choose it."""
    rules = made["spec"]["replicatedJobs"][0]["template"]["spec"]["podFailurePolicy"]["rules"]
    message = ""
    for index, rule in enumerate(rules):
        if code in rule.get("onExitCodes", {}).get("values", ()) or (disrupted and "onPodConditions" in rule):
            message = f"something matching {rule['action']} rule at index {index}"
            break
    reason = "PodFailurePolicy" if message else "BackoffLimitExceeded"
    for rule in made["spec"]["failurePolicy"]["rules"]:
        patterns = rule.get("onJobFailureMessagePatterns", [""])
        if reason in rule["onJobFailureReasons"] and any(re.search(p, message) for p in patterns):
            return str(rule["action"])
    return "RestartJobSet"


def test_what_happens_after_each_end(spec):
    made = prepared(spec)
    for code in (ExitCode.USAGE, ExitCode.BUG, ExitCode.ENGINE_CHECK, ExitCode.INTERRUPTED):
        assert action_after(made, code) == "FailJobSet"
    for code in (ExitCode.PREEMPTED, ExitCode.TERMINATED):
        assert action_after(made, code) == "RestartJobSetAndIgnoreMaxRestarts"
    assert action_after(made, 137, disrupted=True) == "RestartJobSetAndIgnoreMaxRestarts"
    for code in (1, ExitCode.PREFLIGHT, ExitCode.HUNG, 137):
        assert action_after(made, code) == "RestartJobSet"


def harness(*arguments: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "harness", *arguments]
    return subprocess.run(
        command, cwd=cwd, text=True, capture_output=True, check=False, env={**os.environ, **env}, timeout=120
    )


def test_the_command_of_each_pod_is_one_that_the_harness_takes(tmp_path):
    (tmp_path / "tiny.yaml").write_text(SPEC.replace("gpus_per_node: 4, gpu: H100-80GB", "gpus_per_node: 1, gpu: cpu"))
    words = [
        "--image",
        "i",
        f"--pvc=runs:{tmp_path}",
        "--set",
        f"launch.output_dir={tmp_path}/runs",
        "--run-id",
        "job",
    ]
    told = ["--max-restarts", "2", "--allow-change=train.seed", "--resume", "auto", "--output", "job.yaml"]
    words += ["--num-nodes=2", *told]
    done = harness("launch", "tiny.yaml", "--kubernetes", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    made = yaml.safe_load((tmp_path / "job.yaml").read_text())
    assert made["spec"]["failurePolicy"]["maxRestarts"] == 2
    container = container_of(made)
    assert container["workingDir"] == str(tmp_path)
    for node in (0, 1):
        argv = expand_command(container, {"JOB_COMPLETION_INDEX": str(node), JOB_UID_VARIABLE: UID})
        assert argv[:2] == ["harness", "launch"]
        assert f"--set=launch.output_dir={tmp_path}/runs" in argv
        dry = harness(*argv[1:], "--dry-run", "--format", "json", cwd=tmp_path)
        assert dry.returncode == 0, dry.stderr
        plan = json.loads(dry.stdout)
        assert plan["node"] == node
        assert plan["hosts"] == [{"name": f"job-worker-0-{n}.job", "ranks": [n]} for n in (0, 1)]
        assert plan["run_dir"] == f"{tmp_path}/runs/Tiny.Run-{UID}"
        assert plan["argv"][plan["argv"].index("--master_addr") + 1] == "job-worker-0-0.job"


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"kubernetes": False, "image": "i"}, "needs `--kubernetes`"),
        ({"kubernetes": False, "output": "f"}, "needs `--kubernetes`"),
        ({"conflicts": {"--slurm": True}}, "cannot be used with `--kubernetes`"),
        ({"pvc": ["runs"]}, "is not `CLAIM:PATH`"),
        ({"pvc": ["runs:a"]}, "is not `CLAIM:PATH`"),
        ({"pvc": [":/a"]}, "is not `CLAIM:PATH`"),
        ({"workdir": "w"}, "is not an absolute folder"),
    ],
)
def test_options_that_do_not_go_together(given, text):
    values: dict[str, Any] = dict.fromkeys(
        ("run_id", "image", "namespace", "pvc", "workdir", "env_from", "nvme_class", "pod_patch", "output")
    )
    values |= {"kubernetes": True}
    assert parse_kubernetes(values, {}) == JobSetOptions()
    same = parse_kubernetes(values | {"pvc": ["c://data/../runs/"], "workdir": "/w/./x/.."}, {})
    assert same == JobSetOptions(volumes=(SharedVolume("c", "/runs"),), workdir=Path("/w"))
    conflicts = given.pop("conflicts", {})
    with pytest.raises(typer.BadParameter, match=text):
        parse_kubernetes(values | given, conflicts)


def test_a_patch_is_merged_into_the_pods(spec, tmp_path):
    patch = tmp_path / "pods.yaml"
    patch.write_text(
        "spec: {nodeSelector: {gpu: h100}, containers: [{name: harness, resources: {limits: {rdma/hca: 1}}}]}"
    )
    made = prepared(spec, options=replace(ALL, pod_patch=str(patch)))
    assert pod_of(made)["nodeSelector"] == {"gpu": "h100"}
    assert container_of(made)["resources"]["limits"] == {"nvidia.com/gpu": "4", "rdma/hca": "1"}
    patch.write_text("spec: {restartPolicy: Always}")
    assert ids(spec, options=replace(ALL, pod_patch=str(patch))) == ["EN094"]


def test_thousands_of_pods_are_one_short_word():
    pods = Pods("job", 4096, 8)
    cluster, findings = parse_hosts(pods.hosts)
    assert not findings
    assert [host.slots for host in cluster.hosts] == [8] * 4096
    assert cluster.hosts[0].name == pods.master
    assert cluster.hosts[-1].name == "job-worker-0-4095.job"
    assert max(map(len, pod_command(["launch", "s.yaml"], pods))) < 100


def test_words_of_the_command_stay_as_they_are():
    pods = Pods("job", 2, 1)
    words = ["launch", "a b.yaml", "--set", "x=$(HOME)", "--set", "y=$$z"]
    argv = expand_command({"command": pod_command(words, pods)}, {"HOME": "no"})
    assert argv[1:7] == words
