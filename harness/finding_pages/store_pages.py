# SPDX-License-Identifier: Apache-2.0
"""Object stores. Pages of findings, read by `harness.finding_pages`."""

TEXT = """
## ST100 store-package-missing
The package that opens the object store is not installed: s3fs for `s3://`, gcsfs for `gs://`, adlfs for `az://`.

The extra `stores` of the harness has s3fs. All hosts with ranks need the package.

## ST101 no-such-bucket
The bucket that the URL names does not exist. The harness makes no buckets.

## ST102 store-access-denied
The store denies access with these credentials. A launch writes, reads and removes one small key below a prefix of
`upload_to`, because the run will do all three; below the URLs of `data` it only lists and reads.

## ST103 store-credentials
There are no credentials for the store, or they have expired. They come from the chain of the store's own package (a
role of the machine, a profile, the environment) and are in no file or log of the harness. During a run, expired
credentials are requested again from that chain.

## ST104 store-region
The bucket is in another region than the one that requests go to.

## ST105 store-unreachable
The store does not answer, or reports internal errors, even after several attempts; or it accepts requests in which no
byte moves for a minute. An upload counts only after its manifest is written, so there is no incomplete checkpoint.

## ST106 prefix-in-use
Another run writes below the prefix of `upload_to`, or other keys are there.

A prefix belongs to one run, which `run.json` there names, and to the runs that resume it. The harness removes only keys
that a manifest of these runs lists, after reading that manifest back. A run that finds at an upload that another one
has its prefix ends after its next save: what it would train on has no copy. Resume it with another prefix. With
`checkpoint.on_save_error: continue` it trains on without uploads, and ends with exit code 8.

## ST107 upload-failed
A checkpoint could not be uploaded. Training continues, and the checkpoint on the disk is complete. The next checkpoint
is uploaded as usual, and the newest one is tried again at the end of the run. If that fails, too, the run ends with
exit code 8: trained and saved, not uploaded. `harness checkpoint upload` repeats an upload.

## ST108 no-space-for-the-download
The disk has no space for the checkpoint that the run resumes from, or cannot be written.

## ST109 no-data-in-the-store
A URL of `data.train` or `data.eval` matches no file.

## ST110 upload-of-one-host
`harness checkpoint upload` of a checkpoint whose hosts share no disk has uploaded the files of this host, and those of
others are not in the store yet. Run the same command on each host: the one that completes the checkpoint writes its
manifest.
"""
