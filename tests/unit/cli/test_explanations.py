import click
import pytest
from click.testing import CliRunner

from millrace.cli.command import Command
from millrace.cli.explanations import explain
from millrace.cli.failures import ExitCode
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


def test_no_broker_is_answered_with_how_to_start_one() -> None:
    assert "millrace up" in explain(errors.ConnectionFailedError("nobody there"), {}).hint


def test_hints_name_the_topic_of_the_command() -> None:
    failure = explain(errors.TopicAlreadyExistsError("there is one"), {"topic": "flights"})
    assert "millrace topic alter flights" in failure.hint


def test_without_a_controller_nobody_is_told_to_start_a_broker() -> None:
    failure = explain(errors.NotControllerError("there is no controller"), {})
    assert failure.exit_code == ExitCode.UNHEALTHY
    assert failure.hint == "`millrace cluster health` shows what is wrong"
    in_doubt = errors.NotControllerError("it stopped", appended=errors.Appended.MAYBE)
    assert "look before you repeat" in explain(in_doubt, {}).hint
    assert "millrace cluster health" in explain(in_doubt, {}).hint


def test_a_write_that_may_have_been_done_is_not_to_be_repeated_blindly() -> None:
    assert "look before you repeat" in explain(errors.DeliveryTimedOutError("late"), {}).hint
    assert explain(errors.BrokerBusyError("busy"), {}).hint == ""
