"""Profiles: named clusters in a file of the user, so that commands need no addresses.

The file is `millrace/config.toml` in the user's folder of configuration, by the XDG rules:

    current = "staging"

    [profiles.staging]
    bootstrap = "broker-0.staging:7092,broker-1.staging:7092"
    tls_ca_file = "staging/ca.crt"
    token_file = "staging/token"

Files are relative to the folder of this one. No other cluster gets what they prove, and this one
gets no other credentials. `millrace profile` writes the file, and so may people. A command that
finds something unknown there says so and does nothing, as it could be about another cluster than
the user means.
"""

import json
import os
import re
from dataclasses import MISSING, dataclass, field, replace
from pathlib import Path
from typing import Any, Final, cast

from millrace.cli.console.failures import ExitCode, Failure, did_you_mean
from millrace.cli.credentials import Credentials, absolute
from millrace.core.addresses import parse_addresses
from millrace.core.errors import InvalidConfigError
from millrace.core.settings import parse, setting

_NAME: Final = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
NAMES: Final = "letters, digits, - and _"


@dataclass(frozen=True, kw_only=True)
class Profile:
    """What commands know of a cluster."""

    bootstrap: str = setting(
        cast(Any, MISSING), "`host:port` of brokers, with commas: which ones are asked first."
    )
    tls_ca_file: str = setting("", "PEM file of its brokers' authorities, or `system`: speak TLS.")
    tls_certificate_file: str = setting("", "PEM file of the certificate to show.")
    tls_key_file: str = setting("", "PEM file of its key.")
    token_file: str = setting("", "File with the token that tells its brokers who calls.")

    @property
    def credentials(self) -> Credentials:
        """What commands prove themselves with there."""
        return Credentials(**{name: getattr(self, name) for name in Credentials._fields})


@dataclass(slots=True)
class Profiles:
    """All profiles, and the one that is used where none is named."""

    path: Path
    by_name: dict[str, Profile] = field(default_factory=dict)
    current: str | None = None

    def find(self, name: str) -> Profile:
        """Return a profile.

        Raises:
            Failure: there is none of this name.
        """
        if name not in self.by_name:
            known = did_you_mean(name, self.by_name)
            raise Failure(
                f"there is no profile {name!r} in {self.path}",
                known or f"make it: `millrace profile set {name} --bootstrap HOST:PORT`",
                exit_code=ExitCode.USAGE,
            )
        return self.by_name[name]

    def store(self) -> None:
        """Write the file; it is replaced as a whole."""
        from millrace.cli.files.whole_file import WholeFile

        lines = ["# `millrace profile` writes this file, and keeps no comments."]
        if self.current is not None:
            lines.append(f"current = {_text(self.current)}")
        for name, profile in sorted(self.by_name.items()):
            given = {"bootstrap": profile.bootstrap, **profile.credentials._asdict()}
            lines += ["", f"[profiles.{name}]"]
            lines += [f"{key} = {_text(value)}" for key, value in given.items() if value]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with WholeFile(str(self.path)) as file:
            file.stream.write("".join(f"{line}\n" for line in lines).encode())
            file.finish()


def load() -> Profiles:
    """Read the user's profiles; none where there is no file.

    Raises:
        Failure: the file cannot be read, or has something unknown in it.
    """
    profiles = Profiles(_path())
    if not profiles.path.exists():
        return profiles
    import tomllib

    try:
        values = tomllib.loads(profiles.path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise Failure(f"{profiles.path} is not TOML: {error}") from error
    try:
        _fill(profiles, values)
    except (InvalidConfigError, ValueError) as error:
        raise Failure(f"{profiles.path}: {error}", "correct it, or remove the file") from error
    return profiles


def check_name(name: str) -> None:
    """Refuse what is no name.

    Raises:
        ValueError: says what a name is.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name of a profile: it has {NAMES}")


def _fill(profiles: Profiles, values: dict[str, Any]) -> None:
    """Take what the file says.

    Raises:
        InvalidConfigError, ValueError: something in it is wrong.
    """
    unknown = sorted(set(values) - {"current", "profiles"})
    if unknown:
        raise ValueError(f"{unknown[0]}: unknown; there are current and [profiles.NAME]")
    sections = values.get("profiles", {})
    if not isinstance(sections, dict):
        raise ValueError("profiles: is a section for each profile: write [profiles.NAME]")
    for name, section in sections.items():
        check_name(name)
        if not isinstance(section, dict):
            raise ValueError(f"profiles.{name}: is a section: write [profiles.{name}]")
        try:
            profile = parse(Profile, section)
            parse_addresses(profile.bootstrap)
        except (InvalidConfigError, ValueError) as error:
            raise ValueError(f"[profiles.{name}]: {error}") from error
        files = (absolute(file, profiles.path.parent) for file in profile.credentials)
        found = Credentials(*files)
        profiles.by_name[name] = replace(profile, **found._asdict())
    current = values.get("current")
    if current is not None and current not in profiles.by_name:
        raise ValueError(f"current = {current!r}: there is no such profile")
    profiles.current = current


def _path() -> Path:
    folder = os.environ.get("XDG_CONFIG_HOME", "")
    # A relative one does not count: see the XDG Base Directory Specification.
    base = Path(folder) if os.path.isabs(folder) else Path.home() / ".config"
    return base / "millrace" / "config.toml"


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)  # TOML's texts in quotes are JSON's.
