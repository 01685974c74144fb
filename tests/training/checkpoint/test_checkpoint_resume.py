# SPDX-License-Identifier: Apache-2.0
"""A run that was stopped and went on is the run that was not: bit for bit, whatever is offloaded and wherever to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.checkpoints.latest import find_latest, verify_with_name
from harness.checkpoints.manifest import read_manifest
from tests.conftest import IS_NIGHT
from tests.support.training.forked_ranks import ForkedRanks

JOB = Path(__file__).parents[1] / "jobs" / "checkpoint_cases.py"
SAVED = "a/checkpoints/step-00000003"
SWAPPED = {
    "name_or_path": None,
    "tokenizer": "bytes",
    # below 1 MiB DeepSpeed swaps nothing: large enough that matrices go to NVMe, and norms do not
    "config": {
        "model_type": "llama",
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 5,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 320,
        "max_position_embeddings": 128,
        "attention_dropout": 0.1,
        "tie_word_embeddings": True,
    },
}
DEEP = {**SWAPPED, "config": {**SWAPPED["config"], "num_hidden_layers": 16}}
"""Four sub-groups of 1 MiB a rank: three are in flight, so that buffers are used again."""
IN_MEMORY = ("zero0", "zero3", "zero3-cpu-all", "zero3-cpu-bf16")
if IS_NIGHT:  # by day with other data, in the background, or in `parity/test_raw_parity.py`
    IN_MEMORY += ("zero1", "zero2", "zero2-cpu", "zero3-cpu", "zero2-bf16")
CHATS = {"path": "builtin:python-docstrings-chat", "format": "messages"}
DATA = {
    # A mixture drawn by weight, with more draws than its smaller source has rows; and batches of rows of one length.
    "packed": {"train": [{"path": "builtin:python-docs", "weight": 0.4}, {**CHATS, "weight": 0.6}], "packing": True},
    "by-length": {"train": [CHATS], "packing": False, "group_by_length": True},
}
PARALLEL = ("pipeline", "tensor")
PIPELINED = {"pipeline_read": True, "pipeline_write": True, "buffer_count": 12}
GO_ON = [["make", "a"], ["train", "a"], ["make", "b"], ["train", "b", SAVED]]


def cases_of(swap: str) -> list[dict[str, Any]]:
    """All of them; those whose states are on NVMe swap below `swap`."""
    optimizer = {"offload_optimizer": {"device": "nvme", "nvme_path": swap}}
    pipelined = {"offload_optimizer": {**optimizer["offload_optimizer"], **PIPELINED}}
    # by default five buffers of 100,000,000 elements, whose pages are made and locked
    both = {**optimizer, "offload_param": {"device": "nvme", "nvme_path": swap, "buffer_size": 1 << 16}}
    few = {"train": {"max_steps": 5, "gradient_accumulation_steps": 2}, "eval": {"eval_steps": None}}
    nvme = {"model": SWAPPED, **few}
    on_cpu = {"zero": {"offload_optimizer": {"device": "cpu"}}}
    often = {"checkpoint": {"save_steps": 1, "async_save": True, "save_total_limit": 3}}
    return [
        {
            "name": "nvme-optimizer",
            "case": "zero3-cpu",
            "settings": {**nvme, "zero": {**optimizer, "sub_group_size": 300_000}},
            "actions": [*GO_ON, ["make", "c", on_cpu], ["train", "c", SAVED]],
        },
        {
            "name": "nvme-pipelined",
            "case": "zero3-cpu-bf16",
            "settings": {**nvme, "model": DEEP, "zero": {**pipelined, "sub_group_size": 1 << 18}},
            "actions": GO_ON,
        },
        {"name": "nvme-both", "case": "zero3-cpu-bf16", "settings": {**nvme, "zero": both}, "actions": GO_ON},
        {
            "name": "async",
            "case": "zero2-cpu",
            "settings": {**few, **often},
            "actions": GO_ON,
        },
        *({"name": case, "case": case, "settings": few, "actions": GO_ON} for case in IN_MEMORY),
        *(
            {"name": name, "case": case, "settings": {**few, "data": {**data, "max_length": 128}}, "actions": GO_ON}
            for case, (name, data) in zip(("zero1", "zero2-bf16"), DATA.items(), strict=True)
        ),
        # last: what AutoTP sets in DeepSpeed stays for the life of the process
        *(
            {
                "name": name,
                "case": "zero1",
                "settings": {**few, "parallel": {f"{name}_parallel_size": 2}},
                "actions": GO_ON,
            }
            for name in PARALLEL
        ),
    ]


@pytest.fixture(scope="module")
def results(forked: ForkedRanks, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Case -> what its actions returned; `folder` -> where the runs are."""
    folder = tmp_path_factory.mktemp("resume")
    cases = cases_of(str(folder / "swap"))
    plan = folder / "cases.json"
    plan.write_text(json.dumps({"folder": str(folder), "model": str(tiny_model), "cases": cases}))
    forked.run(JOB, str(plan), timeout=400)
    found: dict[str, Any] = {c["name"]: json.loads((folder / c["name"] / "results.json").read_text()) for c in cases}
    return {**found, "folder": folder}


