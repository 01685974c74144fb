# SPDX-License-Identifier: Apache-2.0
"""The launch plan, on values alone. Needs nothing; milliseconds."""

import json
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from harness.facts.required_ops import required_ops
from harness.launching.hosts.local_host import LocalHost, inspect_local_host
from harness.launching.setup.environment import forwarded_variables
from harness.launching.setup.launch_checks import check_launch
from harness.launching.setup.launch_plan import Network, RunTarget, build_launch_plan
from harness.run.resolved_run import resolve_run
from harness.spec.hostfile import Cluster, Host, hostfile_text
from harness.spec.run_spec import RunSpec
from tests.support.fake_gpu import ONE_H200, made_up_gpu

HERE = LocalHost(
    hostname="login",
    cwd=Path("/work dir"),
    python="/venv/bin/python",
    deepspeed=("/venv/bin/deepspeed",),
    scripts=Path("/harness/workers"),
    cores=16,
    accelerated=False,
    num_accelerators=0,
    port=23456,
    supervisor_id="login:1:2",
    environ={"PATH": "/usr/bin", "PYTHONPATH": "/lib", "HF_TOKEN": "hf_secret"},
    local_names=frozenset({"localhost"}),
    has_default_hostfile=False,
)
CONFIG = {"optimizer": {"type": "AdamW"}, "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}}


def planned(*hosts, here=HERE, env=None, gpus=4, resume=None, zero=None):
    spec = RunSpec.model_validate({"zero": zero or {"stage": 3}, "launch": {"num_gpus": gpus, "env": env or {}}})
    run = resolve_run(spec, name="demo", cluster=Cluster.from_pairs(hosts) if hosts else None)
    return build_launch_plan(
        run, CONFIG, here, RunTarget(Path("/runs/demo-1"), {"hostfile": "h"} if hosts else {}, resume)
    ), run


def variables(plan):
    return {v.name: v.value for v in plan.variables}


def test_this_machine_needs_no_ssh():
    plan, _ = planned()
    assert list(plan.argv) == [
        "/venv/bin/deepspeed", "--num_gpus", "4", "--master_port", "23456", "/harness/workers/train_worker.py", "--run", "/runs/demo-1",
    ]  # fmt: skip
    assert plan.local
    assert plan.hosts[0].ranks == range(4)
    assert plan.ops == ("deepspeed_shm_comm", "cpu_adam")


def test_a_hostfile_of_this_machine_alone_is_started_without_ssh_too():
    plan, _ = planned(("localhost", 2))
    assert "--hostfile" not in plan.argv
    assert plan.argv[1:3] == ("--num_gpus", "2")


def test_one_other_host_is_forced_to_be_that_host():
    plan, _ = planned(("worker-0", 8))
    assert not plan.local
    assert plan.argv[1:4] == ("--hostfile", "/runs/demo-1/hostfile", "--force_multi")


def test_two_hosts_number_their_ranks_in_the_order_of_the_lines():
    plan, _ = planned(("b", 2), ("a", 3))
    assert [(h.name, h.ranks) for h in plan.hosts] == [("b", range(2)), ("a", range(2, 5))]
    assert "--force_multi" not in plan.argv
    assert plan.port == 29500
    assert plan.environment(HERE.environ)["DS_ENV_FILE"] == "/runs/demo-1/deepspeed.env"


def test_a_login_node_is_known_to_have_no_ranks():
    assert planned()[0].has_local_ranks
    assert not planned(("a", 1), ("b", 1))[0].has_local_ranks
    plan, _ = planned(("a", 1), ("b", 1), here=replace(HERE, local_names=frozenset({"b"})))
    assert plan.has_local_ranks
    assert json.loads(plan.files()["launch.json"])["trains_here"]


def test_devices_chosen_by_cuda_visible_devices_stay_chosen():
    here = replace(HERE, accelerated=True, num_accelerators=2, environ={**HERE.environ, "CUDA_VISIBLE_DEVICES": "2,3"})
    plan, run = planned(here=here, gpus=2)
    assert plan.argv[1:3] == ("--include", "localhost:2,3")
    named = replace(here, environ={**here.environ, "CUDA_VISIBLE_DEVICES": "GPU-1a2b"})
    assert "EN004" in {f.gate for f in check_launch(run, named, plan.run_dir)}


def test_deepspeeds_default_hostfile_is_not_obeyed_unasked():
    plan, _ = planned(here=replace(HERE, has_default_hostfile=True))
    assert plan.argv[1:3] == ("--hostfile", "/dev/null")


def test_the_allocator_of_pinned_memory_reaches_the_ranks():
    zero = {"stage": 3, "offload_optimizer": {"device": "cpu"}, "pin_memory_backend": "native"}
    plan, _ = planned(zero=zero)
    assert variables(plan)["DS_PIN_MEMORY_BACKEND"] == "native"
    assert plan.ops[-1] == "pin_memory"
    plan, _ = planned(zero=zero, env={"DS_PIN_MEMORY_BACKEND": "torch"})
    assert variables(plan)["DS_PIN_MEMORY_BACKEND"] == "torch"
    assert "DS_PIN_MEMORY_BACKEND" not in variables(planned()[0])


def test_threads_are_shared_out_unless_the_user_did():
    assert variables(planned()[0])["OMP_NUM_THREADS"] == "4"
    assert variables(planned(env={"OMP_NUM_THREADS": "7"})[0])["OMP_NUM_THREADS"] == "7"
    assert "OMP_NUM_THREADS" not in variables(
        planned(here=replace(HERE, environ={**HERE.environ, "OMP_NUM_THREADS": "3"}))[0]
    )
    assert variables(planned(gpus=64)[0])["OMP_NUM_THREADS"] == "1"


def test_the_environments_own_ninja_comes_first():
    plan, _ = planned()
    assert plan.environment(HERE.environ)["PATH"] == "/venv/bin:/usr/bin"


def test_a_secret_of_the_shell_is_written_nowhere():
    here = replace(HERE, environ={**HERE.environ, "MLFLOW_TRACKING_TOKEN": "canary"})
    for plan, _ in (planned(here=here), planned(("a", 1), ("b", 1), here=here)):
        text = "".join(plan.files().values())
        assert "hf_secret" not in text
        assert "canary" not in text


def test_deepspeed_env_has_nothing_but_assignments():
    plan, _ = planned(("a", 1), ("b", 1), env={"NCCL_DEBUG": "INFO"})
    lines = plan.files()["deepspeed.env"].splitlines()
    assert "NCCL_DEBUG=INFO" in lines
    assert all("=" in line for line in lines)


def test_what_computes_and_communicates_is_set_alike_on_all_hosts():
    """Ranks on this machine have the variables of the shell; of the devices' numbers and toolkits each host has its own."""
    shell = {
        "PYTORCH_ALLOC_CONF": "expandable_segments:True,roundup_power2_divisions:4",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "GLOO_SOCKET_IFNAME": "eth1",
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",
    }
    own = {"CUDA_VISIBLE_DEVICES": "3", "CUDA_HOME": "/opt/cuda", "PYTORCH_KERNEL_CACHE_PATH": "/x"}
    here = replace(HERE, environ={**HERE.environ, **shell, **own})
    plan, run = planned(("a", 1), ("b", 1), here=here)
    lines = set(plan.files()["deepspeed.env"].splitlines())
    assert {f"{name}={value}" for name, value in shell.items()} <= lines
    assert not {f"{name}={value}" for name, value in own.items()} & lines
    assert variables(planned(("a", 1), here=here, env={"GLOO_SOCKET_IFNAME": "ib0"})[0])["GLOO_SOCKET_IFNAME"] == "ib0"
    by_srun = run.spec.model_copy(update={"launch": run.spec.launch.model_copy(update={"launcher": "slurm"})})
    assert not {v.name for v in forwarded_variables(by_srun.launch, here)} & set(shell)  # its `--export=ALL` has them


def test_launch_sh_is_the_same_command(tmp_path):
    plan, _ = planned(env={"GREETING": "it's $HOME"})
    script = plan.files()["launch.sh"]
    assert subprocess.run(["sh", "-n"], input=script, text=True, check=False).returncode == 0
    assert script.rstrip().endswith("exec " + shlex.join(plan.argv))
    head = "\n".join(line for line in script.splitlines() if not line.startswith(("cd ", "exec ")))
    done = subprocess.run(
        ["sh", "-c", head + '\nprintf %s "$GREETING|$PATH"'],
        text=True,
        capture_output=True,
        check=True,
        env={"PATH": "/bin"},
    )
    assert done.stdout == "it's $HOME|/venv/bin:/bin"


def test_plan_json_says_the_same():
    plan, _ = planned(resume=Path("/runs/demo-0/checkpoints/step-00000010"))
    body = json.loads(plan.files()["launch.json"])
    assert body["argv"] == list(plan.argv)
    assert body["resume"] == "/runs/demo-0/checkpoints/step-00000010"
    assert plan.argv[-2:] == ("--resume", body["resume"])


@pytest.mark.parametrize("value", ['a"b', "a$b", "a`b`", "a\\b", "50%", "a\nb", " a", "a "])
def test_values_that_a_remote_shell_would_change_are_refused(value):
    spec = RunSpec.model_validate({"launch": {"env": {"X": value}}})
    run = resolve_run(spec, cluster=Cluster.from_pairs([("a", 1), ("b", 1)]))
    assert "EN007" in {f.gate for f in check_launch(run, HERE, Path("/runs/x"))}
    alone = resolve_run(spec, world_size=1)
    assert "EN007" not in {f.gate for f in check_launch(alone, HERE, Path("/runs/x"))}


@pytest.mark.parametrize("name", ["", "A B", "A=B", "export A", "1A"])
def test_names_that_are_no_variables_are_refused(name):
    run = resolve_run(RunSpec.model_validate({"launch": {"env": {name: "1"}}}), world_size=1)
    assert "EN006" in {f.gate for f in check_launch(run, HERE, Path("/runs/x"))}


def test_assertions_must_be_on():
    run = resolve_run(RunSpec.model_validate({"launch": {"env": {"PYTHONOPTIMIZE": "1"}}}), world_size=1)
    assert "EN001" in {f.gate for f in check_launch(run, HERE, Path("/runs/x"))}
    here = replace(HERE, environ={"PYTHONOPTIMIZE": "2"})
    assert "EN001" in {f.gate for f in check_launch(resolve_run(RunSpec(), world_size=1), here, Path("/runs/x"))}


@pytest.mark.parametrize(
    ("config", "accelerated", "ops"),
    [
        ({"optimizer": {"type": "AdamW"}}, False, ("deepspeed_shm_comm", "fused_adam")),
        ({"optimizer": {"type": "SGD"}}, False, ("deepspeed_shm_comm",)),
        ({"optimizer": {"type": "SGD"}}, True, ()),
        ({"optimizer": {"type": "AdamW", "params": {"torch_adam": True}}}, True, ()),
        (CONFIG, True, ("cpu_adam",)),
        ({"optimizer": {"type": "Adam"}, "zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}}}, True, ("fused_adam", "pin_memory", "async_io")),
        ({"optimizer": {"type": "Adam"}, "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "nvme"}}}, True, ("cpu_adam",)),
    ],
)  # fmt: skip
def test_ops_follow_from_the_json(config, accelerated, ops):
    assert required_ops(config, accelerated=accelerated) == ops


def test_a_variable_that_deepspeed_forwards_into_a_shell_is_refused_when_the_shell_would_change_it():
    for name, value in (("PYTHONPATH", "/a$(touch x)"), ("MLFLOW_X", "a`b`"), ("UCX_TLS", 'a"b'), ("PYTHON X", "1")):
        here = replace(HERE, environ={**HERE.environ, name: value})
        plan, run = planned(("a", 1), ("b", 1), here=here)
        assert "EN007" in {f.gate for f in check_launch(run, here, plan.run_dir)}
        local, run = planned(here=here)
        assert "EN007" not in {f.gate for f in check_launch(run, here, local.run_dir)}
    plan, run = planned(("a", 1), ("b", 1))
    assert "EN007" not in {f.gate for f in check_launch(run, HERE, plan.run_dir)}


def test_what_ranks_are_told_of_their_run_is_not_the_specs_to_say():
    plan, _ = planned(env={"HARNESS_SUPERVISOR": "x:1:1", "HARNESS_RUN_DIR": "/x", "HARNESS_LEADER": "x", "A": "b"})
    found = [(v.name, v.value) for v in plan.variables]
    assert [value for name, value in found if name == "HARNESS_SUPERVISOR"] == [HERE.supervisor_id]
    assert dict(found)["HARNESS_RUN_DIR"] == "/runs/demo-1"
    assert "HARNESS_LEADER" not in dict(found)
    assert dict(found)["A"] == "b"


def test_what_preflight_found_out_is_used():
    spec = RunSpec.model_validate({"launch": {"env": {"NCCL_SOCKET_IFNAME": "ib0"}}})
    run = resolve_run(spec, name="demo", cluster=Cluster.from_pairs([("a", 1), ("b", 1)]))
    target = RunTarget(Path("/runs/demo-1"), {"hostfile": "h"})
    plan = build_launch_plan(run, CONFIG, HERE, target, Network("eth0", "10.0.0.1"))
    assert plan.argv[plan.argv.index("--master_addr") + 1] == "10.0.0.1"
    assert "--no_ssh_check" in plan.argv
    assert variables(plan)["GLOO_SOCKET_IFNAME"] == "eth0"
    assert variables(plan)["NCCL_SOCKET_IFNAME"] == "ib0"
    assert "BatchMode=yes" in plan.environment(HERE.environ)["PDSH_SSH_ARGS_APPEND"]


def test_whether_ranks_have_accelerators_is_noted_where_it_is_known():
    """By this machine's for its own ranks, by the answers of the hosts for theirs."""
    assert planned()[0].to_json()["accelerated"] is False
    assert planned(here=replace(HERE, accelerated=True, num_accelerators=4))[0].accelerated is True
    plan, run = planned(("a", 1), ("b", 1))
    assert plan.accelerated is None
    target = RunTarget(Path("/runs/demo-1"), {"hostfile": "h"})
    assert build_launch_plan(run, CONFIG, HERE, target, Network(accelerated=True)).accelerated is True


def test_a_login_node_without_a_gpu_starts_ranks_on_hosts_that_have_some():
    """Their ops are not the CPU's, which DeepSpeed has no builder for there; and NCCL's variables reach them."""
    here = replace(HERE, environ={**HERE.environ, "NCCL_DEBUG": "INFO"})
    _, run = planned(("a", 1), ("b", 1), here=here)
    target = RunTarget(Path("/runs/demo-1"), {"hostfile": "h"})
    on_gpus, on_cpus = (
        build_launch_plan(run, CONFIG, here, target, Network(accelerated=accelerated)) for accelerated in (True, False)
    )
    assert "deepspeed_shm_comm" not in on_gpus.ops
    assert on_cpus.ops[0] == "deepspeed_shm_comm"
    assert variables(on_gpus)["NCCL_DEBUG"] == "INFO"


def test_the_suite_takes_the_cpu_of_a_machine_with_a_gpu(tmp_path, monkeypatch):
    """What tests compare with the CPU's results is not trained on a GPU that happens to be there (`conftest.py`)."""
    monkeypatch.setenv("PATH", made_up_gpu(tmp_path, ONE_H200)["PATH"])
    here = inspect_local_host()
    assert (here.device_names, here.accelerated, here.num_accelerators) == (("NVIDIA H200",), False, 0)
    assert inspect_local_host(variables={"DS_ACCELERATOR": "cuda"}).num_accelerators == 1  # what the spec says counts
    monkeypatch.delenv("DS_ACCELERATOR")
    assert inspect_local_host().accelerated
    assert not inspect_local_host(variables={"DS_ACCELERATOR": "cpu"}).accelerated


def test_devices_chosen_one_by_one_are_told_to_deepspeed():
    cluster = Cluster((Host("a", 2, (1, 3)), Host("b", 1)))
    run = resolve_run(RunSpec.model_validate({}), name="demo", cluster=cluster)
    plan = build_launch_plan(run, CONFIG, HERE, RunTarget(Path("/runs/demo-1"), {"hostfile": "h"}))
    assert plan.argv[plan.argv.index("--include") + 1] == "a:1,3@b:0"
    assert hostfile_text(cluster) == "a slots=4\nb slots=1\n"
    assert [h.ranks for h in plan.hosts] == [range(2), range(2, 3)]


@pytest.mark.parametrize(
    ("patches", "path"),
    [
        ("auto", "/stubs:/lib"),
        ("off", "/lib"),
        ({"no-mlflow": "off"}, "/lib"),
        ({"zero3-leaf-params": "off"}, "/stubs:/lib"),
    ],
    ids=str,
)
def test_the_stub_of_mlflow_follows_its_switch(patches, path):
    spec = RunSpec.model_validate({"launch": {"num_gpus": 2, "patches": patches}})
    here = replace(HERE, mlflow_stub_dir=Path("/stubs"))
    run = resolve_run(spec, name="demo", cluster=None)
    plan = build_launch_plan(run, CONFIG, here, RunTarget(Path("/runs/demo-1"), {}, None))
    assert plan.environment(here.environ)["PYTHONPATH"] == path
