"""`python -m harness`: the same program."""

from harness.cli.app import main

main()