@pytest.mark.parametrize(
    "case", [*IN_MEMORY, *DATA, *PARALLEL, "nvme-optimizer", "nvme-pipelined", "nvme-both", "async"]
)
def test_bit_for_bit(results: dict[str, Any], case: str) -> None:
    straight, resumed = results[case][1], results[case][3]
    assert resumed["losses"], resumed
    assert resumed["losses"] == {s: straight["losses"][s] for s in resumed["losses"]}
    assert resumed["norms"] == {s: straight["norms"][s] for s in resumed["norms"]}
    assert resumed["digest"] == straight["digest"]


def test_states_from_nvme_go_on_on_the_cpu(results: dict[str, Any]) -> None:
    straight, resumed = results["nvme-optimizer"][1], results["nvme-optimizer"][5]
    assert resumed["losses"] == {s: straight["losses"][s] for s in resumed["losses"]}


def test_an_nvme_shard_holds_values_and_no_swap_files_are_copied(results: dict[str, Any]) -> None:
    folder = results["folder"] / "nvme-optimizer" / SAVED
    assert not list(folder.rglob("*.swp"))
    sizes = [r.bytes for n, r in read_manifest(folder).files.items() if n.endswith("optim_states.pt")]
    assert len(sizes) == 2
    assert min(sizes) > 12 * 300_000


def test_what_was_saved_is_whole_and_says_what_it_is(results: dict[str, Any]) -> None:
    run = results["folder"] / "async" / "a"
    chosen, skipped = find_latest(run / "checkpoints", verify="bytes")
    assert (chosen, skipped) == (run / "checkpoints" / "step-00000005", [])
    assert sorted(p.name for p in (run / "checkpoints").glob("*step*")) == [f"step-0000000{n}" for n in (3, 4, 5)]
    manifest = read_manifest(chosen)
    assert verify_with_name(chosen) == []
    assert manifest["degrees"] == {"data": 2, "tensor": 1, "pipeline": 1, "sequence": 1}
    assert manifest["offload"] == {"optimizer": "cpu", "param": "none"}
    assert manifest["state"]["step"] == 5
    assert manifest["optimizer"]["groups"][0]["weight_decay"] == 0.1
    assert {"python", "torch", "deepspeed", "transformers", "deepspeed-harness"} <= set(manifest["versions"])
    assert {"run", "spec", "data", "tokenizer", "model_config"} <= set(manifest["sha256"])
    assert manifest["patches"]["checkpoint-engine"] == "applied"
    assert manifest["patches"]["nvme-release"] == "not needed"
    assert "launch" not in manifest["spec"]
    names = set(manifest.files)
    assert {"rank-00000.pt", "rank-00001.pt", "huggingface/config.json", "huggingface/tokenizer.json"} <= names
    assert {r.rank for r in manifest.files.values()} == {0, 1}
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    saves = [line for line in lines if line["type"] == "save"]
    assert [(s["step"], s["background"]) for s in saves] == [(n, True) for n in range(1, 6)]
    assert all(s["stall_seconds"] > 0 for s in saves)
