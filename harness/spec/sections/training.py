"""`train`, `optimizer`, `scheduler`, `precision`: how long, how fast, in which number format."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from harness.spec.sections.base import Count, Fraction, Positive, Section


class TrainSpec(Section):
    """How long, how much at once, from which seed."""

    max_steps: Positive | None = None
    """Optimizer steps. Wins over `num_train_epochs`."""
    num_train_epochs: Annotated[float, Field(gt=0)] | None = None
    """Passes over the training data, when `max_steps` is not given."""
    per_device_train_batch_size: Positive | None = None
    """Sequences a rank computes at once (the micro-batch)."""
    global_batch_size: Positive | None = None
    """Sequences an optimizer step, over all ranks."""
    gradient_accumulation_steps: Positive | None = None
    """Micro-batches an optimizer step. Derived when the other two and the ranks are known."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass instead of keeping them."""
    max_grad_norm: Annotated[float, Field(ge=0.0)] = 1.0
    """Clip the global gradient norm here; 0 turns clipping off."""
    seed: Count = 42
    """Seeds initial weights, data order and dropout."""


class OptimizerSpec(Section):
    """The optimizer. DeepSpeed picks the implementation for the device: fused, or DeepSpeedCPUAdam when it is
    offloaded.
    """

    type: Literal["adamw", "adam", "sgd"] = "adamw"
    """`adamw` decays weights apart from the gradient, `adam` adds the decay to it, `sgd` has only a momentum."""
    learning_rate: Annotated[float, Field(gt=0.0)] = 1e-5
    """Peak learning rate."""
    weight_decay: Annotated[float, Field(ge=0.0)] = 0.0
    """Decay of all parameters but norms and biases."""
    betas: Annotated[tuple[Fraction, Fraction], Field(strict=False)] = (0.9, 0.999)
    """Adam's two decay rates."""
    eps: Annotated[float, Field(gt=0.0)] = 1e-8
    """Adam's epsilon."""
    momentum: Fraction = 0.0
    """Momentum of `sgd`."""


class SchedulerSpec(Section):
    """The learning rate over the steps, as `transformers` computes it."""

    type: Literal["constant", "linear", "cosine"] = "cosine"
    """What follows the warm-up: stay, fall in a line to 0, or fall along a cosine."""
    warmup_steps: Count | None = None
    """Steps of linear warm-up from 0. Wins over `warmup_ratio`."""
    warmup_ratio: Fraction = 0.0
    """The same as a share of all steps."""
    min_lr_ratio: Fraction = 0.0
    """Where a cosine ends, as a share of the peak rate."""


class PrecisionSpec(Section):
    """Number format of weights and activations in forward and backward; neither flag means fp32."""

    bf16: bool = False
    """bfloat16 with fp32 master weights."""
    fp16: bool = False
    """float16 with fp32 master weights and loss scaling."""
    loss_scale: Annotated[float, Field(ge=0.0)] = 0.0
    """fp16: fixed loss scale; 0 scales dynamically."""
    initial_scale_power: Count = 16
    """fp16: the dynamic scale starts at 2 to this power."""
    loss_scale_window: Count = 1000
    """fp16: steps without overflow before the scale doubles."""
    hysteresis: Count = 2
    """fp16: overflows that are tolerated before the scale halves."""
    min_loss_scale: Count = 1
    """fp16: the scale never falls below this."""
