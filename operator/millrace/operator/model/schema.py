"""Definitions of the public resources, made from their types, also for `kubectl explain`.

The API server takes only structural schemas: without references, `null`, and choices between types
except "number or text". The rest is JSON Schema as msgspec makes it from a type. Descriptions are
the docstrings of classes and fields, and rules in CEL come from the `RULES` of a class.
"""

import ast
import inspect
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import msgspec
from msgspec import Struct

Schema = dict[str, Any]

_STRING: Schema = {"type": "string"}
_CONDITIONS: Schema = {
    "description": "What is known of the resource, with reasons and what to do.",
    "type": "array",
    "x-kubernetes-list-type": "map",
    "x-kubernetes-list-map-keys": ["type"],
    "items": {
        "type": "object",
        "required": ["type", "status", "lastTransitionTime", "reason", "message"],
        "properties": {
            "type": {**_STRING, "description": "Which condition.", "maxLength": 316},
            "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
            "observedGeneration": {
                "description": "The generation of the resource that the condition is about.",
                "type": "integer",
                "format": "int64",
            },
            "lastTransitionTime": {"type": "string", "format": "date-time"},
            "reason": {**_STRING, "description": "Why, as one word.", "maxLength": 1024},
            "message": {**_STRING, "description": "Why, and what to do.", "maxLength": 32768},
        },
    },
}


def structural_schema(spec: type[Struct], inserted: Mapping[str, Schema]) -> Schema:
    """Return the schema of a type.

    Args:
        inserted: schemas of fields of `spec` whose content has no type, by their JSON names.
    """
    (reference,), components = msgspec.json.schema_components([spec], ref_template="{name}")
    structs = {struct.__name__: struct for struct in _structs(spec)}

    def resolved(part: Schema) -> Schema:
        part = dict(part)
        if (name := part.pop("$ref", None)) is not None:
            found = dict(components[name])
            if (cls := structs.get(name)) is not None:
                found["properties"] = _described(cls, found["properties"])
                if rules := getattr(cls, "RULES", ()):
                    found["x-kubernetes-validations"] = [rule._asdict() for rule in rules]
            part = {**found, **part}
        part.pop("title", None)
        if "description" in part:  # A docstring: its lines and their indentation are the source's.
            part["description"] = " ".join(part["description"].split())
        options = [option for option in part.pop("anyOf", ()) if option.get("type") != "null"]
        kinds = {option.get("type") for option in options}
        if kinds == {"integer", "string"}:
            part["x-kubernetes-int-or-string"] = True
        elif options:
            (option,) = options
            part = {**resolved(option), **part}
        if part.get("default", 0) in (None, {}, [], ()):
            del part["default"]
        if part.get("required") == []:
            del part["required"]  # The API server drops it, and a later apply would conflict.
        if "enum" in part:
            part["type"] = "string"
        for name, inner in part.get("properties", {}).items():
            part["properties"] = {**part["properties"], name: resolved(inner)}
        for name in ("items", "additionalProperties"):
            if isinstance(part.get(name), dict):
                part[name] = resolved(part[name])
        if part.get("x-kubernetes-preserve-unknown-fields"):
            part.pop("additionalProperties", None)
        return part

    schema = resolved(reference)
    for name, content in inserted.items():
        described = schema["properties"][name]
        schema["properties"][name] = {"description": described["description"], **content}
    return schema


def definition(
    *,
    kind: str,
    plural: str,
    short_name: str,
    spec: Schema,
    status: Mapping[str, Schema],
    columns: list[tuple[str, str, str]],
    description: str,
) -> Schema:
    """Return a CustomResourceDefinition.

    Args:
        columns: of `kubectl get`: name, type and JSON path.
    """
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{plural}.millrace.dev",
            # Deleting a definition deletes all its objects: `helm uninstall` keeps it.
            "annotations": {"helm.sh/resource-policy": "keep"},
        },
        "spec": {
            "group": "millrace.dev",
            "scope": "Namespaced",
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": plural,
                "singular": kind.lower(),
                "shortNames": [short_name],
                "categories": ["millrace"],
            },
            "versions": [
                {
                    "name": "v1beta1",
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": [
                        {"name": name, "type": kind_, "jsonPath": path}
                        for name, kind_, path in columns
                    ],
                    "schema": {
                        "openAPIV3Schema": {
                            "description": description,
                            "type": "object",
                            "required": ["spec"],
                            "properties": {
                                "apiVersion": _STRING,
                                "kind": _STRING,
                                "metadata": {"type": "object"},
                                "spec": spec,
                                "status": {
                                    "description": "What was found, written by the operator.",
                                    "type": "object",
                                    "properties": {
                                        "observedGeneration": {
                                            "description": "The generation of the resource that "
                                            "the status is about.",
                                            "type": "integer",
                                            "format": "int64",
                                        },
                                        "conditions": _CONDITIONS,
                                        **status,
                                    },
                                },
                            },
                        }
                    },
                }
            ],
        },
    }


def _described(cls: type[Struct], properties: Mapping[str, Schema]) -> dict[str, Schema]:
    """Return schemas of fields with the docstrings of the fields, which only the source has."""
    (tree,) = ast.parse(inspect.getsource(cls)).body
    assert isinstance(tree, ast.ClassDef)
    described = dict(properties)
    names = {field.name: field.encode_name for field in msgspec.structs.fields(cls)}
    for statement, below in pairwise(tree.body):
        match statement, below:
            case ast.AnnAssign(ast.Name(field)), ast.Expr(ast.Constant(str(text))):
                described[names[field]] = {"description": text, **properties[names[field]]}
    return described


def _structs(of: type[Struct]) -> list[type[Struct]]:
    """Return a type and all types of its fields."""
    found: list[type[Struct]] = []

    def visit(kind: msgspec.inspect.Type) -> None:
        if isinstance(kind, msgspec.inspect.StructType):
            found.append(kind.cls)
            for inner in kind.fields:
                visit(inner.type)
        elif isinstance(kind, msgspec.inspect.Metadata):
            visit(kind.type)
        elif isinstance(kind, msgspec.inspect.ListType):
            visit(kind.item_type)
        elif isinstance(kind, msgspec.inspect.UnionType):
            for option in kind.types:
                visit(option)

    visit(msgspec.inspect.type_info(of))
    return found
