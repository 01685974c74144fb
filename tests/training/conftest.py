# SPDX-License-Identifier: Apache-2.0
"""Everything below is in the training tier: DeepSpeed on the CPU, whose ops are compiled once, in minutes.

Ranks are forked (`support/training/forked_ranks.py`), but for what is tested of the real `deepspeed` launcher, 15 s a
launch. Scripts of ranks are in `jobs/`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.disk_faults import build_disk_faults
from tests.support.training.forked_ranks import ForkedRanks
from tests.support.training.runtime_helpers import JOBS, TINY, write_run
from tests.support.training.runtime_settings import CASES, config, spec

pytestmark = pytest.mark.training
"""Read by `tests/conftest.py`, for every module of this folder."""


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Threads of torch spin while they wait for each other: on small tensors four take nine times the CPU of one."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def forked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkedRanks]:
    """Ranks that start in a second, on a disk that may fail; the real launcher is for what is tested of launching."""
    ranks = ForkedRanks(preload=build_disk_faults(tmp_path_factory.mktemp("disk-faults")))
    yield ranks
    ranks.close()


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a random tiny Llama, its embeddings tied, and the byte tokenizer."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from harness.runtime.tokenizer import byte_tokenizer

    folder = tmp_path_factory.mktemp("tiny-model")
    torch.manual_seed(0)
    fields = {k: v for k, v in TINY.items() if k != "model_type"}
    config = AutoConfig.for_model(
        TINY["model_type"], tie_word_embeddings=True, eos_token_id=256, pad_token_id=257, **fields
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def straight(forked: ForkedRanks, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Every configuration trained for 6 steps by the harness, saved at 3 and 6."""
    folder = tmp_path_factory.mktemp("straight")
    runs = {case: write_run(folder / case, spec(case, tiny_model), config(case)) for case in CASES}
    (folder / "jobs.json").write_text(json.dumps([{"run": str(run), "resume": None} for run in runs.values()]))
    forked.run(JOBS / "train_many.py", str(folder / "jobs.json"))
    return runs
