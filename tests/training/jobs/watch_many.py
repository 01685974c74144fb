# SPDX-License-Identifier: Apache-2.0
"""`watch_many.py OUT.json CASES.json`, on each rank: small trainings, one after the other, each under `harness.watch` or
`HarnessCallback`, with the DeepSpeed of this interpreter, whichever release that is. Rank 0 writes what each came to.

A case: `program` (`bare`, `accelerate`, `trainer`), `stage`, `parts` (micro-batches a step), `steps`, and what `CASE` has.
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deepspeed
import torch
import torch.distributed as dist

import harness

CASE = {
    "program": "bare",
    "stage": 1,
    "parts": 1,
    "steps": 5,
    "format": "fp32",
    "clip": 0.0,
    "offload": False,
    "tied": False,
    "optimizer": "Adam",
    "on_difference": "raise",
    "fault": "",
    "zero": {},
    "scheduler": {},
    "json": {},
}
WIDTH, ROWS, VOCABULARY = 16, 2, 32
NOTES: list[str] = []
"""Of the last case."""


def config_of(case: dict[str, Any]) -> dict[str, Any]:
    """DeepSpeed's JSON. torch's optimizers need nothing compiled."""
    params = {"lr": 1e-3} | ({"torch_adam": True, "weight_decay": 0.0} if case["optimizer"] == "Adam" else {})
    zero: dict[str, Any] = {"stage": case["stage"]}
    if case["stage"] == 3:
        zero |= {"stage3_param_persistence_threshold": 0}
    if case["offload"]:
        zero |= {"offload_optimizer": {"device": "cpu"}}
    zero |= case["zero"]
    return {
        "train_micro_batch_size_per_gpu": ROWS,
        "gradient_accumulation_steps": case["parts"],
        "gradient_clipping": case["clip"],
        "optimizer": {"type": case["optimizer"], "params": params},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": zero,
        **({case["format"]: {"enabled": True}} if case["format"] != "fp32" else {}),
        **({"scheduler": case["scheduler"]} if case["scheduler"] else {}),
    }


class Net(torch.nn.Module):
    """An embedding, two layers, and a head that may be the embedding."""

    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.layers = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh(), torch.nn.Linear(WIDTH, WIDTH))
        self.head = torch.nn.Linear(WIDTH, VOCABULARY, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.embedding(ids)))


def loss_of(model: Any, ids: torch.Tensor) -> torch.Tensor:
    logits = model(ids).float()
    return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def rows_of(step: int, part: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * step + 10 * part + dist.get_rank())
    return torch.randint(0, VOCABULARY, (ROWS, 8), generator=generator)


def train_bare(case: dict[str, Any], folder: Path) -> Any:
    file = folder / "ds_config.json"
    file.write_text(json.dumps(config_of(case) | case["json"]))
    torch.manual_seed(0)
    model = Net(case["tied"])
    config = config_of(case)
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    watch = harness.watch(engine, file, on_difference=case["on_difference"], output=folder / "engine_checks.json")
    FAULTS.get(case["fault"], lambda *_: None)(engine, watch)
    for step in range(case["steps"]):
        for part in range(case["parts"]):
            engine.backward(loss_of(engine, rows_of(step, part)))
            engine.step()
    watch.close()
    NOTES[:] = NOTES or getattr(watch, "notes", [])
    return engine


def train_accelerate(case: dict[str, Any], folder: Path) -> Any:
    from accelerate import Accelerator, DeepSpeedPlugin
    from accelerate.state import AcceleratorState
    from accelerate.utils import DummyOptim

    os.environ["ACCELERATE_USE_DEEPSPEED"] = "true"  # as `accelerate launch` sets it
    AcceleratorState._reset_state(True)
    accelerator = Accelerator(deepspeed_plugin=DeepSpeedPlugin(hf_ds_config=config_of(case)))
    torch.manual_seed(0)
    model = Net(case["tied"])
    engine, _ = accelerator.prepare(model, DummyOptim(model.parameters(), lr=1e-3))
    watch = harness.watch(engine, on_difference=case["on_difference"], output=folder / "engine_checks.json")
    for step in range(case["steps"]):
        for part in range(case["parts"]):
            with accelerator.accumulate(engine):
                accelerator.backward(loss_of(engine, rows_of(step, part)))
    watch.close()
    AcceleratorState._reset_state(True)
    return engine


class Rows(torch.utils.data.Dataset):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = torch.randint(0, VOCABULARY, (8,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": ids, "labels": ids}


def train_trainer(case: dict[str, Any], folder: Path) -> Any:
    from accelerate.state import AcceleratorState
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

    AcceleratorState._reset_state(True)
    config = config_of(case) | {"gradient_clipping": "auto", "gradient_accumulation_steps": "auto"}
    config["optimizer"]["params"]["weight_decay"] = "auto"
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=case["steps"],
        per_device_train_batch_size=ROWS,
        gradient_accumulation_steps=case["parts"],
        max_grad_norm=case["clip"],
        learning_rate=1e-3,
        bf16=case["format"] == "bf16",
        deepspeed=config,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
    )
    torch.manual_seed(0)
    sizes = {"hidden_size": WIDTH, "intermediate_size": 32, "num_hidden_layers": 2, "vocab_size": VOCABULARY}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "tie_word_embeddings": case["tied"]}
    model = LlamaForCausalLM(LlamaConfig(**sizes, **heads))
    callback = harness.HarnessCallback(on_difference=case["on_difference"])
    trainer = Trainer(model, arguments, train_dataset=Rows(), callbacks=[callback])
    trainer.train()
    AcceleratorState._reset_state(True)
    return trainer.deepspeed


def halve_gradients(engine: Any, watch: Any) -> None:
    """DeepSpeed's own step, with gradients that were divided once too often."""
    step = engine.optimizer.optimizer.step

    def halved(*args: Any, **kwargs: Any) -> Any:
        for group in engine.optimizer.optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad.mul_(0.5)
        return step(*args, **kwargs)

    engine.optimizer.optimizer.step = halved


