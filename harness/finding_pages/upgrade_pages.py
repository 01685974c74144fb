# SPDX-License-Identifier: Apache-2.0
"""A file under another DeepSpeed release. Pages of findings, read by `harness.finding_pages`."""

TEXT = """
## UP001 default-that-moved
The file leaves out a key whose default changed in the newer release. With an explicit value the key means the same in
both.

## UP002 meaning-that-moved
The file has another meaning under the newer release, without a warning from DeepSpeed.

## UP003 no-longer-found
A finding of the older release that the newer one does not have: DeepSpeed fixed the cause or now allows it.

## UP004 key-that-is-read-now
The newer release reads a key that the older one did not know. Where the older one silently ignored it, the
training changes although the file does not.

## UP005 fixed-by-the-newer-release
The newer release fixes a bug of DeepSpeed that affects this file. The numbers of a run may differ from earlier ones,
and are correct now.
"""
