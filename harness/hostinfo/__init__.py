"""Facts of this machine and of hosts: devices, memory, filesystems, installed packages."""
