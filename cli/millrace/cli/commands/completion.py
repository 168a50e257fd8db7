"""`millrace completion`: scripts that make a shell complete commands, options and topics."""

import click

from millrace.cli.command import Command

_VARIABLE = "_MILLRACE_COMPLETE"  # click's name for how the shell asks the program back.


@click.command(
    "completion",
    cls=Command,
    examples="""
    eval "$(millrace completion bash)"                                # for this shell
    millrace completion bash >> ~/.bashrc                             # for every bash
    millrace completion zsh >> ~/.zshrc
    millrace completion fish > ~/.config/fish/completions/millrace.fish
    """,
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Print a script for shell completion.

    It completes commands, options and settings of topics, and the names of topics, brokers and
    positions, for which it asks the broker.
    """
    from click.shell_completion import get_completion_class

    completion = get_completion_class(shell)
    assert completion is not None
    root = context.find_root()
    click.echo(completion(root.command, {}, "millrace", _VARIABLE).source())
