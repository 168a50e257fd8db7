"""Where a broker's settings come from: a TOML file, overridden by the environment.

Nothing else in the broker reads a file of settings or the environment. The names of
`millrace.core.broker_config` are the file's: `[storage]` with `file_handles_max = 2000`, and in the
environment `MILLRACE_BROKER__STORAGE__FILE_HANDLES_MAX=2000`. Relative paths start at the working
directory.

A setting that had another name in an earlier release keeps that one, too (`FORMER_SECTIONS`). An
unknown name is refused. But the operator for Kubernetes may be of a later release than a broker,
which has to start all the same. So the operator gives settings that earlier releases lack with
another prefix, `MILLRACE_BROKER_IF_KNOWN__`: a broker ignores those that it does not know.
"""

import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from millrace.core import settings
from millrace.core.broker_config import (
    DEFAULT_METRICS_PORT,
    BrokerConfig,
    Origin,
)
from millrace.core.errors import InvalidConfigError
from millrace.core.listeners_config import DEFAULT_PORT, drpc_twin_of
from millrace.core.media import DEFAULT_MEDIA

ENVIRONMENT_PREFIX: Final = "MILLRACE_BROKER__"
IF_KNOWN_PREFIX: Final = "MILLRACE_BROKER_IF_KNOWN__"
FORMER_SECTIONS: Final = {
    "listener": ("listeners", "clients"),
    "outside_listener": ("listeners", "outside"),
    "replica_listener": ("listeners", "replicas"),
}
"""Sections at the top of the file by their names in 0.2.0, and where they are now."""


@dataclass(slots=True)
class _Given:
    """The settings that file and environment give, by their present names.

    Attributes:
        values: sections and settings.
        variables: those of the environment that were applied, by the name of the setting, or of a
            section that is not in the file.
        former: listeners that are given by former names, and the name in the file; empty: the file
            has the present one.
        problems: with these names.
    """

    values: dict[str, Any]
    variables: dict[str, str] = field(default_factory=dict)
    former: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def load(path: str | Path, environment: Mapping[str, str] = os.environ) -> BrokerConfig:
    """Read the configuration from a TOML file and `MILLRACE_BROKER__...` variables over it.

    Raises:
        InvalidConfigError: the file cannot be read, or lists every problem in it.
    """
    try:
        values = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # Not TOML, not UTF-8, too long or too deep.
        raise InvalidConfigError(f"{path}: is not TOML: {error}") from error
    given = _Given(values)
    _rename(given, path)
    _override(given, environment)
    origins = tuple(
        (name, Origin.ENVIRONMENT if name in given.variables else Origin.FILE)
        for name in _names(given.values)
    )
    _leave_out_later_listeners(given)
    return replace(_parsed(given, path), origins=origins)


def _parsed(given: _Given, place: str | Path) -> BrokerConfig:
    """Return the configuration of what is given.

    Args:
        place: where that is, but for variables; for people.

    Raises:
        InvalidConfigError: lists every problem.
    """
    if given.problems:
        raise InvalidConfigError("\n".join(given.problems))
    try:
        config = settings.parse(BrokerConfig, given.values)
        _check_directories(config)
    except InvalidConfigError as error:
        raise InvalidConfigError(_by_origin(error.message, place, given)) from error
    return config


def _rename(given: _Given, path: str | Path) -> None:
    """Give the file's sections their present names."""
    for former, (outer, name) in FORMER_SECTIONS.items():
        if former not in given.values:
            continue
        section = given.values.pop(former)
        others = given.values.setdefault(outer, {})
        given.former[name] = former
        if not isinstance(others, dict):
            continue  # Parsing says that it is a section.
        if name in others:
            given.problems.append(
                f"{path}: [{former}] is the former name of [{outer}.{name}]: give one of them"
            )
        others[name] = section


def _leave_out_later_listeners(given: _Given) -> None:
    """Open no DRPC listener beside one that has its former name, unless that is configured, too.

    A file of the release before means what it meant. Its broker might not get a further port: the
    machine may have several brokers, whose file keeps only the ports apart that it knows.
    """
    listeners = given.values.get("listeners")
    if isinstance(listeners, dict):
        for name in given.former:
            listeners.setdefault(drpc_twin_of(name), {"port": -1})


