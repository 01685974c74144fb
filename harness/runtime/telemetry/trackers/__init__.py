# SPDX-License-Identifier: Apache-2.0
"""Trackers that get the lines of metrics.jsonl: CSV, TensorBoard, Weights & Biases, MLflow. One module a tracker."""
