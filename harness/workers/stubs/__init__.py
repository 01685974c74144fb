# SPDX-License-Identifier: Apache-2.0
"""A folder for PYTHONPATH: its modules replace packages that DeepSpeed's launcher would import for nothing."""
