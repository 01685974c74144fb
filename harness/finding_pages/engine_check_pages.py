# SPDX-License-Identifier: Apache-2.0
"""The checks of a running engine. Pages of findings, read by `harness.finding_pages`; see `runtime/engine_checks/`."""

TEXT = """
## AT001 another-zero-stage
The engine runs at another ZeRO stage than the spec sets.

DeepSpeed reads a stage of `auto`, or a block without one, as stage 0, and `true` as stage 1. The check
compares the spec with the engine, so it also finds a JSON that was changed after it was rendered.

## AT002 another-optimizer
The optimizer has another class than the spec, another kind of weight decay, or another wrapper of DeepSpeed's than
the stage and the number format need.

DeepSpeed's `Adam` decays like AdamW by default; at stage 0 an offload makes it a CPU Adam that offloads
nothing.

## AT003 optimizer-elsewhere
Optimizer states and master weights are on another device than in the spec.

`nvme` at stages 1 and 2 stays in host memory, and an offload block without `device` offloads nothing; DeepSpeed
reports neither.

## AT004 parameters-elsewhere
Parameter shards are on another device than in the spec. Below stage 3 DeepSpeed does not read `offload_param`.

## AT005 another-number-format
Weights, master weights, accumulated gradients or communication are in another number format than in the spec.

`bf16` without `enabled`, or with `enabled: auto`, is fp32 for DeepSpeed. Individual weights may stay in fp32 on
purpose.

## AT006 another-clipping
Gradients are clipped at another norm than in the spec, in the engine or in the optimizer's wrapper, which has its own
copy of the value. DeepSpeed's default is 1.0 from 0.19.3 on, 0 before; a negative number clips nothing.

## AT007 another-batch
Micro-batch, accumulation or global batch differ from the spec. Under AutoTP DeepSpeed counts every tensor rank
as a data rank, so its correct value there is the true batch times the tensor degree.

## AT008 other-degrees
The degrees of data, tensor, pipeline and sequence parallelism differ from the spec, or the secondary partition of
ZeRO++ spans another number of ranks.

`tensor_parallel.tp.tp_size` alone shards nothing, `sequence_parallel_size` alone in the JSON creates no group, and an
hpZ above the world size is reduced to it.

## AT009 nothing-cut
Under tensor parallelism no weight of the model is sharded, so that tensor ranks repeat each other's work; or a weight
is sharded without tensor parallelism.

DeepSpeed silently accepts a preset or pattern that matches no layer.

## AT010 parameters-not-partitioned
A trained parameter is in no group of the optimizer, or in two; a frozen one is in one; or the shards of all ranks
do not add up to the model.

## AT011 weights-changed-by-initialize
`deepspeed.initialize` changed weights.

The check compares checksums of weights of each kind, in the training format. Each rank sums its own shard, and the
sums add up to that of the whole weight. ZenFlow at stages 1 and 2 of DeepSpeed 0.19.7 and 0.19.8 scrambles every
matrix.

## AT012 initialisation-lost
New weights have another standard deviation than the model's own initialisation.

A bare `deepspeed.zero.Init` around a Hugging Face model leaves the modules' defaults: embeddings with a standard
deviation of 1 instead of 0.02. Compared within a factor of 2, for embeddings and linear layers of models with new
weights.

## AT013 step-before-the-first
The optimizer has taken a step, or has moments, before the first step of the run.

DeepSpeed's 16-bit wrappers of stage 0 step once while they are built. The harness undoes that.

## AT014 other-optimizer-settings
Decay, betas, epsilon or momentum of the optimizer differ from the spec or the JSON, before the first step.

A checkpoint that was loaded before brings its own. Betas and momentum are not compared where a scheduler sets them, as
`OneCycle` does with `cycle_momentum`, its default.

## AT015 not-compiled
The engine is compiled although the spec does not request it, or is not compiled although it does. The key
`compile.deepcompile` alone compiles nothing.

## AT016 experts-not-spread
A layer's experts are sharded over another number of ranks than in the spec. Without `expert_parallel.enabled`, or with
a misspelt `autoep_size`, every rank keeps all experts.

## AT017 nothing-on-nvme
The spec swaps the optimizer to NVMe, parts of it are large enough, and there is no swap file.

## AT018 on-the-cpu
A rank computes on the CPU, though the launch counted accelerators on its host.

DeepSpeed takes the CPU wherever torch has no usable device, with one warning in its log. A launch checks torch before
any rank starts (EN015, EN054). This check finds a rank whose environment differs, such as one in another container,
or a device that was lost since. Skipped with DS_ACCELERATOR=cpu.

## AT020 first-loss-elsewhere
The first loss of a new model is far from the logarithm of its vocabulary, which is the loss of an untrained
model.

Far lower: the labels leak. Far higher: the initialisation is lost. Skipped for pretrained weights, for models of a
plug-in, and after a resume.

## AT021 another-learning-rate
The learning rate of one of the first steps differs from the schedule, or a `scheduler` block of the JSON peaks at
another rate than the optimizer's.

`WarmupDecayLR` without `warmup_max_lr` peaks at 0.001 whatever the optimizer's rate; `scheduler.name` instead of
`type` gives no schedule.

## AT022 implausible-gradient
A gradient norm is not finite although the step was taken, is 0 in every step, or is above 10,000 in the first.

fp16 autocast under ZeRO clips gradients that are still multiplied by 65,536.

## AT023 weights-do-not-move
The first step with a learning rate moved no weight, or moved them by far more or less than that rate.

Adam moves an element by about the rate, Lion by exactly the rate, weight decay aside. Measured on a sample of the
weights that it steps, so that rounding to 16 bit hides nothing; not for optimizers on NVMe.

## AT024 every-step-skipped
Each of the last eight checked steps was skipped, and the loss scale does not fall.

fp16 autocast under ZeRO never lowers its scale after an overflow, so it skips every later step.

## AT025 samples-shared-wrongly
Ranks of one micro-batch have different tokens, or two data ranks train on the same rows.

DeepSpeed checks this only under AutoTP, in the first forward pass, by an assertion.

## AT026 replicas-drift
A replicated parameter differs between ranks. Checked after the first step and every 200 steps, each time for other
parameters.

Data ranks are compared bit by bit. On an accelerator replicas on tensor ranks, which step by themselves, may differ
by rounding. At stage 3 nothing is replicated.

## AT027 steps-miscounted
The engine has taken another number of steps than the loop, or another number of micro-batches per step. ZenFlow
replaces the accumulation, and a fractional accumulation is rounded up.

## AT028 another-gradient
The optimizer was stepped with another gradient than the backward passes computed.

At steps 1, 2, 3 and every 200, `harness.watch` and `HarnessCallback` keep what each rank's own micro-batches
contributed to a few rows of parameters, from hooks that autograd calls before DeepSpeed's, and sum it over the ranks
themselves. The mean over ranks and micro-batches, unscaled and clipped, must be what the optimizer gets. The message
names the likely cause: a lost micro-batch, a second division, a missing rank, or another clipping norm. For a known
fault of the installed release (ZR040, HF012, OF029) it also names the gate and the first correct release.

What a hook of a parameter (`parameter.register_hook`) returns counts as computed. What a script does to gradients
later does not: by `.grad`, by `register_post_accumulate_grad_hook`, or by setting `clip_grad` of the optimizer.

## AT029 another-update
The weights that the optimizer wrote are not those of its formula, from the same gradient, states and settings.

Checked on the same elements at the same steps. The likely cause is a step that was taken twice or not at all, another
learning rate or weight decay than the group's, or Adam's bias correction of another step.

## AT030 weights-not-copied
After the step the model has other weights than the optimizer wrote: its 16-bit copy, or the shards that ZeRO gathers
from, were not updated.

## AT031 weights-of-another-file
Before the first step, weights of the model are not those of the safetensors files that it was loaded from.

`harness.watch` and `HarnessCallback` compare 256 elements of eight weights on each rank with the files of the model's
folder, or of the Hub's cache. At ZeRO-3 a release of transformers that copies files into partitions may leave weights
out (transformers 45313, 45397): they keep random values, and the training starts from these without a word. Skipped
after `load_checkpoint`, and where no file has the names of the model.
"""
