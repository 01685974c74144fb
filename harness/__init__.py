"""A training harness on DeepSpeed: validate, plan, render, launch, train and report from one run spec."""
