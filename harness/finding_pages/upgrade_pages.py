# SPDX-License-Identifier: Apache-2.0
"""A file under another DeepSpeed release. Pages of findings, read by `harness.finding_pages`."""

TEXT = """
## UP001 default-that-moved
The file leaves a key to DeepSpeed, and the default is another one in the newer release. Written out, the key means the
same under both.

## UP002 meaning-that-moved
The file means something else under the newer release, without a word from DeepSpeed.

## UP003 no-longer-found
A finding of the older release that the newer one does not have: what it told of was mended, or is allowed now.

## UP004 key-that-is-read-now
The newer release reads a key that the older one did not know. Where the older one ignored it in silence, what is
trained changes although the file does not.

## UP005 mended-under-it
A fault of DeepSpeed that this file fell into is mended in the newer release: the numbers of a run may differ from those
before, and are the right ones now.
"""
