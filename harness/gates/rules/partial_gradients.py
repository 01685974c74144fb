# SPDX-License-Identifier: Apache-2.0
"""Gradients that some releases lose or scale: of a parameter that not each micro-batch uses, and of a module that is
used twice. A file does not show whether a model has these: the findings are information, with the question that its
author can answer.
"""

from __future__ import annotations

from harness.gates.registry import Cite, Context, Findings, Fix, gate

_STEPS = "train.gradient_accumulation_steps"


def _is_script_of_others(ctx: Context) -> bool:
    return ctx.run.kind != "spec" and ctx.pipeline_parallel_size == 1


@gate(
    "OF060 offload-loses-gradients-of-unused-parameters",
    upstream="wrong",
    severity="info",
    cites=(
        Cite("runtime/zero/stage_1_and_2.py", "if self.is_gradient_accumulation_boundary", since="0.14.5"),
        Cite("runtime/zero/stage3.py", "if self.is_gradient_accumulation_boundary"),
    ),
    when=lambda ctx: _is_script_of_others(ctx) and ctx.stage >= 2 and ctx.is_optimizer_offloaded,
)
def lost_gradients_of_unused_parameters(ctx: Context) -> Findings:
    """Offload that loses the gradients of a parameter which the last micro-batch does not use.

    A DeepSpeed JSON with `offload_optimizer` at stage 2 or 3 and more than one accumulation step.

    Why: Gradients are copied to the optimizer where the hook of a parameter fires in the last micro-batch of a step. A
    parameter that has a gradient only in an earlier one, such as that of an expert or an adapter which the last
    micro-batch does not route to, is silently stepped with a gradient of 0. Run on 0.19.8 and others, see
    docs/releases.md: three steps end 0.26 of their length away from plain torch. Without offload they are right. In a
    model that uses all its parameters in each micro-batch nothing is lost; transformers 5 keeps all experts of a layer
    in one weight, which always has a gradient.

    Example: {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 4, "gradient_clipping": 1.0,
      "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}
    }
    """
    steps = ctx.accumulation
    if steps == 1:
        return
    yield ctx.finding(
        "with this offload a parameter that the last micro-batch does not use loses its gradient of the step",
        "zero.offload_optimizer.device",
        related=[(_STEPS, f"{steps} micro-batches a step" if steps else "not known here")],
        notes=["only models with conditional parts are affected, such as experts or adapters in separate weights"],
        fix=Fix(
            f"if the model has such parts, set {ctx.key(_STEPS)} to 1, or add 0 times each parameter to the loss",
            {_STEPS: 1},
            effect="each micro-batch is a step: adapt the learning rate",
        ),
    )


@gate(
    "ZR060 accumulation-counted-at-each-output",
    upstream="wrong",
    severity="info",
    cites=Cite("runtime/engine.py", "preprocess_per_tensor_fn=self._backward_prologue_per_tensor"),
    since="0.18.3",
    until="0.19.5",
    when=lambda ctx: _is_script_of_others(ctx) and ctx.consumer != "hf",
)
def accumulation_counted_at_outputs(ctx: Context) -> Findings:
    """Accumulation steps that are counted at each output of the engine.

    A DeepSpeed JSON with more than one accumulation step for a script that calls `engine.backward(loss)`, on DeepSpeed
    0.18.3 to 0.19.5.

    Why: These releases divide gradients by the accumulation steps where they enter an output of the engine, not at the
    loss. A module that is used in the engine's forward pass and again outside has one gradient too large by the number
    of steps; an output that goes into the engine again is divided twice. There is no warning (run with three steps of 2
    micro-batches, see docs/releases.md; it is as DeepSpeed's issue 8224 describes it). 0.18.2 and 0.19.6 divide the
    loss. The Trainer divides it itself.

    Example: {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 4, "gradient_clipping": 1.0,
      "zero_optimization": {"stage": 1}
    }

    Use instead: The same file on DeepSpeed 0.19.6. Before it, one micro-batch a step:
    {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1, "gradient_clipping": 1.0,
      "zero_optimization": {"stage": 1}
    }
    """
    steps = ctx.accumulation
    if steps == 1:
        return
    yield ctx.finding(
        "a module that is also used outside the engine's forward pass has gradients of two scales",
        _STEPS,
        label=f"too large by a factor of {steps}, or divided twice" if steps else "not known here",
        notes=["only scripts that call a module of the model, or the engine, twice for one loss are affected"],
        fix=Fix(
            f"if the script does, upgrade to DeepSpeed 0.19.6, or set {ctx.key(_STEPS)} to 1",
            {_STEPS: 1},
            effect="each micro-batch is a step: adapt the learning rate",
        ),
    )
