"""Facts as data: DeepSpeed's keys, models, devices, environment variables."""
