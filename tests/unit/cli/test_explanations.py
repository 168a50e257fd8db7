import json
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from millrace.cli.cluster import DEFAULT_BOOTSTRAP
from millrace.cli.command import Command, output_option
from millrace.cli.console.failures import ExitCode
from millrace.cli.explanations import exit_code_of, explain
from millrace.cli.main import cli
from millrace.core import errors

LEAVES = sorted(errors.ERRORS_BY_CODE.values(), key=lambda leaf: leaf.code)


def failing(error: BaseException) -> click.Command:
    """A command that meets the error."""

    @click.command(cls=Command)
    @click.argument("topic", default="flights")
    def command(topic: str) -> None:
        raise error

    return command


@pytest.mark.parametrize("leaf", LEAVES, ids=lambda leaf: leaf.name())
def test_every_error_becomes_one_message_with_its_code_and_no_trace(
    leaf: type[errors.MillraceError],
) -> None:
    result = CliRunner().invoke(failing(leaf("the disk said no")), [])
    assert result.stdout == ""
    assert result.stderr.startswith(f"error: the disk said no ({leaf.name()})\n")
    assert "Traceback" not in result.stderr
    assert result.exit_code not in (ExitCode.DONE, ExitCode.USAGE)


def test_with_output_json_an_error_is_one_line_of_json() -> None:
    @click.command(cls=Command)
    @click.argument("topic", type=int)
    @output_option
    def command(topic: int, output: str) -> None:
        raise errors.TopicAlreadyExistsError("there is one")

    failed = CliRunner().invoke(command, ["1", "--output", "json"])
    assert (failed.exit_code, failed.stdout) == (ExitCode.FAILED, "")
    told = json.loads(failed.stderr)
    assert (told["error"], told["message"]) == ("TOPIC_ALREADY_EXISTS", "there is one")
    assert "millrace topic describe" in told["hint"]
    assert told["exit_code"] == ExitCode.FAILED

    misused = CliRunner().invoke(command, ["one", "--output", "json"])
    assert misused.exit_code == ExitCode.USAGE
    told = json.loads(misused.stderr)
    assert (told["error"], told["exit_code"]) == (None, ExitCode.USAGE)
    assert "'one' is not a valid integer" in told["message"]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.ConnectionFailedError(""), ExitCode.UNREACHABLE),
        (errors.UnknownTopicOrPartitionError(""), ExitCode.NOT_FOUND),
        (errors.OffsetOutOfRangeError(""), ExitCode.NOT_FOUND),
        (errors.DeliveryTimedOutError(""), ExitCode.TIMED_OUT),
        (errors.CorruptBatchError(""), ExitCode.DAMAGED),
        (errors.TopicAlreadyExistsError(""), ExitCode.FAILED),
        (KeyboardInterrupt(), ExitCode.INTERRUPTED),
        (click.Abort(), ExitCode.INTERRUPTED),  # Ctrl-C at a question.
    ],
    ids=lambda argument: type(argument).__name__,
)
def test_scripts_can_tell_failures_by_their_exit_code(error: BaseException, code: ExitCode) -> None:
    assert CliRunner().invoke(failing(error), []).exit_code == code


def test_ctrl_c_in_the_middle_of_a_wait_is_an_interruption_too() -> None:
    error = RuntimeError("cannot release un-acquired lock")
    error.__context__ = KeyboardInterrupt()
    assert CliRunner().invoke(failing(error), []).exit_code == ExitCode.INTERRUPTED


def test_a_mistake_of_our_own_is_not_hidden() -> None:
    error = RuntimeError("a bug")
    assert CliRunner().invoke(failing(error), []).exception is error


def unreachable(*addresses: str, paused: str = "") -> errors.ConnectionFailedError:
    """The client's error when nobody listens at some addresses, and one does not answer."""
    problems = [f"no broker listens at {address}" for address in addresses]
    problems += [f"the broker at {paused} did not answer in 10 s"] if paused else []
    return errors.ConnectionFailedError("no broker can be reached: " + "; ".join(problems))


def test_no_broker_at_the_usual_address_is_answered_with_how_to_start_one() -> None:
    usual = {"bootstrap": DEFAULT_BOOTSTRAP}
    assert "millrace up" in explain(unreachable(DEFAULT_BOOTSTRAP), usual).hint


@pytest.mark.parametrize(
    ("error", "bootstrap"),
    [
        (unreachable("a:1", "b:1"), "a:1,b:1"),
        (unreachable("a:1", paused="b:1"), "a:1,b:1"),
        (unreachable(paused=DEFAULT_BOOTSTRAP), DEFAULT_BOOTSTRAP),
    ],
)
def test_brokers_of_ones_own_that_cannot_be_reached_are_not_started_on_this_machine(
    error: errors.ConnectionFailedError, bootstrap: str
) -> None:
    failure = explain(error, {"bootstrap": bootstrap})
    assert failure.message == error.message
    assert "millrace up" not in failure.hint
    assert "--bootstrap" in failure.hint


