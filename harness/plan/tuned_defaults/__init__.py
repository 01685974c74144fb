"""Settings that the harness chooses where the user was silent, instead of DeepSpeed's defaults: one file a setting.

`choice.py` has the values, `choosing.py` asks all files. Nothing here overrides what a user wrote.
"""
