"""A Kubernetes API server that knows the callers of simulated brokers, and decides what they may.

It signs tokens of ServiceAccounts, publishes its key, and answers reviews. The brokers' questions
travel as calls to the store do: they are late, throttled or lost. Roles are those of
`rules_of_brokers`, by the names of the accounts.
"""

import contextlib
import json
from collections.abc import Iterator, Mapping
from functools import lru_cache, partial
from typing import Any, Final
from unittest import mock

import jwt
import urllib3
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm
from tests.sim.machines.api_server import ACCESS, Response
from tests.sim.machines.clocks import EPOCH_US
from tests.sim.machines.coordination import SimulatedStore, StoreHandle, wait_for_answer
from tests.sim.machines.process import SimulatedHost
from tests.sim.machines.rules_of_brokers import CHANGING, IMPOSTOR, READER, WORKER, WRITER, Login
from tests.sim.machines.small_files import SmallFiles
from tests.sim.world import SECOND

from millrace.broker.coordination.store import CoordinationUnavailableError
from millrace.broker.guard.reviews import ACCESS_REVIEW, TOKEN_REVIEW, Reviews
from millrace.core.broker_config import AccessConfig, KubernetesConfig
from millrace.core.guard.service_account_token import audience_of
from millrace.runtime import host
from millrace.runtime.kubernetes.access import ApiAccess

_GUARD: Final = "millrace.broker.guard.kubernetes_guard"
_ISSUER: Final = "https://kubernetes.default.svc"
_KEY: Final = "k1"
_PREFIX: Final = "system:serviceaccount:default:"
_YEAR_S: Final = 365 * 86_400
_MAY: Final[Mapping[str, frozenset[str]]] = {
    READER: frozenset({"consume", "describe"}),
    WRITER: frozenset({"produce", "describe"}),
}
"""What accounts may do with the topic `t`."""


class ServiceAccounts:
    """The accounts of one run, and what they may.

    Attributes:
        may_read: whether `CHANGING` may read the topic now.
        token_file: with the token of shipped clients.
    """

    taken_us = 14 * SECOND
    """After so long brokers go by what has changed: an answer counts for ten seconds."""
    changes_every_us = 20 * SECOND

    def __init__(self) -> None:
        self.may_read = True
        self._audience = audience_of(KubernetesConfig().cluster_name, ACCESS.namespace)
        self.token_file = "/token"
        self._files = SmallFiles()
        self._files.write(self.token_file, self.login_of(WORKER).token)

    def access(self, *, is_enforced: bool) -> AccessConfig:
        """Return the settings of brokers."""
        return AccessConfig(kubernetes=True, enforced=is_enforced)

    def login_of(self, name: str) -> Login:
        """Return the name and token of an account; that of `IMPOSTOR` is forged."""
        now_s = EPOCH_US // SECOND
        claims = {
            "iss": _ISSUER,
            "aud": [self._audience],
            "sub": f"{_PREFIX}{name}",
            "iat": now_s - _YEAR_S,
            "nbf": now_s - _YEAR_S,
            "exp": now_s + _YEAR_S,
        }
        key = _key("another" if name == IMPOSTOR else _KEY)
        token = jwt.encode(claims, key, "ES256", headers={"kid": _KEY})
        return Login(f"{_PREFIX}{name}", token, has_password=False)

    def change(self) -> None:
        """Let `CHANGING` read, or not any more."""
        self.may_read = not self.may_read

    @contextlib.contextmanager
    def serving(self, store: SimulatedStore) -> Iterator[None]:
        """Let brokers that begin reach it, beside the store."""

        def connect(access: ApiAccess, connections_max: int) -> Any:
            del access, connections_max
            current = host.current
            assert isinstance(current, SimulatedHost)
            return _Connections(self, StoreHandle(store, current.process.machine.name))

        with (
            self._files.served(),
            mock.patch(f"{_GUARD}.api_access", return_value=ACCESS),
            mock.patch(f"{_GUARD}.Reviews", partial(Reviews, connect=connect)),
        ):
            yield

    # --- What it answers ---------------------------------------------------------------------

    def answer(self, path: str, question: Mapping[str, Any]) -> Response:
        """Answer a request."""
        if path == TOKEN_REVIEW.path():
            return Response(201, {"status": self._whose(question["spec"])})
        if path == ACCESS_REVIEW.path():
            return Response(201, {"status": {"allowed": self._may(question["spec"])}})
        if path.endswith("/jwks"):
            published = json.loads(ECAlgorithm.to_jwk(_key(_KEY).public_key()))
            return Response(200, {"keys": [{**published, "kid": _KEY, "alg": "ES256"}]})
        return Response(200, {"issuer": _ISSUER})

    def _whose(self, spec: Mapping[str, Any]) -> dict[str, Any]:
        claims = jwt.decode(spec["token"], options={"verify_signature": False})
        user = {"username": claims["sub"]}
        return {"authenticated": True, "audiences": spec["audiences"], "user": user}

    def _may(self, spec: Mapping[str, Any]) -> bool:
        name = spec["user"].removeprefix(_PREFIX)
        if name == WORKER:
            return True
        about = spec["resourceAttributes"]
        place = about["resource"], about["namespace"], about["name"]
        role = READER if name == CHANGING and self.may_read else name
        return place == ("topics", "default", "t") and about["verb"] in _MAY.get(role, ())


class _Connections:
    """One broker's connections to it."""

    def __init__(self, accounts: ServiceAccounts, handle: StoreHandle) -> None:
        self._accounts = accounts
        self._handle = handle

    def urlopen(
        self, method: str, path: str, body: bytes | None, headers: object, **_: object
    ) -> Response:
        """Send a request, and wait for the answer.

        Raises:
            urllib3.exceptions.HTTPError: there is none in time.
        """
        del method, headers
        question = {} if body is None else json.loads(body)
        answer = partial(self._accounts.answer, path, question)
        try:
            found = wait_for_answer(partial(self._handle.call, method=answer))
        except CoordinationUnavailableError as error:
            raise urllib3.exceptions.HTTPError(error.message) from error
        assert isinstance(found, Response)
        return found

    def close(self) -> None:
        """Nothing is kept open."""


@lru_cache
def _key(name: str) -> ec.EllipticCurvePrivateKey:
    del name
    return ec.generate_private_key(ec.SECP256R1())
