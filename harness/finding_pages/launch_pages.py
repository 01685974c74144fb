# SPDX-License-Identifier: Apache-2.0
"""The machine, the ranks and their start. Pages of findings, read by `harness.finding_pages`."""

TEXT = """
## RN001 no-json-to-compare
`harness render --check` found no JSON beside the spec.

## RN002 json-out-of-step
The checked-in JSON is not what the spec renders to any more.

## RN003 json-not-written
The JSON could not be written where it was asked for.

## EN001 assertions-off
Python runs with assertions off. DeepSpeed refuses wrong batch sizes and much else by `assert`, so it would train
something else than was asked.

## EN002 training-extra-missing
The packages that train are not installed where the ranks would run.

## EN003 launch-scripts-missing
The scripts that run on the nodes are not where the package looks for them.

## EN004 visible-devices-by-name
`CUDA_VISIBLE_DEVICES` names devices by something other than a number, which the launcher would replace by numbers.

## EN005 more-ranks-than-devices
More ranks are asked for than this machine has accelerators. DeepSpeed starts them all; those without a device fail
later.

## EN006 environment-name
A name or value in `launch.env` cannot be a variable of the environment.

## EN007 value-a-shell-would-change
A value would reach the other hosts changed: DeepSpeed writes it into a remote shell command between double quotes.

## EN008 path-a-shell-would-change
A path would reach the other hosts changed: DeepSpeed writes paths into the remote command without quoting them.

## EN009 no-pdsh
DeepSpeed starts ranks on other hosts through pdsh, or through mpirun or srun where `launch.launcher` says so; that
program is not installed.

## EN010 op-does-not-compile
One of DeepSpeed's C++ ops does not compile on this machine. `harness doctor` says what is missing.

## EN011 run-directory
The run directory cannot be made where `launch.output_dir` says, or a rehearsal's where `--folder` says.

## EN012 ranks-not-to-be-started-so
What was chosen to start the ranks cannot start these: mpirun and srun count devices from the first, srun starts as
many ranks on each host and only within a job of Slurm, and where each host starts its own ranks none can start them
again.

## EN013 hosts-that-do-not-meet
With `--no-ssh` each host starts its own ranks of one job: each has to know which host it is, and all need one run
directory, which the first makes and the others wait for.

## EN014 no-cores-to-bind
Ranks are to be bound to cores (`launch.bind_cores_to_rank`), which DeepSpeed's launcher does through numactl: that is
not installed, there are fewer cores than ranks, or KMP_AFFINITY is set, which binds threads in another way.

## EN015 devices-that-torch-cannot-use
This machine has NVIDIA devices, and torch cannot use them: it is a build without CUDA, the driver is older than the
CUDA that it was built for, the container lets programs see the devices without computing on them, or nothing answers.

DeepSpeed asks torch, takes the CPU where torch has no device, and trains there with one warning in its log. Before a
launch a process of its own asks torch the same; `harness doctor` shows the answer. DS_ACCELERATOR=cpu, in the shell or
in `launch.env`, says that the CPU is meant: then nothing is asked.

## EN020 version-not-verified
The DeepSpeed to check against is older or newer than the releases whose rules were looked up.

Rules that came or went outside that range are not known; those that are known are applied all the same.

## EN101 run-directory-unreadable
A rank cannot read `spec.resolved.json` or `ds_config.json`, or they were edited after the launch.

## EN102 hosts-read-different-files
A rank read another `spec.resolved.json` or `ds_config.json` than rank 0: the hosts do not share the run directory.

DeepSpeed would train each host with its own file, different stages included.

## EN120 run-directory-in-use
Another process holds the run directory: `harness launch`, or rank 0 of a run that was started by hand.

Two writers would mix their metrics and overwrite each other's checkpoints. The lock is the file `lock`, which names
its holder; the kernel gives it back when the holder dies.

## EN121 swap-folder-in-use
Another run swaps to the same `nvme_path`.

DeepSpeed empties its folders below it at the start, whoever they belong to.

## EN122 newest-run-still-runs
`--resume auto` would go on from a run that still runs.

Both would train the same steps, and the older one removes checkpoints that the other is reading.

## PP101 model-not-cut-into-stages
The model is of a family that cannot be cut into pipeline stages.

A pipeline calls the layers one by one. A family is taken once a test has compared its pipeline with the whole model;
`harness explain MD004` names them.

## PP102 weights-not-in-safetensors
The folder or Hub model has weights, but not in safetensors files.

A pipeline stage reads the tensors of its own layers and no others. Other formats can only be read whole, on every
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

`build_model` returns a whole model, while the layers of a pipeline are made one by one, on the rank that trains them.
`metrics` is given the logits of the model's forward, which a pipeline does not call as a whole.

## SQ101 model-not-split-by-sequence
The model's attention, or a layer of another kind, cannot be spread over a sequence group.

Each rank of the group has a part of every row. Attention is exchanged so that it sees whole rows; what mixes positions
by other means (convolutions, recurrences, an attention function of the model's own, a loss over a router's choices)
would see a part of each, in silence. `sdpa` and flash attention are exchanged; the first forward counts the layers.
"""
