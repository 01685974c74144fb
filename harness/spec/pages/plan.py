"""The plan of memory and time. Pages of findings, read by `harness.spec.pages`."""

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
"""
