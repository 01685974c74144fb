# SPDX-License-Identifier: Apache-2.0
"""Preflight on four hosts in a box, with everything wrong that it must find. Needs root, sshd; half a minute."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.launching.hosts import ssh
from tests.support.boxes import NEEDS_ROOT, TheBox, box_command, made_box

PORT = 29547
SPEC = """\
name: asked
model:
  config: {{model_type: llama, vocab_size: 320, hidden_size: 32, intermediate_size: 64, num_hidden_layers: 2,
           num_attention_heads: 4, num_key_value_heads: 2, max_position_embeddings: 128}}
  tokenizer: bytes
data: {{train: "builtin:python-docs", max_length: 64}}
train: {{max_steps: 2, per_device_train_batch_size: 2}}
zero: {{stage: 3{offload}}}
launch:
  output_dir: {output}
  master_port: {port}
"""
pytestmark = [pytest.mark.training, *NEEDS_ROOT]


@pytest.fixture(scope="module")
def box() -> Iterator[TheBox]:
    with made_box(4, "p") as made:
        yield made


class Asked:
    """One call of `harness preflight` with a spec and the box's hosts."""

    def __init__(
        self,
        box: TheBox,
        folder: Path,
        *options: str,
        hosts: int = 4,
        slots: int = 1,
        offload: str = "",
        more: str = "",
    ) -> None:
        output = folder / "runs"
        output.mkdir(exist_ok=True)
        spec = folder / "spec.yaml"
        spec.write_text(SPEC.format(output=output, port=PORT, offload=offload) + more)
        hostfile = box.hostfile(folder / "hostfile", hosts, slots)
        command = [
            sys.executable,
            "-m",
            "harness",
            "preflight",
            str(spec),
            "--hostfile",
            str(hostfile),
            "--format",
            "json",
        ]
        began = time.monotonic()
        done = subprocess.run([*command, *options], env=box.environ(), text=True, capture_output=True, check=False)
        self.seconds, self.code, self.stderr = time.monotonic() - began, done.returncode, done.stderr
        self.body = json.loads(done.stdout)
        self.found = {f["gate"]: f for f in self.body["findings"]}
        assert list(output.iterdir()) == []  # nothing is left behind

    def says(self, gate: str, *words: str) -> bool:
        text = json.dumps(self.found.get(gate, {}))
        return all(word in text for word in words)


def test_hosts_that_are_well(box, tmp_path):
    asked = Asked(box, tmp_path)
    assert (asked.code, asked.body["findings"]) == (0, [])
    assert asked.body["network"] == {"interface": "eth0", "master_address": box.address(1), "port": PORT}
    assert asked.body["totals"]["answered"] == 4
    assert len(asked.body["links"]) == 6  # two ports, from three hosts
    assert len({host["machine"] for host in asked.body["hosts"]}) == 4
    assert len({host["code"] for host in asked.body["hosts"]}) == 1


@pytest.mark.parametrize("hosts", [1, 2])
def test_no_variable_of_a_spec_is_a_command_on_the_hosts_of_an_all_reduce(box, tmp_path, hosts):
    """The spec's own `ignore`, and a host that is alone, do not let it through."""
    marker = tmp_path / "ran"
    more = f"  env: {{TAG: 'a\"; touch {marker}; echo \"b'}}\nignore: {{SE005: trust me}}\n"
    asked = Asked(box, tmp_path, "--allreduce", hosts=hosts, more=more)
    assert asked.code == 4
    assert asked.says("EN007", "`TAG`", "changed")
    assert not marker.exists()


