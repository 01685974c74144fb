# SPDX-License-Identifier: Apache-2.0
"""Several machines in accelerate's YAML: who starts, how many, and whether they meet."""

from __future__ import annotations

import pytest

from harness.check.check_file import check_file
from harness.facts.deepspeed_version import DeepSpeedTarget

TARGET = DeepSpeedTarget("0.19.8", "asked for")


def text_of(block="", **keys):
    keys = {"distributed_type": "DEEPSPEED", "num_machines": 2, "num_processes": 16, **keys}
    lines = "".join(f"{name}: {value}\n" for name, value in keys.items() if value is not None)
    return f"{lines}deepspeed_config:\n  zero_stage: 2\n{block}"


def check(file, *overrides):
    return check_file(file, overrides=overrides, deepspeed=TARGET)


def findings_of(checked):
    return [f for f in checked.report.findings if f.gate.startswith(("HF10", "HO", "SP021"))]


@pytest.mark.parametrize(
    "launcher", ["", "  deepspeed_multinode_launcher: pdsh\n", "  deepspeed_multinode_launcher: null\n"]
)
@pytest.mark.parametrize("address", [None, "10.0.0.1"])
def test_without_a_hostfile_each_machine_trains_alone(launcher, address, write):
    """Run with accelerate 1.15: `deepspeed --hostfile None`, a world of this machine, whatever the address is."""
    file = write("accelerate.yaml", text_of(launcher, main_process_ip=address, num_machines=8, num_processes=64))
    (finding,) = findings_of(check(file))
    assert (finding.gate, finding.severity, finding.key) == ("HF104", "error", "num_machines")
    assert "8 of 64 processes" in finding.message
    assert any("127.0.0.1" in note for note in finding.notes) is (address is not None)
    assert finding.fix.sets == ({"deepspeed_config.deepspeed_multinode_launcher": "standard"} if address else {})


def test_nossh_without_a_hostfile_starts_one_machine(write):
    (finding,) = findings_of(check(write("accelerate.yaml", text_of("  deepspeed_multinode_launcher: nossh\n"))))
    assert finding.gate == "HF104"
    assert "no other one starts" in finding.message


def test_torchrun_needs_an_address(write):
    file = write("accelerate.yaml", text_of("  deepspeed_multinode_launcher: standard\n"))
    assert [(f.gate, f.severity) for f in findings_of(check(file))] == [("HF105", "warning")]
    assert findings_of(check(file, "main_process_ip=10.0.0.1")) == []


@pytest.mark.parametrize("address", [".".join("0000"), "127.0.0.1", "localhost", "::1"])
def test_an_address_of_ones_own_is_no_machine_0(address, write):
    file = write("accelerate.yaml", text_of("  deepspeed_multinode_launcher: standard\n", main_process_ip=address))
    found = [(f.gate, f.severity, f.key) for f in findings_of(check(file))]
    assert found == [("HF105", "warning", "main_process_ip")]


@pytest.mark.parametrize(
    ("address", "host"),
    [
        ("root@10.0.0.1", "10.0.0.1"),
        ("http://gpu-a", "gpu-a"),
        ("10.0.0.1:29500", "10.0.0.1"),
        ("ssh://me@gpu-a/", "gpu-a"),
    ],
)
@pytest.mark.parametrize("launcher", ["standard", "pdsh"])
def test_an_address_is_a_host_alone(launcher, address, host, write):
    """Run with torch 2.13: its store times out at each of these."""
    write("hosts", "gpu-a slots=4\ngpu-b slots=4\n")
    section = f"  deepspeed_multinode_launcher: {launcher}\n  deepspeed_hostfile: hosts\n"
    found = findings_of(check(write("accelerate.yaml", text_of(section, main_process_ip=address))))
    (finding,) = (f for f in found if f.gate == "HF105")
    assert (finding.severity, finding.fix.sets) == ("error", {"main_process_ip": host})


@pytest.mark.parametrize("address", ["10.0.0.1", "gpu-a.cluster", "fe80::1%eth0", "[fe80::2]", "gpu_a"])
def test_a_host_is_an_address(address, write):
    section = "  deepspeed_multinode_launcher: standard\n"
    assert findings_of(check(write("accelerate.yaml", text_of(section, main_process_ip=f"'{address}'")))) == []


def test_what_the_command_line_says_can_be_told(write):
    file = write("accelerate.yaml", text_of())
    overrides = "deepspeed_config.deepspeed_multinode_launcher=standard", "main_process_ip=10.0.0.1"
    assert findings_of(check(file, *overrides)) == []


@pytest.mark.parametrize("machines", [None, 1, "x", True, 0])
def test_one_machine_needs_neither(machines, write):
    assert findings_of(check(write("accelerate.yaml", text_of(num_machines=machines, num_processes=7)))) == []


@pytest.mark.parametrize(("ranks", "severity", "words"), [(7, "warning", "3 on each, 6 in all"), (1, "error", "fewer")])
def test_processes_that_do_not_divide(ranks, severity, words, write):
    block = "  deepspeed_multinode_launcher: standard\n"
    checked = check(write("accelerate.yaml", text_of(block, main_process_ip="h", num_processes=ranks)))
    (finding,) = findings_of(checked)
    assert (finding.gate, finding.severity, words in finding.message) == ("HF106", severity, True)
    assert checked.run.parallel_dims.world_size == (6 if ranks == 7 else None)


def test_the_hostfile_that_it_names_is_read(write):
    write("config/hosts", "w0 slots=4\nlocalhost slots=8\n")
    file = write("accelerate.yaml", text_of("  deepspeed_hostfile: config/hosts\n", num_machines=3, num_processes=24))
    checked = check(file)
    assert checked.run.parallel_dims.world_size == 16
    assert [(f.gate, f.key) for f in findings_of(checked)] == [
        ("HF106", "num_machines"),
        ("HF106", "deepspeed_config.deepspeed_hostfile"),
        ("HO009", "deepspeed_config.deepspeed_hostfile"),
    ]
    assert "16 ranks start, not 24" in findings_of(checked)[0].message


def test_a_bad_line_of_its_hostfile_is_an_error(write):
    hosts = write("hosts", "w0 slots=8\nroot@w1 slots=8\n")
    (finding,) = findings_of(check(write("accelerate.yaml", text_of("  deepspeed_hostfile: hosts\n"))))
    assert (finding.gate, finding.place.file, finding.place.line) == ("HO003", hosts, 2)


def test_a_hostfile_that_is_not_here_is_a_warning(write):
    file = write("accelerate.yaml", text_of("  deepspeed_hostfile: /job/hosts\n"))
    assert [(f.gate, f.severity, f.key) for f in findings_of(check(file))] == [
        ("SP021", "warning", "deepspeed_config.deepspeed_hostfile")
    ]


def test_filters_of_hosts_are_left_to_the_launcher(write):
    write("hosts", "w0 slots=4\n")
    block = '  deepspeed_hostfile: hosts\n  deepspeed_inclusion_filter: "w0:0,1"\n'
    assert findings_of(check(write("accelerate.yaml", text_of(block)))) == []