@pytest.mark.parametrize(
    ("problem", "advice"),
    [
        ("it speaks TLS, and this client does not", "profile set PROFILE --tls-ca-file FILE`"),
        ("it does not speak TLS: leave tls_ca_file away", "--tls-ca-file none"),
    ],
)
def test_where_only_one_end_speaks_tls_the_option_is_named(problem: str, advice: str) -> None:
    error = errors.ConnectionFailedError(f"no broker can be reached: a:1: {problem}")
    assert advice in explain(error, {"bootstrap": "a:1"}).hint


@pytest.mark.parametrize(
    "problem",
    [
        "UNAVAILABLE: Failed parsing HTTP/2 (Expected SETTINGS frame as the first frame)",
        "UNIMPLEMENTED: Method not found!",
    ],
)
def test_a_port_that_is_not_for_clients_is_told_from_one_where_nobody_listens(problem: str) -> None:
    error = errors.ConnectionFailedError(f"no broker can be reached: the call failed: {problem}")
    assert "no broker's port for clients" in explain(error, {"bootstrap": "a:1"}).hint


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("localhost", "write host:port, such as localhost:7092"),
        ("http://127.0.0.1:7092", "write HOST:PORT, without http://"),
    ],
)
def test_an_address_that_is_none_is_a_wrong_command_line(given: str, told: str) -> None:
    result = CliRunner().invoke(cli, ["topic", "list", "--bootstrap", given])
    assert result.exit_code == ExitCode.USAGE
    assert told in " ".join(result.stderr.split())


def test_what_was_refused_for_one_reason_ends_with_the_code_of_that() -> None:
    unknown = errors.UnknownTopicOrPartitionError("there is no partition t-9")
    unled = errors.EligibleLeadersNotAvailableError("nobody is alive")
    assert exit_code_of([unknown, unknown]) == ExitCode.NOT_FOUND
    assert exit_code_of([unled]) == ExitCode.UNHEALTHY
    assert exit_code_of([unknown, unled]) == ExitCode.FAILED


def test_one_broker_that_cannot_be_reached_is_not_taken_for_all_of_them() -> None:
    error = errors.ConnectionFailedError("no broker listens at 127.0.0.1:7102")
    failure = explain(error, {"bootstrap": DEFAULT_BOOTSTRAP})
    assert failure.message == error.message
    assert "millrace cluster health" in failure.hint
    assert "millrace up" not in failure.hint


def test_hints_name_the_topic_of_the_command() -> None:
    failure = explain(errors.TopicAlreadyExistsError("there is one"), {"topic": "flights"})
    assert "millrace topic alter flights" in failure.hint


def test_nobody_is_told_to_make_a_topic_of_the_cluster_itself() -> None:
    error = errors.UnknownTopicOrPartitionError("there is no topic __positions")
    nobody = {"topic": "__positions", "bootstrap": "127.0.0.1:1"}
    assert "topic create" not in explain(error, nobody).hint
    assert "topic create flights" in explain(error, nobody | {"topic": "flights"}).hint


def test_without_a_controller_nobody_is_told_to_start_a_broker() -> None:
    failure = explain(errors.NotControllerError("there is no controller"), {})
    assert failure.exit_code == ExitCode.UNHEALTHY
    assert failure.hint == "`millrace cluster health` shows what is wrong"
    in_doubt = errors.NotControllerError("it stopped", appended=errors.Appended.MAYBE)
    hint = explain(in_doubt, {}, writes=True).hint
    assert "look before you repeat" in hint
    assert "millrace cluster health" in hint


def test_a_write_that_may_have_been_done_is_not_to_be_repeated_blindly() -> None:
    late = errors.DeliveryTimedOutError("late")
    assert "look before you repeat" in explain(late, {}, writes=True).hint
    assert explain(errors.BrokerBusyError("busy"), {}, writes=True).hint == ""
    silent = errors.ConnectionFailedError("no broker answered", appended=errors.Appended.MAYBE)
    assert "look before you repeat" in explain(silent, {}, writes=True).hint


def test_what_writes_nothing_has_no_write_that_may_have_been_done() -> None:
    assert explain(errors.RequestTimedOutError("late"), {}).hint == ""
    assert "millrace cluster health" in explain(errors.NotLeaderError("nobody leads"), {}).hint


def test_commands_that_change_something_say_so() -> None:
    writing = {
        "produce",
        "perf produce",
        "copy",
        "topic create",
        "topic alter",
        "topic delete",
        "topic undelete",
        "topic purge",
        "topic trim",
        "cluster drain",
        "cluster undrain",
        "cluster unregister",
        "elect-leaders",
        "reassign apply",
        "reassign cancel",
        "group reset",
        "group forget",
        "group delete",
        "transaction abort",
        "transaction forget-version",
        "transaction hanging",
        "quota set",
        "quota delete",
    }
    assert {name for name, command in commands(cli) if command.writes} == writing


def commands(group: click.Group, prefix: str = "") -> Iterator[tuple[str, Command]]:
    """Every command with its name."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, f"{prefix}{name} ")
        elif isinstance(command, Command):
            yield prefix + name, command
