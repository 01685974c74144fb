# SPDX-License-Identifier: Apache-2.0
"""The machine, the ranks and their start. Pages of findings, read by `harness.finding_pages`."""

TEXT = """
## RN001 no-json-to-compare
`harness render --check` found no JSON next to the spec.

## RN002 json-out-of-step
The checked-in JSON differs from the rendered one.

## RN003 json-not-written
The JSON could not be written to the given path.

## EN001 assertions-off
Python runs with assertions off. DeepSpeed checks batch sizes and much else by `assert`, so it would train something
else than the spec.

## EN002 training-extra-missing
The packages that train are not installed where the ranks would run.

## EN003 launch-scripts-missing
The scripts that run on the nodes are not where the package looks for them.

## EN004 visible-devices-by-name
`CUDA_VISIBLE_DEVICES` names devices by something other than a number; the launcher would select devices by number.

## EN005 more-ranks-than-devices
More ranks are requested than this machine has accelerators. DeepSpeed starts them all; those without a device fail
later.

## EN006 environment-name
A name or value in `launch.env` is invalid for an environment variable.

## EN007 value-a-shell-would-change
A value would change on the way to other hosts: DeepSpeed writes it into a remote shell command between double quotes.

## EN008 path-a-shell-would-change
A path would change on the way to other hosts: DeepSpeed writes paths into the remote command without quoting them.

## EN009 no-pdsh
DeepSpeed starts ranks on other hosts through pdsh, or through mpirun or srun with `launch.launcher`; that program
is not installed.

## EN010 op-does-not-compile
One of DeepSpeed's C++ ops does not compile on this machine. `harness doctor` lists missing compilers and
libraries.

## EN011 run-directory
The run directory cannot be created in `launch.output_dir`, or the folder of a rehearsal in `--folder`.

## EN012 ranks-cannot-be-started
`launch.launcher` cannot start these ranks. mpirun and srun take devices from the first on, srun starts the same number
of ranks on each host and only within a Slurm job, and with `--no-ssh` no host can restart the ranks of another.

## EN013 hosts-that-do-not-meet
With `--no-ssh` each host starts its own ranks of one job. Each must know its own index, and all need one run directory,
which the first host makes and the others wait for.

## EN014 no-cores-to-bind
`launch.bind_cores_to_rank` cannot bind ranks to cores. DeepSpeed's launcher needs numactl for it, at least as many
cores as ranks, and no KMP_AFFINITY, which binds threads in another way.

## EN015 devices-that-torch-cannot-use
This machine has NVIDIA devices, and torch cannot use them: it is a build without CUDA, the driver is older than the
CUDA that it was built for, the container shows the devices but does not let programs use them, or a probe gets no
answer.

DeepSpeed asks torch, takes the CPU where torch has no device, and trains there with one warning in its log. Before a
launch a child process checks torch's devices; `harness doctor` shows the result. DS_ACCELERATOR=cpu, in the shell or
in `launch.env`, trains on the CPU on purpose and skips the check.

## EN016 not-on-this-machine
A key of the spec needs a package or a device that this machine lacks: `model.attn_implementation: flash_attention_2`
needs a GPU and `flash_attn` (or `kernels`), a tracker of `telemetry.trackers` its own package.

It is an error where this machine runs the spec (`--here`, `launch`, `launch --dry-run`), and elsewhere one line of
information, which `--strict` does not count. For a dry run on a machine without the training packages it is a warning.

## EN017 more-ranks-than-cores
A machine without a GPU has fewer cores than ranks.

The ranks take turns on the cores and wait for each other at each collective, so that each step takes longer. Each rank
also needs half a gigabyte of host memory for Python, torch and DeepSpeed.

## EN020 version-not-verified
The DeepSpeed to check against is older or newer than the releases that the gates were verified for.

Changes outside that range are not known; the known rules are applied.

## EN101 run-directory-unreadable
A rank cannot read `spec.resolved.json` or `ds_config.json`, or they were edited after the launch.

## EN102 hosts-read-different-files
A rank read another `spec.resolved.json` or `ds_config.json` than rank 0: the hosts do not share the run directory.

DeepSpeed would train each host with its own file, different stages included.

## EN120 run-directory-in-use
Another process holds the run directory: `harness launch`, or rank 0 of a run that was started by hand.

Two writers would mix their metrics and overwrite each other's checkpoints. The lock is the file `lock`, which names
its holder; the kernel releases it when the holder dies.

## EN121 swap-folder-in-use
Another run swaps to the same `nvme_path`.

DeepSpeed empties its folders below it at the start, those of other runs too.

## EN122 newest-run-still-runs
`--resume auto` would resume from a run that still runs.

Both would train the same steps, and the older one removes checkpoints that the other is reading.

## EN130 patch-not-made-for-this-release
A patch that the run needs changes a function of DeepSpeed, and the installed one is not the function that it was tested
with.

Without the patch the run would train something else, or fail: `docs/patches.md` describes each, and `harness doctor`
shows which of them the installed packages have changed. A tested release is the way out. A patch for correctness can be
switched off, by `launch.patches: {NAME: off}` and a reason in `ignore: {EN055: why}`; names that a feature is built on
(kind `use`) cannot.

## PP101 model-not-cut-into-stages
The model's family cannot be split into pipeline stages.

A pipeline calls the layers one by one. A family is supported once a test has compared its pipeline with the whole
model; `harness explain MD004` names them.

## PP102 weights-not-in-safetensors
The folder or Hub model has weights, but not in safetensors files.

A pipeline stage reads the tensors of its own layers and no others. Other formats can only be read as a whole, on every
rank. `save_pretrained` of `transformers` writes safetensors.

## PP103 stage-with-nothing-to-train
The partition leaves a pipeline stage without a layer that has parameters.

DeepSpeed's optimizer refuses an empty list on the ranks of that stage, while the others wait for them. Fewer stages,
or another `parallel.pipeline_partition_method`, fill every one.

## PP104 partition-pattern-without-match
No layer's class has a name that matches the pattern of `parallel.pipeline_partition_method: type:PATTERN`.

The finding lists the classes. DeepSpeed raises on every rank when the PipelineModule is built.

## PP105 plug-in-of-a-whole-model
The plug-in has a `build_model` or `metrics`, and the run has pipeline stages.

`build_model` returns a whole model, while a pipeline makes its layers one by one, on the rank that trains them.
`metrics` takes the logits of the model's forward, which a pipeline does not call as a whole.

## SQ101 model-not-split-by-sequence
The model's attention, or another kind of layer, cannot be split over a sequence group.

Each rank of the group has a part of every row. An all-to-all gives attention whole rows. Other layers that mix
positions (convolutions, recurrences, an attention function of the model's own, a router's loss) would silently see
part of each row. `sdpa` and flash attention are supported; the first forward pass counts the layers.
"""
