"""OF: offload to CPU and NVMe."""
