# SPDX-License-Identifier: Apache-2.0
"""Messages of AutoEP and of DeepSpeed's MoE layer, from releases 0.14.5 to 0.19.8. AutoEP is newer than 0.18.9."""

from __future__ import annotations

MESSAGES = r"""
EX006 AutoEP detection is ambiguous and produced multiple replacement specs
    title: several expert presets fit the same layers of the model
    change: set `expert_parallel.preset_model` to the preset of this model
EX006 AutoEP preset '[^']*' does not support model_type='(?P<type>[^']*)'
    title: the expert preset is for another architecture
    change: set `expert_parallel.preset_model` to one for the model type in the message, or leave it out
EX007 AutoEP preset '[^']*' does not support load_balance_coeff/expert_bias yet
    change: set `expert_parallel.load_balance_coeff` to null
LG089 AutoEP preset '[^']*' for model_type='[^']*' requires Transformers >= (?P<wanted>[\d.]+)
    title: the expert preset needs a newer transformers
    change: install the transformers version that the message names, or a newer one
LG168 AutoEP preset '[^']*' does not support nonzero router bias
    title: the router of this model has a bias, which AutoEP drops
    change: train without AutoEP (`expert_parallel.enabled: false`), or zero and freeze the bias of the router
LG168 AutoEP: no MoE layers detected for
    title: AutoEP found no mixture-of-experts layer that matches the preset
    change: set `expert_parallel.preset_model` to the preset of this model, upgrade transformers, or train a dense model
        without `expert_parallel`
LG168 Could not infer hidden_size/ffn_hidden_size from experts module
    title: AutoEP cannot read the sizes of the experts
    change: set `expert_parallel.expert_w1`, `expert_w2` and `expert_w3` to the names of their weights, or upgrade
        transformers
LG168 AutoEP found e_score_correction_bias in multiple locations
    title: a layer has more than one score correction bias
    change: keep only one in each mixture-of-experts layer of the model
LG168 AutoEP: preset '[^']*' names expert_activation=
    title: the preset names an activation that AutoEP does not have
    change: set `expert_parallel.expert_activation` to one of those that the message lists
LG168 AutoEP: the (?:act_fn of the experts|experts) of '(?P<layer>[^']*)' (?:matches|clamp)
    title: the experts of this model have a different activation than the preset
    change: set `expert_parallel.expert_activation` to the form that the model uses: the message lists the names
LG168 AutoEP: preset '[^']*' matched layer '(?P<layer>[^']*)' with router and experts, but shape inference failed
    title: AutoEP cannot read the sizes of a mixture-of-experts layer
LG168 expert_w3=None expects fused gate\+up weights
    title: the experts have separate gate and up weights, and the configuration names only one
    change: set `expert_parallel.expert_w3` to the name of the third weight
LG168 expert_w3='(?P<name>[^']*)' is set but no such weight exists
    title: `expert_parallel.expert_w3` names a weight that the experts do not have
    change: correct the name, or leave it out if gate and up are one weight
LG168 Could not determine (?:num_experts|top_k) for layer
    title: the model's configuration does not give the number of experts, or the number that each token is routed to
    change: set `expert_parallel.num_experts_attr` or `top_k_attr` to the name in the model's configuration,
        or `expert_parallel.top_k`
LG168 top_k=\S+ exceeds num_experts=\S+ in layer
    title: `top_k` routes a token to more experts than the layer has
    change: lower `expert_parallel.top_k`
LG168 Config num_experts=\S+ mismatches router weight shape
    title: the router of a layer has a different number of outputs than the model's configuration has experts
    change: set `expert_parallel.num_experts_attr` to the right name, or correct the model's configuration
LG168 hidden_size=\S+ from expert weights mismatches router weight dim
    title: the experts and the router of a layer have different widths
    change: set `expert_parallel.expert_w1` and `expert_w2` to the right weights of the experts
EX009 expert_parallel\.async_split_plan does not support AutoEP\+AutoTP folding yet
    change: set `tensor_parallel.autotp_size: 1`, or `expert_parallel.async_split_plan: false`
EX009 combine_impl="fused_weighted_sum" (?:does not support folded|requires expert_tensor_parallel_size)
    change: leave `expert_parallel.combine_impl` unset, or set `tensor_parallel.autotp_size: 1`
EX009 comm_backend="(?P<backend>\w*).*does not support folded tensor parallelism
    change: set `expert_parallel.comm_backend: comm`, or `tensor_parallel.autotp_size: 1`
EX009 AutoEP\+AutoTP folding (?:is not supported|requires|currently supports)
EX009 with AutoEP\+AutoTP folding (?:is not supported|is not validated)
EX009 not supported with AutoEP\+AutoTP folding
EX009 tensor_parallel\.preset_model and expert_parallel\.preset_model must match
    change: set both to the same preset, or leave one out
EX010 tensor_parallel\.autotp_size and Ulysses sequence parallelism are mutually exclusive
    change: set the sequence degree or `tensor_parallel.autotp_size` to 1
EX008 expert_tensor_parallel_size=\S+ is reserved for expert-internal tensor parallelism
    change: set `expert_parallel.expert_tensor_parallel_size: 1`
EX004 pp_size=\S+ must divide world_size=
    title: the number of ranks is not divisible by the number of pipeline stages
    change: launch a number of ranks that is divisible by the pipeline degree
EX004 * \S+ must be a positive integer, got :: auto_ep
    title: a parallel degree is not a positive integer
    change: write an integer of at least 1
LG170 mpu (?:tensor/model|pipeline) parallel world size \(\S+\) conflicts with
    title: the script's `mpu` has a different parallel degree than the configuration
    change: set `tensor_parallel.autotp_size` and the pipeline degree to those of the `mpu`, or pass no `mpu`
LG170 Cached expert-(?:data-)?parallel group .* does not match folding spec
    title: an earlier engine of this process created different expert groups
    change: use the same expert and tensor degrees for all engines of a process, or start a new process
EX005 autoep_size=\S+ exceeds num_experts=
EX005 num_experts=\S+ in layer '[^']*' is not divisible by autoep_size
EX012 (?:comm_backend|row_weighting_impl|gate_up_impl|combine_impl|score_apply|score_func) must be one of
    title: a key of `expert_parallel` has a value that DeepSpeed does not know
    change: use one of the values that the message lists
LG168 expert_activation must be one of
    change: use one of the activations that the message lists for `expert_parallel.expert_activation`
EX012 gate_up_impl="fused" runs the gate and up projections as one torch\._grouped_mm, but
    change: set `expert_parallel.use_grouped_mm: true`, or leave `gate_up_impl` unset
EX012 gate_up_impl must be "separate" or "fused"
EX012 combine_impl="fused_weighted_sum" cannot be used with comm_backend
    change: set `expert_parallel.comm_backend: comm`, or leave `combine_impl` unset
EX012 combine_impl="fused_weighted_sum" requires score_apply="post"
    change: leave `expert_parallel.combine_impl` unset: this model applies the scores before the experts
EX012 row_weighting_impl="fused" only runs
    change: leave `expert_parallel.row_weighting_impl` unset, or use `comm_backend: deepep` with `autoep_size` above 1
EX012 comm_(?:num_sm|qp_margin|max_tokens_per_rank) must be a
    change: write an integer; with `comm_backend: deepep`, `comm_max_tokens_per_rank` is the micro-batch times the
        longest padded sequence
EX013 num_limited_groups (?:must be|requires|\()
EX013 num_expert_groups (?:must be|must divide|\()
EX013 num_experts \(\S+\) must be divisible by num_expert_groups
EX013 experts_per_group \(\S+\) must be >= 2
SP006 expert_parallel\.\w+ must be a boolean
    title: a switch of `expert_parallel` is not true or false
    change: write `true` or `false` without quotes for the key in the message
SP006 has_shared_experts must be a boolean when set
    title: `expert_parallel.has_shared_experts` is not true or false
    change: write `true` or `false` without quotes, or leave the key out
SP006 routed_scaling_factor must be a number or 'auto'
    title: `expert_parallel.routed_scaling_factor` is not a number
    change: write a number without quotes, or "auto"
SP006 * \S+ must be a finite number :: auto_ep
    title: the scale of the routing weights is not a number
    change: write a finite number for `expert_parallel.route_scale`, or `auto`
LG168 \S+ must be a direct attribute name \(no dots\)
    title: a key of `expert_parallel` names a nested attribute
    change: write the name of the attribute alone, without dots
LG168 * \b\w{1,60} must be a non-empty string
    title: a key of `expert_parallel` that names an attribute is empty
    change: write the name, or leave the key out
LG168 AutoEP preset registry is inconsistent
    title: an AutoEP preset has no adapter, or an adapter has no preset
    change: register an adapter for each of your own presets, or reinstall DeepSpeed
EX006 Unknown AutoEP preset adapter
LG089 AutoEP source parameter must be gathered before copying
    title: AutoEP read an expert weight that ZeRO-3 had partitioned
    change: build the model outside `deepspeed.zero.Init`, or use the newest DeepSpeed
LG169 local_counts must have shape
LG169 An AutoEP async split plan is already pending
    title: AutoEP started an async split plan while another was pending
    change: set `expert_parallel.async_split_plan: false`, especially with activation checkpointing
LG169 Attempted to wait on a stale AutoEP async split plan
    change: set `expert_parallel.async_split_plan: false`, especially with activation checkpointing
LG169 expert_parallel\.async_split_plan requires CUDA tensors
    change: set `expert_parallel.async_split_plan: false` on this accelerator
LG169 this rank routed .+ tokens, more than the \S+ configured for the DeepEP buffer
    title: a rank routed more tokens than DeepEP's buffer has room for
    change: raise `expert_parallel.comm_max_tokens_per_rank` to the micro-batch times the longest padded sequence, or
        set `comm_backend: comm`
LG169 DeepEP returned \S+ expert counts, but this rank owns
    change: set `expert_parallel.comm_backend: comm`, and report it to DeepSpeed
LG064 comm_backend="\w*.*requires the deep_ep package, which is not installed
    title: the package `deep_ep` is not installed
    change: install it with NCCL 2.30.4 or newer, or set `expert_parallel.comm_backend: comm`
PR026 comm_backend="\w*.*does not support \S+: DeepEP's dispatch kernel handles bfloat16 only
    title: DeepEP exchanges bf16 only
    change: train in bf16, or set `expert_parallel.comm_backend: comm`
LG169 activation checkpointing recomputed a DeepEP dispatch with routing of shape
    title: the recompute of activation checkpointing routed tokens differently from the first forward pass
    change: set `expert_parallel.comm_backend: comm`, or leave the experts out of activation checkpointing; dropout or
        random routing must be the same in both passes
LG169 An activation-checkpoint recompute of an AutoEP layer using the DeepEP backend
    title: several forward passes ran before their backward passes under activation checkpointing
    change: run the backward pass of each micro-batch before the next forward pass, or set `comm_backend: comm`
LG169 AutoEP\+AutoTP routing decisions differ across tensor-parallel lanes
    title: the tensor ranks routed the same tokens to different experts
    change: feed all ranks of a tensor group the same batch and the same random state, without dropout in the router
LG169 AutoEP\+AutoTP restore coverage mismatch
LG161 GroupedExperts was constructed with use_grouped_mm=True but torch\._grouped_mm is not available
    title: this torch has no `torch._grouped_mm`
    change: install a newer torch or Triton, or set `expert_parallel.use_grouped_mm: false`
LG168 expert activation \S+ is already registered
    change: register each activation once per process, under a unique name
LG168 unknown expert activation
    change: use one of the activations that the message lists, or register your own
LG168 Expected nn\.ModuleList for module_list storage
    title: the model stores its experts in a different layout than the preset expects
    change: set `expert_parallel.preset_model` to the preset of this model and this transformers version
LG168 Could not find weight '(?P<name>[^']*)' in expert module
    change: set `expert_parallel.expert_w1`, `expert_w2` or `expert_w3` to one of the names that the message lists
LG168 AutoEP cannot preserve mixed (?:requires_grad flags|dtype/device)
    title: the experts of one layer differ: some are frozen, or on another device, or in another dtype
    change: freeze all experts of a layer or none, and keep them in one dtype on one device
LG168 Unknown expert_storage type
    change: set `expert_parallel.preset_model` to the preset of this model
LG168 Unsupported fused expert weight layout for AutoEP repacking
    change: set `expert_parallel.preset_model` to the preset of this model and this transformers version
LG168 * Unknown (?:group )?score function:
    title: the router uses a score function that AutoEP does not have
    change: set `expert_parallel.score_func` to `softmax` or `sigmoid`, or train without AutoEP
LG092 Number of experts \(\S+\) should be divisible by expert parallel size
    change: choose an `ep_size` for the MoE layer that divides its number of experts
LG092 Unsupported noisy_gate_policy
    change: use `None`, `Jitter` or `RSample`
LG092 input dimension \S+ \(\S+\) is not divisible by tensor parallel world size
    title: the tokens of the MoE layer cannot be split evenly over the tensor ranks
    change: choose a micro-batch size and a sequence length whose product is divisible by the tensor degree
LG092 No\. of tokens \(batch-size\) should be greater than min_capacity
    title: a rank has fewer tokens than the minimum capacity of an expert
    change: raise the micro-batch size, or pass `min_capacity=0` to the MoE layer
LG092 Locations is not set
    change: use `drop_tokens=True` with `use_tutel=False`, or another `k`
LG092 Attempting to override an existing ep_group
    change: create each MoE layer once, and call `set_deepspeed_parallelism` on it once
LG092 Invalid drop_policy
    change: use `probs` or `position`
LG092 Only top-1 and top-2 gatings are supported
    change: use `k` of 1 or 2, or DeepSpeed 0.15 or newer
LG092 model_parameters must be a list
    change: pass a list of parameter groups to `configure_moe_param_groups`
LG092 param argument that would be given to the optimizer should be an iterable
    change: pass tensors or parameter groups (dicts)
LG092 Unknown param group type of
    change: pass a dict, or a tuple or list of dicts, to `split_params_into_different_moe_groups_for_optimizer`
"""
