# SPDX-License-Identifier: Apache-2.0
"""Settings that the harness chooses where the spec leaves them out, instead of DeepSpeed's defaults: one function a
setting.

`tuned_default.py` has the type, `rules.py` applies all files. Nothing here overrides a value of the user's.
"""
