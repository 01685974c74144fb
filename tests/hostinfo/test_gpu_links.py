# SPDX-License-Identifier: Apache-2.0
"""The links that nvidia-smi names, from what it prints."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.hostinfo.gpu_links import (
    GpuLinks,
    find_gpu_links,
    parse_numa_affinity,
    parse_nvlink_status,
    parse_topology,
)
from tests.support.fake_gpu import NVLINK, ONE_H200, TOPOLOGY, made_up_gpu


def test_links_are_those_that_nvidia_smi_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", made_up_gpu(tmp_path, ONE_H200)["PATH"])
    links = find_gpu_links()
    assert links.pairs == {(0, 1): "NV18"}
    assert links.nvlink == pytest.approx(18 * 26.562e9)
    assert links.as_text() == "NV18 between all GPUs, NVLink 478 GB/s in one direction"


def test_network_cards_are_no_gpus_and_escapes_no_text() -> None:
    assert parse_topology(TOPOLOGY) == {(0, 1): "NV18"}
    assert parse_topology(TOPOLOGY.replace("NV18", "SYS")) == {(0, 1): "SYS"}
    assert parse_topology("nothing of the kind") == {}


def test_the_node_of_a_gpu_is_that_of_its_column() -> None:
    assert parse_numa_affinity(TOPOLOGY) == {0: 0, 1: 1}
    assert parse_numa_affinity(TOPOLOGY.replace("48-95\t1", "48-95\tN/A")) == {0: 0}
    assert parse_numa_affinity("GPU0\t X \n") == {}


def test_a_link_that_is_off_has_no_rate() -> None:
    status = NVLINK.replace("Link 3: 26.562 GB/s", "Link 3: <inactive>")
    assert parse_nvlink_status(status)[0] == pytest.approx(17 * 26.562e9)
    assert parse_nvlink_status("NVML: Unable to retrieve NVLink information\n") == {}


@pytest.mark.parametrize(
    ("pairs", "text", "is_without"),
    [
        ({}, "no other GPU, no NVLink", False),
        ({(0, 1): "PIX", (0, 2): "SYS"}, "pairs by PIX, SYS, no NVLink", True),
        ({(0, 1): "NV4", (0, 2): "SYS"}, "pairs by NV4, SYS, no NVLink", False),
    ],
)
def test_pairs_over_pcie_are_said(pairs: dict[tuple[int, int], str], text: str, is_without: bool) -> None:
    assert (GpuLinks(pairs).as_text(), GpuLinks(pairs).is_without_nvlink) == (text, is_without)
