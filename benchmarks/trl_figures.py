# SPDX-License-Identifier: Apache-2.0
"""Figures of TRL 1.16 for the harness's preference tests: losses and gradients of drawn inputs, and the losses and
gradient norms of 20 steps of a tiny model; of the grid of `preference_cells.py` in fp64, too, with the gradients of the
first steps. To be run in an environment with TRL, from the repository root:

    python benchmarks/trl_figures.py tests/support/training/trl_figures.json [--gradients FOLDER]

In fp64 no operation makes fp32: `transformers` would round the norms of layers, and positions. `--gradients` keeps the
gradients of each parameter at each step of the grid in fp64, for `preference_cells.py`; a run that is kept there is not
repeated. `--cells` trains the [run, stage] of the file on DeepSpeed instead, as `preference_cells.py` has it started on
each rank, and leaves RUN-STAGE-RANKS.pt beside the file.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import trl
from accelerate.state import AcceleratorState
from datasets import Dataset
from peft import LoraConfig
from transformers import set_seed
from transformers.integrations.deepspeed import unset_hf_deepspeed_config

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.support.training import preference_case as case
from tests.support.training.double_mode import double_mode, project_gradients

DRAWN = [
    ("sigmoid", 0.0),
    ("sigmoid_norm", 0.0),
    ("hinge", 0.0),
    ("ipo", 0.0),
    ("robust", 0.1),
    ("exo_pair", 0.001),
    ("nca_pair", 0.0),
    ("apo_zero", 0.0),
    ("apo_down", 0.0),
]
RUNS = {
    "dpo": ("dpo", {"loss_type": ["sigmoid"]}, 2, 1),
    "dpo-accumulated": ("dpo", {"loss_type": ["sigmoid"]}, 1, 4),
    "dpo-ipo": ("dpo", {"loss_type": ["ipo"]}, 2, 1),
    "dpo-norm": ("dpo", {"loss_type": ["sigmoid_norm"]}, 2, 1),
    "dpo-rpo": ("dpo", {"loss_type": ["sigmoid", "sft"], "loss_weights": [1.0, 0.5]}, 1, 2),
    "dpo-lora": ("dpo", {"loss_type": ["sigmoid"]}, 2, 1),
    "kto": ("kto", {"desirable_weight": 1.5, "undesirable_weight": 0.7}, 4, 1),
    "kto-accumulated": ("kto", {}, 2, 4),
    "reward": ("reward", {}, 2, 1),
    "reward-margin": ("reward", {}, 1, 4),
    "reward-centered": ("reward", {"center_rewards_coefficient": 0.05}, 2, 2),
}
"""Name -> (method, settings, micro-batch, accumulation)."""
GRID: dict[str, tuple[str, dict[str, Any], int]] = {
    "sigmoid": ("dpo", {"loss_type": ["sigmoid"]}, 2),
    "ipo": ("dpo", {"loss_type": ["ipo"]}, 2),
    "norm": ("dpo", {"loss_type": ["sigmoid_norm"]}, 2),
    "rpo": ("dpo", {"loss_type": ["sigmoid", "sft"], "loss_weights": [1.0, 0.5]}, 1),
    "kto": ("kto", {"desirable_weight": 1.5, "undesirable_weight": 0.7}, 2),
    "reward": ("reward", {}, 2),
}
"""The methods of the nightly grid. `sft` is `rpo_alpha` where a micro-batch is one pair: two ranks take twice the
accumulation. `kto` takes the answer for its KL term among two rows at least, on a rank of one row, too."""
RUNS |= {
    f"grid-{name}-{accumulation}{'-lora' * lora}": (method, settings, micro_batch, accumulation)
    for name, (method, settings, micro_batch) in GRID.items()
    for accumulation in ((1, 2, 4, 8) if micro_batch == 1 else (1, 4))
    for lora in (False, True)
}
RUNS["grid-smooth-1"] = ("dpo", {"loss_type": ["robust"], "label_smoothing": 0.1}, 2, 1)


class _Accelerator(SimpleNamespace):
    device = torch.device("cpu")

    @staticmethod
    def gather(value: torch.Tensor) -> torch.Tensor:
        """One process has all."""
        return value

    gather_for_metrics = gather


def _fake_trainer(**settings: Any) -> Any:
    """What `_compute_loss` reads of a trainer."""
    return SimpleNamespace(
        model=SimpleNamespace(training=True), accelerator=_Accelerator(), aux_loss_enabled=False, ld_alpha=None,
        f_divergence_type="reverse_kl", use_weighting=False, precompute_ref_logps=True, _total_train_tokens=0,
        _tp_size=1, _metrics=defaultdict(lambda: defaultdict(list)), beta=case.SETTINGS["beta"], **settings,
    )  # fmt: skip


def _outputs(log_probs: torch.Tensor) -> Any:
    nothing = torch.zeros_like(log_probs)
    return SimpleNamespace(log_probs=log_probs, entropy=nothing, mean_logits=nothing, is_top1=nothing.bool())


def drawn_figures() -> dict[str, Any]:
    """Loss and its gradient by the policy's log-probabilities of answers, by TRL's own code."""
    figures: dict[str, Any] = {}
    policy, reference, mask = case.drawn_log_probs()
    ids = torch.zeros_like(mask)
    for loss_type, smoothing in DRAWN:
        leaf = policy.clone().requires_grad_()
        trainer = _fake_trainer(loss_types=[loss_type], loss_weights=[1.0], label_smoothing=smoothing)
        chosen, rejected = reference.sum(1).chunk(2)
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "completion_mask": mask,
                  "ref_chosen_logps": chosen, "ref_rejected_logps": rejected}  # fmt: skip
        loss = trl.DPOTrainer._compute_loss(trainer, lambda **_: _outputs(leaf), inputs, False)  # noqa: B023
        loss.backward()
        figures[loss_type] = {"smoothing": smoothing, "loss": loss.item(), "gradient": _by_answer(leaf.grad, mask)}
    for loss_type in ("kto", "apo_zero_unpaired"):
        leaf = policy.clone().requires_grad_()
        trainer = _fake_trainer(loss_type=loss_type, calculate_KL=loss_type == "kto", desirable_weight=1.3,
                                undesirable_weight=0.6)  # fmt: skip
        trainer._compute_kl_logps = lambda *_: policy.sum(1).flip(0)
        labels = torch.arange(len(policy)) % 3 > 0
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "completion_mask": mask, "label": labels,
                  "ref_logps": reference.sum(1), "ref_KL_logps": reference.sum(1).flip(0) - 1}  # fmt: skip
        loss = trl.KTOTrainer._compute_loss(trainer, lambda **_: _outputs(leaf), inputs, False)  # noqa: B023
        loss.backward()
        kl = (policy.sum(1).flip(0) - reference.sum(1).flip(0) + 1).mean().clamp(min=0).item()
        figures[loss_type] = {"loss": loss.item(), "kl": kl, "gradient": _by_answer(leaf.grad, mask)}
    return figures


def _by_answer(gradient: torch.Tensor | None, mask: torch.Tensor) -> list[float]:
    """The gradient of each answer's sum: that of any of its tokens."""
    assert gradient is not None  # noqa: S101
    return [gradient[i, int(row.argmax())].item() for i, row in enumerate(mask[:, 1:])]


