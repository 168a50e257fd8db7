"""`millrace up`: brokers with no configuration at all, everything in one directory."""

import os
import shlex
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from millrace.cli.cluster import DEFAULT_BOOTSTRAP
from millrace.cli.command import Command, output_option
from millrace.cli.console.failures import ExitCode, Failure
from millrace.cli.console.output import announce_json, announce_line
from millrace.cli.console.stop_signals import stop_signals
from millrace.cli.local.announcement import Login, announce, cluster_greeting
from millrace.cli.local.insecure import insecure_option
from millrace.core.addresses import PORT_MAX, is_loopback
from millrace.core.errors import InvalidConfigError
from millrace.core.listeners_config import DEFAULT_KAFKA_PORT

if TYPE_CHECKING:
    from millrace.broker.app import BrokerAddress
    from millrace.cli.local.access_folder import AccessFolder
    from millrace.cli.local.tls_folder import TlsFolder
    from millrace.cli.local.web_page import WebPage

_PORT_DEFAULT = int(DEFAULT_BOOTSTRAP.rpartition(":")[2])
_WEB_PORT_ABOVE = 6
"""Distance from the port for clients to that of the web page, between those of other brokers."""
_PORTS_AWAY = 100
"""Distance from the ports of a running broker to those of another one beside it."""
_BROKERS_MAX = 9
_DATA_DIR = "millrace-data"
_TLS_FOLDER = "tls"
_LOOPBACK = "127.0.0.1"
_SETTINGS_HINT = (
    "--port is listeners.clients.port, --metrics-port is metrics.port, --data-dir holds the rest; "
    "MILLRACE_BROKER__... variables count over these"
)


