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

DeepSpeed ignores unknown keys at the top level and in blocks without types: a misspelt `zero_optimization` trains
with ZeRO stage 0. The finding names the nearest known key; names from DeepSpeed and from other trainers are
recognised. At the top level of a DeepSpeed JSON it is an error for a name that looks like a key of DeepSpeed's or
belongs in one of its blocks, and a warning for any other, which changes nothing.

## SP006 wrong-type
The value has another type than the key, such as a text instead of a number.

An error where DeepSpeed refuses the value or reads something else: blocks without types take any text as true, even
"false", count `true` as 1 and compute with half a micro-batch. A warning where it converts the value as
intended, as blocks with types do with "5", "true" and 1.

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

DeepSpeed's reader takes it as text, with everything up to the end of the line: `False,` with its comma. A text counts
as true in blocks without types, and as a number nowhere; a learning rate of `.001` fails in the first optimizer step.

## SP021 named-file-not-found
A configuration names another file that does not exist on this machine. That file was not checked.

## SP050 path-not-found
A folder of a model or a tokenizer, a data file or glob, a chat template or a plug-in is not on this machine, or cannot
be used: a folder without `config.json`, weights or tokenizer files, a file that this user may not read.

A relative path starts at the folder of the spec; where nothing is there, at the current folder. `~` is the home folder.
A name such as `gpt2` or `owner/name` that is no folder here is a name on the Hub, and is not looked up.

It is an error where this machine runs the spec: with `--here`, on `launch` and on `launch --dry-run`. Elsewhere it is
one line of information, which `--strict` does not count: a spec is also checked where its data is not, such as in
CI. A path with a near name next to it is a misspelt one, and an error everywhere.

## SP051 path-without-answer
The file system of a path did not answer within a second, as a network mount whose server is gone. It was not checked.

## SP052 path-in-two-folders
A relative path exists in the folder of the spec and in the current folder. The one next to the spec is used.

## SP053 placeholder-path
A path such as `path/to/texts.jsonl`, `your-model` or `<folder>` stands where your own belongs. `harness adopt` writes
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
it. DeepSpeed takes the line and hands it to ssh and pdsh as it stands. But its `--include` and `--exclude` split at
`@` and find no such host (run on 0.19.8), `mpirun` and `srun` start by names of machines, and the harness compares the
names with those that pdsh and the hosts themselves report. Other users have other home folders: the ranks start in the
folder of the launch with the Python of the launch, so both must be there on every host.

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
`harness launch --slurm` outside a job writes a batch script and hands it to `sbatch`, which is missing or refused it.

## HO090 no-name-in-kubernetes
`harness launch --kubernetes`: a name that Kubernetes refuses.

The name of the JobSet (`--run-id`, by default the name of the run) is part of the DNS names of its pods, of which the
longest, NAME-worker-0-LAST-abcde, has at most 63 characters: lower-case letters, digits and `-`, a letter first.
Namespaces, claims, Secrets and StorageClasses have names of the same characters.

## HO091 number-of-pods-not-known
`harness launch --kubernetes` does not know how many pods there are, or how many GPUs each has.

They come from the hosts (hostfile, `--hosts`), else from `--num-nodes` and `--num-gpus`, else from `cluster.num_nodes`
and `cluster.gpus_per_node`. The pods of a JobSet are alike, so that all hosts have the same number of slots.

## HO005 ranks-given-twice
The hostfile and another setting give different numbers of ranks.

## GT001 gate-that-failed
A gate crashed, which is a bug in harness. All other gates were checked.

## GT002 ignore-without-effect
The spec ignores a gate that has no finding, or that does not exist.

## SP016 other-format
The file is a configuration of another program, or no configuration.

Run specs, DeepSpeed's JSON and accelerate's YAML are read; `harness adopt` converts a file for axolotl,
LLaMA-Factory, ms-swift, ArcticTraining, TRL or the Trainer. GPT-NeoX makes DeepSpeed's JSON itself, files for inference
have nothing for training, and the keys of LLaMA-Factory's new program (`USE_V1`) are not known: they are left alone.

## SP040 training-of-another-kind
A file for another training program trains by a method that run specs do not have.

