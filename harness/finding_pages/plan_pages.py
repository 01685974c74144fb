# SPDX-License-Identifier: Apache-2.0
"""The plan of memory and time. Pages of findings, read by `harness.finding_pages`."""

TEXT = """
## MM001 model-size-unknown
The size of the model is unknown: there is no formula for its architecture, or its `config.json` is not available.

## MM002 plan-lacks-a-number
Without the number of ranks and the micro-batch the plan covers only model states.

## MM003 gpu-kind-unknown
The kind of GPU in `cluster.gpu` is not in the table of devices, so the fit and the time of a step are unknown. For
another kind, set `cluster.gpu_memory` and `cluster.gpu_tflops` (dense, 16 bit), too.

## MM004 memory-size-unreadable
A size in `cluster` is not of the form `2TB` or `80GiB`, or no machine has it: `2` without a unit is two bytes.

## MM005 does-not-fit
The plan's peak exceeds the memory of the GPU or the host, or the space on its disks.

## MM006 counted-by-building
There is no formula for the architecture, so `transformers` built it on the meta device, where nothing is allocated; or
there is a formula, but no run of such a model was measured. Its parameters are exact; activations are estimated as
those of a Llama-like layer of the same sizes. If `transformers` is not installed or cannot build the model, the
parameters are an estimate, too, from the usual fields of its configuration.

## MM007 not-a-number-to-plan-with
An option of `harness plan` has an impossible value, or options contradict each other.

## MM008 not-to-be-rehearsed
`harness rehearse` shrinks a model by the names that `transformers` configurations use for layers, width and heads. This
model's configuration uses none of these names, or the model has parts (images, latent attention on a CPU) that cannot
be shrunk; or the number of ranks or the micro-batch of the run is unknown.

## MM009 rehearsal-does-not-fit
Even the smallest rehearsal needs more memory or disk than is free on this machine. On accelerators the width stays
that of the whole model, so that one layer and the embeddings must fit, with three checkpoints of them on the disk.

## MM010 states-not-as-planned
The model states that the rehearsal counted on the engine differ from its plan. The extrapolation to the whole run is
then off by the same factor.

## MM011 whole-run-does-not-fit
The measurements of the rehearsal, extrapolated by the plan, exceed the memory that the spec names. An error if it does
not fit by either extrapolation, a warning if by one of them: by ratio (the plan is wrong by a factor) or by difference
(the plan is wrong by an amount per rank).

## MM012 rehearsal-failed
A command of the rehearsal failed. Its log is in the rehearsal's folder; the whole run would fail there too.

## MM013 nothing-to-tune
`harness tune` selects settings by their plan, and there is no plan: the model's size, the number of ranks or the
micro-batch is unknown, or the file is a DeepSpeed JSON, which cannot be launched.

## MM014 nothing-measured
No trial of `harness tune` took enough steps to be timed, not even the unchanged spec. Each trial's log is in the
tuning's folder, and its cause in `evidence.json`.

## MM015 kernels-by-row-length
In bf16 on a CPU, oneDNN generates the kernels of attention and linear layers for each shape, and keeps them. Without
packing, each length of rows is a shape, so host memory grows until all lengths have occurred.

`ONEDNN_PRIMITIVE_CACHE_CAPACITY=0` halves the growth, because that cache holds only a part of it. With
`data.pad_to_multiple_of: 64` there are `max_length` / 64 lengths. `python benchmarks/bf16_shapes.py` measures it.

## MM016 calibration-left-out
The file of `harness plan --calibrate` cannot be used: it is incomplete, was edited, or another release wrote it. The
plan uses the planner's own rates.

## MM017 no-simulated-gpu
`harness plan --simulate` runs DeepSpeed's engine on a simulated GPU. It needs torch, DeepSpeed and transformers, a
minor version of torch that it was tested with, since it compiles a small library against torch's private classes, and
a C++ compiler for this, once. `harness plan` without `--simulate` needs none of them.

## MM018 simulated-engine-failed
DeepSpeed's engine raised an error on the simulated GPU. Either a real GPU would raise it too, such as for a tensor on
the wrong device, or the engine needs values, which simulated tensors do not have. The message names the line.

## MM019 not-run-on-a-gpu
The setting trains as planned on CPU ranks, and no GPU has trained with it yet. The plan counts its memory and the
repeated operations; their effect on a real device and its allocator was not measured. `python
benchmarks/gpu_acceptance.py --only recompute` compares losses and peaks on a GPU.

## MM020 attention-without-masks-estimated
Packed rows by `sdpa_varlen`, `flash_attention_2` or `flash_attention_3` have no mask in the plan. Their bytes are those
of a simulated device, and their time is that of one document per row; neither was measured on a GPU.
`benchmarks/gpu_acceptance.py` measures both.

## MM021 loss-not-in-chunks
`torch_autocast` chooses the number format of the head, and the harness leaves the loss to `transformers` then: the
logits of a whole micro-batch exist at once, in fp32. The finding says what the same run needs without the block, whose
bf16 trains in bf16 with fp32 master weights as well.
"""
