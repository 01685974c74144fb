# SPDX-License-Identifier: Apache-2.0
"""An export of a gigabyte holds one file of the output and one tensor of the checkpoint, not the model."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import deepspeed
import torch
from deepspeed.utils.tensor_fragment import fragment_address
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForCausalLM

from harness.checkpoints import manifest
from harness.runtime.tokenizer import byte_tokenizer
from tests.support.training.forked_ranks import ForkedRanks

JOB = Path(__file__).parents[1] / "jobs" / "export_memory.py"
RANKS, FILE_BYTES = 2, 64 << 20
SLACK = 48 << 20
"""The meta model, the index, what the allocator keeps."""


def test_peak_memory_is_a_file_and_a_tensor(forked: ForkedRanks, tmp_path: Path) -> None:
    checkpoint, shapes = write_checkpoint(tmp_path / "step-00000001")
    total, largest = (f(s.numel() * 4 for s in shapes.values()) for f in (sum, max))
    assert total > 900 << 20
    answer = forked.run(JOB, str(checkpoint), str(tmp_path / "out"), str(FILE_BYTES), ranks=1)
    peak = int(re.findall(r"peak (\d+)", answer["output"][0])[-1])
    assert peak < FILE_BYTES + 2 * largest + SLACK < total / 4, f"{peak >> 20} MiB of {total >> 20} MiB"
    files = sorted((tmp_path / "out").glob("*.safetensors"))
    assert len(files) > total // FILE_BYTES
    with safe_open(files[0], "pt") as opened:
        assert torch.equal(opened.get_tensor("model.embed_tokens.weight")[0, :3], torch.tensor([0.0, 1.0, 2.0]))
    with safe_open(files[-1], "pt") as opened:
        last = opened.get_tensor(list(opened.keys())[-1])
    assert float(last.flatten()[-1]) == (total // 4 - 1) % 65536


def write_checkpoint(folder: Path) -> tuple[Path, dict[str, torch.Size]]:
    """A checkpoint as ZeRO 1 lays it out on two ranks, of a quarter of a milliard parameters that count from 0."""
    config = AutoConfig.for_model(
        "llama",
        vocab_size=8192,
        hidden_size=1024,
        intermediate_size=4096,
        num_hidden_layers=14,
        num_attention_heads=16,
        tie_word_embeddings=False,
        eos_token_id=256,
        pad_token_id=257,
    )
    with torch.device("meta"):
        shapes = {n: p.shape for n, p in AutoModelForCausalLM.from_config(config).named_parameters()}
    tag, share = folder / "global_step1", sum(s.numel() for s in shapes.values()) // RANKS
    tag.mkdir(parents=True)
    head: dict[str, Any] = {"module": {}, "param_shapes": [shapes], "buffer_names": [], "shared_params": {}}
    torch.save({**head, "frozen_param_shapes": None}, tag / "mp_rank_00_model_states.pt")
    for rank in range(RANKS):
        optimizer = {
            "single_partition_of_fp32_groups": [
                torch.arange(rank * share, (rank + 1) * share).remainder_(65536).float()
            ],
            "base_optimizer_state": {"state": {}, "param_groups": [{"lr": 1e-3, "params": [0]}]},
            "param_slice_mappings": [fragments(shapes, rank * share, share)],
            "partition_count": [RANKS],
        }
        torch.save({"optimizer_state_dict": optimizer}, tag / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
    config.save_pretrained(folder / "huggingface")
    byte_tokenizer().save_pretrained(folder / "huggingface")
    files = {str(p.relative_to(folder)): p.stat().st_size for p in sorted(folder.rglob("*")) if p.is_file()}
    body = {
        "name": folder.name,
        "tag": tag.name,
        "state": {"step": 1},
        "world": RANKS,
        "zero_stage": 1,
        "dtype": "float32",
        "versions": {"deepspeed": deepspeed.__version__},
        "files": {n: {"bytes": size, "sha256": "0" * 64, "rank": 0, "node": 0} for n, size in files.items()},
    }
    manifest.write_manifest(folder, body)
    return folder, shapes


def fragments(shapes: dict[str, torch.Size], start: int, count: int) -> dict[str, Any]:
    """Which elements of which parameter a rank has, as DeepSpeed notes it."""
    found, at = {}, 0
    for name, shape in shapes.items():
        low, high = max(at, start), min(at + shape.numel(), start + count)
        if low < high:
            found[name] = fragment_address(numel=high - low, start=low - start)
        at += shape.numel()
    return found
