# SPDX-License-Identifier: Apache-2.0
"""ZenFlow: where it works, and what its block needs."""

from __future__ import annotations

from functools import partial

from harness.gates.registry import Cite, Context, Findings, Fix, gate

_ZENFLOW = "deepspeed.zero_optimization.zenflow"


def _count_micro_batches(count: int) -> str:
    return "1 micro-batch" if count == 1 else f"{count} micro-batches"


def _has_zenflow(ctx: Context) -> bool:
    """Has `zero_optimization` a `zenflow` block?"""
    return ctx.ds("zero_optimization.zenflow") is not None


_zenflow_gate = partial(gate, since="0.17.5")


@gate(
    "ZR030 zenflow-scrambles-weights",
    upstream="wrong",
    cites=Cite(
        "runtime/zenflow/zenflow_utils.py", "transposed_tensors = [t.transpose(0, 1).contiguous() if t.dim() == 2"
    ),
    since="0.19.7",
)
def scrambled_weights(ctx: Context) -> Findings:
    """ZenFlow scrambles the weights at stages 1 and 2.

    `zenflow` in `zero_optimization` at stage 1 or 2, on DeepSpeed 0.19.7 and newer.

    Why: ZenFlow keeps matrices transposed in its flat buffer; since 0.19.7 the code that returns the weights from that
    buffer to the module no longer transposes them back. Right after `initialize` every matrix holds the elements of its
    transpose in the wrong order: a pretrained model is lost, and checkpoints have the wrong order too. There is no
    error (run on 0.19.7 and 0.19.8; 0.19.3 is right).

    Example:
        zero.stage: 2
        zero.overlap_comm: true
        zero.offload_optimizer.device: cpu
        train.gradient_accumulation_steps: 2
        deepspeed.zero_optimization.zenflow.select_strategy: step
        deepspeed.zero_optimization.zenflow.select_interval: 2
        deepspeed.zero_optimization.zenflow.update_interval: 2

    Use instead:
        zero.stage: 2
        zero.offload_optimizer.device: cpu
    """
    if ctx.stage in (1, 2) and _has_zenflow(ctx) and ctx.is_optimizer_offloaded:  # not offloaded: ZR031 refuses it
        yield ctx.finding(
            f"{ctx.key(_ZENFLOW)} at ZeRO stage {ctx.stage} scrambles every weight matrix "
            f"on DeepSpeed {ctx.target.text}",
            _ZENFLOW,
            label="the model is lost at initialisation",
            related=[("zero.stage", "the stage is set here")],
            notes=["there is no error: the run trains and saves scrambled weights"],
            fix=Fix(
                "remove it", {_ZENFLOW: None}, effect="ordinary offload: every step waits for the optimizer on the CPU"
            ),
            of_key=True,
        )


@_zenflow_gate(
    "ZR031 zenflow-without-offload",
    upstream="raises",
    cites=Cite("runtime/zenflow/zenflow_stage_1_and_2.py", "Zenflow must be used with cpu offload"),
    when=lambda ctx: ctx.stage in (1, 2) and _has_zenflow(ctx),
)
def zenflow_without_offload(ctx: Context) -> Findings:
    """ZenFlow without an offloaded optimizer.

    `zenflow` in `zero_optimization` at stage 1 or 2 without `zero.offload_optimizer` on the CPU.

    Why: ZenFlow splits the gradients between the GPU and the CPU. Without offload it raises when the optimizer is
    built: "Zenflow must be used with cpu offload" (run on 0.19.8).

    Example:
        zero.stage: 2
        deepspeed.zero_optimization.zenflow.select_strategy: step
        deepspeed.zero_optimization.zenflow.select_interval: 1
        deepspeed.zero_optimization.zenflow.update_interval: 1
    """
    if not ctx.is_optimizer_offloaded:
        yield ctx.finding(
            f"{ctx.key(_ZENFLOW)} needs the optimizer on the CPU, and it is not offloaded",
            _ZENFLOW,
            notes=[f"set {ctx.key('zero.offload_optimizer.device')} to `cpu` if ZenFlow is what you want"],
            fix=Fix("remove it", {_ZENFLOW: None}, effect="all gradients are applied in each step"),
            of_key=True,
        )


