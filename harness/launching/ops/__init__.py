"""DeepSpeed's compiled ops: building them here and on the other hosts."""
