# SPDX-License-Identifier: Apache-2.0
"""Object stores, such as S3, through fsspec: URLs, reads and writes with retries, and the checks before a run.

Credentials come from the chain of the store's own package (environment, profile, role of the machine). No module here
reads, keeps or prints one.
"""
