"""What the hosts have and lack: rules about the answers of `launch/probe.py`."""
