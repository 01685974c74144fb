# SPDX-License-Identifier: Apache-2.0
"""Messages of DeepSpeed's runtime about checkpoints that it saves or loads (0.14.5 to 0.19.8)."""

from __future__ import annotations

MESSAGES = r"""
LG034 * ^AssertionError$ ::$ state_dict_factory\S* check_ckpt_list
    title: the folder to resume from has no DeepSpeed checkpoint: it has no `mp_rank_*_model_states.pt` or other
        model-state files under this tag
    change: give a folder that `save_checkpoint` (or the Trainer under DeepSpeed) wrote, with `latest` and
        `global_stepN` in it, or start from the weights instead of resuming; a LoRA-only or model-only folder cannot
        be resumed from
LG034 * ^AssertionError$ ::$ state_dict_factory\S* load$
    title: a model-state file of the checkpoint is missing
LG035 Weights only load failed :: (?:fast|decoupled)_checkpoint_engine
    title: torch 2.6 and newer refuse to unpickle this checkpoint, which the fast or decoupled writer
        (`checkpoint.writer`) reads with `weights_only`
    change: resume with the plain writer, which reads its own files with `weights_only=False`: leave `checkpoint.writer`
        out of the JSON; or, if you trust the checkpoint, set TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1 for the job
LG031 * checkpoint count .* is different from saved mp_world_size
    title: the checkpoint does not have one `mp_rank_*` file for each tensor-parallel rank that saved it
    change: copy all `mp_rank_*` files to the folder on every host, or resume with the tensor degree that saved it
LG030 Invalid checkpoints and world size for sd (?:merge|split)
    title: of the tensor degrees of this run and of the checkpoint, neither divides the other
    change: resume with the tensor degree that saved it
LG030 Expansion reshape not supported
    title: the conversion asks for higher degrees than the checkpoint was saved with
    change: convert it to the same or lower pipeline, tensor and data degrees, or to a universal checkpoint
        (`ds_to_universal.py`)
LG125 checkpoint has both 'model' and 'module' keys
LG034 checkpoint contains neither 'model' or 'module' keys
    title: the file has neither a `model` nor a `module` key, so it is not a model checkpoint of DeepSpeed
LG125 AssertionError: \S+ checkpoint type is not supported
    change: set `type` to `Megatron`, `ds_model` or `bloom`
LG125 checkpoint version: \S+ is not supported :: state_dict_factory
    title: the Megatron checkpoint has a version that DeepSpeed cannot split or merge
    change: pass the version that it was saved with (0, 1.0 or 2.0), or load it with the tensor degree that saved it
LG030 * ^AssertionError$ ::$ state_dict_factory\S* (?:merge_|split_)
    title: a tensor of the checkpoint cannot be divided evenly over the tensor-parallel ranks of this run
    change: use a tensor degree that divides heads and widths, or the one that saved it
LG034 * ^AssertionError$ ::$ state_dict_factory\S* get_sd_loader_json
LG126 containing optimizer global state is missing! Cannot proceed
    title: the universal checkpoint lacks `zero/optimizer_state.pt`
LG126 * AssertionError: Steps \[.*\] are not equal
    title: the parameters of the universal checkpoint come from different steps
LG126 * AssertionError: Steps \S+ are not equal
    title: the parameters of the universal checkpoint come from different steps
LG126 ZeRO-3 universal module-only checkpoint load requires available parameter partitions
    change: load it without `offload_param.device: nvme`, or with the optimizer states
LG126 failed to find optimizer param in named params
    title: the optimizer has a parameter that is not among the model's named parameters
    change: add adapters and tie weights first, then pass `model.parameters()` of the same model that you pass to
        `deepspeed.initialize`
LG031 failed to find frozen .* in named params
    title: a frozen parameter has no name in the model
    change: freeze parameters before `deepspeed.initialize`, and do not replace modules after it
LG125 Empty ds_version in checkpoint, not clear how to proceed
    title: the checkpoint does not say which DeepSpeed wrote it
LG125 Old version: \S+ ZeRO stage 1 changed in
    title: an old DeepSpeed (before 0.3.17) saved this checkpoint at ZeRO stage 1
LG126 The ZeRO checkpoint parameter-alignment layout does not match
    title: the checkpoint was saved with another `zero_optimization.parameter_alignment`
    change: set the `parameter_alignment` that saved it, or load the weights alone (`load_module_only=True`)
LG126 (?:All param groups|State dicts of all partitions) must have the same step value
    title: the parameter groups of the checkpoint are at different steps
LG126 * ^AssertionError$ ::$ stage_1_and_2\S* _(?:restore_step_from|expand_unpadded|redistribute_unpadded)
    title: the optimizer states of the checkpoint do not fit the partitions of this run
    change: resume with the number of ranks that saved it, or convert it to a universal checkpoint
        (`ds_to_universal.py`)
LG119 Only stage3 support for pipeline checkpoint loading
    title: `zero_optimization.pipeline_loading_checkpoint` works at ZeRO stage 3 only
    change: leave `pipeline_loading_checkpoint` out below stage 3
LG124 client_state contains reserved checkpoint keys?
LG119 is not a Decoupled Checkpoint Engine
LG123 An error occurred while initializing DataStates Checkpoint Engine
    title: the DataStates checkpoint engine failed to start; its error is in the message
    change: install the DataStates release that matches this torch, or leave `datastates_ckpt` out
LG123 Checkpoint process died unexpectedly
    title: the process that writes checkpoints in the background died
LG123 * Checkpoint commit timed out after
    title: the process that writes checkpoints in the background did not finish in time
    change: check the disk's speed and space, and write to a faster one; or leave `checkpoint.writer` out
LG123 Checkpoint commit info mismatch
    title: a save started before the previous checkpoint was committed
    change: wait for the pending save before the next `save_checkpoint`, or save less often
LG123 Cannot commit checkpoint: checkpoint process is not running
LG123 * Checkpoint size should be set after commit
LG123 * ^AssertionError$ ::$ (?:datastates|decoupled)_checkpoint_engine\S* commit
    title: a save started before the previous checkpoint was committed
LG123 Cannot create checkpoint writer for .* because writer is currently used
    title: a save started while the writer was still writing another checkpoint
    change: wait for the pending save before the next `save_checkpoint`, or save less often
LG127 3D parallelism is not yet supported for data parallel checkpointing
    title: parallel writing of checkpoints does not support experts with tensor and pipeline parallelism
    change: leave `checkpoint.data_parallel` out
CK006 * Expect(?:ed)? (?:(?:ep|tp)_num_resources|new_size)=\d+ to (?:be )?multiple of
CK006 * Detected invalid resource index in
CK006 * ^AssertionError$ ::$ writer_factory
CK006 contains invalid value .* for .*, expecting one of ::! model_checkpointing
"""