def run_figures(
    method: str,
    settings: dict[str, Any],
    micro_batch: int,
    accumulation: int,
    *,
    name: str,
    double: bool = False,
    engine: dict[str, Any] | None = None,
    models: Path = Path(),
) -> tuple[dict[str, list[float]], list[dict[str, torch.Tensor]]]:
    """Losses and gradient norms of each step, and its gradients before they are clipped. `double`: in fp64.
    `engine`: DeepSpeed's configuration, to train a model of the folder `models` on it; losses are means over the ranks.
    """
    lora, margins = name.endswith("lora"), name.endswith("margin")
    trainer_class, config_class = {
        "dpo": (trl.DPOTrainer, trl.DPOConfig),
        "kto": (trl.KTOTrainer, trl.KTOConfig),
        "reward": (trl.RewardTrainer, trl.RewardConfig),
    }[method]
    losses: list[float] = []
    gradients: list[dict[str, torch.Tensor]] = []

    class Recording(trainer_class):  # type: ignore[misc,valid-type]
        def training_step(self, model: Any, *arguments: Any, **options: Any) -> torch.Tensor:
            if engine and not losses:
                _record_gradients(model, gradients)
            loss = super().training_step(model, *arguments, **options)
            losses.append(_mean_over_ranks(loss) if engine else loss.item())
            if not engine and len(losses) % accumulation == 0:
                gradients.append({n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None})
            return loss

    beta = {} if method == "reward" else {"beta": case.SETTINGS["beta"]}
    with tempfile.TemporaryDirectory() as folder:
        model = str(models / ("reward-model" if method == "reward" else "model")) if engine else folder
        if not engine:  # `save_pretrained` writes on the first rank alone
            case.save_model(Path(folder), 1 if method == "reward" else None)
        config = config_class(
            output_dir=f"{folder}/out", use_cpu=not engine, deepspeed=engine, bf16=False, report_to="none",
            save_strategy="no", logging_steps=1, max_steps=case.STEPS,
            per_device_train_batch_size=micro_batch, gradient_accumulation_steps=accumulation,
            gradient_checkpointing=False, lr_scheduler_type="constant", max_grad_norm=1.0, weight_decay=0.0,
            learning_rate=case.SETTINGS["learning_rate"], max_length=case.SETTINGS["max_length"], disable_tqdm=True,
            train_sampling_strategy="sequential", model_init_kwargs={"attn_implementation": "sdpa"},
            **beta, **settings,
        )  # fmt: skip
        set_seed(1)
        rows = case.labelled() if method == "kto" else case.scored() if margins else case.pairs()
        peft = LoraConfig(r=4, lora_alpha=8, lora_dropout=0.0, target_modules=["q_proj", "v_proj"],
                          task_type="SEQ_CLS" if method == "reward" else "CAUSAL_LM") if lora else None  # fmt: skip
        from transformers import AutoTokenizer

        trainer = Recording(
            model=model, args=config, train_dataset=Dataset.from_list(rows),
            processing_class=AutoTokenizer.from_pretrained(model), peft_config=peft,
        )  # fmt: skip
        if lora:
            case.set_adapters(trainer.model)
        for module in (trainer.model, getattr(trainer, "ref_model", None)):
            if double and module is not None:
                module.double()
        with double_mode() if double else contextlib.nullcontext():
            trainer.train()
    steps = [losses[i : i + accumulation] for i in range(0, len(losses), accumulation)]
    norms = [entry["grad_norm"] for entry in trainer.state.log_history if "grad_norm" in entry]
    # `training_step` returns a loss that is divided by the accumulation steps.
    return {"losses": [sum(step) for step in steps], "norms": [float(norm) for norm in norms]}, gradients