@_zenflow_gate(
    "ZR032 zenflow-without-an-update-interval",
    upstream="wrong",
    cites=Cite("runtime/zenflow/engine.py", "engine._config.gradient_accumulation_steps = engine.update_interval"),
    when=lambda ctx: ctx.stage > 0 and _has_zenflow(ctx),
    unseen="needs CUDA, as ZenFlow at stage 3 does",
)
def zenflow_without_update_interval(ctx: Context) -> Findings:
    """ZenFlow without an update interval.

    `zenflow` in `zero_optimization` without `update_interval`, or with `update_interval: auto`, which is the default.

    Why: DeepSpeed sets gradient accumulation to the update interval, and `auto` is 0. `backward` divides the loss by
    it: NaN at the second step. A loop over `engine.gradient_accumulation_steps()` does nothing at all (run on 0.19.3 to
    0.19.8 at stages 1 and 2; stage 3 shares the code).

    Example:
        zero.stage: 3
        zero.overlap_comm: true
        zero.offload_optimizer.device: cpu
        deepspeed.zero_optimization.zenflow.topk_ratio: 0.05
    """
    if isinstance(ctx.ds("zero_optimization.zenflow.update_interval"), int):
        return
    steps = ctx.ds("gradient_accumulation_steps", 1)
    values = {"select_strategy": "step", "select_interval": steps, "update_interval": steps}
    yield ctx.finding(
        f"{ctx.key(_ZENFLOW)} has no `update_interval`: DeepSpeed sets gradient accumulation to 0 and the loss to NaN",
        _ZENFLOW,
        label="`auto` counts as 0",
        fix=Fix(
            f"set `select_strategy` to `step`, `select_interval` and `update_interval` to {steps}",
            {f"{_ZENFLOW}.{name}": value for name, value in values.items()},
            effect="all gradients are applied in each optimizer step",
        ),
        of_key=True,
    )


@_zenflow_gate(
    "ZR033 zenflow-overrides-accumulation",
    cites=Cite("runtime/zenflow/engine.py", "engine._config.gradient_accumulation_steps = engine.update_interval"),
    when=lambda ctx: ctx.stage > 0 and _has_zenflow(ctx),
    unseen="needs CUDA, as ZenFlow at stage 3 does",
)
def overridden_accumulation(ctx: Context) -> Findings:
    """ZenFlow replaces gradient accumulation.

    `gradient_accumulation_steps` that differs from `zenflow.update_interval`.

    Why: DeepSpeed overwrites the accumulation steps with the update interval when the engine is built. DeepSpeed still
    reports the requested global batch but trains with another: 2 accumulation steps instead of 8 (run on 0.19.8 at
    stage 2; stage 3 shares the code).

    Example:
        zero.stage: 3
        zero.overlap_comm: true
        zero.offload_optimizer.device: cpu
        train.gradient_accumulation_steps: 8
        deepspeed.zero_optimization.zenflow.select_strategy: step
        deepspeed.zero_optimization.zenflow.select_interval: 2
        deepspeed.zero_optimization.zenflow.update_interval: 2
    """
    interval = ctx.ds("zero_optimization.zenflow.update_interval")
    steps = ctx.run.batch.accumulation
    if not isinstance(interval, int) or steps is None or steps == interval:
        return
    key = f"{_ZENFLOW}.update_interval"
    values = {key: steps}
    if ctx.ds("zero_optimization.zenflow.select_strategy") == "step":
        values[f"{_ZENFLOW}.select_interval"] = steps
    yield ctx.finding(
        f"{ctx.key(key)} is {interval}, so DeepSpeed accumulates {_count_micro_batches(interval)} instead of {steps}",
        key,
        label="replaces gradient accumulation",
        related=[("train.gradient_accumulation_steps", "set here")],
        fix=Fix(
            f"set {ctx.key(key)} to {steps}",
            values,
            effect="the global batch is the requested one, and all gradients are applied "
            + ("at each micro-batch" if steps == 1 else f"every {steps} micro-batches"),
        ),
    )


