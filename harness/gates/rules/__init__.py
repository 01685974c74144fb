# SPDX-License-Identifier: Apache-2.0
"""One module for each feature of DeepSpeed, with all gates about it. No module knows another."""
