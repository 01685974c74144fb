# SPDX-License-Identifier: Apache-2.0
"""Other programs train, save on the way and go on: `foreign_writers.py CELLS.json`. Nothing of the harness.

TRL, axolotl, LLaMA-Factory and ms-swift train by classes of their own below the Trainer's, which are taken here with the same rows.

A cell is {"program", "out", "model", "rows", "config", "save", "steps", "micro", "accumulation", "bf16", "lora", "decay"}. Its folder gets the
checkpoint, and `writer.json` with loss and learning rate of each step.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.utils import groups
from transformers import AutoModelForCausalLM, get_scheduler
from transformers.integrations import HfDeepSpeedConfig
from transformers.integrations.deepspeed import unset_hf_deepspeed_config

Cell = dict[str, Any]
RATE, WARMUP, CLIP = 3e-3, 2, 0.5


class Rows(torch.utils.data.Dataset):
    def __init__(self, cell: Cell) -> None:
        self.rows = json.loads(Path(cell["rows"]).read_text())

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = torch.tensor(self.rows[index])
        return {"input_ids": ids, "labels": ids, "attention_mask": torch.ones_like(ids)}


def load_model(cell: Cell) -> Any:
    dtype = torch.bfloat16 if cell["bf16"] else torch.float32
    model = AutoModelForCausalLM.from_pretrained(cell["model"], dtype=dtype).train()
    if cell["lora"]:
        from peft import LoraConfig, get_peft_model

        torch.manual_seed(1)
        model = get_peft_model(model, LoraConfig(**cell["lora"], task_type="CAUSAL_LM"))
    return model


def grouped(model: Any, decay: float) -> list[dict[str, Any]]:
    """Matrices decay, vectors do not: as the Trainer has it with an optimizer of its own."""
    trained = [p for p in model.parameters() if p.requires_grad]
    matrices = [p for p in trained if len(getattr(p, "ds_shape", p.shape)) > 1]
    vectors = [p for p in trained if len(getattr(p, "ds_shape", p.shape)) == 1]
    return [{"params": each, "weight_decay": d} for each, d in ((matrices, decay), (vectors, 0.0)) if each]


def batches(cell: Cell) -> Any:
    """This rank's micro-batches of each step, in the order of the rows."""
    rows, micro, world = Rows(cell), cell["micro"], dist.get_world_size()
    at = 0
    for _ in range(cell["steps"]):
        step = []
        for _ in range(cell["accumulation"]):
            mine = range(at + micro * dist.get_rank(), at + micro * (dist.get_rank() + 1))
            step.append({k: torch.stack([rows[i][k] for i in mine]) for k in rows[0]})
            at += micro * world
        yield step


def averaged(loss: float) -> float:
    both = torch.tensor([loss], dtype=torch.float64)
    dist.all_reduce(both)
    return float(both) / dist.get_world_size()


def bare(cell: Cell, record: Any) -> None:
    """A DeepSpeed loop of one's own."""
    alive = HfDeepSpeedConfig(cell["config"]) if stage(cell) == 3 else None
    model = load_model(cell)
    factory = None
    if "scheduler" not in cell["config"]:

        def factory(optimizer: Any) -> Any:
            return get_scheduler("cosine", optimizer, WARMUP, cell["steps"])

    trained = grouped(model, cell["decay"])
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=trained, config=cell["config"], lr_scheduler=factory
    )
    for step, parts in enumerate(batches(cell), 1):
        rate, losses = engine.get_lr()[0], []
        for batch in parts:
            loss = engine(**batch, use_cache=False).loss
            engine.backward(loss)
            engine.step()
            losses.append(float(loss))
        record(step, averaged(sum(losses) / len(losses)), rate)
        if step == cell["save"]:
            engine.save_checkpoint(cell["out"], exclude_frozen_parameters=bool(cell["lora"]))
    engine.destroy()
    del alive


