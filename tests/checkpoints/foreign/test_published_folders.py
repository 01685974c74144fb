# SPDX-License-Identifier: Apache-2.0
"""`harness checkpoint inspect` on thirty folders that people describe in public threads. Needs no torch; seconds.

Names are the threads'; contents are made up, and so is what a thread leaves out of a listing (`...`). The expectations were written
first. At first look, 2026-11-28: 25 of 30 right.
"""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import NamedTuple

import pytest

from harness.checkpoints.foreign.folder_reader import inspect_folder
from tests.checkpoints.foreign.test_inspection import model_state, optimizer_state, write_safetensors
from tests.support.torch_files import write_torch_file

TRAINER, DEEPSPEED = "a checkpoint of the transformers Trainer", "a DeepSpeed checkpoint"
ACCELERATE, MEGATRON = "a checkpoint of accelerate", "one save of Megatron-LM"
STATE = "trainer_state.json scheduler.pt training_args.bin latest"


class Described(NamedTuple):
    """A folder of a thread, and what is right to say of it. `files`: names, with `{a,b}` and `{0..3}` as in a shell."""

    thread: str
    files: str
    kind: str
    whole: bool | None
    says: str = ""
    """In a fact, a problem or a thing that is not known."""
    stage: int = 2
    ranks: int = 1


FOLDERS = (
    Described("hiyouga/LlamaFactory#3789", f"{STATE} config.json model.safetensors rng_state_{{0..3}}.pth global_step200/zero_pp_rank_{{0..3}}_mp_rank_00_{{model,optim}}_states.pt", TRAINER, True, "ZeRO stage 3", 3, 4),
    Described("deepspeedai/DeepSpeed#5430", f"{STATE} config.json model.safetensors rng_state_{{0..3}}.pth global_step3/{{bf16_zero_pp_rank_{{0..3}}_mp_rank_00_optim,mp_rank_00_model}}_states.pt", TRAINER, True, "data ranks 4", 2, 4),
    Described("hiyouga/LlamaFactory#1253", f"{STATE} adapter_config.json adapter_model.bin rng_state_{{0,1}}.pth global_step100/mp_rank_00_model_states.pt", TRAINER, True, "ZeRO stage 0", 0, 2),
    Described("hiyouga/LlamaFactory#8098", f"{STATE} rng_state_{{0..3}}.pth global_step50/{{zero_pp_rank_{{0..3}}_mp_rank_00_optim,mp_rank_00_model}}_states.pt", TRAINER, False, "data rank 4", 2, 8),
    Described("TsinghuaAI/CPM-1-Finetune#6", "latest 80000/mp_rank_00_model_states.pt", DEEPSPEED, False, "missing shards with the optimizer's state", 2, 16),
    Described("hiyouga/LlamaFactory#206", f"{STATE} adapter_config.json adapter_model.bin rng_state.pth global_step10/{{zero_pp_rank_0_mp_rank_00_optim,mp_rank_00_model}}_states.pt", TRAINER, True, "ZeRO stage 2"),
    Described("huggingface/transformers#22170", "trainer_state.json scheduler.pt rng_state.pth pytorch_model.bin global_step10/{zero_pp_rank_0_mp_rank_00_optim,mp_rank_00_model}_states.pt", TRAINER, False, "no file `latest`"),
    Described("HuangLK/transpeeder#28", "latest global_step001/{layer_{00..05}-model_00-model_states.pt,mp_rank_{00..03}_model_states.pt}", DEEPSPEED, True, "6 layers", 0),
    Described("huggingface/finetrainers#29", "{mp_rank_00_model,bf16_zero_pp_rank_0_mp_rank_00_optim}_states.pt", DEEPSPEED, True, "ZeRO stage 2"),
    Described("hiyouga/LlamaFactory#1126", "pytorch_model.bin rng_state.pth latest global_step9/zero_pp_rank_0_mp_rank_00_{model,optim}_states.pt", DEEPSPEED, True, "ZeRO stage 3", 3),
    Described("deepspeedai/DeepSpeed#1196", "config.json pytorch_model.bin latest global_step760/{zero_pp_rank_{0,1}_mp_rank_00_optim,mp_rank_00_model}_states.pt", DEEPSPEED, True, "data ranks 2", 2, 2),
    Described("QwenLM/Qwen#664", "checkpoint-{1,2}/{adapter_model.bin,global_step1/mp_rank_00_model_states.pt,global_step1/zero_pp_rank_0_mp_rank_00_optim_states.pt}", "a folder with checkpoints", None, "checkpoint-1, checkpoint-2"),
    Described("tencent-ailab/IP-Adapter#336", "random_states_0.pkl scheduler.bin latest pytorch_model/{zero_pp_rank_0_mp_rank_00_optim,mp_rank_00_model}_states.pt", ACCELERATE, True, "processes 1"),
    Described("InternLM/xtuner#746", "{bf16_zero_pp_rank_{0..31}_mp_rank_00_optim,zero_pp_rank_{0..31}_mp_rank_00_model}_states.pt", DEEPSPEED, True, "data ranks 32", 3, 32),
    Described("h2oai/h2ogpt#195, checkpoint-75", "optimizer.pt pytorch_model.bin rng_state.pth scaler.pt scheduler.pt special_tokens_map.json tokenizer.json trainer_state.json training_args.bin", TRAINER, True),
    Described("h2oai/h2ogpt#195, the folder above", "adapter_config.json adapter_model.bin checkpoint-{69,72,75}/trainer_state.json runs/a", "an adapter of peft", True),
    Described("JIA-Lab-research/LongLoRA#102", "latest {,global_step100/}{zero_pp_rank_{0,1}_mp_rank_00_optim,mp_rank_00_model}_states.pt", DEEPSPEED, True, "data ranks 2", 2, 2),
    Described("tloen/alpaca-lora#293", "adapter_config.json empty/adapter_model.bin", "an adapter of peft", False, "no tensor"),
    Described("huggingface/accelerate#2603", "{optimizer_0,pytorch_model_fsdp_0}/{.metadata,__{0,1}_0.distcp} rng_state_{0,1}.pth scheduler.pt trainer_state.json", TRAINER, None, "shards in `optimizer_0` 2"),
    Described("huggingface/accelerate#1576", "{optimizer_0,pytorch_model_0}/{.metadata,__{0,1}_0.distcp} random_states_{0,1}.pkl", ACCELERATE, None, "shards in `pytorch_model_0` 2"),
    Described("zz1358m/SofT-GRPO-master#2", "{model,optim,extra_state}_world_size_4_rank_{0..3}.pt huggingface/config.json", "a sharded checkpoint of verl", None, "ranks 4"),
    Described("nvidia-cosmos/cosmos-transfer1#49", "iter_000001000.pt iter_000001000_model_mp_{0..7}.pt", "no checkpoint", False),
    Described("EleutherAI/gpt-neox#750, the first host", "latest global_step9000/{layer_{00..05}-model_00-model_states.pt,mp_rank_00_model_states.pt,zero_pp_rank_{0..7}_mp_rank_00_optim_states.pt}", DEEPSPEED, False, "data rank 8", 1, 16),
    Described("EleutherAI/gpt-neox#750, the second host", "global_step9000/zero_pp_rank_{8..15}_mp_rank_00_optim_states.pt", DEEPSPEED, False, "the model's state", 1, 16),
    Described("Lightning-AI/pytorch-lightning#12864, the first folder", "latest checkpoint/{zero_pp_rank_{0,1,3,4,6}_mp_rank_00_optim,mp_rank_00_model}_states.pt", DEEPSPEED, False, "data rank 2", 2, 8),
    Described("Lightning-AI/pytorch-lightning#12864, the second folder", "checkpoint/zero_pp_rank_{2,5,7}_mp_rank_00_optim_states.pt", DEEPSPEED, False, "the model's state", 2, 8),
    Described("hiyouga/LlamaFactory#1965", "latest global_step10/zero_pp_rank_{0..7}_mp_rank_00_optim_states.pt", DEEPSPEED, False, "the model's state", 3, 8),
    Described("ali-vilab/UniAnimate-DiT#13", "latest checkpoint/{bf16_zero_pp_rank_{0,1}_mp_rank_00_optim,mp_rank_00_model}_states.pt", DEEPSPEED, True, "ZeRO stage 2", 2, 2),
    Described("intelligent-machine-learning/dlrover#1398", "mp_rank_{00,01}_00{0,1}/a", MEGATRON, None, "model-parallel ranks 4"),
    Described("bojieli/ai-agent-book#583", "adapter_config.json rng_state.pth scheduler.pt trainer_state.json", TRAINER, False, "no weights"),
)  # fmt: skip