def _names(values: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Yield the full names of all settings in a file."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _names(value, f"{path}{name}.")
        else:
            yield f"{path}{name}"


def _check_directories(config: BrokerConfig) -> None:
    paths = {os.path.realpath(log_dir.path) for log_dir in config.log_directories}
    if len(paths) < len(config.log_dirs):
        named = ", ".join(config.log_dirs)
        raise InvalidConfigError(f"log_dirs = {named}: names a directory twice")


def _by_origin(problems: str, path: str | Path, given: _Given) -> str:
    """Return problems of settings, grouped by the file or variables that they come from."""
    of_file, of_variables = [], []
    for line in problems.splitlines():
        found = re.match(r"[\w.]+", line)
        variable = given.variables.get(found[0]) if found else None
        if variable is not None:
            of_variables.append(f"{variable}: {line}")
            continue
        for name, former in given.former.items():
            if former and line.startswith(f"listeners.{name}."):
                line = f"[{former}] is [listeners.{name}] now: {line}"
        of_file.append(line)
    return "\n".join([*([f"{path}:", *of_file] if of_file else []), *of_variables])


def embedded(
    data_dir: str | Path,
    *,
    log_dirs: Sequence[str] = (),
    port: int = DEFAULT_PORT,
    metrics_port: int = DEFAULT_METRICS_PORT,
    kafka_port: int = -1,
    others: Mapping[str, Any] = MappingProxyType({}),
    environment: Mapping[str, str] = MappingProxyType({}),
) -> BrokerConfig:
    """Return the configuration of `millrace up`: everything in one directory, on loopback.

    Args:
        log_dirs: directories of the logs; by default in that directory, too.
        kafka_port: where clients of Kafka connect; -1: nowhere.
        others: more settings, as in a file.
        environment: its `MILLRACE_BROKER__...` variables count over all these.

    Raises:
        InvalidConfigError: lists every problem.
    """
    values: dict[str, Any] = {
        "log_dirs": [*log_dirs] or [f"{DEFAULT_MEDIA}:{Path(data_dir, 'log')}"],
        "coordination": {"path": str(Path(data_dir, "coordination.sqlite"))},
        # Processes of one machine notice each other's end sooner than machines do.
        "cluster": {"broker_session_timeout_ms": 2000},
        "groups": {"classic_rebalance_delay_ms": 0},  # People start programs one by one.
        "listeners": {
            "clients": {"port": port},
            **{name: {"port": 0} for name in ("replicas", "clients_drpc", "replicas_drpc")},
            "clients_kafka": {"port": kafka_port},
        },
        "metrics": {"port": metrics_port},
    }
    _add(values, others)
    given = _Given(values)
    _override(given, environment)
    origins = ((name, Origin.ENVIRONMENT) for name in _names(values) if name in given.variables)
    return replace(_parsed(given, "millrace up"), origins=tuple(origins))


def _add(values: dict[str, Any], others: Mapping[str, Any]) -> None:
    """Put settings beside those that are there, section by section, or in their place."""
    for name, value in others.items():
        if isinstance(value, Mapping):
            _add(values.setdefault(name, {}), value)
        else:
            values[name] = value


def _is_known(sections: Sequence[str], name: str) -> bool:
    """Whether this release has a setting."""
    found: type = BrokerConfig
    for section in sections:
        inner = settings.sections_of(found).get(section)
        if inner is None:
            return False
        found = inner
    return name in settings.settings_of(found)


def _override(given: _Given, environment: Mapping[str, str]) -> None:
    """Override the file's settings by the environment's."""
    # A variable, without its prefix and with it, by the setting's name.
    names: dict[str, tuple[str, str]] = {}
    for variable, value in sorted(environment.items()):
        prefix = next(filter(variable.startswith, (ENVIRONMENT_PREFIX, IF_KNOWN_PREFIX)), None)
        if prefix is None:
            continue
        written = variable.removeprefix(prefix)
        *sections, name = written.lower().split("__")
        former = sections[0] if sections and sections[0] in FORMER_SECTIONS else None
        if former is not None:
            sections[:1] = FORMER_SECTIONS[former]
        if prefix == IF_KNOWN_PREFIX and not _is_known(sections, name):
            continue
        full_name = ".".join((*sections, name))
        known, other = names.setdefault(full_name, (written, variable))
        if known != written:
            given.problems.append(f"{variable}: {other} is {full_name}, too: give one of them")
            continue
        place = given.values
        for depth, section in enumerate(sections, 1):
            if section not in place:
                given.variables[".".join(sections[:depth])] = variable
            place = place.setdefault(section, {})
            if not isinstance(place, dict):
                given.problems.append(f"{variable}: {section} is a setting, not a section")
                break
        else:
            if former is not None:
                given.former.setdefault(sections[1], "")
            place[name] = value
            given.variables[full_name] = variable