def test_hosts_that_do_not_let_us_in(box, tmp_path):
    """A wrong key, a stale host key and a link that is down, all in one answer; the first host is not held up."""
    keys = box.folder / "hosts" / "2" / "authorized_keys"
    kept = keys.read_text()
    known = box.folder / "known_hosts"
    lines = known.read_text()
    stale = lines.splitlines()
    stale[2] = f"{box.address(3)} {' '.join(stale[0].split()[1:])}"
    try:
        keys.write_text("")
        known.write_text("\n".join(stale) + "\n")
        box_command(box.name, "cut", "4")
        asked = Asked(box, tmp_path)
    finally:
        keys.write_text(kept)
        known.write_text(lines)
        box_command(box.name, "heal", "4")
    assert asked.code == 4
    assert asked.says("HO013", box.address(2), "Permission denied")
    assert asked.says("HO014", box.address(3), "verification failed")
    assert asked.says("HO012", box.address(4))
    assert [host["state"] for host in asked.body["hosts"]][:1] == ["ok"]
    assert set(asked.found) == {"HO012", "HO013", "HO014"}


def test_a_slow_host_holds_up_nobody(box, tmp_path):
    with box.sshd(2, "ForceCommand sleep 60"):
        asked = Asked(box, tmp_path, "--timeout", "6")
    assert set(asked.found) == {"HO015"}
    assert asked.says("HO015", box.address(2), "nothing within 6 s")
    assert [host["state"] for host in asked.body["hosts"]] == ["ok", "no answer in time", "ok", "ok"]
    assert asked.seconds < 30


@contextlib.contextmanager
def other_versions(box: TheBox, folder: Path, host: int) -> Iterator[None]:
    """On this host another DeepSpeed is found first, and the clock of Python is a minute ahead."""
    fake = folder / "fake"
    (fake / "deepspeed-0.17.1.dist-info").mkdir(parents=True)
    (fake / "deepspeed-0.17.1.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: deepspeed\nVersion: 0.17.1\n"
    )
    (fake / "sitecustomize.py").write_text("import time\nreal = time.time\ntime.time = lambda: real() + 60\n")
    with box.sshd(host, f"SetEnv PYTHONPATH={fake}"):
        yield


