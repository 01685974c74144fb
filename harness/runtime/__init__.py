"""What runs inside the ranks: torch, deepspeed and transformers live here and nowhere else in the package.

Only `launch/*.py` import it; nothing here decides what a run should be, that has been decided in the run directory.
"""
