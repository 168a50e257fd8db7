"""Licences of all dependencies are known and allowed, and the bill of materials has them."""

import json
from importlib.metadata import distributions

import pytest
from license_expression import get_spdx_licensing
from packaging.utils import canonicalize_name
from tests.releases.lock_files import LOCKS, SHIPPED, licences, lock_of, locked
from tests.releases.materials import bill

LICENCES = licences()
SPDX = get_spdx_licensing()
CLASSIFIERS = {
    "Apache Software License": {"Apache-2.0"},
    "BSD License": {"BSD-2-Clause", "BSD-3-Clause"},
    "GNU Lesser General Public License v2 or later (LGPLv2+)": {"LGPL-2.1-or-later"},
    "MIT License": {"MIT"},
    "Mozilla Public License 2.0 (MPL 2.0)": {"MPL-2.0"},
    "Python Software Foundation License": {"PSF-2.0"},
}
INSTALLED = {
    str(canonicalize_name(found.name)): found
    for found in distributions()
    if canonicalize_name(found.name) in LICENCES.packages
}


def ids(expression: str) -> set[str]:
    return set(SPDX.license_keys(SPDX.parse(expression, validate=True)))


def test_every_locked_package_has_a_licence_and_the_other_way_round() -> None:
    names = {pin.name for lock in LOCKS for pin in locked(lock)}
    assert names == LICENCES.packages.keys()


def test_all_licences_are_allowed() -> None:
    shipped = {pin.name for group in SHIPPED for pin in locked(lock_of(group))}
    for name, expression in LICENCES.packages.items():
        more = frozenset() if name in shipped else LICENCES.allowed_for_work
        assert ids(expression) <= LICENCES.allowed | more, name


@pytest.mark.parametrize("name", sorted(INSTALLED))
def test_an_installed_package_says_the_same(name: str) -> None:
    metadata, expression = INSTALLED[name].metadata, LICENCES.packages[name]
    if said := metadata.get_all("License-Expression"):
        assert [SPDX.parse(line) for line in said] == [SPDX.parse(expression)]
        return
    classifiers = {line.rpartition(" :: ")[2] for line in metadata.get_all("Classifier", [])}
    for classifier in classifiers & CLASSIFIERS.keys():
        assert CLASSIFIERS[classifier] & ids(expression), classifier


def test_the_bill_of_materials_has_all_that_users_install_with_hashes_and_licences() -> None:
    text = bill()
    listed = {
        (component["name"], component["version"]): component
        for component in json.loads(text)["components"]
    }
    pins = {(pin.name, pin.version): pin for group in SHIPPED for pin in locked(lock_of(group))}
    assert listed.keys() == pins.keys()
    for key, component in listed.items():
        assert {entry["content"] for entry in component["hashes"]} == set(pins[key].hashes)
        (licence,) = component["licenses"]
        assert licence["expression"] == LICENCES.packages[key[0]]
    assert bill() == text, "the same commit has the same bill"
