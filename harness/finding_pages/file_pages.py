# SPDX-License-Identifier: Apache-2.0
"""Pages of findings about files: run specs, DeepSpeed JSONs, hostfiles. Read by `harness.finding_pages`."""

TEXT = """
## SP001 unreadable-file
The file does not exist, is a directory, or is not UTF-8 text.

This is also the finding for a hostfile or a folder given by mistake.

## SP002 not-yaml-or-json
The syntax is wrong at the place named.

YAML allows no tabs for indentation. A run spec in JSON is read strictly; a DeepSpeed JSON may use the syntax of hjson,
which findings SP018 and SP019 report.

## SP003 not-a-map
The file is empty, or has a list or a single value instead of a map of keys.

## SP004 key-written-twice
A section has the same key twice.

DeepSpeed refuses this; YAML readers, the Trainer and accelerate silently keep the last one.

## SP005 unknown-key
The key is not one that a run spec, or DeepSpeed, knows.

DeepSpeed ignores unknown keys at the top level and in blocks without type checks: a misspelt `zero_optimization` trains
with ZeRO stage 0. The finding names the nearest known key; names from DeepSpeed and from other trainers are recognised.
At the top level of a DeepSpeed JSON it is an error for a name that resembles a key of DeepSpeed's or belongs in one of
its blocks, and a warning for any other, which has no effect.

## SP006 wrong-type
The value has another type than the key, such as a text instead of a number.

An error if DeepSpeed refuses the value or reads something else: blocks without type checks treat any text as true, even
"false", count `true` as 1 and compute with half a micro-batch. A warning if DeepSpeed converts the value as intended,
as blocks with type checks do with "5", "true" and 1.

## SP007 out-of-range
The value has the right type but is not allowed.

## SP008 missing-key
A section needs this key.

`zero` without `stage` is stage 0 to DeepSpeed, which is rarely intended.

## SP010 key-in-two-places
The `deepspeed` section sets a key that has its own field in the run spec.

## SP011 wrong-option
An option of the command line has an invalid value.

## SP012 key-that-is-gone
This DeepSpeed no longer knows the key. From 0.19.7 and 0.19.8 on it refuses leftovers such as `amp` and
`elasticity` that older releases read.

## SP013 key-from-a-newer-release
The key came with a later DeepSpeed than the one checked against.

## SP014 deprecated-key
DeepSpeed has a newer name for the key. It still reads the old one, except `aio.thread_count`, which it ignores from
0.16.4 on: the same steps, with one I/O thread.

An error is `zero_optimization.cpu_offload: true` under the Trainer or accelerate without an `optimizer` block:
accelerate looks for `offload_optimizer` alone and hands DeepSpeed torch's AdamW, which it refuses for an offload (`You
are using ZeRO-Offload with a client provided optimizer`; run with transformers 5.23, at stages 0, 2 and 3).

## SP015 auto-values
The JSON leaves values to the program that reads it, and that program is not named.

The Hugging Face Trainer fills batch sizes, optimizer, scheduler, precision and three bucket sizes; accelerate fills
others. DeepSpeed itself takes the default in typed blocks, takes the text as true for some switches, and fails on
the rest. The reader is guessed by the keys that are "auto"; `--consumer hf`, `accelerate` or `deepspeed`
of `harness validate-config` and `upgrade-check` names it.

## SP017 template
The file holds placeholders such as `$BATCH`, `{{ stage }}` or `CONFIG_BATCH_SIZE`, which a script or a template engine
fills in.

Nothing else in it is checked: check the rendered file instead.

## SP018 not-strict-json
Comments, trailing or missing commas, single quotes, keys or texts without quotes, no outer braces, or a byte order
mark.

DeepSpeed reads its configuration with hjson, which takes all of these; the Hugging Face Trainer and accelerate read it
with Python's `json`, which takes none. So this is a warning where DeepSpeed reads the file, else an error.

## SP019 text-without-quotes
A number, boolean or null is written in a form that is no JSON: `True`, `None`, `.001`, `NaN`, `1_000`.

DeepSpeed's reader takes everything up to the end of the line as text: `False,` with its comma. In blocks without type
checks a text counts as true, and nowhere as a number; a learning rate of `.001` fails in the first optimizer step.

## SP021 named-file-not-found
A configuration names another file that does not exist on this machine. That file was not checked.

## SP050 path-not-found
A folder of a model or a tokenizer, a data file or glob, a chat template or a plug-in is not on this machine, or cannot
be used: a folder without `config.json`, weights or tokenizer files, a file that this user may not read.

A relative path starts at the folder of the spec; where nothing is there, at the current folder. `~` is the home folder.
A name such as `gpt2` or `owner/name` that is no folder here is a name on the Hub, and is not looked up.

It is an error if this machine runs the spec: with `--here`, on `launch` and on `launch --dry-run`. Otherwise it is one
line of information, which `--strict` does not count, since a spec is also checked without its data, for example in CI.
A path with a similar name next to it counts as misspelt, and is an error everywhere.

## SP051 path-without-answer
The file system of a path did not answer within a second, like a network mount whose server is down. It was not checked.

## SP052 path-in-two-folders
A relative path exists in the folder of the spec and in the current folder. The one next to the spec is used.

## SP053 placeholder-path
A path such as `path/to/texts.jsonl`, `your-model` or `<folder>` is a placeholder for your own. `harness adopt` writes
such a path where the file that it converts names no model or no data.

## HO001 unreadable-hostfile
The hostfile does not exist or is not text.

DeepSpeed only warns and then trains on this machine alone, with exit code 0.

A hostfile that a spec names may be on other machines only: for `validate-config` without `--here` it is then one of the
paths of SP050, unless a near name is next to it.

## HO002 hostfile-without-hosts
The hostfile has only comments.

## HO003 hostfile-line
A line is not `NAME slots=N`.

DeepSpeed reads `slots=8x` as 8 and starts nothing for `slots=0`.

A user before the name, as in `root@worker-0`, belongs in `~/.ssh/config`: a line `Host worker-0`, and `User root` below
it. DeepSpeed accepts the line and passes it to ssh and pdsh unchanged. But its `--include` and `--exclude` split at `@`
and find no such host (run on 0.19.8), `mpirun` and `srun` need names of machines, and the harness compares the names
with those that pdsh and the hosts themselves report. Ranks start in the folder and with the Python of the launch, so
every host needs both, also under another user.

## HO004 host-listed-twice
The hostfile has a host twice.

## HO024 host-selection
`--include`, `--exclude`, `--num-nodes` or `--num-gpus` does not fit the hostfile.

They have DeepSpeed's meaning: `@` separates hosts, commas separate slots, as in `--include a@b:0,2`. DeepSpeed takes
all hosts when more are requested, starts ranks without a device when `--num_gpus` is above the slots, and trains on
this machine when one host is left, whatever its name.

## HO025 hosts-on-the-command-line
`--hosts` is not `NAME:SLOTS,NAME:SLOTS`.

## HO026 not-a-slurm-job
`--slurm` takes the hosts from the variables of the job, which are missing or unreadable.

## HO027 all-reduce-failed
`harness preflight --allreduce` started the ranks as a run does and ran an all-reduce. ssh and a connection to one
port worked before, but the ranks did not connect to each other, or a sum was wrong.

## HO028 not-submitted
`harness launch --slurm` outside a job writes a batch script and passes it to `sbatch`, which is missing or refused it.

## HO090 no-name-in-kubernetes
`harness launch --kubernetes`: a name that Kubernetes refuses.

The name of the JobSet (`--run-id`, by default the name of the run) is part of the DNS names of its pods, of which the
longest, NAME-worker-0-LAST-abcde, has at most 63 characters: lower-case letters, digits and `-`, a letter first.
Namespaces, claims, Secrets and StorageClasses have names of the same characters.

## HO091 number-of-pods-not-known
`harness launch --kubernetes` does not know how many pods there are, or how many GPUs each has.

They come from the hosts (hostfile, `--hosts`), else from `--num-nodes` and `--num-gpus`, else from `cluster.num_nodes`
and `cluster.gpus_per_node`. All pods of a JobSet are the same, so all hosts need the same number of slots.

## HO005 ranks-given-twice
The hosts (of a hostfile, `--hosts`, `--slurm` or the pods of a JobSet) and another setting give different numbers of
ranks, or a command needs hosts and has none.

## GT001 gate-that-failed
A gate crashed, which is a bug in harness. All other gates were checked.

## GT002 ignore-without-effect
The spec ignores a gate that has no finding, or that does not exist.

## SP016 other-format
The file is a configuration of another program, or no configuration.

Run specs, DeepSpeed's JSON and accelerate's YAML are read; `harness adopt` converts a file for axolotl, LLaMA-Factory,
ms-swift, ArcticTraining, TRL or the Trainer. Three kinds are not checked: GPT-NeoX's, which makes DeepSpeed's JSON
itself, files for inference, and those of LLaMA-Factory's new program (`USE_V1`), whose keys are not known.

## SP040 training-of-another-kind
A file for another training program uses a method that run specs do not have.

Run specs train on the next-token loss (pre-training and supervised fine-tuning), all parameters or LoRA, with 16-bit
or 32-bit weights; for QLoRA set `model.quantization` by hand. A run spec made from DPO, KTO, PPO, a reward model, 8-bit
weights, DoRA, frozen layers or images would train something else, so `harness adopt` writes nothing.

## SP022 two-names-for-one-key
A key is set together with its old name, or with an alias.

DeepSpeed refuses the pair once every rank has started, even where both have the same value.

## SP041 memory-changed-by-a-fix
With the fixes of `--unsafe-fixes` the run needs other memory: an offload moved between NVMe, host memory and GPU, or
the plan of one of them grew.

Both plans are those of `harness plan`. Where the file names no model, no ranks or no micro-batch, as a DeepSpeed JSON,
the finding names the example that was planned instead. Undo a fix whose memory is not there.

## SP020 deepspeed-json-for-a-run
A DeepSpeed JSON was given where a run spec is needed.

A JSON has no model, data or length. `validate-config` takes both kinds, `launch` only a run spec.

## HF101 field-with-config-file
An accelerate YAML sets `deepspeed_config_file` and another field that belongs in that file.

accelerate refuses both together, `mixed_precision` included: only the JSON counts.

## HF102 field-passed-over
In `deepspeed_config` accelerate reads only a few names of its own and silently ignores all others, including whole
blocks of DeepSpeed's JSON. These belong in a JSON that `deepspeed_config_file` names.

## HF103 stage-by-default
An accelerate YAML without `zero_stage` trains at ZeRO stage 2.

## HF104 machines-that-train-alone
An accelerate YAML of several machines names no `deepspeed_hostfile`, and its launcher is not `standard`.

accelerate then starts `deepspeed --hostfile None`. DeepSpeed's launcher warns "Unable to find hostfile, will proceed
with training with local resources only" and trains with the processes of this machine at 127.0.0.1, whatever
`main_process_ip` says: each machine on which `accelerate launch` runs trains alone (run with accelerate 1.15 and
DeepSpeed 0.19.8). accelerate's default launcher is `pdsh`; with `nossh` all machines but the first fail with an
AssertionError.

There are two solutions. With `deepspeed_multinode_launcher: standard` and `main_process_ip`, run `accelerate launch
--machine_rank N` on every machine. With a `deepspeed_hostfile` (a line `NAME slots=N` for each machine, and ssh without
a password from the first to all others), run `accelerate launch` only on the first machine.

Options of the `accelerate launch` command line are passed to the check by `--set`: `--set
deepspeed_config.deepspeed_multinode_launcher=standard`.

## HF105 no-main-process-address
An accelerate YAML of several machines has the launcher `standard` and no `main_process_ip`.

accelerate gives torchrun the endpoint `None:29500`, and every machine looks for a host called `None`: after 20 minutes
none had given up (run with accelerate 1.15 and torch 2.13). The file is correct if each `accelerate launch` gets
`--main_process_ip`, as in batch scripts; then pass `--set main_process_ip=ADDRESS` to the check.

## HF106 processes-miscounted
The processes that `accelerate launch` starts are not `num_processes`.

accelerate divides `num_processes` by `num_machines`, drops the remainder, and starts that many ranks on every machine.
Under DeepSpeed's launcher these are the hosts of `deepspeed_hostfile`, whatever their number, and `--num_gpus`
overrides `slots` (run with accelerate 1.15 and DeepSpeed 0.19.8).

## HF107 compiled-for-debugging
`dynamo_config` names the back end `EAGER` or `AOT_EAGER`.

accelerate compiles DeepSpeed's engine with the back end of `dynamo_config` (0.14.4 and newer). These two trace the
model and then run it op by op, for debugging: for a Llama of 4 layers at ZeRO stage 2 on a CPU, the first step took 2
to 4 s instead of 0.1 s, and the others as long as before (run with accelerate 1.15 and DeepSpeed 0.19.8). Only
`INDUCTOR` generates kernels.

## HF108 clipping-of-zero
An accelerate YAML sets `gradient_clipping` to 0.

accelerate leaves a limit of 0 out of the JSON that it makes. Up to 0.19.2 DeepSpeed then does not clip; from 0.19.3 on
it clips at 1.0 (run with accelerate 1.15 and DeepSpeed 0.19.8). In a JSON that `deepspeed_config_file` names, 0
switches clipping off.

## SP030 report-not-written
The report cannot be written to the given path.

## SP031 no-run-directory
The path given to `report` is not a run directory: it has no `spec.resolved.json`.

## BT101 started-on-other-ranks
The DeepSpeed JSON was rendered for another number of ranks than the one that started.

The global batch would differ from `ds_config.json`; render and launch again for these ranks.
"""
