# SPDX-License-Identifier: Apache-2.0
"""The plan of memory and time. Pages of findings, read by `harness.finding_pages`."""

TEXT = """
## MM001 model-size-unknown
The plan does not know how large the model is: its architecture is not one it can count, or its `config.json` is not
at hand.

## MM002 plan-lacks-a-number
The plan needs the number of ranks and the micro-batch for anything beyond model states.

## MM003 gpu-kind-unknown
The kind of GPU in `cluster.gpu` is not in the table of devices, so whether it fits and how long a step takes is not
known.

## MM004 memory-size-unreadable
A size in `cluster` is none such as `2TB` or `80GiB`.

## MM005 does-not-fit
The plan's peak is above what the GPU, the host or its disks have.

## MM006 counted-by-building
The architecture is not one that is counted by formula, so `transformers` built it on the meta device, where nothing is
allocated. Its parameters are exact; what its layers keep for the backward pass is taken to be what a Llama-like layer
of the same sizes keeps.

## MM007 not-a-number-to-plan-with
An option of `harness plan` has a value that no machine and no run has, or options contradict each other.

## MM008 not-to-be-rehearsed
`harness rehearse` makes a model smaller by the names that `transformers` configurations use for layers, width and
heads. This one has none of them, or has parts (images, latent attention on a CPU) that are not made smaller; or the
number of ranks or the micro-batch of the run is not known.

## MM009 rehearsal-does-not-fit
Even the smallest rehearsal needs more memory or disk than is free where it would run. On accelerators the width stays
that of the whole model, so that one layer and the embeddings must fit, with three checkpoints of them on the disk.

## MM010 states-not-as-planned
Model states that the rehearsal counted on the engine are not as many bytes as its plan says. What is carried over to
the whole run is then off by the same factor.

## MM011 whole-run-does-not-fit
What the rehearsal measured, carried over by the plan, is more than the memory that the spec names. An error where it
does not fit however it is carried over, a warning where that depends: by ratio (the plan is wrong by a factor) or by
difference (the plan is wrong by an amount a rank).

## MM012 rehearsal-failed
A command of the rehearsal ended otherwise than it should. Its log is in the rehearsal's folder; the whole run would
end there too.

## MM013 nothing-to-tune
`harness tune` chooses among settings by their plan, and there is no plan: the model's size, the number of ranks or the
micro-batch is not known, or the file is a DeepSpeed JSON, which no run can be started from.

## MM014 nothing-measured
No trial of `harness tune` took enough steps to be timed, not even the spec as it is. Each trial's log is in the
tuning's folder, and its cause in `evidence.json`.
"""
