# SPDX-License-Identifier: Apache-2.0
"""Messages about converting checkpoints for other ranks: `ds_to_universal`, universal loading, `zero_to_fp32`.

From DeepSpeed 0.14.5 to 0.19.8. Messages about the metadata of experts are in the second half.
"""

from __future__ import annotations

MESSAGES = r"""
LG034 * ^AssertionError$ ::! state_dict_factory\.py (?:check_ckpt_list|__init__)|_get_ckpt_name
    title: the folder to resume from has no DeepSpeed checkpoint files
    change: resume from a folder that `save_checkpoint` wrote (it has `latest` and a tag such as `global_step100` with
        `mp_rank_00_model_states.pt`); a folder with only weights or LoRA adapters cannot be resumed from: load them as
        a model and start without `resume_from_checkpoint`
LG034 Can't find a valid checkpoint at (?P<path>\S+)
    title: the folder to resume from has no state of DeepSpeed's engine: it has no `global_step*` folder
    change: resume from a folder that has `global_step*` with the optimizer states of all ranks; weights or adapters
        alone (`save_only_model: true`, an exported model) cannot be resumed from: load them as a model and start a new
        run; if each host saved to its own disk, copy the `global_step*` files of all hosts into one folder
LG035 Weights only load failed
    change: if you trust the file, set `TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1` for the job, or allow the class that the
        next line names (`torch.serialization.add_safe_globals([CLASS])`); newer releases of DeepSpeed, transformers and
        accelerate read their own files without this check; files of DeepSpeed's fast writer (`checkpoint.writer`) may
        need the plain writer
LG030 * ^AssertionError$ ::! checkpoint/(?:deepspeed_checkpoint|reshape_meg_2d|reshape_utils)
    title: the tensor and pipeline degrees do not fit the files of the checkpoint
    change: use the checkpoint's degrees, or smaller ones that divide them; copy the files of all ranks into the folder,
        and move files of an earlier save out of it
LG163 * ^AssertionError$ ::! ds_to_universal\.py merge_tp_slices
    title: a parameter that should be the same on all tensor ranks differs between them
    change: correct the patterns of `universal_checkpoint_info` (a sharded parameter is listed as replicated); otherwise
        the weights of the ranks diverged: convert an older checkpoint
LG164 * ^AssertionError$ ::! checkpoint/universal_checkpoint
    title: a universal checkpoint does not say how AutoTP sharded a parameter
    change: convert the original checkpoint again with this DeepSpeed, or load with the tensor degree that saved it
LG034 seems a bogus DeepSpeed checkpoint folder: Cannot find (?P<prefix>\S+)\* files
    title: the folder to convert is not the folder of one tag of a DeepSpeed checkpoint
    change: pass the folder of the tag (`.../global_step100`), not its parent; a pipeline checkpoint has `layer_*`
        files, others have `mp_rank_*_model_states.pt` and `*_optim_states.pt`; copy the files of all ranks into one
        folder first
LG034 No ZeRO files found in (?P<path>\S+)
    title: the folder has no ZeRO optimizer states
    change: pass the folder of the tag, with the `*_optim_states.pt` of all ranks in it; a checkpoint that was saved
        without ZeRO, or without optimizer states, cannot be converted
LG034 can't find ZeRO Stage 3 model state files in directory
    title: the folder has no ZeRO stage 3 model states
    change: pass the folder of the tag, with the `zero_pp_rank_*_model_states.pt` of all ranks in it
LG034 can't find (?P<pattern>\S+) files in directory '(?P<path>[^']*)'
    title: the folder has no ZeRO checkpoint files
    change: pass the folder of the tag (`.../global_step100`) with the files of all ranks; if the hosts saved to their
        own disks (`use_node_local_storage`), copy them into one folder first
LG034 can't find model states file at '(?P<path>[^']*)'
    title: the checkpoint lacks its model states
    change: copy `mp_rank_00_model_states.pt` (or `zero_pp_rank_0_mp_rank_00_model_states.pt` at stage 3) into the
        folder of the tag, or use an older checkpoint: this save did not complete
LG034 Unable to find 'latest' file at (?P<path>\S+)
    title: the folder has no file `latest`, which names the tag
    change: pass the parent folder of the tags, name the tag (`zero_to_fp32.py -t global_step100`), or use an older
        checkpoint: DeepSpeed writes `latest` only when all ranks have saved
LG034 FileNotFoundError: Directory '(?P<path>[^']*)' doesn't exist
    title: the checkpoint's folder does not exist
    change: correct the path or the tag; if `latest` names a tag whose folder is gone, that folder was removed after the
        save
LG034 Expected (?P<wanted>\d+) of '\*_optim_states\.pt' under '(?P<path>[^']*)' but found (?P<found>\d+) files
    title: the number of `*_optim_states.pt` files differs from the number of ranks that the checkpoint records
    change: if files are missing, a rank did not save, or saved to another host's disk: copy them, or use an older tag;
        if there are too many, an earlier save with more ranks left them in this folder: move them out
LG034 Expected (?P<wanted>\S+) of '\*_optim_states\.pt' under
    title: the number of `*_optim_states.pt` files differs from the number of ranks that the checkpoint records
    change: copy the missing files, or move the files of an earlier save out of the folder
LG031 loading state_dict for \w+: . Missing key\(s\) in state_dict: "(?P<key>[^"]+)"\.?$
    title: the weights lack one tensor of the model
    change: if it is the second name of a tied (shared) weight, copy it from the first (`model.tie_weights()`, or load
        with `strict=False` and copy): `zero_to_fp32.py` of an older DeepSpeed writes shared weights once, a newer one
        under both names; else load the weights of the same model
LG163 (?P<path>\S+) is not a zero checkpoint
    title: the checkpoint was saved without ZeRO
    change: no conversion is needed: load `mp_rank_00_model_states.pt` with `torch.load` and use its key `module`
LG033 (?P<path>\S+) is not a model state checkpoint
    title: a model-states file of the checkpoint has no model states in it
    change: use files of a single save; use an older tag if this one was partly overwritten
LG163 * KeyError: '(?P<key>param_shapes|buffer_names|optimizer_state_dict|partition_count|zero_stage)' ::! zero_to_fp32
    title: a file of the checkpoint lacks what `zero_to_fp32` reads
    change: use the `zero_to_fp32.py` that is in the checkpoint, or the one of the DeepSpeed release that saved it; a
        pipeline checkpoint, or one without optimizer states, has no such entry
LG163 unknown zero stage (?P<stage>\S+)
    title: the checkpoint has a ZeRO stage that the script does not know
    change: use the `zero_to_fp32.py` that is in the checkpoint, or the one of the DeepSpeed release that saved it
LG163 consumed \S+ numels out of \S+ - something is wrong
    title: `zero_to_fp32` found more or fewer elements in the optimizer states than the parameters have
    change: if the numbers differ by a few, the script does not expect the padding with which this DeepSpeed aligns
        groups: use the `zero_to_fp32.py` of a newer DeepSpeed, at least of the release that saved the checkpoint; if
        they differ by a lot, the folder mixes the files of two saves: move the older files out
LG163 Expected \S+ parameter alignment paddings for group
    title: the alignment paddings in the optimizer states do not match the parameter groups
    change: use the `zero_to_fp32.py` that is in the checkpoint, or the one of the DeepSpeed release that saved it
LG163 * Unsupported output dtype
    change: choose one of the dtypes that the message lists
LG163 zero_to_fp32 does not support AutoEP ZeRO-3 partition-native checkpoints
    title: `zero_to_fp32` does not read checkpoints of AutoEP at ZeRO stage 3
    change: convert with `ds_to_universal` instead, or gather the weights in the job (`save_16bit_model` at stage 2)
LG163 Required \S+ state is missing in checkpoint
    title: the checkpoint lacks the description of its parameters that the conversion to a universal checkpoint needs
    change: the script must put `universal_checkpoint_info` into `client_state` when it saves (Megatron-DeepSpeed does);
        otherwise convert with `--inject_missing_state`, which treats all parameters as unsharded by tensor parallelism
LG163 AutoTP universal checkpoint conversion is not supported for (?P<parameters>.*)
    title: the checkpoint has parameters that AutoTP sharded in a way that a universal checkpoint cannot describe
    change: resume with the tensor degree that saved it; for another degree export the weights (`save_16bit_model`) and
        start with a new optimizer
LG163 Got more than one matching (?:affine map )?patterns=
    title: two patterns of `universal_checkpoint_info` match the same parameter
    change: make the patterns that the script saves exact (`^...$`), or convert with a list that names each parameter
        once
LG163 Unused patterns=.* while merging tp slices
    title: a pattern of `universal_checkpoint_info` matches no parameter
    change: correct the pattern that the script saves, or convert with `--no_strict`
LG163 All shards must have the same step value
    title: the shards of a parameter come from different steps
    change: use files of a single save: an overwritten tag mixes those of two; otherwise use an older tag
LG163 No fragment files for tp rank
    title: files of a tensor rank are missing
    change: copy the `*_optim_states.pt` of all tensor ranks into the folder of the tag
LG163 Cannot parse (?:ZeRO rank|ZeRO-3 tp/dp ranks|dp_rank|dp_rank and mp_rank) from
    title: a file in the checkpoint's folder has a name that DeepSpeed does not write
    change: move renamed or foreign files (`*_optim_states.pt` copies, temporary files) out of the folder
LG163 ZeRO-3 checkpoint model/optimizer rank sets do not match
    title: some ranks have model states but no optimizer states, or the reverse
    change: copy the files of the ranks that the message lists, or use an older tag
LG034 ZeRO-3 checkpoint has no model/optimizer rank files
    title: the folder has no ZeRO stage 3 checkpoint files
    change: pass the folder of the tag, with the files of all ranks in it
LG034 Missing ZeRO-3 checkpoint file for
    title: the checkpoint lacks the file of a rank
    change: copy the file of the rank that the message names, or use an older tag
LG034 Missing ZeRO optimizer checkpoint for rank
    title: the checkpoint lacks the optimizer states of a rank
    change: copy the file of the rank that the message names, or use an older tag
LG163 Duplicate ZeRO rank \S+ in
    title: two files of the checkpoint belong to the same rank
    change: move the files of an earlier save out of the folder: the message names both
LG163 ZeRO-3 model/optimizer tp_degree or dp_degree mismatch
    title: model states and optimizer states were saved by different numbers of ranks
    change: use files of a single save: move the files of the other save out of the folder
LG163 Stage 3 universal checkpoint conversion (?:with|for) AutoEP
    title: this checkpoint of AutoEP at ZeRO stage 3 cannot be converted
    change: resume with the same ranks and degrees; 0.19.8 saves such checkpoints in a format that can be converted
LG163 Universal checkpoint conversion (?:of an AutoEP \+ AutoTP folded|for folded AutoEP\+AutoTP)
    title: a checkpoint of AutoEP folded with AutoTP cannot be converted
    change: resume with the same ranks and degrees
LG163 ZeRO-1/2 Universal Checkpoint conversion for AutoEP with tensor parallelism
    change: resume with the same ranks and degrees
LG163 use_data_before_expert_parallelism disagrees across model-state files
    title: the files of the checkpoint come from runs with different configurations
    change: use files of a single save
LG163 DeepSpeed checkpoint \S+ must (?:contain dictionaries|be a dictionary|be a boolean) in
    title: a checkpoint file does not have the layout that DeepSpeed writes
    change: convert with the DeepSpeed that saved it, or a newer one; if the file is damaged, use an older tag
LG163 Checkpoint records affine map format version
    title: a newer DeepSpeed saved this checkpoint
    change: convert and load it with the DeepSpeed that saved it, or a newer one
LG163 Pipeline replicas of \S+ on tp rank \S+ disagree on shape
    title: two pipeline stages have the same parameter in different shapes
    change: use files of a single save; tied weights must have one shape on all stages
LG164 Sub-parameter shape .* (?:placeholder dimensions|cannot be resolved for a parameter)
    title: the recorded shape of a parameter does not fit its size
    change: correct the shapes of `universal_checkpoint_info` that the script saves, or the `shape` of the layer spec in
        `tensor_parallel.partition_config`
LG164 Universal checkpoint version \S+ records no
    title: the universal checkpoint lacks the widths of uneven tensor shards
    change: convert the original checkpoint again with this DeepSpeed, or load with the tensor degree that saved it
LG164 (?:Sub-parameter sizes|Sub-parameters) .* not divisible by tp_(?:degree|world_size)
    title: an uneven tensor shard cannot be rebuilt, because the checkpoint does not record its widths
    change: convert the original checkpoint again with this DeepSpeed, or load with a tensor degree that divides the
        sizes in the message
LG164 Dimension \S+ of size \S+ is not divisible by tp_world_size
    title: an uneven tensor shard cannot be rebuilt, because the checkpoint does not record its widths
    change: load with a tensor degree that divides the size in the message
LG164 Got \S+ shard width entries for
    title: the recorded widths of tensor shards do not fit the parameter
    change: load it into the model that it was saved from; convert again with this DeepSpeed
LG164 Sub-parameter of size \S+ (?:in \S+ )?has \S+ shard widths, expected one per tp rank
    title: the recorded widths of tensor shards belong to another tensor degree
    change: load with the tensor degree that saved it, or convert again with this DeepSpeed
LG164 [Ss]hard widths .* sum to
    title: the recorded widths of tensor shards do not add up to the parameter
    change: load it into the model that it was saved from; convert again with this DeepSpeed
LG164 tp rank \S+ of \S+ holds \S+ elements, but its recorded shard widths describe
    title: a tensor shard has a different size than was recorded
    change: use files of a single save; convert with the DeepSpeed that saved it
LG164 Legacy sub-parameter (?:metadata|count)
    title: the checkpoint's old metadata of fused parameters does not say how they were sharded
    change: convert with the DeepSpeed that saved it, or save again with this DeepSpeed and the old tensor degree
LG164 Sub-parameter sizes .* sum to
    title: a fused parameter has different widths in the universal checkpoint than in the model
    change: load it into the same model: the width of fused projections (QKV, gate and up) differs
LG164 Cannot restore a universal checkpoint into this AutoTP parameter
    title: AutoTP shards a parameter in a way that a universal checkpoint cannot describe
    change: load with tensor degree 1, or give the layer a spec with `shape` in `tensor_parallel.partition_config`; else
        resume from the ordinary checkpoint with the degrees that saved it
LG164 Vocab tensor padded size \S+ < loaded universal size
    title: the vocabulary of the model, with its padding, is smaller than the checkpoint's
    change: use the tokenizer and the padding of the run that saved (`make-vocab-size-divisible-by`), or a tensor degree
        that pads the vocabulary to at least the checkpoint's size
LG164 full param numel \S+ != tensor slice numel \S+ \* tp_world_size
    title: a parameter has a different size in the universal checkpoint than in the model
    change: load it into the same model (layers, widths, vocabulary); a parameter that is the same on all tensor ranks
        must be listed as replicated in `universal_checkpoint_info`
LG164 Load checkpoint \S+ dst numel \S+ != src numel
    title: a shard has a different size in the universal checkpoint than on the rank
    change: load it into the same model, with the parameter groups of the run that saved it
LG164 universal checkpoint restore for AutoEP expert tensor parallelism
LG164 Universal checkpoint restore for AutoEP expert tensor parallelism is not supported
    change: set `expert_parallel.expert_tensor_parallel_size: 1`
LG164 AutoEP universal checkpoint (?:expert count|tensor shape) disagrees with target logical shape
    title: the checkpoint has a different number or size of experts than the model
    change: load it into the model that it was saved from
LG164 AutoEP expert shape mismatch: target_local_experts
    title: a rank has a different number of experts than the checkpoint gives it
    change: choose an `expert_parallel.autoep_size` that divides the number of experts
LG165 AutoEP universal checkpoint (?:target|is missing)
LG165 (?:target )?ep_rank \S+ does not match parameter metadata ep_rank
LG165 ep_rank must be an integer
LG165 parameter metadata local_experts does not match the selected placement rank
LG164 Expert param (?:in \S+ missing|dim 0 \()
    title: an expert parameter of the universal checkpoint records no number of experts, or a different one than the
        model has
    change: load it into the model that it was saved from; convert again with this DeepSpeed
EX005 num_experts \(\S+\) not divisible by ep_size
    change: choose an `expert_parallel.autoep_size` that divides the number of experts
LG030 Checkpoint parallel_dims is missing from model-state files
    title: files of a newer and an older DeepSpeed are in one checkpoint
    change: use files of a single save
LG030 Checkpoint \S+ (?:is missing from|disagrees across) model-state files
    title: the files of the checkpoint were saved with different parallel dims
    change: use files of a single save: move the files of other saves out of the folder
LG030 Checkpoint (?:model-state|ZeRO) file count \S+ (?:does not match|is not divisible by)
    title: the number of files does not fit the parallel dims that the checkpoint names
    change: copy the files of all ranks into the folder, and move files of an earlier save out of it
LG033 Checkpoint \S+ must be a (?:dictionary|positive integer) in
    title: a checkpoint file does not have the layout that DeepSpeed writes
LG034 * (?P<path>\S+) path does not exist$
    title: the checkpoint's folder does not exist
    change: correct the path; it must be the folder of one tag
LG034 * (?P<path>\S+) is not a folder$
    title: the path is not a folder
    change: pass the folder of one tag of the checkpoint
LG163 Cannot merge (?:lists of different lengths|two states of types)
    title: the states of two tensor or pipeline ranks differ in type or length, so they cannot be merged
    change: use files of a single save; save the same `client_state` on all ranks
LG030 DP index \S+ >= DP degree
    title: the run has more data-parallel ranks than the checkpoint has shards
    change: resume with as many data-parallel ranks as saved it, or convert to a universal checkpoint
LG166 A zero scale is not invertible
LG163 Converting an optimizer state through a scaled piece is not supported
    title: sharding scaled a parameter, and optimizer states cannot be converted back through a scale
    change: load the weights alone, and start with a new optimizer
LG166 Split widths .* do not account for a segment of
LG166 Rank \S+ holds a shard of \S+ elements but its pieces account for
LG166 Rank \S+ piece \S+ writes shard addresses
LG166 Rank \S+ writes shard address \S+ twice
LG166 Rank \S+ supplied a shard of \S+ elements, but the map describes
LG166 hold different data for the same block of a replicated parameter
    title: two ranks have different values of a parameter that should be the same on both
    change: use files of a single save; otherwise the weights of the ranks diverged: resume from an older checkpoint,
        and look for a layer that AutoTP replicates without `grad_allreduce`
LG166 Affine map for a parameter of shape .* element\(s\) uncovered
LG166 Piece .* covers offset
LG165 Expected key '[^']*' not found in (?P<path>\S+)
    title: the file of an expert lacks the expert's weights
    change: use files of a single save, or an older tag
LG163 Multiple expert checkpoint files found for
    title: the experts were saved by several tensor ranks, which cannot be converted
    change: resume with the same ranks and degrees
LG163 AutoEP frozen expert parameters cannot be converted
    change: resume with the same ranks and degrees, or unfreeze the experts before the save that you want to convert
LG163 ZeRO DP degree \S+ is not divisible by AutoEP size
LG165 AutoEP metadata (?:must be|is missing|is malformed|has neither)
LG165 (?:Conflicting|Missing|Inconsistent|Duplicate|Incomplete|Invalid|Unsupported(?! fused expert)|Failed to rebuild) .*AutoEP
LG165 [Ff]olding metadata (?:mismatch for|version)
    title: the checkpoint was saved with other AutoEP and AutoTP degrees
    change: resume with the `autoep_size` and `autotp_size` that the message reports for the checkpoint
LG165 (?<!recompute of an )(?<!No )AutoEP (?:universal|EP-rank|affine map|placement|expert|layer|checkpoint|local|consolidated|ZeRO-3 checkpoint) ?
LG165 AutoEP \S+ (?:must be a|fragment|fragments|disagrees|target)
LG165 Expert parameter logical shape
LG165 EP rank \S+ is not present in the target affine map
LG165 target_map must be a
LG165 AutoEP (?:placement|ZeRO-3)
LG165 * \branks must be a list\.$
LG165 * \S+ must be a positive integer; got :: autoep
"""
