# SPDX-License-Identifier: Apache-2.0
"""Faults of the training script, and misuse of DeepSpeed. Tried last."""

from __future__ import annotations

from harness.diagnosis.diagnosis_types import FailureCause, FailureSignature

_DEEPSPEED_FRAMES = r"deepspeed/"

CAUSES = (
    FailureCause(
        "LG080",
        "backward-twice",
        "the loss has no graph for a backward pass, or its graph was freed by an earlier one",
        "compute a new loss for every `backward`, do not detach what is trained, and leave at least one "
        "parameter trainable",
        (
            FailureSignature(r"element 0 of tensors does not require grad", sure=False),
            FailureSignature(r"Trying to backward through the graph a second time"),
            FailureSignature(
                r"has already been reduced\. (?:Gradient computed twice|This)|"
                r"Gradient computed twice for this partition"
            ),
            FailureSignature(r"Expected to mark a variable ready only once"),
        ),
    ),
    FailureCause(
        "LG081",
        "formats-or-devices-mixed",
        "tensors of two number formats, or on two devices, met in one operation",
        "move inputs to the engine's device and cast them to its format; under 16-bit training do not keep "
        "modules in fp32 "
        "by hand",
        (
            FailureSignature(r"Expected all tensors to be on the same device"),
            FailureSignature(
                r"expected (?:scalar type|m1 and m2 to have the same dtype|mat1 and mat2)|must have the same dtype"
            ),
            FailureSignature(r"Input type \(\S+\) and (?:weight|bias) type"),
        ),
    ),
    FailureCause(
        "LG082",
        "shapes-do-not-fit",
        "the shapes of two tensors do not match in an operation of the model",
        "check the frame named: batch, length or width is not what the layer expects; under tensor "
        "parallelism, a layer "
        "that was split on one side only",
        (
            FailureSignature(r"mat1 and mat2 shapes cannot be multiplied", sure=False),
            FailureSignature(r"shape '\[[\d, -]+\]' is invalid for input of size \d+", sure=False),
            FailureSignature(r"size of tensor a \(\d+\) must match the size of tensor b", sure=False),
            FailureSignature(r"Sizes of tensors must match|size mismatch, m1", sure=False),
            FailureSignature(r"Trying to create tensor with negative dimension"),
        ),
    ),
    FailureCause(
        "LG083",
        "parameter-is-partitioned",
        "code read a parameter that ZeRO-3 has partitioned",
        "read it inside `deepspeed.zero.GatheredParameters`, or load weights with support for ZeRO-3 "
        "(`from_pretrained` with the HfDeepSpeedConfig alive)",
        (
            FailureSignature(r"'weight' must be 2-D"),
            FailureSignature(r"(?:shape|size).*torch\.Size\(\[0\]\)", sure=False),
            FailureSignature(r"object has no attribute 'ds_\w+'", sure=False),
        ),
    ),
    FailureCause(
        "LG084",
        "engine-without-optimizer",
        "the engine has no optimizer",
        "give `optimizer` in the DeepSpeed JSON or to `deepspeed.initialize`",
        (
            FailureSignature(r"must provide optimizer during init in order to use"),
            FailureSignature(r"zero stage \d requires an optimizer"),
            FailureSignature(r"optimizer got an empty parameter list"),
        ),
    ),
    FailureCause(
        "LG085",
        "optimizer-of-the-script-offloaded",
        "the offloaded optimizer was made by the script",
        "use `deepspeed.ops.adam.DeepSpeedCPUAdam`, put `optimizer` into the DeepSpeed JSON, or set "
        "`zero_force_ds_cpu_optimizer: false`",
        (FailureSignature(r"You are using ZeRO-Offload with a client provided optimizer"),),
    ),
    FailureCause(
        "LG086",
        "apex-missing",
        "`amp` needs NVIDIA Apex, or was combined with an incompatible setting",
        "write `bf16` or `fp16` instead; DeepSpeed 0.19.8 has no `amp` any more",
        (
            FailureSignature(r"Unable to import apex/amp"),
            FailureSignature(r"Amp and ZeRO are not currently compatible"),
        ),
    ),
    FailureCause(
        "LG087",
        "elastic-batch-without-this-world-size",
        "the `elasticity` block does not allow this number of ranks",
        "start a number of ranks that it lists, or write the batch sizes without `elasticity` (gone from 0.19.8)",
        (FailureSignature(r"ElasticityIncompatibleWorldSize|ElasticityError|ElasticityConfigError"),),
    ),
    FailureCause(
        "LG088",
        "backend-lacks-a-collective",
        "the communication backend does not have an operation that this configuration needs",
        "use NCCL, or leave out the features that need it (MiCS, hpZ, quantized communication)",
        (FailureSignature(r"Backend \w+ does not (?:implement|support) \w+"),),
    ),
    FailureCause(
        "LG089",
        "fault-between-packages",
        "DeepSpeed is incompatible with the installed torch or transformers",
        "install a transformers or torch from the time of this DeepSpeed, or a newer DeepSpeed",
        (
            FailureSignature(r"_CanRecordRegistry\.get\(\) takes \d positional arguments"),
            FailureSignature(r"'DeepSpeedEngine' object has no attribute '_\w+'"),
            FailureSignature(
                r"ImportError: cannot import name '\w+' from '(?:torch|transformers|deepspeed|accelerate)"
            ),
            FailureSignature(r"Invalid device string: '\d+'"),
        ),
    ),
    FailureCause(
        "LG090",
        "attention-that-sequence-parallelism-lacks",
        "an attention implementation is missing",
        "use one that the message lists",
        (
            FailureSignature(r"is not a valid attn_implementation"),
            FailureSignature(r"FlashAttention2? has been toggled on, but it cannot be used"),
        ),
    ),
    FailureCause(
        "LG091",
        "deepcompile-backend",
        "DeepCompile does not have the requested compiler backend",
        "use `inductor` or `eager`",
        (FailureSignature(r"Backend \S+ is not supported for DeepCompile"),),
    ),
    FailureCause(
        "LG092",
        "experts-refused",
        "a mixture of experts was refused",
        "experts must divide over the expert group; at ZeRO stage 2 keep `contiguous_gradients: true`",
        (
            FailureSignature(r"Number of experts \(\d+\) should be divisible by expert parallel size"),
            FailureSignature(r"Contiguous Gradients in ZeRO Stage 2 must be set to True for MoE"),
        ),
    ),
    FailureCause(
        "LG093",
        "pipeline-used-otherwise",
        "the pipeline engine does not support the called function",
        "save through `save_checkpoint`, train with `train_batch`; `save_16bit_model` is not for pipelines",
        (
            FailureSignature(r"PipelineEngine expects module_state_dict\(\) to be called from save_checkpoint"),
            FailureSignature(r"Only train_batch\(\) is accessible in pipeline mode|Only eval_batch"),
            FailureSignature(r"num_stages \(\d+\) must divide distributed world size"),
            FailureSignature(r"'NoneType' object is not callable", sure=False, frames=r"deepspeed/runtime/pipe"),
        ),
    ),
    FailureCause(
        "LG094",
        "recursion-too-deep",
        "a function of a rank recursed without end",
        "check the frames that repeat",
        (FailureSignature(r"RecursionError: maximum recursion depth exceeded"),),
    ),
    FailureCause(
        "LG095",
        "syntax-of-the-script",
        "the script has a syntax error",
        "fix the line named",
        (FailureSignature(r"^(?:SyntaxError|IndentationError|TabError): "),),
    ),
    FailureCause(
        "LG096",
        "fault-of-the-script",
        "the training script, or its callees, used a name, a function or a value wrongly",
        "check the frame named; it started in the last one of your own files",
        (
            FailureSignature(r"^(?:NameError|UnboundLocalError): "),
            FailureSignature(r"^TypeError: The only supported seed types are"),
            FailureSignature(r"^TypeError: .*(?:got an unexpected keyword argument|missing \d+ required)", sure=False),
        ),
    ),
)