Run specs train by the loss of the next token (pre-training and supervised fine-tuning), all parameters or plain LoRA,
over weights of 16 or 32 bit. A run spec made from DPO, KTO, PPO, a reward model, QLoRA, 8-bit weights,
DoRA, frozen layers or images would train something else, so `harness adopt` writes nothing.

## SP022 two-names-for-one-key
A key is set together with its old name, or with an alias.

DeepSpeed refuses the pair once every rank has started, even where both have the same value.

## SP020 deepspeed-json-for-a-run
A DeepSpeed JSON was given where a run spec is needed.

A JSON has no model, data or length. `validate-config` takes both kinds, `launch` only a run spec.

## HF101 field-with-config-file
An accelerate YAML sets `deepspeed_config_file` and another field that belongs into that file.

accelerate refuses both together, `mixed_precision` included: only the JSON counts.

## HF102 field-passed-over
accelerate reads its own few names in `deepspeed_config` and silently ignores all others, whole blocks of DeepSpeed's
JSON included. They belong into a JSON that `deepspeed_config_file` names.

## HF103 stage-by-default
An accelerate YAML without `zero_stage` trains at ZeRO stage 2.

## HF104 machines-that-train-alone
An accelerate YAML of several machines names no `deepspeed_hostfile`, and its launcher is not `standard`.

accelerate then starts `deepspeed --hostfile None`. DeepSpeed's launcher warns "Unable to find hostfile, will proceed
with training with local resources only" and trains with the processes of this machine at 127.0.0.1, whatever
`main_process_ip` says: on each machine on which `accelerate launch` runs, a training of its own (run with accelerate
1.15 and DeepSpeed 0.19.8). `pdsh` is what accelerate takes where the file names no launcher; with `nossh` the machines
of rank 1 and more end with an AssertionError.

There are two ways out. With `deepspeed_multinode_launcher: standard` and `main_process_ip`, run
`accelerate launch --machine_rank N` on every machine. With a `deepspeed_hostfile` (a line `NAME slots=N` for each
machine, and ssh without a password from the first to all others), run `accelerate launch` on the first machine alone.

What the command line of `accelerate launch` says, `--set` says to the check:
`--set deepspeed_config.deepspeed_multinode_launcher=standard`.

## HF105 no-main-process-address
An accelerate YAML of several machines has the launcher `standard` and no `main_process_ip`.

accelerate gives torchrun the endpoint `None:29500`, and every machine looks for a host called `None`: after 20 minutes
none had given up (run with accelerate 1.15 and torch 2.13). It is right where each `accelerate launch` is given
`--main_process_ip`, as batch scripts do; then `--set main_process_ip=ADDRESS` says so to the check.

## HF106 processes-miscounted
The processes that `accelerate launch` starts are not `num_processes`.

accelerate divides `num_processes` by `num_machines`, drops the remainder, and starts that many ranks on every machine.
Under DeepSpeed's launcher these are the hosts of `deepspeed_hostfile`, however many it has, and `--num_gpus` counts
more than `slots` (run with accelerate 1.15 and DeepSpeed 0.19.8).

## HF107 compiled-for-debugging
`dynamo_config` names the back end `EAGER` or `AOT_EAGER`.

accelerate compiles DeepSpeed's engine with the back end of `dynamo_config` (0.14.4 and newer). These two trace the
model and then run it op by op, to find faults: for a Llama of 4 layers at ZeRO stage 2 on a CPU, the first step took 2
to 4 s instead of 0.1 s, and the others as long as before (run with accelerate 1.15 and DeepSpeed 0.19.8). `INDUCTOR`
is the one that generates kernels.

## HF108 clipping-of-zero
An accelerate YAML sets `gradient_clipping` to 0.

accelerate leaves a limit of 0 out of the JSON that it makes. Up to 0.19.2 DeepSpeed does not clip then; from 0.19.3 on
it clips at 1.0 (run with accelerate 1.15 and DeepSpeed 0.19.8). In a JSON that `deepspeed_config_file` names, 0 counts.

## SP030 report-not-written
The report cannot be written to the given path.

## SP031 no-run-directory
The path given to `report` is no run directory: it has no `spec.resolved.json`.

## BT101 started-on-other-ranks
The started ranks are not those that the DeepSpeed JSON was rendered for.

The global batch would differ from `ds_config.json`; render and launch again for these ranks.
"""
