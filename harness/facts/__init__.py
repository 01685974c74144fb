"""What is true of the world, as data: DeepSpeed's keys, models, devices, this machine."""