def expand(text: str) -> list[str]:
    """A name for each choice of its braces, innermost first."""
    match = re.search(r"\{([^{}]*)\}", text)
    if match is None:
        return [text]
    span = re.fullmatch(r"(\d+)\.\.(\d+)", match[1])
    choices = (
        [str(n).zfill(len(span[1])) for n in range(int(span[1]), int(span[2]) + 1)] if span else match[1].split(",")
    )
    return list(
        itertools.chain.from_iterable(expand(text[: match.start()] + each + text[match.end() :]) for each in choices)
    )


def write_folder(folder: Path, described: Described) -> Path:
    names = {name.removeprefix("empty/"): name for word in described.files.split() for name in expand(word)}
    for name, word in names.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith("model_states.pt"):
            config = {"optimizer": {"type": "AdamW"}, "zero_optimization": {"stage": described.stage}}
            tensor = {
                base for other in names if re.fullmatch(r"mp_rank_\d+_model_states\.pt", base := Path(other).name)
            }
            write_torch_file(file, model_state(20, described.ranks, len(tensor) or 1, ds_config=config), 4000)
        elif name.endswith("optim_states.pt"):
            write_torch_file(file, optimizer_state(described.stage), 8000)
        elif name.endswith(".bin") and "model" in name:
            write_torch_file(file, {} if word.startswith("empty/") else model_state()["module"], 443)
        elif name.endswith(".safetensors"):
            write_safetensors(file)
        elif name.endswith("trainer_state.json"):
            step = next(
                (n.split("/")[0].removeprefix("global_step") for n in names if n.startswith("global_step")), "20"
            )
            file.write_text(json.dumps({"global_step": int(step), "max_steps": 1000}))
        elif name == "latest":
            file.write_text(next(n.split("/")[0] for n in names if n.endswith("_states.pt") and "/" in n))
        else:
            file.write_text("{}")
    return folder


@pytest.mark.parametrize("described", FOLDERS, ids=lambda described: described.thread)
def test_a_described_folder_is_told(described: Described, tmp_path: Path) -> None:
    found = inspect_folder(write_folder(tmp_path / "folder", described))
    assert found.kind.startswith(described.kind), found
    assert found.is_whole is described.whole, found
    said = [*(f"{title} {value}" for title, value in found.facts.items()), *found.problems, *found.unknown]
    assert not described.says or any(described.says in line for line in said), said