def accelerate(cell: Cell, record: Any) -> None:
    """accelerate's DeepSpeed plugin, with an optimizer and a schedule of the script."""
    from accelerate import Accelerator, PartialState
    from accelerate.state import AcceleratorState, GradientState
    from accelerate.utils import DeepSpeedPlugin, DummyOptim, DummyScheduler

    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    os.environ["ACCELERATE_USE_DEEPSPEED"] = "true"  # as `accelerate launch` says it
    plugin = DeepSpeedPlugin(hf_ds_config=dict(cell["config"]), gradient_accumulation_steps=cell["accumulation"])
    accelerator = Accelerator(deepspeed_plugin=plugin, gradient_accumulation_steps=cell["accumulation"])
    for state in (PartialState, AcceleratorState):  # with DeepSpeed on CPU ranks it takes each for the only one
        state._shared_state |= {"num_processes": dist.get_world_size(), "process_index": dist.get_rank()}
    model = load_model(cell)
    has_optimizer = "optimizer" in cell["config"]
    trained = grouped(model, cell["decay"])
    optimizer = DummyOptim(trained, lr=RATE) if has_optimizer else torch.optim.AdamW(trained, lr=RATE)
    if has_optimizer:

        def factory(inner: Any) -> Any:
            return get_scheduler("cosine", inner, WARMUP, cell["steps"])

        scheduler: Any = DummyScheduler(optimizer, lr_scheduler_callable=factory)
    else:
        world = dist.get_world_size()  # accelerate steps a schedule of the script once a process
        scheduler = get_scheduler("cosine", optimizer, WARMUP * world, cell["steps"] * world)
    loader = torch.utils.data.DataLoader(Rows(cell), batch_size=cell["micro"])
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    step, losses = 1, []
    rate = optimizer.param_groups[0]["lr"]
    assert accelerator.num_processes == dist.get_world_size()
    for batch in loader:
        with accelerator.accumulate(model):
            loss = model(**batch, use_cache=False).loss
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        losses.append(float(loss))
        if len(losses) == cell["accumulation"]:
            record(step, averaged(sum(losses) / len(losses)), rate)
            if step == cell["save"]:
                accelerator.save_state(cell["out"])
            rate, losses, step = optimizer.param_groups[0]["lr"], [], step + 1
        if step > cell["steps"]:
            break
    accelerator.free_memory()


def classes_of(cell: Cell) -> tuple[Any, Any, dict[str, Any]]:
    """The trainer of a program, its arguments, and what it takes beside those of the Trainer."""
    from transformers import AutoTokenizer, Trainer, TrainingArguments, default_data_collator

    program, tokenizer = cell["program"], AutoTokenizer.from_pretrained(cell["model"])
    rows = json.loads(Path(cell["rows"]).read_text())
    if program == "trl":
        from datasets import Dataset
        from trl import SFTConfig, SFTTrainer

        more = {"processing_class": tokenizer, "train_dataset": Dataset.from_list([{"input_ids": row} for row in rows])}
        return SFTTrainer, partial(SFTConfig, max_length=len(rows[0])), more
    if program == "axolotl":
        from axolotl.core.trainers.base import AxolotlTrainer
        from axolotl.core.training_args import AxolotlTrainingArguments
        from datasets import Dataset

        data = Dataset.from_list([{"input_ids": r, "labels": r, "attention_mask": [1] * len(r)} for r in rows])
        more = {"data_collator": default_data_collator, "train_dataset": data}
        return AxolotlTrainer, AxolotlTrainingArguments, more
    if program == "llamafactory":
        from llamafactory.hparams import FinetuningArguments
        from llamafactory.hparams import TrainingArguments as FactoryArguments
        from llamafactory.train.sft.trainer import CustomSeq2SeqTrainer

        more = {"finetuning_args": FinetuningArguments(), "processor": None, "tokenizer": tokenizer}
        return CustomSeq2SeqTrainer, FactoryArguments, {**more, "data_collator": default_data_collator}
    if program == "swift":
        from swift import get_model_processor, get_template
        from swift.trainers import Seq2SeqTrainer, Seq2SeqTrainingArguments

        model, processor = get_model_processor(cell["model"], model_type="llama", torch_dtype=torch.float32)
        template = get_template(processor, template_type="dummy")
        template.data_collator = lambda rows, **_: default_data_collator(rows)
        in_order = {"use_logits_to_keep": False, "train_dataloader_shuffle": False}  # its sampler is not the Trainer's
        kind = partial(Seq2SeqTrainingArguments, check_model=False, adam_beta2=0.999, **in_order)
        return Seq2SeqTrainer, kind, {"model": model.train(), "template": template}
    return Trainer, TrainingArguments, {}


