"""The Clusters of a Kubernetes cluster, as the web page takes them: with files to trust them by."""

from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from millrace.web.clusters import Place

if TYPE_CHECKING:
    from millrace.operator.bootstraps import Bootstrap

_NOT_TOLD = (
    "the Cluster speaks TLS, and its status does not say yet which authorities to trust: "
    "`kubectl get mrc` says whether the operator has seen it"
)


class Places:
    """Keeps the authorities of each Cluster in a file: clients read it again when it changes.

    Args:
        find: asks for the Clusters; as `Bootstraps.find`.
    """

    def __init__(self, find: Callable[[], Any]) -> None:
        self._find = find
        self._folder = TemporaryDirectory(prefix="millrace-web-")

    def close(self) -> None:
        """Remove the files."""
        self._folder.cleanup()

    async def find(self) -> Mapping[str, Place]:
        """Return where each Cluster is, by `namespace/name`.

        Raises:
            ConnectionFailedError: they cannot be listed.
        """
        found: Mapping[str, Bootstrap] = await self._find()
        return self._placed(found)

    def _placed(self, found: "Mapping[str, Bootstrap]") -> Mapping[str, Place]:
        places = {name: self._place(name, each) for name, each in found.items()}
        known = {Path(place.ca_file) for place in places.values()}
        for file in Path(self._folder.name).iterdir():
            if file not in known:
                file.unlink()
        return places

    def _place(self, name: str, found: "Bootstrap") -> Place:
        if not found.has_tls:
            return Place(found.address)
        if not found.authorities:
            return Place(found.address, problem=_NOT_TOLD)
        file = Path(self._folder.name, f"{name.replace('/', '.')}.crt")
        if not file.exists() or file.read_text() != found.authorities:
            other = file.with_suffix(".new")
            other.write_text(found.authorities)
            other.replace(file)
        return Place(found.address, str(file), found.audience)
