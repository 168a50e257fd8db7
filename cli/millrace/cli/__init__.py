"""The `millrace` command: one file per command, around the public client library and the broker.

Data goes to standard output and messages to standard error, so that pipes carry only data. A
command's module is imported when the command is called, and heavy modules inside the functions that
need them, which keeps short commands, `millrace --help` and shell completion quick.
"""
