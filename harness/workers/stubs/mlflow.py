# SPDX-License-Identifier: Apache-2.0
"""Replaces mlflow while DeepSpeed's launcher is imported: its autotuner, which no launch uses, would import mlflow and
with it pandas, in seconds for each process. Ranks take this folder out of their path and import the real mlflow.
"""

raise ImportError("kept from DeepSpeed's autotuner by the harness")
