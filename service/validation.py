"""Pydantic's findings about a request as error items: where, what was found, what is allowed.

What is allowed is read from the JSON schema that clients see, so that a refusal and the documentation cannot disagree.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from models.architecture import escape_pointer
from service.errors import ErrorItem, shortened

Schema = Mapping[str, Any]

# Keywords that say which values a schema allows.
_LIMITS = (
    "type",
    "format",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "minLength",
    "maxLength",
    "pattern",
    "minItems",
    "maxItems",
)

_CODES = {
    "missing": "missing",
    "extra_forbidden": "unknown_field",
    "enum": "not_allowed",
    "literal_error": "not_allowed",
    "greater_than": "out_of_range",
    "greater_than_equal": "out_of_range",
    "less_than": "out_of_range",
    "less_than_equal": "out_of_range",
    "too_short": "wrong_length",
    "too_long": "wrong_length",
    "string_too_short": "wrong_length",
    "string_too_long": "wrong_length",
    "value_error": "invalid",
}


def pointer(location: Iterable[str | int]) -> str:
    """A location inside a document as a JSON pointer (RFC 6901)."""
    return "".join(f"/{escape_pointer(str(part))}" for part in location)


def error_item(error: Mapping[str, Any], where: str, location: Sequence[str | int], schema: Schema) -> ErrorItem:
    """One finding of pydantic as an item.

    Args:
        error: an entry of ``ValidationError.errors()``.
        where: the item's pointer.
        location: from the document that ``schema`` describes to the value at fault.
        schema: with its ``$defs`` or ``components`` inside.
    """
    kind = error["type"]
    code = _CODES.get(kind, "wrong_type" if kind.endswith(("_type", "_parsing")) else kind)
    if code == "unknown_field":
        names = sorted(_at(schema, schema, location[:-1]).get("properties", {}))
        return ErrorItem(where, code, f"there is no field {str(location[-1])!r} here", names)
    if code == "missing":
        return ErrorItem(where, code, "this field is required", _allowed(_at(schema, schema, location)))
    message = str(error["msg"]).removeprefix("Value error, ")
    detail = f"{message}; found {_shown(error['input'])}" if code != "invalid" else message
    return ErrorItem(where, code, detail, _allowed(_at(schema, schema, location)))


def _shown(value: Any) -> str:
    return shortened(json.dumps(value, ensure_ascii=False, default=str))


def _at(root: Schema, schema: Schema, location: Sequence[str | int]) -> Schema:
    """The part of a schema that describes the value at ``location``; empty when the schema does not say."""
    schema = _resolve(root, schema)
    if not location:
        return schema
    part = location[0]
    child = schema.get("items") if isinstance(part, int) else schema.get("properties", {}).get(part)
    if child is None and isinstance(schema.get("prefixItems"), list) and isinstance(part, int):
        child = schema["prefixItems"][part]
    return _at(root, child, location[1:]) if isinstance(child, Mapping) else {}


def _resolve(root: Schema, schema: Schema) -> Schema:
    """Follow references, and ``X or null`` to X."""
    while True:
        branches = [branch for branch in schema.get("anyOf", ()) if branch.get("type") != "null"]
        if "$ref" in schema:
            target: Any = root
            for name in schema["$ref"].removeprefix("#/").split("/"):
                target = target[name]
            schema = target
        elif len(branches) == 1:
            schema = branches[0]
        elif branches:
            # Of several forms the object is the one that has parts to look into.
            return next((found for b in branches if "properties" in (found := _resolve(root, b))), schema)
        else:
            return schema


def _allowed(schema: Schema) -> Any:
    if "enum" in schema:
        return list(schema["enum"])
    if "const" in schema:
        return [schema["const"]]
    return {key: schema[key] for key in _LIMITS if key in schema} or None
