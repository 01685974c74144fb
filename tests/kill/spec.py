# SPDX-License-Identifier: Apache-2.0
"""The run that is killed: a checkpoint at every step, dropout and shuffled data, so that every state matters."""

# ruff: noqa: S311  (seeded on purpose)

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

SPEC = """\
name: killed
model:
  config: {{model_type: llama, vocab_size: 320, hidden_size: 32, intermediate_size: 64, num_hidden_layers: 2,
           num_attention_heads: 4, num_key_value_heads: 2, max_position_embeddings: 128, attention_dropout: 0.1}}
  tokenizer: bytes
data: {{train: "{text}", max_length: 32, eval_fraction: 0.01}}
train: {{max_steps: {steps}, per_device_train_batch_size: 1, gradient_accumulation_steps: 2, seed: 5}}
optimizer: {{learning_rate: 0.003}}
scheduler: {{type: cosine, warmup_steps: 4}}
zero: {zero}
precision: {precision}
parallel: {parallel}
checkpoint: {{save_steps: 1, save_total_limit: 3}}
eval: {{max_batches: 1}}
launch: {{num_gpus: {ranks}, output_dir: "{output}", master_port: {port}}}
"""


@dataclass(frozen=True, slots=True)
class Layout:
    """How the state is spread over the ranks; `zero`, `parallel` and `precision` are sections of the spec. `reference`:
    overrides of the run that nobody touches. `patch`: the one that every killed run must have applied.
    """

    zero: str
    parallel: str = "{}"
    ranks: int = 2
    precision: str = "{}"
    reference: tuple[str, ...] = ()
    patch: str = ""


LAYOUTS = {
    "zero2": Layout("{stage: 2}"),
    "zero3-cpu": Layout(
        "{stage: 3, sub_group_size: 2000, offload_optimizer: {device: cpu, overlap_step_gib: 1}}",
        precision="{bf16: true}",
        reference=("launch.patches.one-pass-adam=off", "zero.offload_optimizer.overlap_step_gib=0"),
        patch="overlapped-step",
    ),
    "tensor-pipeline": Layout("{stage: 1}", "{tensor_parallel_size: 2, pipeline_parallel_size: 2}", ranks=4),
}
"""DeepSpeed's own shards of stage 2; stage 3 with its optimizer on the CPU, killed while it steps in one pass and
beside the backward pass, whose reference steps in DeepSpeed's order; and tensor ranks in pipeline stages.
"""


def write_spec(folder: Path, *, steps: int, case: str, port: int) -> Path:
    """The spec below `folder`, with its text and the folder of its runs."""
    folder.mkdir(parents=True, exist_ok=True)
    text = folder / "text.txt"
    if not text.exists():
        drawn = random.Random(1)
        words = ["".join(drawn.choices("abcdefghijklmnop", k=drawn.randint(2, 8))) for _ in range(200)]
        text.write_text("".join(" ".join(drawn.choices(words, k=12)) + ".\n" for _ in range(300)))
    file = folder / "killed.yaml"
    layout = LAYOUTS[case]
    fields = {"zero": layout.zero, "parallel": layout.parallel, "ranks": layout.ranks, "precision": layout.precision}
    file.write_text(SPEC.format(text=text, steps=steps, port=port, output=folder / "runs", **fields))
    return file
