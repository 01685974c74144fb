"""Which folder compiled ops are in: one for each environment and kind of machine. Needs nothing; milliseconds."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.facts import compiled_ops, machine
from harness.facts.compiled_ops import extensions_root, use_extensions_root

HOME = {"XDG_CACHE_HOME": "/home/a/.cache"}


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"deepspeed": "0.19.8", "torch": "2.13.0+cu130"}
    monkeypatch.setattr(machine, "installed", versions.get)
    monkeypatch.setattr(machine, "cpu_model", lambda: "AMD EPYC 9654")
    monkeypatch.setattr(machine, "cpu_flags", lambda: frozenset({"avx2", "avx512f"}))
    monkeypatch.setattr(machine, "accelerator_models", lambda: ("NVIDIA H100 80GB HBM3",))
    monkeypatch.setattr(compiled_ops, "_location", lambda package: f"/venv/lib/{package}/__init__.py")


def test_it_is_below_torchs_own_and_says_of_what() -> None:
    root = extensions_root(HOME)
    assert root == extensions_root(dict(HOME))
    assert root.parent == Path("/home/a/.cache/torch_extensions")
    assert root.name.startswith("deepspeed-0.19.8-torch-2.13.0-cu130-python-3.")


@pytest.mark.parametrize(
    ("of", "name", "value"),
    [
        (machine, "installed", {"deepspeed": "0.18.2", "torch": "2.13.0+cu130"}.get),
        (machine, "installed", {"deepspeed": "0.19.8", "torch": "2.12.0+cu130"}.get),
        (machine, "cpu_model", lambda: "Intel(R) Xeon(R) Platinum 8480+"),
        (machine, "cpu_flags", lambda: frozenset({"avx2"})),
        (machine, "accelerator_models", lambda: ("NVIDIA A100-SXM4-80GB",)),
        (compiled_ops, "_location", lambda package: f"/other-venv/lib/{package}/__init__.py"),
        (compiled_ops.platform, "python_version", lambda: "3.12.1"),
    ],
    ids=["deepspeed", "torch", "processor", "flags", "device", "environment", "python"],
)
def test_ops_of_another_environment_or_machine_are_not_ours(
    of: object, name: str, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = extensions_root(HOME)
    monkeypatch.setattr(of, name, value)
    assert extensions_root(HOME) != root


def test_ranks_on_the_cpu_have_ops_of_their_own_on_a_machine_with_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """`fused_adam` is another program for each."""
    on_cpu = extensions_root({**HOME, "DS_ACCELERATOR": "cpu"})
    assert on_cpu != extensions_root(HOME) == extensions_root({**HOME, "DS_ACCELERATOR": "cuda"})
    monkeypatch.setattr(machine, "accelerator_models", tuple)
    assert on_cpu == extensions_root(HOME)


def test_the_users_own_folder_wins() -> None:
    assert extensions_root({**HOME, "TORCH_EXTENSIONS_DIR": "/scratch/ops"}) == Path("/scratch/ops")


def test_a_process_that_imports_deepspeed_has_it_in_its_environment() -> None:
    for environ in (dict(HOME), {**HOME, "TORCH_EXTENSIONS_DIR": "/scratch/ops"}):
        wanted = extensions_root(environ)
        use_extensions_root(environ)
        assert environ["TORCH_EXTENSIONS_DIR"] == str(wanted)
        assert extensions_root(environ) == wanted
