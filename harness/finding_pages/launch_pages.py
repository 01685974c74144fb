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
other than the spec says.

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
One of DeepSpeed's C++ ops does not compile on this machine, or the folder of compiled ops cannot be written
(TORCH_EXTENSIONS_DIR, by default in `~/.cache`). `harness doctor` lists missing compilers and libraries. On a GPU Adam,
Lion, Lamb and `async_io` (offload to nvme) also need nvcc; the CPU's optimizers do not.

## EN011 run-directory
The run directory cannot be created in `launch.output_dir`, or the folder of a rehearsal in `--folder`.

## EN012 ranks-cannot-be-started
`launch.launcher` cannot start these ranks. mpirun and srun use the first devices of a host, srun starts the same number
of ranks on each host and only within a Slurm job, and with `--no-ssh` no host can restart the ranks of another.

## EN013 hosts-that-do-not-meet
With `--no-ssh` each host starts its own ranks of one job. Each must know its own index, and all need one run directory,
which the first host creates while the others wait.

## EN014 no-cores-to-bind
`launch.bind_cores_to_rank` cannot bind ranks to cores. DeepSpeed's launcher needs numactl for it, at least as many
cores as ranks, and no KMP_AFFINITY, which binds threads itself.

## EN015 devices-that-torch-cannot-use
This machine has NVIDIA devices, and torch cannot use them: it is a build without CUDA, the driver is older than the
CUDA that it was built for, the container shows the devices but does not let programs use them, or a probe got no
answer.

If torch has no usable device, DeepSpeed trains on the CPU, with one warning in its log. Before a launch a child process
checks torch's devices; `harness doctor` shows the result. DS_ACCELERATOR=cpu, in the shell or in `launch.env`, trains
on the CPU on purpose and skips the check.

## EN016 not-on-this-machine
A key of the spec needs a package or a device that this machine lacks: `model.attn_implementation: flash_attention_2`
needs a GPU and `flash_attn` (or `kernels`), a tracker of `telemetry.trackers` its own package.

It is an error if this machine runs the spec (`--here`, `launch`, `launch --dry-run`), and otherwise one line of
information, which `--strict` does not count. For a dry run on a machine without the training packages it is a warning.

## EN017 more-ranks-than-cores
A machine without a GPU has fewer cores than ranks.

The ranks take turns on the cores and wait for each other at each collective, so that each step takes longer. Each rank
also needs half a gigabyte of host memory for Python, torch and DeepSpeed.

## EN018 ops-of-another-user
Another user may have written the compiled ops that the ranks would load: that user owns a file there, may write one, or
may replace a parent folder.

A compiled op is code, and runs with all your rights on every host of the run. Set TORCH_EXTENSIONS_DIR to a folder that
you own; if the folder is already yours, `chmod -R go-w` revokes write access for everybody else. A team that shares
compiled ops names its accounts in the shell: `export HARNESS_TRUSTED_ACCOUNTS=@team,alice` (groups after `@`, users;
`*` is everybody, for a container that only you use). [What is trusted](docs/security.md) has the rule.

## EN019 shared-memory-of-another-user
Another user made a file in /dev/shm with the name that DeepSpeed's all-reduce on CPUs uses for this run.

DeepSpeed opens the existing file, so that user could read and change the gradients. Another `launch.master_port` gives
other names; the administrator of the host can remove the file.

## EN020 version-not-verified
The DeepSpeed to check against is older or newer than the releases that the gates were verified for.

Changes outside that range are not known; the known rules are applied.

## EN021 slice-of-a-gpu
The GPU is in MIG mode, and the rank gets one slice of it.

CUDA gives a process only one slice. nvidia-smi lists the whole GPU with its memory, which a plan uses. Several ranks
need whole GPUs (`nvidia-smi -mig 0`, as root).

## EN022 accelerator-not-supported
DeepSpeed would take an accelerator on which the harness starts no ranks, or one that this machine lacks.

Ranks start on NVIDIA GPUs and on the CPU. DeepSpeed takes another accelerator where DS_ACCELERATOR names it, torch is a
build for AMD's or Intel's GPUs and can use some, or a package such as `torch_npu` or `habana_frameworks` is installed.
It then uses other ops, devices and variables than those that a launch prepares. `harness plan`, `validate-config` and
`render` work for them. DS_ACCELERATOR=cpu, in the shell or in `launch.env`, trains on the CPU.

## EN023 no-nvcc
The ranks use GPUs, the run needs ops that DeepSpeed compiles with CUDA's compiler, and there is no nvcc.

These are Adam, Lion and Lamb on the GPU, and `async_io`, which offload to nvme needs: it has no CUDA code, but
DeepSpeed compiles it by the same builder. nvcc is part of the CUDA toolkit, not of the driver; install the release of
`torch.version.cuda`. With the optimizer in host memory (`zero.offload_optimizer: {device: cpu}`) or torch's own Adam
(`deepspeed.optimizer.params.torch_adam: true`) nothing needs it.

## EN024 memory-cannot-be-locked
`zero.pin_memory_backend` is `native`, and this machine limits locked memory (`ulimit -l`).

DeepSpeed's own allocator locks each pinned buffer with `mlock`, and aborts the process if that fails (run on 0.19.8):
`mlock failed to allocate N bytes`, then a failed assertion of `deepspeed_pin_tensor.cpp`, with no Python error. torch's
allocator pins through the driver, to which the limit does not apply.

## EN025 too-many-hosts
There are more hosts than DeepSpeed's launcher accepts, or than this machine can connect to.

