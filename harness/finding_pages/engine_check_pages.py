# SPDX-License-Identifier: Apache-2.0
"""The checks of a running engine. Pages of findings, read by `harness.finding_pages`; see `runtime/engine_checks/`."""

TEXT = """
## AT001 another-zero-stage
The engine runs at another ZeRO stage than the spec asks for.

DeepSpeed reads a stage of `auto`, or a block without one, as stage 0, and `true` as stage 1. The claim reads the
spec, and asks the engine: a JSON that was changed after it was rendered is found too.

## AT002 another-optimizer
The optimizer is of another class than asked for, decays weights in the other way, or DeepSpeed has put another
wrapper around it than the stage and the number format need.

DeepSpeed's `Adam` decays like AdamW unless told not to; at stage 0 an offload makes it a CPU Adam that offloads
nothing.

## AT003 optimizer-elsewhere
Optimizer states and master weights are not where the spec wants them.

`nvme` at stages 1 and 2 stays in host memory, and an offload block without `device` offloads nothing; DeepSpeed says
neither.

## AT004 parameters-elsewhere
Parameter shards are not where the spec wants them. Below stage 3 DeepSpeed does not read `offload_param`.

## AT005 another-number-format
Weights, master weights, accumulated gradients or messages are in another number format than asked for.

`bf16` without `enabled`, or with `enabled: auto`, is fp32 for DeepSpeed. Single weights may stay in fp32 on purpose.

## AT006 another-clipping
Gradients are clipped at another norm than asked for: in the engine, or in the optimizer's wrapper, which has its own
copy of the number. DeepSpeed's default is 1.0 from 0.19.3 on, 0 before; a negative number clips nothing.

## AT007 another-batch
Micro-batch, accumulation or global batch are not those of the spec. Under AutoTP DeepSpeed counts every tensor rank
as a data rank; what it should say there is the true batch times the tensor degree.

## AT008 other-degrees
The ranks are divided into data, tensor, pipeline and sequence ranks otherwise than asked for, or the secondary
partition of ZeRO++ is over another number of ranks.

`tensor_parallel.tp.tp_size` alone cuts nothing, `sequence_parallel_size` alone in the JSON makes no group, and an hpZ
larger than the world is cut down to it.

## AT009 nothing-cut
Under tensor parallelism no weight of the model shrank, so that tensor ranks repeat each other's work; or a weight
shrank where nothing should cut it.

A preset or pattern that matches no layer is accepted in silence.

## AT010 parameters-not-partitioned
A trained parameter is in no group of the optimizer, or in two; a frozen one is in one; or the shards of all ranks
together are not as large as the model.

## AT011 weights-changed-by-initialize
Weights after `deepspeed.initialize` are not what they were before.

Checksums of weights of each kind are compared, in the format that is trained in; each rank sums its own shard, and
the sums of all are that of the whole. ZenFlow at stages 1 and 2 of DeepSpeed 0.19.7 and 0.19.8 scrambles every
matrix.

## AT012 initialisation-lost
New weights are spread otherwise than the model's own initialisation spreads them.

A bare `deepspeed.zero.Init` around a Hugging Face model leaves the modules' defaults: embeddings with a standard
deviation of 1 instead of 0.02. Compared within a factor of 2, for embeddings and linear layers of models that start
anew.

## AT013 step-before-the-first
The optimizer has taken a step, or has moments, before the first step of the run.

DeepSpeed's 16-bit wrappers of stage 0 step once while they are built. The harness undoes that.

## AT014 other-optimizer-settings
Decay, betas, epsilon or momentum are not those of the spec. A checkpoint brings its own: asked after it was loaded.

## AT015 not-compiled
The engine is compiled although nothing asks for it, or is not. The key `compile.deepcompile` alone compiles nothing.

## AT016 experts-not-spread
A layer's experts are shared by another number of ranks than asked for. Without `expert_parallel.enabled`, or with a
misspelt `autoep_size`, every rank keeps all experts.

## AT017 nothing-on-nvme
The optimizer is to be swapped to NVMe, parts of it are large enough, and no file is there.

## AT018 on-the-cpu
A rank computes on the CPU, though the launch counted accelerators on its host.

DeepSpeed takes the CPU wherever torch has no device that it can use, with one warning in its log. A launch asks torch
before any rank starts (EN015, EN054), so what is left is a rank whose environment differs, such as one that is started
within another container, or a device that was lost since. Not asked where the launch said DS_ACCELERATOR=cpu.

## AT020 first-loss-elsewhere
The first loss of a new model is far from the logarithm of its vocabulary, which is the loss of a model that knows
nothing.

Far lower: labels can be seen. Far higher: the initialisation is lost. Not asked of pretrained weights, of models that
a plug-in makes, or after a resume.

## AT021 another-learning-rate
The learning rate of one of the first steps is not the schedule's, or a `scheduler` block of the JSON rises to another
rate than the optimizer has.

`WarmupDecayLR` without `warmup_max_lr` peaks at 0.001 whatever the optimizer says; `scheduler.name` for `type` is no
schedule.

## AT022 implausible-gradient
A gradient norm is not a number although the step was taken, is 0 in every step, or is above 10,000 in the first.

fp16 autocast under ZeRO clips gradients that are still multiplied by 65,536.

## AT023 weights-do-not-move
The first step with a learning rate moved no weight, or moved them by far more or less than that rate.

Adam moves an element by about the rate, Lion by exactly the rate beside decay. Measured on a sample of what the
optimizer steps, so that rounding to 16 bit hides nothing; not for optimizers on NVMe.

## AT024 every-step-skipped
Each of the last eight steps looked at was skipped, and the loss scale does not fall.

fp16 autocast under ZeRO never lowers its scale after an overflow, so that it skips every later step for ever.

## AT025 samples-shared-wrongly
Ranks that work on one micro-batch together see different tokens, or two data ranks train on the same rows.

DeepSpeed looks at this under AutoTP in the first forward alone, and by an assertion.

## AT026 replicas-drift
A parameter that several ranks hold is not the same on all of them: after the first step, and every 200 steps, each
time for other parameters.

Data ranks are compared bit by bit. On an accelerator replicas on tensor ranks, which step by themselves, may differ
by what the order of additions changes. At stage 3 nothing is replicated.

## AT027 steps-miscounted
The engine has taken another number of steps than the loop, or another number of micro-batches a step. ZenFlow
replaces the accumulation, and a fractional one steps when it rounds up.
"""