@_zenflow_gate(
    "ZR034 zenflow-intervals-refused",
    upstream="raises",
    cites=(
        Cite("runtime/zenflow/engine.py", "Select interval must be greater or equal to update interval"),
        Cite("runtime/zenflow/engine.py", "If don't use auto select strategy, select_interval must be a number"),
    ),
    when=_has_zenflow,
)
def refused_zenflow_intervals(ctx: Context) -> Findings:
    """ZenFlow intervals that contradict each other.

    Three pairs of `zenflow` keys: `select_strategy: auto`, the default, with a number as `select_interval`; `step` or
    `epoch` without one; `step` with a `select_interval` below `update_interval`.

    Why: All three end in an exception when the engine is built. The first raises a `Warning` as an exception (run on
    0.19.8).

    Example:
        zero.stage: 3
        zero.overlap_comm: true
        zero.offload_optimizer.device: cpu
        train.gradient_accumulation_steps: 2
        deepspeed.zero_optimization.zenflow.select_strategy: step
        deepspeed.zero_optimization.zenflow.select_interval: 1
        deepspeed.zero_optimization.zenflow.update_interval: 2
    """
    update_interval = ctx.ds("zero_optimization.zenflow.update_interval")
    if not isinstance(update_interval, int):
        return  # ZR032 names values for all three
    strategy, strategy_key = ctx.ds("zero_optimization.zenflow.select_strategy", "auto"), f"{_ZENFLOW}.select_strategy"
    interval, interval_key = ctx.ds("zero_optimization.zenflow.select_interval"), f"{_ZENFLOW}.select_interval"
    if strategy == "auto" and isinstance(interval, int):
        message = f"{ctx.key(interval_key)} is {interval}, which the `auto` strategy does not take"
    elif strategy != "auto" and interval is None:
        message = f"{ctx.key(strategy_key)} is `{strategy}`, which needs a number as `select_interval`"
    elif strategy == "step" and isinstance(interval, int) and interval < update_interval:
        message = f"{ctx.key(interval_key)} is {interval}, less than the `update_interval` of {update_interval}"
    else:
        return
    new_interval = max(update_interval, interval or 1)
    yield ctx.finding(
        message,
        interval_key if ctx.has_key("zero_optimization.zenflow.select_interval") else strategy_key,
        fix=Fix(
            f"set `select_strategy` to `step` and `select_interval` to {new_interval}",
            {strategy_key: "step", interval_key: new_interval},
            effect="important gradients are chosen "
            + ("at each micro-batch" if new_interval == 1 else f"every {new_interval} micro-batches"),
        ),
    )


@_zenflow_gate(
    "ZR035 zenflow-without-zero", upstream="crashes", cites=Cite("runtime/zenflow/engine.py", "engine.zenflow = True")
)
def zenflow_at_stage_0(ctx: Context) -> Findings:
    """ZenFlow without ZeRO.

    `zenflow` in `zero_optimization` with `zero.stage: 0`.

    Why: Initialisation succeeds, but the first step fails with an AttributeError, because the ordinary optimizer has
    none of ZenFlow's parts (run on 0.19.8).

    Example:
        zero.stage: 0
        deepspeed.zero_optimization.zenflow.select_strategy: step
        deepspeed.zero_optimization.zenflow.select_interval: 1
        deepspeed.zero_optimization.zenflow.update_interval: 1
    """
    if ctx.stage == 0 and ctx.has_stage and _has_zenflow(ctx):
        yield ctx.finding(
            f"{ctx.key(_ZENFLOW)} is a part of ZeRO, and at stage 0 the first step fails",
            _ZENFLOW,
            label="no ZenFlow at stage 0",
            related=[("zero.stage", "the stage is set here")],
            fix=Fix("remove it", {_ZENFLOW: None}, effect="all gradients are applied in each step"),
            of_key=True,
        )


@gate(
    "ZR036 zenflow-at-stage-3-off-cuda",
    upstream="crashes",
    cites=Cite("runtime/zenflow/engine_stage3.py", "ZenFlowSelectiveAdamW_stage3"),
    since="0.18.1",
    needs=("the accelerator",),
    when=lambda ctx: ctx.stage == 3 and _has_zenflow(ctx),
)
def zenflow_off_cuda(ctx: Context) -> Findings:
    """ZenFlow at stage 3 without CUDA.

    `zenflow` in `zero_optimization` at stage 3 on the CPU accelerator.

    Why: The selective optimizer of stage 3 allocates on CUDA by name: "Torch not compiled with CUDA enabled" when the
    engine is built (run on 0.19.8).

    Example:
        zero:
          stage: 3
          overlap_comm: true
          offload_optimizer:
            device: cpu
        train.gradient_accumulation_steps: 2
        deepspeed.zero_optimization.zenflow.select_strategy: step
        deepspeed.zero_optimization.zenflow.select_interval: 2
        deepspeed.zero_optimization.zenflow.update_interval: 2
        cluster.gpu: cpu
    """
    if ctx.accelerator != "cuda":
        yield ctx.finding(
            f"{ctx.key(_ZENFLOW)} at stage 3 needs CUDA, this run is on `{ctx.accelerator}`",
            _ZENFLOW,
            label="allocates on CUDA",
            related=[("zero.stage", "the stage is set here")],
            fix=Fix("remove it", {_ZENFLOW: None}, effect="all gradients are applied in each step"),
            of_key=True,
        )


