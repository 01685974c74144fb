# SPDX-License-Identifier: Apache-2.0
"""Parameters and gradients that are not in the state that ZeRO needs. `harness.diagnosis.messages` leads to them."""

from __future__ import annotations

from harness.diagnosis.diagnosis_types import FailureCause

INTERNAL_PAGE = (
    "This is an invariant inside DeepSpeed: the assertion does not name a wrong setting or a cause. A bug of that "
    "release, or code that changes DeepSpeed's tensors outside of it, breaks the invariant."
)
"""The page of causes whose messages are about DeepSpeed's own bookkeeping."""

CAUSES = (
    FailureCause(
        "LG100",
        "parameters-in-flight",
        "ZeRO-3 gathered parameters for a module that then did not run, or ran in another order",
        "update DeepSpeed (0.15.3 and newer release parameters that a step left gathered); mark modules that run "
        "submodules conditionally, such as a mixture of experts, as leaf modules before `deepspeed.initialize` "
        "(`deepspeed.utils.set_z3_leaf_modules(model, [Block])`); make all ranks run the same modules; "
        "`zero_optimization.stage3_prefetch_bucket_size: 0` switches the prefetch off",
        (),
        page="ZeRO-3 records in the first step in which order modules run, and gathers parameters of the next modules "
        "ahead. A branch, an expert without tokens or a module that runs only in some steps leaves gathered "
        "parameters unreleased.",
    ),
    FailureCause(
        "LG101",
        "zero3-trace-changed",
        "the modules ran in another order than the one that ZeRO-3 has recorded, or than on the other ranks",
        "make every rank and every step run the same modules in the same order: no branch on the data or the rank, "
        "no second forward pass between forward and backward; mark modules with conditional submodules as leaf "
        "modules (`deepspeed.utils.set_z3_leaf_modules`); or set `zero_optimization.stage3_prefetch_bucket_size: "
        "0`, or use ZeRO stage 2",
        (),
    ),
    FailureCause(
        "LG102",
        "zero3-parameter-state",
        "a parameter of ZeRO-3 was gathered, released or partitioned where the step did not expect it",
        "run the model through the engine only, and read or change its parameters inside "
        "`deepspeed.zero.GatheredParameters` alone; do not call a submodule, generate or copy weights (EMA) between"
        " forward and backward; mark modules with conditional submodules as leaf modules "
        "(`deepspeed.utils.set_z3_leaf_modules`); otherwise use a newer DeepSpeed or ZeRO stage 2",
        (),
    ),
    FailureCause(
        "LG103",
        "gathered-parameters-misused",
        "the context `deepspeed.zero.GatheredParameters` was used in a way that it does not support",
        "give `modifier_rank=0` where the block changes weights and `modifier_rank=None` where it only reads; "
        "leave the tensors on the device inside the block, and do not nest blocks over the same parameters",
        (),
    ),
    FailureCause(
        "LG104",
        "gradient-reduced-twice",
        "ZeRO got the gradient of one parameter twice in the same backward pass",
        "use `use_reentrant=False` in activation checkpointing (for the Trainer "
        '`gradient_checkpointing_kwargs={"use_reentrant": False}`); call `engine.backward` once for each forward '
        "pass, with the sum of its losses; otherwise a module that runs several times in one pass needs ZeRO stage 0 "
        "or 3",
        (),
        page="ZeRO-2 reduces a gradient as soon as it arrives. Reentrant activation checkpointing of a module that "
        "runs twice or shares its weights, and several backward passes of one forward pass, make a second gradient "
        "arrive.",
    ),
    FailureCause(
        "LG105",
        "parameters-without-gradient",
        "trainable parameters got no gradient, because they did not contribute to the loss",
        "set `requires_grad_(False)` on parameters that the loss does not use (heads, unused experts, an encoder "
        "that is skipped), before `deepspeed.initialize`; or set `zero_optimization.ignore_unused_parameters: "
        "true`",
        (),
    ),
    FailureCause(
        "LG106",
        "zero-init-refused",
        "`deepspeed.zero.Init` got arguments that conflict",
        "give it the same DeepSpeed JSON as `deepspeed.initialize` (`config_dict_or_path`) without a separate "
        "`remote_device` or `dtype`; call `deepspeed.init_distributed()` before it",
        (),
    ),
    FailureCause(
        "LG107",
        "reduce-scatter-refused",
        "reduce-scatter of gradients conflicts with another setting",
        "set `communication_data_type` to `fp16`, `bf16` or `fp32`, leave out `prescale_gradients` and "
        "`gradient_predivide_factor`, or set `zero_optimization.reduce_scatter: false`",
        (),
    ),
    FailureCause(
        "LG108",
        "gradient-of-another-size",
        "a gradient, or a partition of one, has another size than its parameter",
        "do not replace, resize or tie parameters after `deepspeed.initialize` (call `resize_token_embeddings` and"
        " apply adapters before it), and do not change `requires_grad` between steps",
        (),
    ),
    FailureCause(
        "LG109",
        "zero-bookkeeping",
        "an internal check of ZeRO failed",
        "install a newer DeepSpeed, or the release that worked before; try without `overlap_comm`, "
        "`contiguous_gradients` and `round_robin_gradients`, or at another ZeRO stage; report it to DeepSpeed with "
        "the versions, the JSON and the traceback of the first rank that fails",
        (),
        page=INTERNAL_PAGE,
    ),
)
