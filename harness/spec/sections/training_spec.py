# SPDX-License-Identifier: Apache-2.0
"""`train`, `eval`, `optimizer`, `scheduler`, `precision`: steps and batch, evaluation, learning rate, number format."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from harness.spec.sections.section import Count, Fraction, Positive, Section, Strings, WholeNumber


class CheckpointingSpec(Section):
    """The layers that recompute their activations, and those of their activations that they keep."""

    recompute_every: Positive = 1
    """Layers 0, K, 2K and so on recompute their activations; the others keep them. In a pipeline: of each stage. Was
    `every`, which still works."""
    layers_per_segment: Positive = 1
    """Of so many layers in a row only the first keeps its input. The inputs of the others are computed again in the
    backward pass, before each layer is: memory falls with it up to about the root of the number of layers."""
    keep: Literal["attention"] | None = None
    """`attention`: a layer that is recomputed keeps the output of its attention, which is then computed only once."""

    @model_validator(mode="before")
    @classmethod
    def _rename_every(cls, value: Any) -> Any:
        if isinstance(value, dict) and "every" in value and "recompute_every" not in value:
            return {"recompute_every" if key == "every" else key: each for key, each in value.items()}
        return value


class TrainSpec(Section):
    """Steps, batch sizes, memory options and seed."""

    max_steps: Positive | None = None
    """Optimizer steps. Overrides `num_train_epochs`."""
    num_train_epochs: Annotated[float, Field(gt=0)] | None = None
    """Passes over the training data, when `max_steps` is not given."""
    per_device_train_batch_size: Positive | None = None
    """Sequences per rank and micro-step (the micro-batch)."""
    global_batch_size: Positive | None = None
    """Sequences per optimizer step, over all ranks: those per device x data ranks x accumulation steps."""
    gradient_accumulation_steps: Positive | None = None
    """Micro-batches per optimizer step. Derived when the other two and the ranks are known."""
    gradient_checkpointing: bool | Literal["auto"] | CheckpointingSpec = False
    """Recompute activations in the backward pass instead of keeping them: `true` for every layer,
    `{recompute_every: K}` for every K-th one, `{layers_per_segment: K}` for every layer and most of their inputs,
    `{keep: attention}` for all but the attention; `auto` for as few layers as fit the GPU."""
    gradient_checkpointing_use_reentrant: bool = False
    """With `gradient_checkpointing`: torch's older implementation, which runs a second backward pass inside the first.
    """
    offload_activations: bool = False
    """With `gradient_checkpointing`: keep the layers' inputs in host memory, by DeepSpeed's (reentrant) function."""
    mlp_tile_size: Positive | None = None
    """Tokens that the MLP and the norms of a layer compute at once, for long rows; each tile is recomputed in the
    backward pass. Default: all tokens of a micro-batch."""
    torch_compile: bool = False
    """Compile the model with `torch.compile`; the first step takes minutes."""
    torch_compile_backend: str | None = None
    """Default: the accelerator's own, which is `inductor`."""
    loss_chunk_size: Count | None = None
    """Tokens whose logits exist at once: head and loss go over a micro-batch in chunks. 0: all at once. Default: chosen
    from the vocabulary, where the model and its head allow it."""
    max_grad_norm: Annotated[float, Field(ge=0.0)] = 1.0
    """Clip the global gradient norm at this value; 0 turns clipping off."""
    on_nonfinite: Literal["skip", "stop"] = "skip"
    """Response to a step with a NaN or an infinity in its loss or gradient. Such a step changes no weight. `stop` ends
    the run and reports the step, the ranks and their rows of data; `skip` counts it and continues."""
    max_skipped_steps: Positive | None = None
    """With `skip`: end the run after N skipped steps in all. Default: no limit."""
    max_consecutive_skipped_steps: Positive | None = 20
    """With `skip`: end the run after N skipped steps in a row, since it no longer trains. fp16's search for a loss
    scale does not
    count. `null`: never."""
    seed: Count = 42
    """Seeds initial weights, data order and dropout."""