def move_a_replica(engine: Any, watch: Any) -> None:
    with torch.no_grad():
        next(engine.module.parameters()).add_(float(dist.get_rank()))


def break_an_observation(engine: Any, watch: Any) -> None:
    """An error of ours, on one rank alone."""
    if dist.get_rank() == 1:
        watch._observations = None


def break_the_output(engine: Any, watch: Any) -> None:
    object.__setattr__(watch.options, "output", Path("/proc/nowhere/engine_checks.json"))


def close_it(engine: Any, watch: Any) -> None:
    """Notes what a closed watch has left behind."""
    sizes = [resources_of_process()]
    for _ in range(3):
        watch.close()
        sizes.append(resources_of_process())
        watch = harness.watch(engine, watch.options.file, output=watch.options.output)
    watch.close()
    resources = [str(sizes)] if not sizes[0] > sizes[1] == sizes[-1] else []
    left = [name for owner in (engine, engine.optimizer) for name in ("step", "backward") if name in vars(owner)]
    hooks = [h for m in engine.module.modules() for h in (*m._forward_hooks.values(), *m._forward_pre_hooks.values())]
    NOTES[:] = [*resources, *left, *(str(hook) for hook in hooks if "engine_watch" in hook.__module__)]


def resources_of_process() -> list[int]:
    """Threads and open files. Those of a process group end a moment after it."""
    last, sizes = [0], [1]
    while last != sizes:
        time.sleep(0.3)
        last, sizes = sizes, [len(list(Path(f"/proc/self/{name}").iterdir())) for name in ("task", "fd")]
    return sizes


def mask_gradients(engine: Any, watch: Any) -> None:
    """A hook of the script's own, which trains some rows alone."""
    engine.module.head.weight.register_hook(lambda gradient: gradient * (torch.arange(len(gradient)) < 9).view(-1, 1))


def set_clip_grad(engine: Any, watch: Any) -> None:
    engine.optimizer.clip_grad = 0


def make_errors(engine: Any, watch: Any) -> None:
    """Notes what each mistake of a caller says."""
    folder = watch.options.output.parent
    (folder / "no.json").write_text("{a")
    (folder / "list.json").write_text("[1]")
    plain: dict[str, Any] = {"model": torch.nn.Linear(2, 2), "config": config_of(CASE)}
    other = deepspeed.initialize(model_parameters=plain["model"].parameters(), **plain)
    calls: tuple[Callable[[], Any], ...] = (
        lambda: harness.watch(other),
        lambda: harness.watch(plain["model"]),
        lambda: harness.watch(engine),
        lambda: harness.watch(other[0], "nowhere.json"),
        lambda: harness.watch(other[0], folder / "no.json"),
        lambda: harness.watch(other[0], str(folder / "list.json")),
        lambda: harness.watch(other[0], on_difference="stop"),  # type: ignore[arg-type]
    )
    watch.notes = []
    for call in calls:
        try:
            call()
        except Exception as error:
            watch.notes.append(f"{type(error).__name__}: {error}")
    other[0].destroy()


FAULTS = {
    f.__name__: f
    for f in (
        halve_gradients,
        move_a_replica,
        break_an_observation,
        break_the_output,
        close_it,
        make_errors,
        mask_gradients,
        set_clip_grad,
    )
}
PROGRAMS = {"bare": train_bare, "accelerate": train_accelerate, "trainer": train_trainer}


def outcome_of(case: dict[str, Any]) -> dict[str, Any]:
    """`ids`: the differences that stopped it. `file`: engine_checks.json. `said`: what was written to stderr."""
    outcome: dict[str, Any] = {"ids": [], "error": "", "steps": 0}
    NOTES.clear()
    with tempfile.TemporaryDirectory(prefix="watch-many-") as name:
        folder, said = Path(name), io.StringIO()
        try:
            with contextlib.redirect_stderr(said):
                engine = PROGRAMS[case["program"]](case, folder)
            outcome["steps"] = int(engine.global_steps)
            engine.destroy()
        except Exception as error:
            outcome["ids"] = [finding.gate for finding in getattr(error, "findings", ())]
            outcome["error"] = str(error) if outcome["ids"] else traceback.format_exc()
        outcome["said"], outcome["notes"] = said.getvalue(), list(NOTES)
        file = folder / "engine_checks.json"
        outcome["file"] = json.loads(file.read_text()) if file.exists() else None
    gc.collect()
    return outcome


def main() -> None:
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # gloo reduces as well, and nothing is compiled
    torch.set_num_threads(1)
    deepspeed.init_distributed()
    cases = [CASE | case for case in json.loads(Path(sys.argv[2]).read_text(encoding="utf-8"))]
    outcomes = [outcome_of(case) for case in cases]
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, outcomes)
    if dist.get_rank() == 0:
        report = {"version": deepspeed.__version__, "ranks": gathered}
        Path(sys.argv[1]).write_text(json.dumps(report), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
