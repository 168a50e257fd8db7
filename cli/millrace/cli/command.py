"""The common behaviour of commands: help with examples, and one message for a failure."""

import warnings
from collections import UserDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

import click
from click.core import ParameterSource

from millrace.cli.cluster import DEFAULT_BOOTSTRAP
from millrace.cli.console.failures import ExitCode, Failure, JsonFailure
from millrace.cli.console.interruption import ending_in_order, exit_code_of
from millrace.cli.console.standard_streams import check_written, end_output
from millrace.cli.credentials import NO_CREDENTIALS, Credentials, put, variable
from millrace.cli.explanations import explain
from millrace.core.addresses import parse_addresses
from millrace.core.errors import MillraceError

if TYPE_CHECKING:
    from millrace.cli.profiles import Profile

_OTHERS_SAY: Final = "others say where brokers are"
_SHORT_HELP_MAX = 200
"""Characters of a first sentence in a list of commands. It is wrapped, and need not be cut."""


class _Teaching(click.Command):
    """A command whose help ends with examples.

    Args:
        examples: command lines, one a line, with `#` comments between them.
        writes: it changes something, so after some errors the outcome is unknown.
    """

    def __init__(self, *args: Any, examples: str = "", writes: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.writes = writes
        self.examples = [line.strip() for line in examples.strip().splitlines()]

    def get_short_help_str(self, limit: int = _SHORT_HELP_MAX) -> str:
        return super().get_short_help_str(max(limit, _SHORT_HELP_MAX))

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self.examples:
            with formatter.section("Examples"):
                for line in self.examples:
                    formatter.write(f"  {line}\n")
        super().format_epilog(ctx, formatter)

    def invoke(self, ctx: click.Context) -> Any:
        # In the outermost group this parses the words of the command line, and imports the command.
        try:
            with ending_in_order() if ctx.parent is None else nullcontext():
                return super().invoke(ctx)
        except (KeyboardInterrupt, click.Abort) as error:  # Abort: at a question.
            _end_interrupted(ctx, exit_code_of(error))
        except click.exceptions.Exit:
            raise  # A command in this group has ended so. It is a RuntimeError, too.
        except RuntimeError as error:
            # Python's locks raise it when Ctrl-C interrupts a wait for them.
            if not isinstance(error.__context__, KeyboardInterrupt):
                raise
            _end_interrupted(ctx, exit_code_of(error))


class Command(_Teaching):
    """A command that turns errors into one message, or with `--output json` into one document."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        with _failing_as_asked(ctx):
            return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        with _failing_as_asked(ctx):
            return self._invoke(ctx)

    def _invoke(self, ctx: click.Context) -> Any:
        try:
            result = super().invoke(ctx)
            check_written()
            return result
        except MillraceError as error:
            raise explain(error, ctx.params, writes=self.writes) from error
        except OSError as error:
            if error.filename is not None:
                raise Failure(f"{error.filename}: {error.strerror}") from error
            raise Failure(f"the operating system refused: {error.strerror}") from error


class CommandModules(UserDict[str, Any]):
    """Commands of a group by name, each the name of the module that has it as `command` at first.

    The module is imported when the command is looked up: to import all of them would take a third
    of the time of a short command.
    """

    def __getitem__(self, name: str) -> click.Command:
        found = self.data[name]
        if isinstance(found, str):
            found = self.data[name] = import_module(found).command
        command: click.Command = found
        return command


class Group(_Teaching, click.Group):
    """A group of commands."""

    command_class = Command

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)  # In the order of use, not of the alphabet.


@contextmanager
def _failing_as_asked(ctx: click.Context) -> Iterator[None]:
    try:
        yield
    except click.ClickException as error:
        if ctx.params.get("output") == "json":
            raise JsonFailure(error) from error
        raise


def _end_interrupted(ctx: click.Context, exit_code: ExitCode) -> NoReturn:
    # Ctrl-C between making a coroutine and starting it causes a warning that is no use.
    warnings.simplefilter("ignore", RuntimeWarning)
    end_output()
    if exit_code is ExitCode.INTERRUPTED:
        click.echo(err=True)  # The terminal shows `^C` on the current line.
    ctx.exit(exit_code)


def _checked_bootstrap(value: str) -> str:
    scheme, is_address, _ = value.partition("://")
    if is_address:
        raise click.BadParameter(f"{value!r}: write HOST:PORT, without {scheme}://")
    try:
        parse_addresses(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    return value


def _bootstrap_value(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> str | None:
    """Return the brokers' addresses: those of the option, or of the profile that goes before.

    The credentials for them go along: see `credentials`.
    """
    assert parameter.name is not None
    prefix = parameter.name.removesuffix("bootstrap")
    profile = _profile_meant(context, prefix, has_default=value is not None)
    if profile is None:
        return None if value is None else _checked_bootstrap(value)
    _use(context, prefix, profile.credentials)
    return profile.bootstrap


def _profile_meant(context: click.Context, prefix: str, *, has_default: bool) -> "Profile | None":
    """Return the profile that says where brokers are; None: the addresses do.

    Args:
        has_default: there are addresses where nobody names any.
    """
    if _OTHERS_SAY in context.meta:
        return None
    given, named = map(context.get_parameter_source, (f"{prefix}bootstrap", f"{prefix}profile"))
    if given is named is ParameterSource.COMMANDLINE:
        raise click.UsageError("addresses and a profile are given: which is meant?")
    if given is ParameterSource.COMMANDLINE or (
        given is ParameterSource.ENVIRONMENT and named is not ParameterSource.COMMANDLINE
    ):
        return None
    from millrace.cli import profiles

    name = context.meta.get(f"{prefix}profile")
    if name is not None:
        return profiles.load().find(name)
    if not has_default:
        return None
    known = profiles.load()
    return None if known.current is None else known.find(known.current)


def instead_of_profile(context: click.Context, parameter: click.Parameter, value: bool) -> bool:
    """Take a flag by which others say where brokers are: click's hook.

    Then no profile counts, for its credentials are for its own cluster.
    """
    if value:
        context.meta[_OTHERS_SAY] = True
    return value


def _use(context: click.Context, prefix: str, credentials: Credentials) -> None:
    """Take a profile's credentials, but for those that the command line gives."""
    for name, file in credentials.or_else(NO_CREDENTIALS)._asdict().items():
        if context.get_parameter_source(prefix + name) is ParameterSource.COMMANDLINE:
            continue
        if prefix:
            context.meta[prefix + name] = file
        else:
            put(context, name, file)


def _note_profile(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> str | None:
    assert parameter.name is not None
    context.meta[parameter.name] = value
    return value


def complete_profile(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Return the profiles with this beginning; click's hook."""
    from millrace.cli import profiles

    return [name for name in profiles.load().by_name if name.startswith(incomplete)]


def _brokers_options(
    prefix: str, *, help: str, profile_help: str, **attributes: Any
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds `--bootstrap` and `--profile`, with a prefix to both names."""
    profile = click.option(
        f"--{prefix}profile",
        metavar="NAME",
        envvar=None if prefix else "MILLRACE_PROFILE",
        show_envvar=True,
        is_eager=True,
        expose_value=False,
        callback=_note_profile,
        shell_complete=complete_profile,
        help=profile_help,
    )
    bootstrap = click.option(
        f"--{prefix}bootstrap",
        metavar="HOST:PORT[,...]",
        callback=_bootstrap_value,
        help=help,
        **attributes,
    )
    return lambda command: bootstrap(profile(command))


def _put_file(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    # All clients that the command makes have their credentials from there.
    if value is not None and not context.resilient_parsing:
        assert parameter.name is not None
        put(context, parameter.name, value)


def _note_file(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    context.meta[parameter.name] = value or ""


def _credential_options(command: Callable[..., Any], prefix: str = "") -> Callable[..., Any]:
    for name, help in reversed(_CREDENTIAL_OPTIONS.items()):
        option = click.option(
            f"--{prefix}{name}",
            metavar="FILE",
            envvar=None if prefix else variable(name.replace("-", "_")),
            show_envvar=True,
            expose_value=False,
            is_eager=True,
            callback=_note_file if prefix else _put_file,
            help=_LIKEWISE[name] if prefix else help,
        )
        command = option(command)
    return command


_CREDENTIAL_OPTIONS: Final = {
    "tls-ca-file": "Speak TLS, and trust the authorities in this PEM file; `system`: those that "
    "this machine trusts; `none`: in plain text.",
    "tls-certificate-file": "Certificate to show to brokers that ask for one.",
    "tls-key-file": "Its key.",
    "token-file": "File with the token that tells brokers who calls.",
}
_LIKEWISE: Final = {
    "tls-ca-file": "Speak TLS with the cluster of --to-bootstrap or --to-profile. Nothing that is "
    "for the cluster that is read goes there.",
    "tls-certificate-file": "Certificate to show there.",
    "tls-key-file": "Its key.",
    "token-file": "File with the token for that cluster.",
}
_brokers_option = _brokers_options(
    "",
    help="Brokers to ask first; one that answers is enough.",
    profile_help="The cluster of this profile: see `millrace profile`.",
    envvar="MILLRACE_BOOTSTRAP",
    show_envvar=True,
    default=DEFAULT_BOOTSTRAP,
    show_default=f"the profile's, else {DEFAULT_BOOTSTRAP}",
)


def bootstrap_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--bootstrap`, `--profile`, and those of credentials, to a command that asks brokers."""
    return _brokers_option(_credential_options(command))


_to_brokers_option = _brokers_options(
    "to-",
    help="Brokers of the cluster to write to.  [default: the one that is read]",
    profile_help="The profile of that cluster.",
)


def to_bootstrap_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--to-bootstrap` and the others, for another cluster than the one that is read."""
    return _to_brokers_option(_credential_options(command, "to-"))


class Destination(NamedTuple):
    """Brokers that are written to, and what proves there who writes."""

    bootstrap: str
    credentials: Credentials


def destination_of(bootstrap: str, to_bootstrap: str | None) -> Destination:
    """Return where a command writes.

    What is for the cluster that is read goes to no other one: its receiver could act there in the
    caller's name.
    """
    meta = click.get_current_context().meta
    given = Credentials(*(meta.get(f"to_{name}", "") for name in Credentials._fields))
    if to_bootstrap is None or to_bootstrap == bootstrap:
        return Destination(bootstrap, given)
    return Destination(to_bootstrap, given.or_else(NO_CREDENTIALS))


literal_bootstrap_option = click.option(
    "--bootstrap",
    metavar="HOST:PORT[,...]",
    callback=lambda context, parameter, value: value and _checked_bootstrap(value),
    help="Brokers to ask first; one that answers is enough.",
)
"""`--bootstrap` of a command that talks to no brokers."""


output_option = click.option(
    "--output",
    "-o",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    is_eager=True,  # So that it is known when another option is wrong.
    help="How to print the result, and what went wrong.",
)
"""`--output` of a command whose result is a table or a document."""


def interval_option(description: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add `--interval` to a command that looks again and again."""
    return click.option(
        "--interval",
        type=click.FloatRange(min=0.2, max=3600),
        default=2.0,
        show_default=True,
        metavar="SECONDS",
        help=description,
    )


def separator_bytes(text: str | None) -> bytes | None:
    r"""Return the separator that a user wrote, `\t` for a tab.

    Raises:
        click.BadParameter: it is empty.
    """
    if text == "":
        raise click.BadParameter("must not be empty", param_hint="--key-separator")
    return None if text is None else text.replace("\\t", "\t").encode()
