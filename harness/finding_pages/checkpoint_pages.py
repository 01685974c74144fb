# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: saving, resuming, converting, exporting. Pages of findings, read by `harness.finding_pages`."""

TEXT = """
## CK002 export-folder-in-use
The folder to export to is there and not empty, or is a file; nothing in it was touched.

## CK001 no-checkpoint-to-resume
What `--resume` or `export` names holds no complete checkpoint.

A checkpoint is a folder with `manifest.json`; the manifest is written last, so a folder without it was never
finished.

## CK101 damaged-checkpoint
A file of the checkpoint is missing, has another size or other bytes than its manifest says, or there is no manifest.

DeepSpeed would load a torn shard on one rank while the others go on to train, and would not notice flipped bytes or
a shard of another step at all. Use an earlier checkpoint: `harness checkpoint verify RUN` tells which are whole.
A file that the manifest does not list is a warning: it is neither looked at nor loaded.

## CK102 checkpoint-of-another-shape
The checkpoint was saved with another number of ranks, ZeRO stage or number format.

DeepSpeed cannot load its shards into another shape. Export the checkpoint to a Hugging Face folder to start from
its weights.

## CK103 checkpoint-of-other-data
The training text is not the one that the checkpoint was trained on, so its place in the data means nothing.

## CK104 checkpoint-not-loaded
DeepSpeed returned no checkpoint. Left to itself it would start again at step 0, with exit code 0.

## CK105 shards-missing
The folder has fewer shards than the run that wrote it had ranks.

## CK106 export-exists
The folder to export to exists; nothing in it was touched.

## CK107 settings-changed-since-the-checkpoint
Model, tokenizer, data, optimizer, precision or batch are not those that the checkpoint was trained with.

DeepSpeed takes the optimizer's settings from the checkpoint in silence, so that a new learning rate would never arrive;
a place in the data means nothing in another order. Where the change is meant, say so: `--allow-change KEY`, with a key
or a section. Files that were moved are no change: their content is compared.

## CK131 tensor-shards-not-joined
DeepSpeed calls the layout of a tensor-parallel weight one that it cannot describe, so its shards cannot be joined.

Train such a model with `parallel.tensor_parallel_size: 1`, or name its layers in a `partition_config`.

## CK120 not-a-shard
A file of the checkpoint is not what DeepSpeed writes, or holds objects other than tensors and plain values.

Shards are read without running code from them, so what would need that is refused.

## CK121 conversion-not-written
A checkpoint of another shape (ranks, ZeRO stage, offload, degrees) is converted when a run goes on from it, and there
is no room for that, or the disk refused it.

The conversion is as large as the fp32 weights and the optimizer's states. It is kept in `checkpoints/universal` of the
new run and goes when that run has saved a checkpoint of its own.

## CK122 shards-on-several-hosts
Each host has the shards that its own ranks wrote, and none has them all, so they cannot be cut anew.

## CK123 weight-not-in-the-checkpoint
The run trains a weight that the checkpoint does not have: it is of another model, or of other adapters.

## CK124 export-has-other-logits
The exported folder, loaded as anybody would load it, computes something else than the checkpoint. It was not kept.

## CK125 export-cannot-be-checked
There is not enough memory to load the model twice, a package is missing, or the code that a model brings is not there.

## CK126 export-not-written
There is no room for the exported folder, or the disk refused it. Nothing of it was kept.

## CK127 no-adapters-to-export
The checkpoint was trained without LoRA, so there are no adapters to export alone.

## CK128 code-in-a-checkpoint
The model of a checkpoint brings Python code of its own (an `auto_map` in its configuration, or Python files), and its
manifest says `model.trust_remote_code: true`. `transformers` would import that code to check the export, with all
rights of whoever exports. What a checkpoint says of itself is no consent, since whoever made it wrote that too.

Read the code. Then `harness export --allow-local-code` runs it. The export at the end of a launch needs no option: its
run has imported the model's code already, as its own spec says.

## CK108 edited-manifest
The manifest is not as it was written: its own checksum differs, or it is no JSON.

It lists the sizes and sha256 of all files, so that nothing about a checkpoint can be trusted without it. Use another
checkpoint.

## CK109 settings-that-may-change
Settings that may change between a save and a resume have changed: told, not refused.

Such are the schedule, the number of steps, the micro-batch and ZeRO's buffer sizes. Training goes on from the saved
state, by the new settings from here on.

## CK110 save-failed
A checkpoint could not be written, on one rank or all: disk full, read-only, or gone.

The save is given up on all ranks; earlier checkpoints and `latest` stay as they were. The message tells how much the
checkpoint needs and how much room there is; that is looked at before the first byte is written. What follows is
`checkpoint.on_save_error`: `stop` ends the run, `continue` trains on and tries again at the next save.

## CK111 code-in-a-shard
A file of the checkpoint needs classes or functions that no shard has a need of; reading it would run code.

Shards are read as tensors, plain values and the four classes that DeepSpeed itself writes, never in any other way.
Every file is looked at before the first one is read.

## CK112 path-out-of-the-checkpoint
The manifest lists a path that leads out of the checkpoint's folder, or a listed file is a link.

## CK113 no-such-checkpoint
What `harness checkpoint` was given is no checkpoint, no run directory, and no folder of checkpoints.

## CK114 only-checkpoint
The only complete checkpoint of a run would be removed. `--force` does it.

## CK115 latest-is-stale
The file `latest` does not name the newest checkpoint that is whole.

A resume never trusts it: it looks for itself. Tools that read it would take the wrong one.

## CK116 folder-not-shared
Not every rank sees the folder of checkpoints that rank 0 sees.

A checkpoint is one folder with the shards of all ranks: put the run directory on a disk that all hosts share. Disks of
single hosts are good for `nvme_path`, not for checkpoints.
"""
