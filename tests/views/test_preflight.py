# SPDX-License-Identifier: Apache-2.0
"""The table of hosts. Needs nothing; milliseconds."""

from __future__ import annotations

import json
from dataclasses import replace

from harness.hostinfo.host_survey import HostFacts, Survey
from harness.hostinfo.torch_devices import TorchDevices
from harness.views import preflight as view
from harness.views.style import Style

WELL = HostFacts(
    "w0", 2, python="3.11.7", packages={"torch": "2.13.0"}, code="abc", cores=8, memory_total=2**30, nofile=1024
)


def table(*hosts):
    lines = view.render_survey(Survey(hosts), Style()).splitlines()
    return {line.split("  ")[0]: line for line in lines[1:]}, lines[0].split()


def test_the_odd_one_out_is_marked():
    rows, names = table(
        *(replace(WELL, name=f"w{i}", packages={"torch": "2.12.0" if i == 2 else "2.13.0"}) for i in range(3))
    )
    assert names == ["w0", "w1", "w2"]
    assert rows["torch"].split() == ["torch", "2.13.0", "2.13.0", "2.12.0*"]
    assert "*" not in rows["python"]
    assert "libaio" not in rows  # nobody was asked


def test_devices_that_torch_can_use_are_counted():
    used = [replace(WELL, name=f"w{i}", torch=TorchDevices("2.13.0", "13.0", count=8 * (i != 1))) for i in range(3)]
    rows, _ = table(*used)
    assert rows["torch can use"].split()[3:] == ["8", "0*", "8"]
    assert "torch can use" not in table(WELL)[0]


def test_a_host_without_an_answer_has_a_column_all_the_same():
    rows, _ = table(WELL, HostFacts("w1", 2, "unreachable", "no route"))
    assert rows["ssh"].split() == ["ssh", "0.0", "s", "not", "reached*"]
    assert rows["python"].split() == ["python", "3.11.7", "-"]


def test_of_many_hosts_the_odd_ones_are_shown():
    hosts = [replace(WELL, name=f"w{i}", python="3.12.0" if i in (500, 900) else "3.11.7") for i in range(1000)]
    text = view.render_survey(Survey(tuple(hosts)), Style())
    assert text.splitlines()[0].split() == ["w0", "w500", "w900"]
    assert "997 more hosts with the majority's values" in text


def test_json_has_everything():
    body = json.loads(view.survey_as_json(Survey((WELL,)), (), 0))
    assert body["totals"] == {"hosts": 1, "answered": 1, "errors": 0, "warnings": 0}
    assert body["hosts"][0]["memory_total"] == 2**30
