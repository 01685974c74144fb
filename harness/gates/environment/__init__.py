"""What the hosts have and lack: rules about the answers of `harness/workers/host_probe.py`."""
