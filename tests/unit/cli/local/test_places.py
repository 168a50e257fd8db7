"""The web page trusts each Cluster by a file of its own, which follows the Cluster's status."""

import asyncio
from contextlib import closing
from pathlib import Path
from typing import Any

from millrace.cli.local.places import Places
from millrace.operator.bootstraps import Bootstrap, _bootstrap

AUDIENCE = "logs.shop.millrace.dev"


def cluster(**status: Any) -> dict[str, Any]:
    return {"metadata": {"namespace": "shop", "name": "logs"}, "spec": {}, "status": status}


def test_authorities_are_in_a_file_that_follows_them_and_goes_with_the_cluster() -> None:
    found: dict[str, Bootstrap] = {}

    async def find() -> dict[str, Bootstrap]:
        return found

    with closing(Places(find)) as places:
        found["shop/logs"] = Bootstrap("logs:7092", "first", has_tls=True, audience=AUDIENCE)
        found["shop/open"] = Bootstrap("open:7092", "", has_tls=False, audience="")
        first = asyncio.run(places.find())
        file = Path(first["shop/logs"].ca_file)
        assert (file.read_text(), first["shop/logs"].audience) == ("first", AUDIENCE)
        assert first["shop/open"].ca_file == first["shop/open"].problem == ""
        found["shop/logs"] = Bootstrap("logs:7092", "both", has_tls=True, audience=AUDIENCE)
        assert asyncio.run(places.find()) == first, "clients of the page notice it by themselves"
        assert file.read_text() == "both"
        del found["shop/logs"]
        asyncio.run(places.find())
        assert not file.exists()
    assert not file.parent.exists()


def test_a_cluster_whose_authorities_are_not_told_yet_is_not_connected_to() -> None:
    async def find() -> dict[str, Bootstrap]:
        return {"shop/logs": Bootstrap("logs:7092", "", has_tls=True, audience=AUDIENCE)}

    with closing(Places(find)) as places:
        place = asyncio.run(places.find())["shop/logs"]
    assert "does not say yet which authorities to trust" in place.problem


def test_the_status_of_a_cluster_says_how_clients_connect() -> None:
    plain = _bootstrap(cluster())
    assert plain == Bootstrap("logs-bootstrap.shop.svc:7092", "", has_tls=False, audience="")
    security = {"tls": "Required", "access": "Enforced"}
    secured = _bootstrap(cluster(security=security, authorities="PEM"))
    assert (secured.has_tls, secured.authorities, secured.audience) == (True, "PEM", AUDIENCE)
    both = {"tls": "Optional", "access": "Disabled"}
    beside = _bootstrap(cluster(security=both, authorities="PEM", tlsBootstrap="other:7191"))
    assert (beside.address, beside.audience) == ("other:7191", "")