@_zenflow_gate(
    "ZR037 zenflow-with-another-optimizer",
    upstream="wrong",
    cites=Cite("runtime/zenflow/zenflow_stage_1_and_2.py", "self.selective_optimizer = ZenFlowSelectiveAdamW("),
    when=lambda ctx: ctx.stage > 0 and _has_zenflow(ctx),
    unseen="needs CUDA, as ZenFlow at stage 3 does",
)
def zenflow_with_another_optimizer(ctx: Context) -> Findings:
    """ZenFlow with an optimizer other than Adam.

    `zenflow` in `zero_optimization` with an `optimizer.type` other than Adam and AdamW.

    Why: The share of the gradients that ZenFlow applies on the GPU is stepped by ZenFlow's own AdamW, and the rest by
    the configured optimizer. Two rules train one matrix (run on 0.19.8 with SGD at stage 2), or the first step fails,
    as with Lion, whose CPU kernel does not take ZenFlow's arguments (run as well; stage 3 was read).

    Example:
        zero.stage: 3
        zero.overlap_comm: true
        zero.offload_optimizer.device: cpu
        deepspeed.optimizer.type: Adagrad
        deepspeed.optimizer.params.lr: 0.0001
        deepspeed.optimizer.params.weight_decay: 0.0
        deepspeed.zero_optimization.zenflow.select_strategy: step
        deepspeed.zero_optimization.zenflow.select_interval: 1
        deepspeed.zero_optimization.zenflow.update_interval: 1
    """
    optimizer = ctx.optimizer
    if optimizer.name not in ("", "adam", "adamw"):
        yield ctx.finding(
            f"{ctx.key(_ZENFLOW)} steps its share of the gradients with AdamW, the rest with {optimizer.type}",
            _ZENFLOW,
            label="two optimizers for one model",
            related=[(f"{optimizer.key}.type", "set here")],
            fix=Fix("remove it", {_ZENFLOW: None}, effect=f"every gradient is applied by {optimizer.type}"),
            of_key=True,
        )


@_zenflow_gate(
    "ZR038 zenflow-offload-without-overlap",
    upstream="asserts",
    cites=(
        Cite(
            "runtime/zenflow/zenflow_stage_1_and_2.py", "offload selective optimizer should be used with overlap_comm"
        ),
        Cite(
            "runtime/zenflow/engine_stage3.py",
            "offload selective optimizer should be used with overlap_comm",
            since="0.18.1",
        ),
    ),
)
def zenflow_offload_without_overlap(ctx: Context) -> Findings:
    """ZenFlow's own offload without overlapped communication.

    `zenflow.offload: true` while `zero.overlap_comm` is off, which is the default at stages 1 and 2.

    Why: The states of the selective optimizer are copied while gradients are reduced, and DeepSpeed asserts that both
    may overlap when the optimizer is built (run on 0.19.8 at stage 2; stage 3 has the same assertion).

    Example:
        zero.stage: 3
        zero.overlap_comm: false
        zero.offload_optimizer.device: cpu
        deepspeed.zero_optimization.zenflow.select_strategy: step
        deepspeed.zero_optimization.zenflow.select_interval: 1
        deepspeed.zero_optimization.zenflow.update_interval: 1
        deepspeed.zero_optimization.zenflow.offload: true
    """
    if (
        ctx.stage > 0
        and ctx.ds("zero_optimization.zenflow.offload") is True
        and ctx.ds("zero_optimization.overlap_comm", ctx.stage == 3) is not True
    ):
        key = f"{_ZENFLOW}.offload"
        overlap_key = "zero.overlap_comm"
        yield ctx.finding(
            f"{ctx.key(key)} needs {ctx.key(overlap_key)}",
            key,
            related=[(overlap_key, "switched off here"), ("zero.stage", "off by default below stage 3")],
            fix=Fix(
                f"set {ctx.key(overlap_key)} to `true`",
                {overlap_key: True},
                effect="gradients are reduced during the backward pass",
            ),
        )


_PARAMETERS_OF_DEEPSPEED = ("adam_w_mode", "adamw_mode", "torch_adam", "bias_correction", "fp32_optimizer_states")
"""Parameters that DeepSpeed's own classes take and torch's AdamW does not."""