class OptimizerSpec(Section):
    """The optimizer. DeepSpeed picks the implementation: fused, or one for the CPU when it is offloaded."""

    type: Literal["adamw", "adam", "sgd", "lion", "adagrad", "lamb", "muon"] = "adamw"
    """`adamw` decays weights apart from the gradient, `adam` adds the decay to it, `sgd` has only a momentum. `lion`
    steps by the sign of a momentum, `muon` makes the momentum of each matrix orthogonal and steps everything else with
    Adam.
    `lamb` needs CUDA and no ZeRO, `lion` CUDA or an offloaded optimizer."""
    learning_rate: Annotated[float, Field(gt=0.0)] = 1e-5
    """Peak learning rate."""
    adam_learning_rate: Annotated[float, Field(gt=0.0)] | None = None
    """`muon`: peak rate of the parameters that Adam steps (embeddings, head, norms, biases). Default: `learning_rate`.
    """
    weight_decay: Annotated[float, Field(ge=0.0)] = 0.0
    """Decay of all parameters but norms and biases."""
    betas: Annotated[tuple[Fraction, Fraction], Field(strict=False)] = (0.9, 0.999)
    """The two decay rates of Adam, Lion, LAMB and Muon's Adam."""
    eps: Annotated[float, Field(gt=0.0)] = 1e-8
    """Epsilon of Adam, Adagrad, LAMB and Muon's Adam."""
    momentum: Fraction | None = None
    """Momentum of `sgd` (default 0) and `muon` (default 0.95)."""


class SchedulerSpec(Section):
    """The learning rate over the steps, as `transformers` computes it."""

    type: Literal[
        "constant", "linear", "cosine", "cosine_with_restarts", "polynomial", "inverse_sqrt", "warmup_stable_decay"
    ] = "cosine"
    """The schedule after the warm-up: constant, linear to 0, cosine, cosine with restarts, polynomial, inverse square
    root of the step, or constant with a decay at the end."""
    warmup_steps: Count | None = None
    """Steps of linear warm-up from 0. Overrides `warmup_ratio`."""
    warmup_ratio: Fraction = 0.0
    """The same as a share of all steps."""
    min_lr_ratio: Fraction = 0.0
    """The last rate of `cosine`, `polynomial` and `warmup_stable_decay`, as a share of the peak. The latter also starts
    there."""
    num_cycles: Positive = 1
    """`cosine_with_restarts`: number of cosines."""
    power: Annotated[float, Field(gt=0.0)] = 1.0
    """`polynomial`: the exponent."""
    decay_steps: Count | None = None
    """`warmup_stable_decay`: steps of the decay. Overrides `decay_ratio`."""
    decay_ratio: Fraction = 0.1
    """The same as a share of all steps."""
    decay_type: Literal["linear", "cosine", "1-sqrt"] = "linear"
    """`warmup_stable_decay`: shape of the decay."""


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
    """fp16: overflows before the scale halves."""
    min_loss_scale: Count = 1
    """fp16: the scale never falls below this."""


class EvalSpec(Section):
    """Loss on the held-out part."""

    eval_steps: Positive | None = None
    """Evaluate every N steps. Default: only at the end."""
    per_device_eval_batch_size: Positive | None = None
    """Default: the training micro-batch."""
    max_batches: Positive | None = None
    """Batches per rank at most, for a faster evaluation. Default: the whole held-out part."""
    eval_on_start: bool = False
    """Evaluate before the first step too."""
    early_stopping_patience: Positive | None = None
    """End the run after N evaluations in a row that did not improve on the best. Default: never."""
    early_stopping_threshold: Annotated[float, Field(ge=0.0)] = 0.0
    """Smallest decrease of the best loss that counts as an improvement."""
    samples: Annotated[Strings, Field(max_length=16)] = ()
    """Prompts that the model continues at each evaluation by its likeliest tokens, at most 16; the texts are in
    `metrics.jsonl` and the report. A token takes a forward of the model."""
    sample_tokens: Annotated[WholeNumber, Field(ge=1, le=2048)] = 64
    """Tokens after each of these prompts at most, and at most `data.max_length` with the prompt."""
    sample_format: Literal["text", "chat"] = "text"
    """`chat`: each of these prompts is a user's turn in the chat template, which the assistant answers."""
