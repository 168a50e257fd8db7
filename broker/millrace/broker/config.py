"""Where a broker's settings come from: a TOML file, overridden by the environment.

Nothing else in the broker reads a file of settings or the environment. The names of
`millrace.core.broker_config` are the file's: `[storage]` with `file_handles_max = 2000`, and in the
environment `MILLRACE_BROKER__STORAGE__FILE_HANDLES_MAX=2000`. Relative paths start at the working
directory.

An unknown name is refused. But the operator for Kubernetes may be of a later release than a broker,
which has to start all the same. So the operator gives settings that earlier releases lack with
another prefix, `MILLRACE_BROKER_IF_KNOWN__`: a broker ignores those that it does not know.
"""

import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from millrace.core import settings
from millrace.core.broker_config import (
    DEFAULT_METRICS_PORT,
    DEFAULT_PORT,
    BrokerConfig,
    CoordinationConfig,
    ListenerConfig,
    MetricsConfig,
    Origin,
    ReplicaListenerConfig,
)
from millrace.core.errors import InvalidConfigError
from millrace.core.media import DEFAULT_MEDIA
from millrace.core.metadata.cluster_config import ClusterConfig

ENVIRONMENT_PREFIX: Final = "MILLRACE_BROKER__"
IF_KNOWN_PREFIX: Final = "MILLRACE_BROKER_IF_KNOWN__"


def load(path: str | Path, environment: Mapping[str, str] = os.environ) -> BrokerConfig:
    """Read the configuration from a TOML file and `MILLRACE_BROKER__...` variables over it.

    Raises:
        InvalidConfigError: the file cannot be read, or lists every problem in it.
    """
    try:
        values = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidConfigError(f"{path}: is not TOML: {error}") from error
    variables: dict[str, str] = {}
    problems = _override(values, environment, variables)
    if problems:
        raise InvalidConfigError("\n".join(problems))
    try:
        config = settings.parse(BrokerConfig, values)
        _check_directories(config)
    except InvalidConfigError as error:
        raise InvalidConfigError(_by_origin(error.message, path, variables)) from error
    origins = (
        (name, Origin.ENVIRONMENT if name in variables else Origin.FILE) for name in _names(values)
    )
    return replace(config, origins=tuple(origins))


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


def _by_origin(problems: str, path: str | Path, variables: Mapping[str, str]) -> str:
    """Return problems of settings, grouped by the file or variables that they come from."""
    of_file, of_variables = [], []
    for line in problems.splitlines():
        found = re.match(r"[\w.]+", line)
        variable = variables.get(found[0]) if found else None
        if variable is None:
            of_file.append(line)
        else:
            of_variables.append(f"{variable}: {line}")
    return "\n".join([*([f"{path}:", *of_file] if of_file else []), *of_variables])


def embedded(
    data_dir: str | Path,
    *,
    log_dirs: Sequence[str] = (),
    port: int = DEFAULT_PORT,
    metrics_port: int = DEFAULT_METRICS_PORT,
) -> BrokerConfig:
    """Return the configuration of `millrace up`: everything in one directory, on loopback.

    Args:
        log_dirs: directories of the logs; by default in that directory, too.
    """
    return BrokerConfig(
        log_dirs=tuple(log_dirs) or (f"{DEFAULT_MEDIA}:{Path(data_dir, 'log')}",),
        coordination=CoordinationConfig(path=str(Path(data_dir, "coordination.sqlite"))),
        # Processes of one machine notice each other's end sooner than machines do.
        cluster=ClusterConfig(broker_session_timeout_ms=2000),
        listener=ListenerConfig(port=port),
        replica_listener=ReplicaListenerConfig(port=0),
        metrics=MetricsConfig(port=metrics_port),
    )


def _is_known(sections: Sequence[str], name: str) -> bool:
    """Whether this release has a setting."""
    found: type = BrokerConfig
    for section in sections:
        inner = settings.sections_of(found).get(section)
        if inner is None:
            return False
        found = inner
    return name in settings.settings_of(found)


def _override(
    values: dict[str, Any], environment: Mapping[str, str], variables: dict[str, str]
) -> list[str]:
    """Override the file's settings by the environment's; return the unknown ones.

    Args:
        values: of the file; is changed.
        environment: all variables.
        variables: gets those that were applied, by the name of the setting, or of a section that is
            not in the file.
    """
    problems = []
    for variable, value in sorted(environment.items()):
        prefix = next(filter(variable.startswith, (ENVIRONMENT_PREFIX, IF_KNOWN_PREFIX)), None)
        if prefix is None:
            continue
        *sections, name = variable.removeprefix(prefix).lower().split("__")
        if prefix == IF_KNOWN_PREFIX and not _is_known(sections, name):
            continue
        place = values
        for depth, section in enumerate(sections, 1):
            if section not in place:
                variables[".".join(sections[:depth])] = variable
            place = place.setdefault(section, {})
            if not isinstance(place, dict):
                problems.append(f"{variable}: {section} is a setting, not a section")
                break
        else:
            place[name] = value
            variables[".".join((*sections, name))] = variable
    return problems
