"""Checkpoints as folders of files: what a manifest says, whether the bytes agree, which one is newest, which may go.

Pure standard library: nothing is unpickled here, and nothing knows torch. What is inside the files is the business of
`runtime.checkpoint`.
"""
