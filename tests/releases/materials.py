"""`make dist`: the bill of materials of a release, in the form of CycloneDX, from the lock files.

It lists what users install with Millrace: name, version, licence, and the hashes of the files that
pip takes. The same commit has the same bill, byte for byte.
"""

import os
import sys
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from uuid import NAMESPACE_URL, uuid5

from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.model.license import LicenseExpression
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from tests.releases.last import ROOT
from tests.releases.lock_files import SHIPPED, Licences, Locked, licences, lock_of, locked

_EPOCH_SECONDS: Final = 1_580_601_600
"""The time that hatchling gives the files of a wheel where SOURCE_DATE_EPOCH is not set."""


def bill() -> str:
    """Return the text of the bill."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    name, version = project["name"], project["version"]
    product = Component(
        type=ComponentType.APPLICATION,
        name=name,
        version=version,
        bom_ref=name,
        purl=PackageURL("pypi", None, name, version),
        licenses=[LicenseExpression(project["license"])],
    )
    bom = Bom(serial_number=uuid5(NAMESPACE_URL, f"millrace {version}"))
    seconds = int(os.environ.get("SOURCE_DATE_EPOCH", _EPOCH_SECONDS))
    bom.metadata.timestamp = datetime.fromtimestamp(seconds, UTC)
    bom.metadata.component = product
    known = licences()
    components: dict[str, Component] = {}
    for group in SHIPPED:
        for pin in locked(lock_of(group)):
            key = f"{pin.name}@{pin.version}"
            components.setdefault(key, _component(pin, group, known))
    bom.components = components.values()
    direct = {canonicalize_name(Requirement(line).name) for line in project["dependencies"]}
    bom.register_dependency(
        product, [component for component in components.values() if component.name in direct]
    )
    return JsonV1Dot6(bom).output_as_string(indent=1)


def _component(pin: Locked, group: str, known: Licences) -> Component:
    marker = pin.requirement.marker
    properties = [Property(name="millrace:group", value=group)]
    if marker is not None:
        properties.append(Property(name="millrace:marker", value=str(marker)))
    return Component(
        type=ComponentType.LIBRARY,
        name=pin.name,
        version=pin.version,
        bom_ref=f"{pin.name}@{pin.version}",
        purl=PackageURL("pypi", None, pin.name, pin.version),
        scope=ComponentScope.REQUIRED if group == "runtime" else ComponentScope.OPTIONAL,
        licenses=[LicenseExpression(known.packages[pin.name])],
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest) for digest in pin.hashes],
        properties=properties,
    )


def main() -> None:
    """Write the bill into a folder, beside the wheel; the argument names it."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    Path(sys.argv[1], f"millrace-{version}.cdx.json").write_text(bill() + "\n")


if __name__ == "__main__":
    main()