def test_hosts_that_lack_something(box, tmp_path):
    """Versions and clock of host 2; libaio, disk and shared folder of host 3; memory of host 4."""
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 65536 kB\nMemAvailable: 32768 kB\n")
    gone = tmp_path / "gone.h"
    gone.write_text("#error no such header\n")
    nvme = tmp_path / "nvme"
    nvme.mkdir()
    runs = tmp_path / "runs"
    runs.mkdir()
    with contextlib.ExitStack() as faults:
        faults.enter_context(other_versions(box, tmp_path, 2))
        for header in filter(Path.exists, [Path("/usr/include/libaio.h")]):
            faults.enter_context(box.mounted(3, gone, header))
        box.on(3, "mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(runs))
        faults.callback(box.on, 3, "umount", str(runs))
        faults.enter_context(box.mounted(4, meminfo, Path("/proc/meminfo")))
        asked = Asked(box, tmp_path, offload=f", offload_optimizer: {{device: nvme, nvme_path: {nvme}}}")
    assert asked.code == 4
    assert asked.says("EN040", box.address(2), "deepspeed 0.17.1")
    assert asked.says("HO023", box.address(2), "60 s ahead") or asked.says("HO023", box.address(2), "59 s ahead")
    assert asked.says("EN047", box.address(3), "libaio")
    assert asked.says("EN044", box.address(3), "64.00 KiB")
    assert asked.says("EN042", box.address(3), "tmpfs")
    assert asked.says("EN046", box.address(4), "64.00 MiB")
    assert set(asked.found) <= {"EN040", "HO023", "EN047", "EN044", "EN042", "EN046", "EN050"}


def test_more_slots_than_devices_and_a_torch_that_cannot_use_them(box, tmp_path, monkeypatch):
    monkeypatch.delenv("DS_ACCELERATOR")
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'NVIDIA H100 80GB HBM3, 81559'\n")
    program.chmod(0o755)
    path = f"SetEnv PATH={program.parent}:/usr/bin:/bin"
    with box.sshd(1, path), box.sshd(2, path):
        asked = Asked(box, tmp_path, hosts=2, slots=2)
    assert asked.says("HO017", "has 2 slots and 1 accelerators")
    first = asked.body["hosts"][0]
    assert first["accelerators"] == ["NVIDIA H100 80GB HBM3"]
    assert first["torch"]["version"].partition("+")[0] == first["packages"]["torch"].partition("+")[0]
    assert ("EN054" in asked.found) is (first["torch"]["count"] == 0)
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    with box.sshd(1, path), box.sshd(2, path):
        asked = Asked(box, tmp_path, hosts=2, slots=2)
    assert asked.found == {}
    assert asked.body["hosts"][0]["torch"] is None


def test_ports_that_are_taken_or_blocked(box, tmp_path):
    holder = f"import socket, time; s = socket.create_server(('', {PORT})); time.sleep(60)"
    taken = box.start_on(1, sys.executable, "-c", holder)
    try:
        end = time.monotonic() + 10
        while f":{PORT} " not in box.on(1, "ss", "-ltn").stdout and time.monotonic() < end:
            time.sleep(0.05)
        asked = Asked(box, tmp_path, hosts=2)
        assert asked.says("HO018", f"port {PORT}", "taken")
    finally:
        box.on(1, "pkill", "-f", "create_server", check=False)
        taken.wait(10)
    rule = ["rule", "OP", "ipproto", "tcp", "dport", str(PORT), "prohibit"]
    box.on(2, "ip", *[word.replace("OP", "add") for word in rule])
    try:
        blocked = Asked(box, tmp_path, hosts=3)
    finally:
        box.on(2, "ip", *[word.replace("OP", "delete") for word in rule])
    assert set(blocked.found) == {"HO019"}
    assert blocked.says("HO019", f"`{box.address(2)}` cannot reach port {PORT}")


def test_two_networks_to_choose_from(box, tmp_path):
    for host in (1, 2):
        box.on(
            host,
            "sh",
            "-c",
            f"ip link add link eth0 name lan1 type macvlan mode bridge && ip addr add 10.214.7.{host}/24 dev lan1 && ip link set lan1 up",
        )
    try:
        asked = Asked(box, tmp_path, hosts=2)
        told = Asked(box, tmp_path, "--set", "launch.env.GLOO_SOCKET_IFNAME=eth0", hosts=2)
    finally:
        for host in (1, 2):
            box.on(host, "ip", "link", "delete", "lan1")
    assert set(asked.found) == {"HO020"}
    assert asked.says("HO020", "eth0", "lan1")
    assert asked.body["network"]["interface"] is None
    assert told.found == {}


def test_nothing_is_executed_by_a_shell(box, tmp_path, monkeypatch):
    """Words of a request, the path of Python and names of hosts: each is literal or refused, on both sides."""
    for name, value in box.environ().items():
        monkeypatch.setenv(name, value)
    marker = tmp_path / "marker"
    script = tmp_path / "script.py"
    script.write_text(f"import json, sys\nprint({ssh.MARK.decode()!r} + json.dumps({{'got': sys.argv[1]}}))\n")
    evil = [
        f"$(touch {marker})",
        f"`touch {marker}`",
        f"'; touch {marker}; '",
        f'" && touch {marker} #',
        f"a\ntouch {marker}\n",
        "-c",
    ]
    for word in evil:
        answer = ssh.run_on_hosts([box.address(1)], script, {"job": word}, timeout_seconds=20)[0]
        assert answer.state == "ok"
        assert word not in answer.body["got"]  # it travels as base64
        assert (
            ssh.run_on_hosts([box.address(1)], script, {}, timeout_seconds=20, python=f"/nowhere/{word}")[0].state
            == "no probe"
        )
    for host in ("-oProxyCommand=touch " + str(marker), f"$(touch {marker})", f"a;touch {marker}", "x y"):
        assert ssh.run_on_hosts([host], script, {}, timeout_seconds=20)[0].state == "unreachable"
    assert not marker.exists()
