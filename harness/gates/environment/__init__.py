"""Facts of the hosts: rules about the answers of `harness/workers/host_probe.py`."""