def _log_dirs_value(
    context: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> list[str]:
    from millrace.core.broker_config import LogDirConfig

    try:
        found = [LogDirConfig.parse(value) for value in values]
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    return [f"{log_dir.media}:{Path(log_dir.path).absolute()}" for log_dir in found]


@click.command(
    "up",
    cls=Command,
    examples="""
    millrace up                                    # data in ./millrace-data
    millrace up --data-dir /var/lib/millrace --port 7192
    millrace up --brokers 3                        # a cluster, each broker a process
    millrace up --log-dir ssd:/fast/log --log-dir hdd:/large/log
    millrace up --port 0 --output json             # any free port, the address as JSON
    millrace up --kafka                            # for clients of Kafka, too, on port 9092
    millrace up --tls                              # by TLS, with certificates that it makes
    millrace up --access access                    # only for who has a token: rules in ./access
    millrace up --tls --access access --host 0.0.0.0    # for other machines, too
    """,
)
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False),
    default=_DATA_DIR,
    show_default=True,
    help="Where everything is kept; made when it is not there.",
)
@click.option(
    "--log-dir",
    "log_dirs",
    callback=_log_dirs_value,
    multiple=True,
    metavar="[MEDIA:]PATH",
    help="Where logs are kept, one for each disk, as ssd:PATH or hdd:PATH; may be repeated. Of the "
    "second broker it is PATH-1, and so on.  [default: ssd:log, in --data-dir]",
)
@click.option(
    "--port",
    type=click.IntRange(0, PORT_MAX),
    default=_PORT_DEFAULT,
    show_default=True,
    help="Port for clients; 0: any that is free.",
)
@click.option(
    "--host",
    default=_LOOPBACK,
    show_default=True,
    help="Address for clients; 0.0.0.0: all of this machine's, and clients are told its name. "
    "Another one than the default needs --tls and --access, or else --insecure.",
)
@click.option(
    "--metrics-port",
    type=click.IntRange(-1, PORT_MAX),
    help="Port of the metrics page; -1: none.  [default: the port after --port]",
)
@click.option(
    "--web-port",
    type=click.IntRange(-1, PORT_MAX),
    help="Port of the web page, on this machine only; -1: none.  [default: 6 above --port, or any "
    "that is free]",
)
@click.option(
    "--kafka",
    "kafka_port",
    is_flag=False,
    flag_value=DEFAULT_KAFKA_PORT,
    default=-1,
    type=click.IntRange(-1, PORT_MAX),
    metavar="[PORT]",
    help="Serve clients of Kafka, too, by its own protocol.  [default: no; PORT: "
    f"{DEFAULT_KAFKA_PORT}]",
)
@click.option(
    "--brokers",
    type=click.IntRange(1, _BROKERS_MAX),
    default=1,
    show_default=True,
    help="How many brokers; the ports of each are 10 above those of the one before.",
)
@click.option(
    "--access",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder with the rules and tokens of who may do what, made when it is not there, with a "
    "token that may do everything. The web page asks for a token, too.  [default: everybody on "
    "this machine may do everything]",
)
@click.option(
    "--tls",
    is_flag=False,
    flag_value="",
    metavar="[FOLDER]",
    help="Speak TLS, with an authority and certificates in FOLDER. Missing ones are made, and "
    f"each is renewed before it ends.  [FOLDER: {_TLS_FOLDER}, in --data-dir]",
)
@insecure_option
@click.option("--verbose", "-v", is_flag=True, help="Log all that the broker does.")
@output_option
def command(
    *,
    data_dir: str,
    log_dirs: list[str],
    port: int,
    host: str,
    metrics_port: int | None,
    web_port: int | None,
    kafka_port: int,
    brokers: int,
    access: Path | None,
    tls: str | None,
    insecure: bool,
    verbose: bool,
    output: str,
) -> None:
    """Run a broker, or several, on this machine, with no configuration at all.

    Data in one directory, but for --log-dir, and clients from this machine only by default. Every
    acknowledged record is on disk. Ctrl-C stops it gracefully; started again on the same directory,
    it goes on. Several brokers are a process each and replicate: one that is killed is started
    again, and nothing is lost. Where that fails the others go on, and the exit code tells of it in
    the end. A web page shows what is there, also the records: see `millrace web`.

    Other settings of the brokers are given as variables, such as
    MILLRACE_BROKER__CLUSTER__DEFAULT_PARTITIONS=4, which count over the options.
    """
    chosen_metrics_port = metrics_port
    if metrics_port is None:
        metrics_port = port + 1 if 0 < port < PORT_MAX else 0
    if not insecure:
        _check_guarded(host, has_tls=tls is not None, has_access=access is not None)
    folder_of_access = None
    if access is not None:
        from millrace.cli.local.access_folder import access_folder

        folder_of_access = access_folder(access)
    with ExitStack() as endings:
        web = endings.enter_context(_web_page(web_port, port))
        certificates = None
        if tls is not None:
            certificates = _certificates(tls, data_dir, brokers, host)
            endings.enter_context(certificates.looked_after())
        guarded = _Guarded(host, certificates, folder_of_access, insecure)
        if brokers > 1:
            folder = Path(data_dir).absolute()
            first = log_dirs or [str(folder / "log")]
            others = [[f"{log_dir}-{number}" for log_dir in first] for number in range(1, brokers)]
            _run_cluster(
                folder,
                [first, *others],
                port,
                metrics_port,
                web,
                kafka_port=kafka_port,
                guarded=guarded,
                is_verbose=verbose,
                output=output,
            )
            return
        from millrace.broker import config, process
        from millrace.cli.local.local_cluster import broker_name

        shown = str(Path(data_dir).absolute())
        tell = announce(
            output,
            data=shown,
            teach=True,
            web_address="" if web is None else web.address,
            login=guarded.login,
        )

        def on_ready(address: "BrokerAddress") -> None:
            if web is not None:
                web.start(address.address, guarded.login.tls_ca_file)
            tell(address)

        try:
            settings = config.embedded(
                data_dir,
                log_dirs=log_dirs,
                port=port,
                metrics_port=metrics_port,
                kafka_port=kafka_port,
                others={
                    **_others(guarded, is_verbose=verbose),
                    "listeners": guarded.listeners(broker_name(0)),
                    "insecure": insecure,
                },
                environment=os.environ,
            )
            exit_code = process.run(settings, on_ready, stop_signals())
        except InvalidConfigError as error:
            other_kafka = str(min(kafka_port + _PORTS_AWAY, PORT_MAX)) if kafka_port > 0 else "0"
            more = [
                *(("--kafka", other_kafka) if kafka_port >= 0 else ()),
                *(("--host", host) if host != _LOOPBACK else ()),
                *(("--tls", *([tls] if tls else [])) if tls is not None else ()),
                *(("--access", str(access)) if access is not None else ()),
                *(("--insecure",) if insecure else ()),
            ]
            hint = _hint(error.message, data_dir, log_dirs, port, chosen_metrics_port, more=more)
            raise Failure(error.message, hint, code_name=error.name()) from error
    raise SystemExit(exit_code)


class _Guarded(NamedTuple):
    """Who reaches the brokers, and how.

    Attributes:
        host: where they listen for clients.
        certificates: of the brokers; None: connections are in plain text.
        access: who may do what; None: everybody may do everything.
        is_insecure: whether they start where others reach them all the same.
    """

    host: str
    certificates: "TlsFolder | None"
    access: "AccessFolder | None"
    is_insecure: bool

    @property
    def login(self) -> Login:
        """What clients on this machine need."""
        return Login(
            "" if self.certificates is None else str(self.certificates.ca_file),
            "" if self.access is None else str(self.access.first_token),
        )

    def listeners(self, broker: str) -> dict[str, dict[str, str]]:
        """Return settings of a broker's listeners."""
        found = {} if self.certificates is None else self.certificates.listeners(broker)
        return {**found, "clients": {"host": self.host, **found.get("clients", {})}}


def _others(guarded: _Guarded, *, is_verbose: bool) -> dict[str, dict[str, str]]:
    """Return settings of all brokers, in sections."""
    quiet = {"logging": {"level": "warning", "audit": "refusals"}}
    access = {} if guarded.access is None else {"access": guarded.access.settings}
    return {**access, **({} if is_verbose else quiet)}


