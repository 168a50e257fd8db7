"""The commands, one module each; `command` is what the module gives to `millrace`."""
