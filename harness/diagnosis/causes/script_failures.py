# SPDX-License-Identifier: Apache-2.0
"""Faults of the training script, and misuse of DeepSpeed. Tried last."""

from __future__ import annotations

from harness.diagnosis.diagnosis_types import FailureCause, FailureSignature

CAUSES = (
    FailureCause(
        "LG080",
        "backward-twice",
        "the loss has no graph for a backward pass, or its graph was freed by an earlier one",
        "compute a new loss for every `backward`, do not detach what is trained, and leave at least one "
        "parameter trainable",
        (
            FailureSignature(r"element 0 of tensors does not require grad", sure=False),
            FailureSignature(
                r"has already been reduced\. (?:Gradient computed twice|This)|"
                r"Gradient computed twice for this partition"
            ),
        ),
    ),
    FailureCause(
        "LG081",
        "formats-or-devices-mixed",
        "an operation got tensors of two dtypes, or on two devices",
        "move inputs to the engine's device and cast them to its dtype; do not keep modules in fp32 under fp16 or bf16",
        (
            FailureSignature(r"Expected all tensors to be on the same device", sure=False),
            FailureSignature(
                r"expected (?:scalar type|m1 and m2 to have the same dtype|mat1 and mat2)|must have the same dtype"
            ),
        ),
    ),
    FailureCause(
        "LG082",
        "shapes-do-not-fit",
        "the shapes of two tensors do not match in an operation of the model",
        "check the frame named: the batch, sequence length or hidden size is not what the layer expects, or tensor "
        "parallelism sharded only one of two layers",
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
        "read it inside `deepspeed.zero.GatheredParameters`, or load weights with `from_pretrained` while the "
        "HfDeepSpeedConfig is alive",
        (
            FailureSignature(r"(?:shape|size).*torch\.Size\(\[0\]\)", sure=False),
            FailureSignature(r"object has no attribute 'ds_(?!opt_)\w+'", sure=False),
        ),
    ),
    FailureCause(
        "LG084",
        "engine-without-optimizer",
        "the engine has no optimizer",
        "give `optimizer` in the DeepSpeed JSON or to `deepspeed.initialize`",
        (FailureSignature(r"must provide optimizer during init in order to use"),),
    ),
    FailureCause(
        "LG085",
        "optimizer-of-the-script-offloaded",
        "the script created the optimizer, and DeepSpeed offloads only its own CPU optimizers by default",
        "use `deepspeed.ops.adam.DeepSpeedCPUAdam`, put `optimizer` into the DeepSpeed JSON, or set "
        "`zero_force_ds_cpu_optimizer: false`",
        (FailureSignature(r"You are using ZeRO-Offload with a client provided optimizer"),),
    ),
    FailureCause(
        "LG086",
        "apex-missing",
        "`amp` needs NVIDIA Apex, or was combined with an incompatible setting",
        "write `bf16` or `fp16` instead; DeepSpeed 0.19.8 no longer has `amp`",
        (
            FailureSignature(r"Unable to import apex/amp"),
            FailureSignature(r"Amp and ZeRO are not currently compatible"),
        ),
    ),
    FailureCause(
        "LG087",
        "elastic-batch-without-this-world-size",
        "the `elasticity` block does not allow this number of ranks",
        "start a number of ranks that it lists, or write the batch sizes without `elasticity` (DeepSpeed 0.19.8 no "
        "longer has it)",
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
        "install a transformers or torch released at about the same time as this DeepSpeed, or a newer DeepSpeed",
        (
            FailureSignature(r"_CanRecordRegistry\.get\(\) takes \d positional arguments"),
            FailureSignature(
                r"ImportError: cannot import name '\w+' from '(?:torch|transformers|deepspeed|accelerate)"
            ),
            FailureSignature(r"Invalid device string: '\d+'"),
        ),
    ),
    FailureCause(
        "LG090",
        "attention-that-sequence-parallelism-lacks",
        "the requested attention implementation is not available for this model",
        "use one that the message lists",
        (FailureSignature(r"is not a valid attn_implementation"),),
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
        "DeepSpeed refused the mixture of experts or its settings",
        "choose a number of experts that the expert-parallel size divides; at ZeRO stage 2 set "
        "`contiguous_gradients: true`",
        (FailureSignature(r"Contiguous Gradients in ZeRO Stage 2 must be set to True for MoE"),),
    ),
    FailureCause(
        "LG093",
        "pipeline-used-otherwise",
        "the pipeline engine does not support the called function",
        "save through `save_checkpoint`, train with `train_batch`; pipelines do not support `save_16bit_model`",
        (
            FailureSignature(r"PipelineEngine expects module_state_dict\(\) to be called from save_checkpoint"),
            FailureSignature(r"Only train_batch\(\) is accessible in pipeline mode|Only eval_batch"),
            FailureSignature(r"'NoneType' object is not callable", sure=False, frames=r"deepspeed/runtime/pipe"),
        ),
    ),
    FailureCause(
        "LG094",
        "recursion-too-deep",
        "a function reached Python's recursion limit",
        "check the frames that repeat in the traceback",
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
        "the training script, or code that it calls, raised an error",
        "check the frame named, then the last frame of your own files",
        (
            FailureSignature(r"^(?:NameError|UnboundLocalError): ", sure=False),
            FailureSignature(r"^TypeError: The only supported seed types are"),
            FailureSignature(r"^TypeError: .*(?:got an unexpected keyword argument|missing \d+ required)", sure=False),
        ),
    ),
)