def _check_guarded(host: str, *, has_tls: bool, has_access: bool) -> None:
    """Refuse to let other machines in without TLS, or without rules."""
    if is_loopback(host) or (has_tls and has_access):
        return
    lacking = [
        *(() if has_tls else ("in plain text",)),
        *(() if has_access else ("to do everything",)),
    ]
    raise Failure(
        f"other machines would reach {host}, {' and '.join(lacking)}",
        f"`millrace up --host {host} --tls --access access` makes certificates, rules and a first "
        "token; --insecure is for networks whose machines are all trusted",
        exit_code=ExitCode.USAGE,
    )


def _certificates(tls: str, data_dir: str, brokers: int, host: str) -> "TlsFolder":
    from millrace.cli.local.local_cluster import broker_name
    from millrace.cli.local.tls_folder import TlsFolder

    folder = Path(tls) if tls else Path(data_dir, _TLS_FOLDER)
    return TlsFolder(folder, [broker_name(number) for number in range(brokers)], host)


def _web_page(web_port: int | None, port: int) -> "AbstractContextManager[WebPage | None]":
    """Return the web page; None: no user wants one."""
    from millrace.cli.local.web_page import WebPage

    if web_port == -1:
        return nullcontext()
    if web_port is not None:
        return WebPage(web_port, is_chosen=True)
    near = port + _WEB_PORT_ABOVE if 0 < port <= PORT_MAX - _WEB_PORT_ABOVE else 0
    return WebPage(near, is_chosen=False)


def _hint(
    problem: str,
    data_dir: str,
    log_dirs: Sequence[str],
    port: int,
    metrics_port: int | None,
    *,
    more: Sequence[str],
) -> str:
    """Return the command line that works when another broker is up already.

    Args:
        more: options of who gets in, which stay.
    """
    other_port = port + _PORTS_AWAY if 0 < port <= PORT_MAX - _PORTS_AWAY else 0
    words = ["millrace", "up", "--port", str(other_port)]
    if metrics_port is not None and metrics_port > 0:
        words += ["--metrics-port", "0"]
    if "cannot be served on" in problem:
        if data_dir != _DATA_DIR:
            words += ["--data-dir", data_dir]
        words += [f"--log-dir={log_dir}" for log_dir in log_dirs]
        return f"`{shlex.join([*words, *more])}` takes other ports"
    if "another broker uses" in problem:
        words += ["--data-dir", f"{data_dir}-2"]
        words += [f"--log-dir={log_dir}-2" for log_dir in log_dirs]
        beside = shlex.join([*words, *more])
        return (
            f"another one beside it: `{beside}`; several that are one cluster: "
            "`millrace up --brokers 3`"
        )
    return _SETTINGS_HINT


def _run_cluster(
    folder: Path,
    logs: Sequence[Sequence[str]],
    port: int,
    metrics_port: int,
    web: "WebPage | None",
    *,
    kafka_port: int,
    guarded: "_Guarded",
    is_verbose: bool,
    output: str,
) -> None:
    """Run as many brokers as there are `log_dirs` in `logs`."""
    from millrace.cli.local import local_cluster
    from millrace.core.broker_config import LogDirConfig
    from millrace.core.metadata.cluster_config import usual_replication_factor

    highest = max(port, metrics_port, kafka_port) + (len(logs) - 1) * local_cluster.PORTS_APART
    if highest > PORT_MAX:
        raise click.BadParameter(f"the last broker's ports would be above {PORT_MAX}")
    folder.mkdir(parents=True, exist_ok=True)
    directories = [LogDirConfig.parse(log_dir) for log_dirs in logs for log_dir in log_dirs]
    is_first = not all(Path(directory.path).exists() for directory in directories)
    paths = []
    for number, log_dirs in enumerate(logs):
        paths.append(folder / f"{local_cluster.broker_name(number)}.toml")
        text = local_cluster.configuration(
            folder,
            number,
            brokers=usual_replication_factor(len(logs)),
            log_dirs=log_dirs,
            port=port,
            metrics_port=metrics_port,
            kafka_port=kafka_port,
            listeners=guarded.listeners(local_cluster.broker_name(number)),
            others=_others(guarded, is_verbose=is_verbose),
            is_insecure=guarded.is_insecure,
        )
        paths[-1].write_text(text, encoding="utf-8")
    cluster = local_cluster.LocalCluster(paths, output)
    try:
        ready = cluster.start(in_turn=is_first)
        web_address = ""
        if web is not None:
            web.start(",".join(broker.address for broker in ready), guarded.login.tls_ca_file)
            web_address = web.address
        if output == "json":
            facts = {
                "brokers": [asdict(broker) for broker in ready],
                "data": str(folder),
                "web_address": web_address or None,
                **guarded.login.facts,
            }
            announce_json(facts)
        else:
            announce_line(cluster_greeting(ready, str(folder), web_address, guarded.login))
        given_up = cluster.supervise()
    except local_cluster.StartFailedError as error:
        if cluster.is_stopping:
            return
        hint = (
            "its own message is above; to change a setting, use --port, --metrics-port, --data-dir "
            "or MILLRACE_BROKER__... variables, for the file is written at each start"
        )
        raise Failure(str(error), hint) from error
    finally:
        cluster.stop()
    if given_up:
        raise Failure(f"{', '.join(given_up)} did not start again", "why is said above")
