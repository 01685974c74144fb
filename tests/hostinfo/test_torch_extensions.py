# SPDX-License-Identifier: Apache-2.0
"""The folder of compiled ops: one for each environment and kind of machine. Needs nothing; milliseconds."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.hostinfo import machine, torch_extensions
from harness.hostinfo.torch_extensions import set_torch_extensions_dir, torch_extensions_dir

HOME = {"XDG_CACHE_HOME": "/home/a/.cache"}


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"deepspeed": "0.19.8", "torch": "2.13.0+cu130"}
    monkeypatch.setattr(machine, "package_version", versions.get)
    monkeypatch.setattr(machine, "cpu_model", lambda: "AMD EPYC 9654")
    monkeypatch.setattr(machine, "cpu_flags", lambda: frozenset({"avx2", "avx512f"}))
    monkeypatch.setattr(machine, "accelerator_models", lambda: ("NVIDIA H100 80GB HBM3",))
    monkeypatch.setattr(torch_extensions, "_package_location", lambda package: f"/venv/lib/{package}/__init__.py")


def test_it_is_below_torchs_own_and_says_of_what() -> None:
    root = torch_extensions_dir(HOME)
    assert root == torch_extensions_dir(dict(HOME))
    assert root.parent == Path("/home/a/.cache/torch_extensions")
    assert root.name.startswith("deepspeed-0.19.8-torch-2.13.0-cu130-python-3.")


@pytest.mark.parametrize(
    ("of", "name", "value"),
    [
        (machine, "package_version", {"deepspeed": "0.18.2", "torch": "2.13.0+cu130"}.get),
        (machine, "package_version", {"deepspeed": "0.19.8", "torch": "2.12.0+cu130"}.get),
        (machine, "cpu_model", lambda: "Intel(R) Xeon(R) Platinum 8480+"),
        (machine, "cpu_flags", lambda: frozenset({"avx2"})),
        (machine, "accelerator_models", lambda: ("NVIDIA A100-SXM4-80GB",)),
        (torch_extensions, "_package_location", lambda package: f"/other-venv/lib/{package}/__init__.py"),
        (torch_extensions.platform, "python_version", lambda: "3.12.1"),
    ],
    ids=["deepspeed", "torch", "processor", "flags", "device", "environment", "python"],
)
def test_ops_of_another_environment_or_machine_are_not_ours(
    of: object, name: str, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = torch_extensions_dir(HOME)
    monkeypatch.setattr(of, name, value)
    assert torch_extensions_dir(HOME) != root


def test_ranks_on_the_cpu_have_ops_of_their_own_on_a_machine_with_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """`fused_adam` is another program for each."""
    on_cpu = torch_extensions_dir({**HOME, "DS_ACCELERATOR": "cpu"})
    assert on_cpu != torch_extensions_dir(HOME) == torch_extensions_dir({**HOME, "DS_ACCELERATOR": "cuda"})
    monkeypatch.setattr(machine, "accelerator_models", tuple)
    assert on_cpu == torch_extensions_dir(HOME)


def test_the_users_own_folder_wins() -> None:
    assert torch_extensions_dir({**HOME, "TORCH_EXTENSIONS_DIR": "/scratch/ops"}) == Path("/scratch/ops")


def test_a_process_that_imports_deepspeed_has_it_in_its_environment() -> None:
    for environ in (dict(HOME), {**HOME, "TORCH_EXTENSIONS_DIR": "/scratch/ops"}):
        expected = torch_extensions_dir(environ)
        set_torch_extensions_dir(environ)
        assert environ["TORCH_EXTENSIONS_DIR"] == str(expected)
        assert torch_extensions_dir(environ) == expected