@_zenflow_gate(
    "ZR039 zenflow-parameters-that-adamw-lacks",
    upstream="crashes",
    cites=Cite("runtime/zenflow/zenflow_stage_1_and_2.py", "**optimizer_params)"),
    when=lambda ctx: ctx.stage in (1, 2) and _has_zenflow(ctx),
)
def parameters_unknown_to_adamw(ctx: Context) -> Findings:
    """Optimizer parameters that ZenFlow's AdamW does not know.

    `zenflow` at stage 1 or 2 with an `optimizer` block that has no `params`, or one of DeepSpeed's own parameters in
    it: `adam_w_mode`, `torch_adam`, `bias_correction`, `fp32_optimizer_states`, `adamw_mode`.

    Why: ZenFlow hands `optimizer.params` as they are written to a torch AdamW, which takes none of these: TypeError
    when the engine is built. Without `params` it fails as well (run on 0.19.8).

    Example:
        zero.stage: 2
        zero.overlap_comm: true
        zero.offload_optimizer.device: cpu
        deepspeed.optimizer.type: Adam
        deepspeed.optimizer.params.lr: 0.0001
        deepspeed.optimizer.params.weight_decay: 0.0
        deepspeed.optimizer.params.adam_w_mode: false
        deepspeed.zero_optimization.zenflow.select_strategy: step
        deepspeed.zero_optimization.zenflow.select_interval: 1
        deepspeed.zero_optimization.zenflow.update_interval: 1
        ignore.ZR030: an example for older releases
    """
    optimizer = ctx.optimizer
    if optimizer.name not in ("adam", "adamw") or not ctx.is_optimizer_offloaded:
        return
    type_key = f"{optimizer.key}.type"
    if ctx.has_key("optimizer.type") and not ctx.has_key("optimizer.params"):
        yield ctx.finding(
            f"{ctx.key(optimizer.key)} has no `params`, which ZenFlow needs for its own AdamW",
            type_key,
            fix=Fix(
                "write `params` with a learning rate, 0.001 being DeepSpeed's default",
                {"deepspeed.optimizer.params.lr": 0.001},
                effect="trains at 0.001",
            ),
        )
    names = [name for name in _PARAMETERS_OF_DEEPSPEED if name in optimizer.params]
    if names:
        params_key = f"{optimizer.key}.params"
        key = f"{params_key}.{names[0]}"
        yield ctx.finding(
            f"{ctx.key(key)} is no parameter of the torch AdamW that ZenFlow builds",
            key,
            label="a TypeError when the engine is built",
            related=[(_ZENFLOW, "ZenFlow is set here")],
            fix=Fix(
                f"set {ctx.key(type_key)} to `AdamW` and remove {', '.join(f'`{name}`' for name in names)}",
                {type_key: "AdamW", **{f"{params_key}.{name}": None for name in names}},
                effect="weights decay apart from the gradient",
            ),
            of_key=True,
        )


@_zenflow_gate("PP012 zenflow-in-a-pipeline", upstream="asserts", until="0.19.6", unseen="needs an older DeepSpeed")
def zenflow_in_a_pipeline(ctx: Context) -> Findings:
    """ZenFlow in a pipeline.

    A `zenflow` block in `zero_optimization` with pipeline stages.

    Why: ZenFlow has to count micro-batches itself and asserts this; a PipelineModule fails with a bare AssertionError
    at initialisation (run on 0.19.8). From 0.19.7 on ZenFlow is refused at these ZeRO stages anyway: see
    `zenflow-scrambles-weights`.

    Example:
        train.gradient_accumulation_steps: 8
        zero.stage: 1
        zero.offload_optimizer.device: cpu
        parallel.pipeline_parallel_size: 2
        deepspeed.zero_optimization.zenflow.select_strategy: step
        deepspeed.zero_optimization.zenflow.select_interval: 8
        deepspeed.zero_optimization.zenflow.update_interval: 8
    """
    if ctx.pipeline_parallel_size > 1 and ctx.stage > 0 and _has_zenflow(ctx):
        yield ctx.finding(
            f"{ctx.key(_ZENFLOW)} does not run in a pipeline of {ctx.pipeline_parallel_size} stages",
            _ZENFLOW,
            related=[("parallel.pipeline_parallel_size", "the pipeline is set here")],
            notes=["DeepSpeed ends in a bare AssertionError at initialisation"],
            fix=ctx.fix_to_remove(_ZENFLOW, effect="the optimizer runs at every step, without overlap"),
        )