DeepSpeed writes the hosts and their slots into one argument (`--world_info`), for pdsh and for `--no-ssh`, and Linux
limits an argument to 128 KiB: about 1,700 hosts with 8 slots and names of 26 characters. Its launcher then ends with
`OSError: [Errno 7] Argument list too long` (run on 0.19.8). srun gets only the names, mpirun a file. A launch keeps two
pipes of ssh open for each host; it raises its own limit up to the hard one (`ulimit -Hn`).

## EN026 gpu-architectures
TORCH_CUDA_ARCH_LIST has an entry that torch accepts and DeepSpeed's builder of ops cannot read.

Images set it to `9.0a` for kernels that use Hopper's own instructions, and torch takes names such as `Hopper`, too.
DeepSpeed splits each entry at its dot and reads both parts as numbers: the build of `fused_adam`, `fused_lion`,
`fused_lamb`, `quantizer` or `async_io` ends with `ValueError: invalid literal for int() with base 10: '0a'` (seen on an
H100 with 0.19.8; releases before 0.19.0 pass the entry on to nvcc). No op of DeepSpeed uses such instructions, so `9.0`
has no disadvantage; without the variable DeepSpeed queries the GPU.

## EN027 not-the-planned-machine
This machine cannot hold the run that it should train: the GPUs of `cluster.gpu`, memory, disks or weights are not here.

A spec's `cluster:` describes the machine that a plan is for. `harness plan SPEC --here` and a launch whose ranks run on
this machine compare its own GPUs, their memory, the host's memory and the free space of `nvme_path` with the plan.
Without the check the ranks of a run for 8 GPUs start on the CPU, and the first that loads the model ends them all. A
model of the Hub that is not in the cache is an error where the Hub does not answer: each rank would retry for minutes.
`--set cluster=null` plans and trains for what is here. In a dry run these are warnings. A plan can be wrong: with
`ignore: {EN027: REASON}` the run starts.

## EN090 no-image-for-pods
`harness launch --kubernetes` has no image for the pods.

It must have the harness with its `train` extra, CUDA's compiler where the run compiles ops, and `harness` on PATH. Pods
read the spec, the data and the model under the same paths, from the image or from a volume (`--pvc`).

## EN091 no-shared-run-directory
`harness launch --kubernetes`: the run directory is not on a volume that all pods share.

Pods exchange files in the run directory: the first creates it, the others wait for it, and each rank writes its status
and its part of a checkpoint there. A restart resumes from it on whatever nodes the pods get. Give a claim that many
nodes can mount (`ReadWriteMany`) by `--pvc CLAIM:PATH`, and `launch.output_dir` at PATH or below.

## EN092 size-of-nvme-volume
`harness launch --kubernetes --nvme-class` requests a volume for NVMe offload, and its size is not known.

The size comes
from the plan, which needs a known model. Without `--nvme-class` the pods use the node's own folder, `nvme_path`, which
needs no size.

## EN093 mount-over-a-system-folder
`harness launch --kubernetes`: a volume would be mounted over a folder of the image, or two at the same path.

`--pvc CLAIM:/usr` hides the programs of the image. `nvme_path: /etc` without `--nvme-class` gives the pods the node's
own `/etc`, to write swap files into, and hides that of the image. Kubernetes refuses two volumes at one path. Choose a
folder that nothing else needs, such as `/mnt/runs` or `/local_nvme`.

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

DeepSpeed empties its folders below it at the start, including those of other runs.

## EN122 newest-run-still-runs
`--resume auto` would resume from a run that still runs.

Both would train the same steps, and the older one removes checkpoints that the other is reading.

## EN123 swap-folder-of-another-user
Another user made the folder that the run would swap to, may write there, or may replace a parent folder.

That user could read and change the swapped weights and optimizer states, and by links in the folder choose which of
your files are overwritten. Set `nvme_path` to a folder that you own on that disk. On a disk that everybody may write,
the sticky bit (`chmod +t`) keeps others from replacing it. HARNESS_TRUSTED_ACCOUNTS names accounts that you trust
(EN018).

## EN130 patch-not-made-for-this-release
A patch that the run needs changes a function of DeepSpeed, and the installed function differs from the tested one.

Without the patch the run would train something else, or fail: `docs/patches.md` describes each, and `harness doctor`
shows which of them the installed packages have changed. Install a tested release. A patch for correctness can be
switched off by `launch.patches: {NAME: off}` and a reason in `ignore: {EN055: why}`; names that a feature needs (kind
`use`) cannot.

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

The finding lists the classes. DeepSpeed raises an error on every rank when the PipelineModule is built.

## PP105 plug-in-of-a-whole-model
The plug-in has a `build_model` or `metrics`, and the run has pipeline stages.

`build_model` returns a whole model, while a pipeline makes its layers one by one, on the rank that trains them.
`metrics` takes the logits of the model's forward, which a pipeline does not call as a whole.

## PP106 stage-layers-that-do-not-divide
Attention heads, key-value heads, the MLP or the vocabulary do not divide over the tensor ranks of a pipeline stage.

Each tensor rank takes whole heads, and equal parts of every matrix and of the vocabulary. The gate PP018 finds this
before a launch, for models of known sizes.

## SQ101 model-not-split-by-sequence
The model's attention, or another kind of layer, cannot be split over a sequence group.

Each rank of the group has a part of every row. An all-to-all gives attention whole rows. Other layers that mix
positions (convolutions, recurrences, an attention function of the model's own, a router's loss) would silently see
part of each row. `sdpa` and flash attention are supported; the first forward pass counts the layers.

## EN057 own-disks-that-cannot-be-used
With `launch.shared_disk: false` the launching machine copies the run directory to the hosts over ssh and keeps metrics,
verdict and manifests. It must be the first host, with pdsh; `--no-ssh`, mpirun and srun need a shared disk.

## EN058 host-without-a-disk
With `launch.shared_disk: false` a host could not make the run directory on its own disk.
"""
