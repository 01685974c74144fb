"""The planner's rows against what live DeepSpeed engines hold, to the byte. Needs deepspeed; 2 processes, about a minute."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from harness.facts.models import ModelFacts, from_config
from harness.plan.rows import Row
from harness.plan.run import resolve
from harness.plan.settings import Settings, settings_of
from harness.plan.shards import shard
from harness.plan.states import state_rows
from harness.spec.model import RunSpec

pytest.importorskip("deepspeed")

WORKER = Path(__file__).with_name("count_states.py")
MODEL = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 259,
}


@dataclass(frozen=True)
class Case:
    stage: int
    bf16: bool
    optimizer_at: str = "none"
    parameters_at: str = "none"
    decay: bool = False

    def __str__(self) -> str:
        places = f"{self.optimizer_at}-{self.parameters_at}" + ("-decay" if self.decay else "")
        return f"stage{self.stage}-{'bf16' if self.bf16 else 'fp32'}-{places}"

    def config(self) -> dict[str, Any]:
        zero: dict[str, Any] = {"stage": self.stage, "reduce_bucket_size": 50000, "sub_group_size": 40000}
        zero |= {"stage3_param_persistence_threshold": 100}
        if self.optimizer_at != "none":
            zero["offload_optimizer"] = {"device": self.optimizer_at}
        if self.parameters_at != "none":
            zero["offload_param"] = {"device": self.parameters_at}
        return {
            "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": 2,
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
            "zero_optimization": zero,
            "bf16": {"enabled": self.bf16},
        }

    def settings(self) -> Settings:
        zero = self.config()["zero_optimization"]
        spec = RunSpec.model_validate(
            {
                "train": {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 2},
                "data": {"max_length": 16},
                "optimizer": {"weight_decay": 0.1 if self.decay else 0.0},
                "precision": {"bf16": self.bf16},
                "zero": zero,
                "launch": {"num_gpus": 2},
            }
        )
        settings = settings_of(resolve(spec))
        assert settings is not None
        return settings


CASES = [
    Case(0, bf16=False),
    Case(0, bf16=True),
    Case(1, bf16=False),
    Case(1, bf16=True),
    Case(2, bf16=False),
    Case(2, bf16=True),
    Case(2, bf16=True, decay=True),
    Case(3, bf16=False),
    Case(3, bf16=True),
    Case(3, bf16=True, decay=True),
    Case(1, bf16=True, optimizer_at="cpu"),
    Case(2, bf16=False, optimizer_at="cpu"),
    Case(2, bf16=True, optimizer_at="cpu"),
    Case(3, bf16=False, optimizer_at="cpu"),
    Case(3, bf16=True, optimizer_at="cpu"),
    Case(3, bf16=True, optimizer_at="cpu", parameters_at="cpu"),
]


@pytest.fixture(scope="module")
def counts(tmp_path_factory: pytest.TempPathFactory) -> list[list[dict[str, int]]]:
    """Counted bytes: by rank, then by case. One pair of processes trains all cases in turn."""
    folder = tmp_path_factory.mktemp("counts")
    work = {"model": MODEL, "cases": [[case.config(), case.decay] for case in CASES]}
    (folder / "cases.json").write_text(json.dumps(work), encoding="utf-8")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    common = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2", "LOCAL_SIZE": "2"}
    common |= {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
    # Another ninja than the launcher's would compile every op again: versions hash commands differently.
    common |= {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    command = [sys.executable, str(WORKER), str(folder / "cases.json"), str(folder)]
    logs = [(folder / f"{rank}.log").open("w") for rank in range(2)]
    ranks = [
        subprocess.Popen(
            command, env={**common, "RANK": str(r), "LOCAL_RANK": str(r)}, stdout=logs[r], stderr=subprocess.STDOUT
        )
        for r in range(2)
    ]
    try:
        codes = [rank.wait(timeout=600) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
        for log in logs:
            log.close()
        for left in Path("/dev/shm").glob(f"deepspeed_allreduce_buffer_*{port}*"):  # noqa: S108 - DeepSpeed leaves them
            left.unlink(missing_ok=True)
    assert codes == [0, 0], (folder / "0.log").read_text(encoding="utf-8")[-3000:]
    return [json.loads((folder / f"{r}.json").read_text(encoding="utf-8")) for r in range(2)]


def model_facts() -> ModelFacts:
    facts = from_config(MODEL).facts
    assert facts is not None
    return facts


def rows_of(case: Case) -> list[Row]:
    settings = case.settings()
    return state_rows(settings, shard(model_facts(), settings))


def planned(rows: list[Row], kind: str) -> int:
    return sum(row.bytes for row in rows if row.kind == kind and row.tier in ("gpu", "host"))


@pytest.mark.parametrize("index", range(len(CASES)), ids=[str(case) for case in CASES])
def test_every_kind_is_predicted_to_the_byte(index: int, counts: list[list[dict[str, int]]]) -> None:
    rows = rows_of(CASES[index])
    by_rank = [rank[index] for rank in counts]
    kinds = set(by_rank[0]) - {"held"}
    counted = {kind: max(rank[kind] for rank in by_rank) for kind in kinds}
    expected = {kind: planned(rows, kind) for kind in kinds}
    if CASES[index].stage in (1, 2) and CASES[index].optimizer_at == "cpu":
        expected["largest"] //= 2  # one on the host, one on the device
    assert counted == expected


@pytest.mark.parametrize("index", range(len(CASES)), ids=[str(case) for case in CASES])
def test_nothing_else_is_held_between_steps(index: int, counts: list[list[dict[str, int]]]) -> None:
    """All tensors of the process together. Stages 1 and 2 keep a reference to the last gradient that they reduced."""
    case = CASES[index]
    kinds = {"parameters", "master", "states", "master_gradients", "staging", "largest", "accumulated"}
    if case.stage == 3:
        kinds |= {"bucket", "gradients", "persistent"}
    expected = sum(row.bytes for row in rows_of(case) if row.kind in kinds and "step" in row.phases)
    extra = max(rank[index]["held"] for rank in counts) - expected
    last = [p for p in model_facts().parameters() if not case.decay or len(p.shape) == 1][-1].numel * (
        2 if case.bf16 else 4
    )
    assert extra == (last if case.stage in (1, 2) else 0)
