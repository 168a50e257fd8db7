"""The `millrace` command: one file per command, around the public client library and the broker.

Data goes to standard output and messages to standard error, so that pipes carry only data. Heavy
modules are imported inside the functions that need them, which keeps `millrace --help` and shell
completion quick.
"""