def _record_gradients(engine: Any, gradients: list[dict[str, torch.Tensor]]) -> None:
    """Let each optimizer step of DeepSpeed's engine add the gradients of its parameters."""
    from deepspeed.utils import safe_get_full_grad

    step = engine.step

    def step_and_record(*arguments: Any, **options: Any) -> None:
        trained = {name: one for name, one in engine.module.named_parameters() if one.requires_grad}
        gradients.append({name: safe_get_full_grad(one).clone() for name, one in trained.items()})
        step(*arguments, **options)

    engine.step = step_and_record


def _mean_over_ranks(loss: torch.Tensor) -> float:
    total = loss.double().reshape(1).clone()
    torch.distributed.all_reduce(total)
    return total.item() / torch.distributed.get_world_size()


def _train_on_deepspeed(file: Path) -> None:
    """Train the cells of the file on this rank, one after the other."""
    ranks = int(os.environ["WORLD_SIZE"])
    for name, stage in json.loads(file.read_text()):
        method, settings, *rows = RUNS[name]
        micro_batch, accumulation = case.share_batch(method, *rows, ranks)
        engine = {"train_micro_batch_size_per_gpu": micro_batch, "gradient_accumulation_steps": accumulation}
        engine |= {"gradient_clipping": 1.0, "zero_optimization": {"stage": stage}, **case.ADAM}
        batch = method, settings, micro_batch, accumulation
        figures, gradients = run_figures(*batch, name=name, engine=engine, models=file.parent)
        AcceleratorState._reset_state(reset_partial_state=True)
        unset_hf_deepspeed_config()
        if os.environ["RANK"] == "0":
            kept = file.with_name(f"{name}-{stage}-{ranks}.pt")
            torch.save(figures | {"gradients": gradients, "trl": trl.__version__}, kept)
        print(name, stage, flush=True)


def _all_figures(name: str) -> dict[str, Any]:
    """Kind of run -> its gradients, and in `figures` its losses and norms."""
    kinds = {"runs": False} | ({"double": True} if name.startswith("grid-") else {})
    found = {kind: run_figures(*RUNS[name], name=name, double=double) for kind, double in kinds.items()}
    return {"figures": {kind: own for kind, (own, _) in found.items()}} | {
        kind: gradients for kind, (_, gradients) in found.items() if kind == "double"
    }


def main() -> None:
    """Write the figures to the file that the command names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--gradients", type=Path)
    parser.add_argument("--cells", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.cells:
        _train_on_deepspeed(options.file)
        return
    figures: dict[str, Any] = {"trl": trl.__version__, "torch": torch.__version__, "drawn": drawn_figures()}
    figures |= {"runs": {}, "double": {}}
    for name, (method, settings, micro_batch, accumulation) in RUNS.items():
        described = {"method": method, "micro_batch": micro_batch, "accumulation": accumulation, "settings": settings}
        kept = options.gradients / f"{name}.pt" if options.gradients and name.startswith("grid-") else None
        found = torch.load(kept) if kept and kept.exists() else _all_figures(name)
        for kind, own in found["figures"].items():
            figures[kind][name] = described | own if kind == "runs" else own
        if name in case.EXACT_RUNS:
            exact = found["double"][: case.EXACT_STEPS]
            figures["double"][name] |= {"gradients": [project_gradients(one) for one in exact]}
        if kept and not kept.exists():
            kept.parent.mkdir(parents=True, exist_ok=True)
            torch.save(found, kept)
        print(name, flush=True)
    options.file.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
