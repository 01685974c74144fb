# SPDX-License-Identifier: Apache-2.0
"""The cache of compiled ops on a real file system. Needs nothing; milliseconds."""

from harness.hostinfo import machine
from harness.launching.ops.build_cache import build_stamp_key, find_stale_locks


def test_a_lock_is_stale_when_nobody_holds_it(tmp_path):
    held, left = tmp_path / "cpu_adam" / "lock", tmp_path / "py311_cpu" / "fused_adam" / "lock"
    for lock in (held, left):
        lock.parent.mkdir(parents=True)
        lock.write_text("")
    with held.open():
        assert find_stale_locks(tmp_path) == [left]
        assert find_stale_locks(tmp_path, ["cpu_adam"]) == []
    assert find_stale_locks(tmp_path, ["cpu_adam"]) == [held]


def test_ops_of_another_gpu_are_not_ready(monkeypatch):
    """Under a TORCH_EXTENSIONS_DIR that hosts share, an op for an H100 is none for an A100."""
    environ = {"TORCH_EXTENSIONS_DIR": "/home/shared/ops"}

    def key_on(*models, **more):
        monkeypatch.setattr(machine, "accelerator_models", lambda: models)
        return build_stamp_key({**environ, **more})

    assert key_on("NVIDIA H100 80GB HBM3") == key_on("NVIDIA H100 80GB HBM3") != key_on("NVIDIA A100-SXM4-80GB")
    assert key_on("NVIDIA H100", DS_ACCELERATOR="cpu") == key_on("NVIDIA A100", DS_ACCELERATOR="cpu")
