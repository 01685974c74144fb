# SPDX-License-Identifier: Apache-2.0
"""The measuring program on small arrays. Needs torch and deepspeed (its CPU Adam is compiled once); seconds."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from harness.hostinfo.torch_extensions import torch_extensions_dir
from harness.runtime import hardware_benchmark


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware_benchmark, "ELEMENTS", 1_000_000)
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(torch_extensions_dir()))


def test_memory_and_adam_have_a_rate() -> None:
    from deepspeed.ops.op_builder import CPUAdamBuilder

    CPUAdamBuilder().load(verbose=False)
    assert hardware_benchmark.bench_host_memory() > 1e8
    assert hardware_benchmark.bench_cpu_adam() > 1e6


def test_what_fails_is_told_and_the_rest_is_measured(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def broken(folder: Path) -> tuple[float, float]:
        raise OSError(f"{folder.name} is full")

    monkeypatch.setattr(hardware_benchmark, "bench_disk", broken)
    monkeypatch.setattr(sys, "argv", ["measure", str(tmp_path)])
    hardware_benchmark.main()
    lines = {line["name"]: line for line in map(json.loads, capsys.readouterr().out.splitlines())}
    signal.setitimer(signal.ITIMER_REAL, 0)
    assert lines["host_memory"]["figures"]["host_memory"] > 0
    assert "is full" in lines["disk"]["failed"]
    assert all(line["seconds"] >= 0 for name, line in lines.items() if name != "start")


@pytest.mark.parametrize("is_direct", [True, False])
def test_the_file_on_the_disk_has_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_direct: bool) -> None:
    """So no end of the program leaves one: not SIGTERM, not SIGKILL."""
    sizes = []

    def has_direct_io(path: str) -> bool:
        assert list(tmp_path.iterdir()) == []
        sizes.append(path)
        return is_direct

    def bench_aio(path: str, file: int) -> dict[str, float | str]:
        assert os.path.realpath(path).startswith(str(tmp_path.resolve()))
        return {"disk_way": "aio"}

    monkeypatch.setattr(hardware_benchmark, "DISK_BYTES", 32 << 20)
    monkeypatch.setattr(hardware_benchmark, "has_direct_io", has_direct_io)
    monkeypatch.setattr(hardware_benchmark, "require_built", print)
    monkeypatch.setattr(hardware_benchmark, "_bench_aio", bench_aio)
    found = hardware_benchmark.bench_disk(tmp_path)
    assert str(found["disk_way"]).startswith("aio" if is_direct else "no O_DIRECT")
    assert is_direct or (float(found["disk_read"]) > 0 and float(found["disk_write"]) > 0)
    assert len(sizes) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_slow_disk_gets_fewer_bytes_and_a_slow_measurement_fewer_repeats() -> None:
    assert hardware_benchmark.count_disk_bytes(10.0) == 16 << 20
    assert hardware_benchmark.count_disk_bytes(0.25) == 64 << 20
    assert hardware_benchmark.count_disk_bytes(1e-3) == hardware_benchmark.DISK_BYTES
    calls: list[int] = []
    hardware_benchmark.time_fastest(lambda: calls.append(1), limit=0.0)
    assert len(calls) == 1
    assert sum(hardware_benchmark.SHARES.values()) == 20


def test_a_stream_is_larger_than_the_last_level_caches_of_all_sockets(tmp_path: Path) -> None:
    for core, (level, size, cores) in {0: (3, "65536K", "0"), 1: (3, "65536K", "1")}.items():
        for index, values in ((2, (2, "1024K", cores)), (3, (level, size, cores))):
            folder = tmp_path / f"cpu{core}" / "cache" / f"index{index}"
            folder.mkdir(parents=True)
            for name, value in zip(("level", "size", "shared_cpu_list"), values, strict=True):
                (folder / name).write_text(f"{value}\n")
    cache = hardware_benchmark.last_level_cache(tmp_path)
    assert cache == 128 << 20
    assert 4 * hardware_benchmark.count_stream_elements(cache, 1 << 40) >= 4 * cache
    assert hardware_benchmark.last_level_cache(tmp_path / "none") == 0
    assert hardware_benchmark.count_stream_elements(cache, 1 << 20) * 4 <= 1 << 17, "an eighth of the free memory"


def test_an_op_that_is_not_built_is_not_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    with pytest.raises(RuntimeError, match="cpu_adam is not built"):
        hardware_benchmark.bench_cpu_adam()
    assert not list(tmp_path.iterdir())
