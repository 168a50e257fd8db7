"""`python -m millrace.cli` is the `millrace` command.

`python -m millrace` cannot be: `millrace` is a namespace of several folders, and holds no module.
"""

from millrace.cli.entry import millrace

millrace()
