# SPDX-License-Identifier: Apache-2.0
"""A training harness on DeepSpeed: validate, plan, render, launch, train and report from one run spec."""