def trainer(cell: Cell, record: Any) -> None:
    """Hugging Face's Trainer, or that of a program which builds on it, its rows in the order of its own sampler."""
    from accelerate.state import AcceleratorState, GradientState
    from transformers import TrainerCallback

    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    base, kind, more = classes_of(cell)
    arguments = kind(
        output_dir=cell["out"], deepspeed=dict(cell["config"]), use_cpu=True, per_device_train_batch_size=cell["micro"],
        gradient_accumulation_steps=cell["accumulation"], max_steps=cell["steps"], learning_rate=RATE,
        weight_decay=cell["decay"], max_grad_norm=CLIP, lr_scheduler_type="cosine", warmup_steps=WARMUP, bf16=cell["bf16"],
        save_steps=cell["save"], save_total_limit=None, logging_steps=1, report_to=[], disable_tqdm=True, seed=11,
    )  # fmt: skip

    class Watch(TrainerCallback):
        def on_step_begin(self, *_: Any, optimizer: Any = None, **__: Any) -> None:
            self.rate = optimizer.param_groups[0]["lr"]

        def on_log(self, _: Any, state: Any, *__: Any, logs: Any = None, **___: Any) -> None:
            if "loss" in logs:
                record(state.global_step, logs["loss"], self.rate)

    class Exact(base):
        """With the losses as they are: it rounds them to four places."""

        def log(self, logs: dict[str, float], *rest: Any) -> None:
            if "loss" in logs:
                logs["loss"] = self.exact
            super().log(logs, *rest)

        def _maybe_log_save_evaluate(self, tr_loss: Any, *rest: Any, **named: Any) -> None:
            self.exact = averaged(float(tr_loss))
            super()._maybe_log_save_evaluate(tr_loss, *rest, **named)

    program = Exact(args=arguments, **{"model": load_model(cell), "train_dataset": Rows(cell), **more})
    program.add_callback(Watch())
    program.train(resume_from_checkpoint=cell.get("resume"))


def stage(cell: Cell) -> int:
    return int(cell["config"].get("zero_optimization", {}).get("stage", 0))


def main() -> None:
    os.environ.pop("ACCELERATE_USE_DEEPSPEED", None)
    deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False)
    state = {k: v for k, v in vars(groups).items() if k.isupper() or k in ("mpu", "mesh_device")}
    for cell in json.loads(Path(sys.argv[-1]).read_text()):
        vars(groups).update({k: type(v)(v) if isinstance(v, dict) else v for k, v in state.items()})
        lines: dict[int, Any] = {}

        def record(step: int, loss: float, rate: float, lines: dict[int, Any] = lines) -> None:
            lines[step] = {"loss": loss, "learning_rate": rate}

        torch.manual_seed(0)
        {"bare": bare, "accelerate": accelerate}.get(cell["program"], trainer)(cell, record)
        unset_hf_deepspeed_config()
        if dist.get_rank() == 0:
            version = deepspeed.__version__
            Path(cell["out"], "writer.json").write_text(json.dumps({"deepspeed": version, "steps": lines}))
        dist.barrier()


if __name__ == "__main__":
    faulthandler.dump_traceback_later(1200)
    main()
