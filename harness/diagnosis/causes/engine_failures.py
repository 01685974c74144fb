# SPDX-License-Identifier: Apache-2.0
"""Calls and arguments that DeepSpeed's engine refuses. `harness.diagnosis.messages` leads to them."""

from __future__ import annotations

from harness.diagnosis.causes.zero_failures import INTERNAL_PAGE
from harness.diagnosis.diagnosis_types import FailureCause, FailureSignature

CAUSES = (
    FailureCause(
        "LG115",
        "no-sync-under-zero",
        "the loop entered `no_sync`, which ZeRO stages 2 and 3 do not support",
        "leave gradient accumulation to DeepSpeed: set `gradient_accumulation_steps` in its JSON (or `auto`) and "
        "do not enter `no_sync` or `accelerator.accumulate` by hand; update transformers and accelerate, whose "
        "loops entered it; or use ZeRO stage 1",
        (),
        page="DeepSpeed 0.16.0 added `engine.no_sync`. Loops that call `model.no_sync()` during accumulation "
        "whenever the model has it have failed since then.",
    ),
    FailureCause(
        "LG116",
        "backward-without-the-engine",
        "the script called `loss.backward()` or unscaled gradients itself, instead of leaving that to the engine",
        "call `engine.backward(loss)` with a scalar loss (with accelerate `accelerator.backward(loss)`); where the"
        " script must call `backward` itself, `engine.scale(loss).backward()`",
        (),
    ),
    FailureCause(
        "LG117",
        "local-rank-unknown",
        "the rank has no LOCAL_RANK, or got two that differ",
        "start the script with `deepspeed`, `torchrun` or `accelerate launch`, which set LOCAL_RANK; under srun or"
        " mpirun export LOCAL_RANK (from SLURM_LOCALID or OMPI_COMM_WORLD_LOCAL_RANK) before "
        "`deepspeed.initialize`, and pass no other `args.local_rank`",
        (),
    ),
    FailureCause(
        "LG118",
        "optimizer-argument-refused",
        "`deepspeed.initialize` refused the optimizer, the scheduler or the parameters",
        "give an instance of `torch.optim.Optimizer` (or a function that makes one) over the parameters of this "
        "model, each once; or leave `optimizer` to the DeepSpeed JSON and pass `model_parameters`",
        (),
    ),
    FailureCause(
        "LG119",
        "engine-method-refused",
        "a method of the engine was called in a state or with a setting that it does not support",
        "call it as the message says, or leave out the setting that it names",
        (),
    ),
    FailureCause(
        "LG120",
        "engine-attribute-missing",
        "the script used an attribute that neither the engine nor its wrapped model has",
        "use `engine.module` for the model's own attributes, and check the name against the installed DeepSpeed, "
        "transformers and accelerate: a release may have renamed or removed it",
        (),
    ),
    FailureCause(
        "LG121",
        "muon-refused",
        "the Muon optimizer does not support these parameters or settings",
        "let `deepspeed.initialize` tag the parameters (or set `param.use_muon` on each: True for hidden matrices,"
        " False for embeddings, heads, biases and norms), use one momentum, and ZeRO stage 1 or 2 without offload",
        (),
    ),
    FailureCause(
        "LG122",
        "compile-refused",
        "DeepSpeed does not support compiling the model in this setting",
        "leave out `engine.compile()` or the block that the message names, or use a newer torch",
        (),
    ),
    FailureCause(
        "LG123",
        "checkpoint-process-ended",
        "the process that writes checkpoints in the background ended or does not answer",
        "read its own traceback above; if there is none, the kernel most likely killed it because host memory ran "
        "out (`dmesg`), or its disk is full or slow; or leave `checkpoint.writer` out, so that the rank itself writes",
        (),
    ),
    FailureCause(
        "LG124",
        "client-state-key-reserved",
        "`client_state` of `save_checkpoint` has a key that DeepSpeed uses itself",
        "rename the key that the message lists",
        (),
    ),
    FailureCause(
        "LG125",
        "checkpoint-of-another-release",
        "the checkpoint was written by a DeepSpeed whose format this one does not read",
        "load it with the DeepSpeed that saved it, or load the weights alone (`load_module_only=True`) or the fp32"
        " weights of `zero_to_fp32.py`",
        (),
    ),
    FailureCause(
        "LG126",
        "universal-checkpoint-incomplete",
        "the folder is not a complete universal checkpoint",
        "convert the whole checkpoint with `ds_to_universal.py --input_folder .../global_stepN --output_folder "
        "...` of the DeepSpeed that loads it, give the tag of the output, and load it with the model and optimizer"
        " that saved it",
        (),
    ),
    FailureCause(
        "LG127",
        "autoep-checkpoint-refused",
        "a checkpoint of AutoEP experts does not fit this run, or this run's settings do not allow saving one",
        "resume with the expert, tensor and ZeRO degrees that saved it, or convert it with `ds_to_universal.py`; "
        "for a save use the settings that the message names",
        (),
    ),
    FailureCause(
        "LG128",
        "autoep-refused",
        "AutoEP does not support this model or setting",
        "leave out the setting that the message names, or switch `expert_parallel` off",
        (),
    ),
    FailureCause(
        "LG129",
        "activation-checkpointing-misused",
        "DeepSpeed's activation checkpointing was used in a way that it does not support",
        "call `.backward()` once for each forward pass, and do not call `torch.autograd.grad`; configure it once, "
        "before the model runs (`deepspeed.checkpointing.configure`); or use `torch.utils.checkpoint` with "
        "`use_reentrant=False`",
        (),
    ),
    FailureCause(
        "LG146",
        "scheduler-misused",
        "the script read the learning rate before the scheduler's first step",
        "read the learning rate after the first `engine.step()`, or from `optimizer.param_groups`",
        (),
    ),
    FailureCause(
        "LG147",
        "no-trainable-parameter",
        "the optimizer got no trainable parameters",
        "check that something requires a gradient: add adapters before `deepspeed.initialize`, with "
        "`target_modules` that match the model's layers, unfreeze some parameters (an adapter that is "
        "loaded for training needs `is_trainable=True`), and pass `model_parameters` as a"
        " list, not as an exhausted generator",
        (),
    ),
    FailureCause(
        "LG148",
        "feature-that-was-removed",
        "an experimental feature of older releases (1-bit optimizers, MiCS, MoQ, elasticity) refuses this setting",
        "remove it (DeepSpeed 0.19.8 no longer has it): use plain ZeRO with `Adam` or `AdamW`, and hpZ "
        "(`zero_hpz_partition_size`) instead of MiCS",
        (),
    ),
    FailureCause(
        "LG149",
        "deepspeed-bookkeeping",
        "DeepSpeed failed in its own code: a bug of that release, or an unsupported torch or setting",
        "install a newer DeepSpeed, or the release that worked before, with a matching torch and transformers; "
        "switch off the feature whose file is in the last frame; report it to DeepSpeed with the versions, the JSON"
        " and the traceback of the first rank that fails",
        (
            FailureSignature(
                r"^(?:Attribute|Key|Type|Index|Name|UnboundLocal|ZeroDivision)Error\b",
                sure=False,
                frames=r"deepspeed/runtime/(?!engine\S* (?:forward|__getattr__)$|config|pipe/engine\S* forward)",
                frames_required=True,
                last_frame=True,
            ),
        ),
        page=INTERNAL_PAGE,
    ),
)
