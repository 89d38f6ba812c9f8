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
        where: pointer of the document that ``schema`` describes.
        location: from that document to the value at fault, as pydantic tells it.
        schema: with its ``$defs`` or ``components`` inside.
    """
    kind = error["type"]
    if kind in _TAG_ERRORS:
        return _tag_item(error, where, schema)
    location, schema = _read(location, schema, is_whole=kind in _NAMES_NO_FORM)
    where += pointer(location)
    code = _CODES.get(kind, "wrong_type" if kind.endswith(("_type", "_parsing")) else kind)
    if code == "unknown_field":
        names = sorted({name for form in _at(schema, location[:-1]) for name in form.get("properties", {})})
        return ErrorItem(where, code, f"there is no field {str(location[-1])!r} here", names)
    if code == "missing":
        return ErrorItem(where, code, "this field is required", _allowed(_at(schema, location)))
    message = str(error["msg"]).removeprefix("Value error, ")
    detail = f"{message}; found {_shown(error['input'])}" if code != "invalid" else message
    return ErrorItem(where, code, detail, _allowed(_at(schema, location)))


_TAG_ERRORS = {"union_tag_invalid": "not_allowed", "union_tag_not_found": "missing"}

_NAMES_NO_FORM = ("extra_forbidden", "missing")
"""Faults whose location ends with a name that a schema need not know."""


def _tag_item(error: Mapping[str, Any], where: str, schema: Schema) -> ErrorItem:
    """A field that says which form of several a document has is missing, or names none of them."""
    told = schema["discriminator"]
    name, allowed = told["propertyName"], sorted(told["mapping"])
    kind = error["type"]
    detail = "this field is required"
    if kind == "union_tag_invalid":
        detail = f"there is no {name} {shortened(repr(error['ctx']['tag']))}"
    return ErrorItem(f"{where}/{name}", _TAG_ERRORS[kind], detail, allowed)


def _shown(value: Any) -> str:
    return shortened(json.dumps(value, ensure_ascii=False, default=str))


def _inside(schema: Schema, part: str | int) -> Schema | None:
    """What a schema says of one of its parts; None when it says nothing."""
    child = schema.get("items") if isinstance(part, int) else schema.get("properties", {}).get(part)
    if child is None and isinstance(schema.get("prefixItems"), list) and isinstance(part, int):
        child = schema["prefixItems"][part]
    return child if isinstance(child, Mapping) else None


def _forms(root: Schema, schema: Schema) -> list[Schema]:
    """The forms that a schema allows, references followed."""
    while "$ref" in schema:
        target: Any = root
        for name in schema["$ref"].removeprefix("#/").split("/"):
            target = target[name]
        schema = target
    forms = [*schema.get("anyOf", ()), *schema.get("oneOf", ())]
    return [found for form in forms for found in _forms(root, form)] if forms else [schema]


def _forms_inside(root: Schema, forms: Sequence[Schema], part: str | int) -> list[Schema]:
    """The forms that a part may have in any of the given ones."""
    inside = [found for form in forms if (found := _inside(form, part)) is not None]
    return [form for found in inside for form in _forms(root, found)]


def _at(schema: Schema, location: Sequence[str | int]) -> list[Schema]:
    """The forms that the value at ``location`` may have, null left out; none when the schema does not say."""
    forms = _forms(schema, schema)
    for part in location:
        forms = _forms_inside(schema, forms, part)
    return [form for form in forms if form.get("type") != "null"]


def _read(location: Sequence[str | int], schema: Schema, *, is_whole: bool) -> tuple[list[str | int], Schema]:
    """A location without the names of the forms that pydantic has tried, and the schema that applies.

    Pydantic puts the tag of a union's member, or the name of its type, into the location of a fault inside of it, where
    the document has nothing of the kind. With a tag the member takes the place of the union.
    """
    chosen = schema.get("discriminator", {}).get("mapping", {})
    if location and location[0] in chosen:
        kept = {name: schema[name] for name in ("$defs", "components") if name in schema}
        schema, location = {**kept, "$ref": chosen[location[0]]}, location[1:]
    places: list[str | int] = []
    forms = _forms(schema, schema)
    for at, part in enumerate(location):
        inside = _forms_inside(schema, forms, part)
        if inside or (is_whole and at == len(location) - 1):
            places.append(part)
            forms = inside
    return places, schema


def _allowed(forms: Sequence[Schema]) -> Any:
    """What may be there: the limits of the one form, or a list with those of each."""
    if len(forms) == 1 and not {"enum", "const"} & set(forms[0]):
        return _limits(forms[0]) or None
    values: list[Any] = []
    for form in forms:
        values += form.get("enum", [form["const"]] if "const" in form else [_limits(form)])
    return values or None


def _limits(schema: Schema) -> dict[str, Any]:
    return {key: schema[key] for key in _LIMITS if key in schema}
