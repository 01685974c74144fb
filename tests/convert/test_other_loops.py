# SPDX-License-Identifier: Apache-2.0
"""Keys of other programs that have a meaning here: tiles, ranks, formats, tokens, sources, sharding elsewhere."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from harness.check.check_file import check_file
from harness.convert.conversion import ConvertedSpec, convert_file
from harness.facts.deepspeed_version import DeepSpeedTarget

Write = Callable[[str, str], str]
TARGET = DeepSpeedTarget("0.19.8", "asked for")
TRL = "model_name_or_path: a/b\ndataset_name: a/c\nmax_length: 512\nbf16: true\n"
SWIFT = "swift sft --model Qwen/Qwen2.5-7B --train_type full --dataset d.jsonl --max_length 8192 "
AXOLOTL = "base_model: Qwen/Qwen2.5-7B\nsequence_len: 8192\nmicro_batch_size: 1\ndatasets: [{path: d.jsonl, type: chat_template}]\n"


def converted(write: Write, text: str, name: str = "a.yaml") -> ConvertedSpec:
    return convert_file(write(name, text), TARGET)


def keys_of(result: ConvertedSpec, kind: str) -> set[str]:
    return {note.key for note in result.notes_of(kind)}  # type: ignore[arg-type]


@pytest.mark.parametrize("token", ["<|im_end|>", "</s>", "<end_of_turn>"])
def test_a_special_token_is_no_placeholder(write: Write, token: str) -> None:
    assert "eos_token" in keys_of(converted(write, f"{TRL}eos_token: {token}\n"), "lossy")


def test_a_placeholder_is_still_one(write: Write) -> None:
    assert "output_dir" in keys_of(converted(write, f"{TRL}output_dir: <your folder>\n"), "manual")


@pytest.mark.parametrize(
    ("line", "is_noted"),
    [
        ("torch_dtype: bfloat16", False),
        ("dtype: bfloat16", False),
        ("torch_dtype: auto", False),
        ("torch_dtype: float16", True),
        ("torch_dtype: float32", True),
    ],
)
def test_weights_in_the_trained_format_are_no_difference(write: Write, line: str, is_noted: bool) -> None:
    assert (line.partition(":")[0] in keys_of(converted(write, f"{TRL}{line}\n"), "manual")) is is_noted


@pytest.mark.parametrize("key", ["callbacks", "benchmarks", "hub_model_revision", "wandb_run_group"])
def test_what_evaluates_and_uploads_does_not_train(write: Write, key: str) -> None:
    assert key in keys_of(converted(write, f"{TRL}{key}: [x]\n"), "harmless")


def test_a_subset_is_the_name_of_the_source(write: Write) -> None:
    assert converted(write, f"{TRL}dataset_config: all\n").draft.get("data.train") == [{"path": "a/c", "name": "all"}]


@pytest.mark.parametrize(
    "text", [TRL, "model_name_or_path: a/b\ntrain_file: a.txt\ndo_train: true\nlearning_rate: 0.001\n"]
)
def test_sharding_that_stands_elsewhere_is_not_stage_0_in_silence(write: Write, text: str) -> None:
    notes = [note.message for note in converted(write, text).notes_of("manual")]
    assert any("accelerate launch --config_file" in note for note in notes)


@pytest.mark.parametrize(
    ("text", "name", "size"),
    [
        (f"{SWIFT}--use_tiled_mlp true --tiled_mlp_num_shards 4\n", "a.sh", 2048),
        (f"{SWIFT}--use_tiled_mlp true\n", "a.sh", 3584),
        (f"{AXOLOTL}tiled_mlp: true\ntiled_mlp_num_shards: 8\n", "a.yaml", 1024),
        ("type: sft\nmodel: {name_or_path: Qwen/Qwen3-8B}\ndata: {sources: [a/c], max_length: 4096}\ntiled_mlp_compute: true\n", "a.yaml", 4096),
        (f"{AXOLOTL}tiled_mlp: false\n", "a.yaml", None),
    ],
)  # fmt: skip
def test_a_tiled_mlp(write: Write, text: str, name: str, size: int | None) -> None:
    assert converted(write, text, name).draft.get("train.mlp_tile_size") == size


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ("NPROC_PER_NODE=4", (4, None, None)),
        ("NPROC_PER_NODE=8 NNODES=2", (None, 2, 8)),
        ("CUDA_VISIBLE_DEVICES=0", (1, None, None)),
        ("", (None, None, None)),
    ],
)
def test_the_ranks_of_a_script(write: Write, variables: str, expected: tuple[int | None, ...]) -> None:
    draft = converted(write, f"{variables} {SWIFT}\n", "a.sh").draft
    assert tuple(map(draft.get, ("launch.num_gpus", "cluster.num_nodes", "cluster.gpus_per_node"))) == expected


def test_pure_bf16_is_said(write: Write) -> None:
    def notes(more: str) -> str:
        return " ".join(note.message for note in converted(write, f"{SWIFT}{more}\n", "a.sh").notes_of("lossy"))

    assert "no fp32 masters" in notes("--torch_dtype bfloat16")
    assert "masters" not in notes("--torch_dtype bfloat16 --deepspeed zero2")
    assert "masters" not in notes("--torch_dtype float16")


@pytest.mark.parametrize(
    ("name", "text"), [("a.sh", "deepspeed train.py\n"), ("run", "#!/bin/bash\npython x.py\n"), ("b.bash", "a: 1\n")]
)
def test_a_script_is_named_as_one(write: Write, name: str, text: str) -> None:
    (finding,) = check_file(write(name, text), deepspeed=TARGET).report.findings
    assert (finding.gate, finding.message) == ("SP016", "this is a shell script, not a configuration")


def test_a_python_program_is_named_as_one(write: Write) -> None:
    """Its annotations read as YAML: `precision: str = "bf16-true"`."""
    (finding,) = check_file(
        write("tune.py", 'precision: str = "x"\nstage: int = 3\n'), deepspeed=TARGET
    ).report.findings
    assert (finding.gate, finding.message) == ("SP016", "this is a Python program, not a configuration")
