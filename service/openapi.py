"""The OpenAPI document: what it says of errors, and what the service itself looks up in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, Field

from service import errors
from service.errors import ErrorItem, ServiceError

PROBLEM_JSON = "application/problem+json"


class ProblemItem(BaseModel):
    """One fault of a request."""

    pointer: str = Field(description="JSON pointer into the body, or the name of a parameter or header.")
    code: str
    detail: str
    allowed: Any = Field(None, description="What would have been accepted here.")


class Problem(BaseModel):
    """An error (RFC 9457). `detail` says what to do next; `code` is the stable name of the case."""

    model_config = ConfigDict(
        extra="allow",
        json_schema_extra={
            "examples": [
                {
                    "type": "urn:vitailor:problem:validation_failed",
                    "title": "Validation failed",
                    "status": 422,
                    "detail": "/search/population: Input should be greater than or equal to 2; found 1",
                    "instance": "/search",
                    "code": "validation_failed",
                    "request_id": "4f0c1f0e5a7b4f2e9f6d0a1b2c3d4e5f",
                    "retryable": False,
                    "errors": [
                        {
                            "pointer": "/search/population",
                            "code": "out_of_range",
                            "detail": "Input should be greater than or equal to 2; found 1",
                            "allowed": {"type": "integer", "minimum": 2, "maximum": 10000},
                        }
                    ],
                }
            ]
        },
    )

    type: str
    title: str
    status: int
    detail: str
    instance: str
    code: str
    request_id: str
    retryable: bool
    errors: list[ProblemItem]


# What any request may meet: no key, a key without the scope, a fault of ours, a server that is away.
_EVERYWHERE = (errors.Unauthorized, errors.Forbidden, errors.ValidationFailed, errors.ServiceError, errors.Unavailable)
_PUBLIC = (errors.ValidationFailed, errors.ServiceError, errors.Unavailable)
_BODY = (errors.Malformed, errors.PayloadTooLarge, errors.UnsupportedMediaType)

Responses = dict[int | str, dict[str, Any]]


def problems(*classes: type[ServiceError], body: bool = False, public: bool = False) -> Responses:
    """The ``responses`` of a route: its own errors and those that every request may meet.

    Args:
        classes: the route's own.
        body: the route reads a JSON body.
        public: the route needs no key.
    """
    by_status: dict[int, list[str]] = {}
    for cls in (*classes, *(_BODY if body else ()), *(_PUBLIC if public else _EVERYWHERE)):
        line = f"`{cls.code}`: {cls.title}"
        if line not in by_status.setdefault(cls.status, []):
            by_status[cls.status].append(line)
    content = {PROBLEM_JSON: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {
        status: {"description": "; ".join(lines), "content": content} for status, lines in sorted(by_status.items())
    }


def operation_id(route: APIRoute) -> str:
    """``list_jobs`` becomes ``listJobs``: what generated clients call their methods."""
    first, *rest = route.name.split("_")
    return first + "".join(word.capitalize() for word in rest)


class Api(FastAPI):
    """An application whose document describes problems."""

    def openapi(self) -> dict[str, Any]:
        """FastAPI's document with the schema that all problem responses refer to. Built once."""
        if self.openapi_schema is None:
            document: dict[str, Any] = _with_whole_numbers(super().openapi())
            for model in (Problem, ProblemItem):
                schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
                schema.pop("$defs", None)
                document["components"]["schemas"][model.__name__] = schema
            self.openapi_schema = document
        return self.openapi_schema


_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")


def _with_whole_numbers(part: Any) -> Any:
    """The document with the bounds of integers as integers; FastAPI makes floats of them."""
    if isinstance(part, list):
        return [_with_whole_numbers(item) for item in part]
    if not isinstance(part, dict):
        return part
    whole = {key: _with_whole_numbers(value) for key, value in part.items()}
    if whole.get("type") == "integer":
        whole |= {key: int(whole[key]) for key in _BOUNDS if isinstance(whole.get(key), float)}
    return whole


def check_query(request: Request) -> None:
    """Refuse query parameters that would have no effect: misspelt ones, and all but one of several.

    Raises:
        ValidationFailed: with the names that there are.
    """
    if not request.query_params:
        return
    known = sorted(p["name"] for p in describe_operation(request).get("parameters", ()) if p["in"] == "query")
    items = []
    for name in request.query_params:
        if name not in known:
            items.append(ErrorItem(name, "unknown_parameter", f"there is no query parameter {name!r} here", known))
        elif len(request.query_params.getlist(name)) > 1:
            items.append(ErrorItem(name, "repeated_parameter", "the parameter is given more than once", "one value"))
    if items:
        raise errors.ValidationFailed.of(items)


def describe_path(request: Request) -> Mapping[str, Any]:
    """What the document says of the path that a request asks for, by method; empty for unknown paths."""
    route = request.scope.get("route")
    if not isinstance(route, APIRoute):
        return {}
    path: Mapping[str, Any] = request.app.openapi()["paths"].get(route.path_format, {})
    return path


def describe_operation(request: Request) -> Mapping[str, Any]:
    """What the document says of the operation that a request asks for; empty for unknown ones."""
    operation: Mapping[str, Any] = describe_path(request).get(request.method.lower(), {})
    return operation
