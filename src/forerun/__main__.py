"""`python -m forerun`: the command line."""

from forerun.cli import main

main()
