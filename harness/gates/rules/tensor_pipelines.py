# SPDX-License-Identifier: Apache-2.0
"""Tensor-parallel layers inside the stages of a pipeline, which the harness makes itself."""

from __future__ import annotations

from harness.gates.divisors import largest_divisor
from harness.gates.registry import Cite, Context, Findings, gate, spec_gate

_DEGREE = "parallel.tensor_parallel_size"
_STAGES = ("parallel.pipeline_parallel_size", "the pipeline is set here")


def _is_tensor_pipeline(ctx: Context) -> bool:
    return ctx.run.kind == "spec" and ctx.tensor_parallel_size > 1 and ctx.pipeline_parallel_size > 1


@gate(
    "PP018 pipeline-layers-that-do-not-divide",
    needs=("a run spec", "model facts"),
    when=_is_tensor_pipeline,
    unseen="the harness refuses it itself (PP106): DeepSpeed does not shard the layers of a pipeline",
)
def layers_that_do_not_divide(ctx: Context) -> Findings:
    """A model whose layers do not divide over the tensor ranks of a pipeline stage.

    With a tensor degree and pipeline stages, the attention heads, the key-value heads, the width of the MLP and the
    vocabulary are multiples of `parallel.tensor_parallel_size`.

    Why: Every tensor rank of a stage takes whole heads and an equal part of each matrix, of the embedding and of the
    head; the cross entropy is computed over equal parts of the vocabulary. A model that does not divide is refused on
    all ranks (PP106) before it is built (run on 0.19.8). AutoTP, without stages, makes unequal shards and leaves the
    embedding whole.

    Example:
        model.name_or_path: Qwen/Qwen2.5-0.5B
        train.gradient_accumulation_steps: 8
        zero.stage: 1
        parallel.tensor_parallel_size: 4
        parallel.pipeline_parallel_size: 2
    """
    model, degree = ctx.model, ctx.tensor_parallel_size
    if model is None:
        return
    sizes = {
        "attention heads": model.heads,
        "key-value heads": model.kv_heads,
        "columns of the MLP": model.intermediate,
        "tokens of the vocabulary": model.vocab,
    }
    for unit, size in sizes.items():
        if size % degree:
            yield ctx.finding(
                f"{size:,} {unit} do not divide over {degree} tensor ranks of a pipeline stage",
                _DEGREE,
                related=[("model.name_or_path", "the model"), _STAGES],
                notes=["each tensor rank takes an equal part of every layer"],
                fix=ctx.fix_to_set(_DEGREE, largest_divisor(degree, *sizes.values()), effect="other memory and speed"),
            )
            return


_WHOLE_MATRIX_OPTIMIZERS = frozenset(("lamb", "fusedlamb", "onebitlamb", "muon", "onebitadam", "zerooneadam"))


@spec_gate(
    "PP019 whole-matrix-optimizer-over-shards",
    cites=Cite("runtime/zero/muon/original_muon.py", "zeropower_via_newtonschulz5"),
    when=_is_tensor_pipeline,
    unseen="the update differs, without an error",
)
def optimizer_of_whole_matrices(ctx: Context) -> Findings:
    """An optimizer for whole matrices over tensor shards.

    Muon, LAMB and the 1-bit optimizers with a tensor degree inside pipeline stages.

    Why: Muon makes the momentum of a matrix orthogonal and LAMB scales a step by the norm of the weight; on a tensor
    rank they would see its shard of the matrix, and silently make other steps than one process does (read, not run).
    The 1-bit optimizers have their own communication. Adam, AdamW, Lion, Adagrad and SGD step each element alone.

    Example:
        optimizer.type: muon
        train.max_grad_norm: 0.0
        train.gradient_accumulation_steps: 8
        zero.stage: 1
        parallel.tensor_parallel_size: 2
        parallel.pipeline_parallel_size: 2
    """
    if ctx.optimizer.name in _WHOLE_MATRIX_OPTIMIZERS:
        yield ctx.finding(
            f"`{ctx.optimizer.name}` steps whole matrices, of which {ctx.tensor_parallel_size} tensor ranks of a"
            " pipeline stage have shards",
            "optimizer.type",
            related=[(_DEGREE, "the shards"), _STAGES],
            notes=["the steps would silently differ from those of one process"],
            fix=ctx.fix_to_set("optimizer.type", "adamw", effect="steps each element alone"),
        )
