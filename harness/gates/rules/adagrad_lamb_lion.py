# SPDX-License-Identifier: Apache-2.0
"""Adagrad, Lamb and Lion."""

from __future__ import annotations

from harness.gates.registry import Cite, Context, Findings, Fix, gate, spec_gate

_TYPE = "deepspeed.optimizer.type"


@gate(
    "OP013 lamb-with-a-fixed-loss-scale",
    upstream="asserts",
    cites=Cite("runtime/engine.py", "DeepSpeed {} optimizer requires dynamic loss scaling"),
)
def lamb_with_fixed_loss_scale(ctx: Context) -> Findings:
    """Lamb with a fixed loss scale.

    `optimizer.type: Lamb` with an `fp16.loss_scale` other than 0.

    Why: `AssertionError: DeepSpeed lamb optimizer requires dynamic loss scaling` (run on 0.19.8). DeepSpeed looks at
    the number alone, so that a leftover in an `fp16` block that is off is refused too.

    Example: {
      "train_micro_batch_size_per_gpu": 1,
      "gradient_clipping": 1.0,
      "optimizer": {"type": "Lamb", "params": {"lr": 1e-3}},
      "fp16": {"enabled": false, "loss_scale": 128}
    }

    Use instead: {
      "train_micro_batch_size_per_gpu": 1,
      "gradient_clipping": 1.0,
      "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "weight_decay": 0.0}},
      "fp16": {"enabled": false, "loss_scale": 128}
    }
    """
    if ctx.optimizer.name != "lamb" or (ctx.run.kind == "spec" and not ctx.is_enabled("fp16")):
        return
    loss_scale = ctx.run.spec.precision.loss_scale
    if loss_scale != 0:
        key = "precision.loss_scale"
        yield ctx.finding(
            f"`Lamb` needs dynamic loss scaling, and the loss scale is fixed at {loss_scale:g}",
            key,
            related=[(_TYPE, "the optimizer")],
            notes=["DeepSpeed asserts this when it builds the engine"],
            fix=ctx.fix_to_set(key, 0, effect="the loss scale is dynamic"),
        )


@gate(
    "OP039 lion-moves-what-has-no-gradient",
    severity="warning",
    cites=(
        Cite("ops/csrc/lion/cpu_lion_impl.cpp", "tmp = -std::copysignf(alpha, tmp);"),
        Cite("ops/csrc/lion/multi_tensor_lion.cu", "MATH_T update = c > 0 ? (-lr) : lr;"),
    ),
)
def lion_updates_without_gradient(ctx: Context) -> Findings:
    """Lion that moves weights without a gradient.

    `optimizer.type: Lion`.

    Why: Lion moves each weight by the sign of its update, and the sign of 0 is 0: a weight without a gradient stays.
    DeepSpeed's Lion gives 0 a sign: its CPU version moves such weights by the learning rate in one direction (run on
    0.19.8), its CUDA kernel in the other (read). Embeddings of tokens that never occur drift further with each step.

    Example:
        zero.stage: 2
        zero.offload_optimizer.device: cpu
        deepspeed.optimizer.type: Lion
        deepspeed.optimizer.params.lr: 1.0e-4
    """
    if ctx.optimizer.name == "lion":
        yield ctx.finding(
            "DeepSpeed's Lion also moves weights that have no gradient, by the learning rate at each step",
            _TYPE,
            notes=["embeddings of tokens that are not in the data drift away"],
            fix=Fix(
                "use `AdamW`, with a learning rate for it",
                {_TYPE: "AdamW"},
                effect="trains with AdamW",
            ),
        )


@spec_gate(
    "OP041 adagrad-rebuilt-by-zero",
    upstream="wrong",
    cites=(
        Cite(
            "runtime/zero/stage_1_and_2.py",
            "torch.optim.Adagrad(self.single_partition_of_fp32_groups, **self.optimizer.defaults)",
        ),
        Cite(
            "runtime/zero/stage3.py",
            "torch.optim.Adagrad(self.fp32_partitioned_groups_flat, **self.optimizer.defaults)",
        ),
    ),
    when=lambda ctx: ctx.optimizer.name == "adagrad",
)
def rebuilt_adagrad(ctx: Context) -> Findings:
    """Adagrad whose learning rate never changes.

    `optimizer.type: adagrad` at ZeRO stages 1 to 3 with the optimizer on the device, with a schedule of the run spec or
    weight decay.

    Why: There Adagrad is torch's, and ZeRO makes a new one from its defaults after the first is built: the run spec's
    schedule keeps changing the rate of the old one. A run with warm-up and cosine trained at the peak rate from the
    first step on, its losses off by a third. The new one has a single group of parameters; with a decay there are two
    (norms and biases have none), and the first backward pass ends with `IndexError: list index out of range`. A
    `scheduler` of DeepSpeed's own is made later and follows the new one. An offloaded Adagrad is DeepSpeed's own, which
    is kept, and agreed with torch's to seven digits (all run on 0.19.8).

    Example:
        optimizer.type: adagrad
        zero.stage: 1
    """
    if ctx.stage == 0 or ctx.is_optimizer_offloaded:
        return
    schedule = ctx.run.spec.scheduler
    optimizer = ctx.optimizer
    if optimizer.params.get("weight_decay"):
        failure = "fails in the first backward pass: weight decay needs two parameter groups, and it keeps one"
    elif not ctx.scheduler and (schedule.type != "constant" or schedule.warmup_steps or schedule.warmup_ratio):
        failure = "trains at its peak rate throughout, whatever the schedule says"
    else:
        return
    yield ctx.finding(
        f"`adagrad` at ZeRO stage {ctx.stage} {failure}",
        f"{optimizer.key}.type",
        related=[("zero.stage", "ZeRO makes a new optimizer from the defaults of the first")],
        fix=ctx.fix_to_set("zero.offload_optimizer.device", "cpu", effect="steps on the CPU"),
    )
