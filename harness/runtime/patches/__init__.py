"""Changes inside DeepSpeed and its dependencies, one file each."""
