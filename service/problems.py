"""Every error as an RFC 9457 problem, and nothing else: the text of unforeseen exceptions goes to the log only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import psycopg
import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from starlette.exceptions import HTTPException

from service.errors import (
    MOST_ITEMS,
    ErrorItem,
    Forbidden,
    Malformed,
    MethodNotAllowed,
    NotFound,
    PayloadTooLarge,
    ServiceError,
    Unauthorized,
    Unavailable,
    ValidationFailed,
)
from service.ids import BadId
from service.openapi import PROBLEM_JSON, describe_operation, describe_path
from service.validation import error_item

log = structlog.get_logger(__name__)

_RETRY_AFTER_S = 5
_LONGEST_ID = 80  # what is longer is no id, and need not be repeated in full

DATABASE_AWAY = (OperationalError, InterfaceError, PoolTimeout, psycopg.OperationalError)
"""What is raised when the database cannot be reached, or does not answer in time."""

_BY_STATUS: Mapping[int, type[ServiceError]] = {
    cls.status: cls for cls in (Malformed, Unauthorized, Forbidden, NotFound, MethodNotAllowed, PayloadTooLarge)
}


def install(app: FastAPI) -> None:
    """Answer all errors that reach the framework with problems."""
    for kind in (ServiceError, HTTPException, RequestValidationError, BadId, *DATABASE_AWAY):
        app.add_exception_handler(kind, _handle)


async def _handle(request: Request, error: Exception) -> JSONResponse:
    return problem_response(request, as_service_error(request, error))


def as_service_error(request: Request, error: Exception) -> ServiceError:
    """The public face of an exception. What nobody foresaw becomes ``internal`` and is logged with its stack."""
    match error:
        case ServiceError():
            return error
        case RequestValidationError():
            return _validation_failed(request, error)
        case BadId():
            return NotFound(str(BadId(error.text[:_LONGEST_ID], error.kind)))
        case HTTPException():
            return _http_error(request, error)
    if isinstance(error, DATABASE_AWAY):
        log.warning("database_unavailable", error=str(error))
        return Unavailable(
            f"The database does not answer; send the request again in {_RETRY_AFTER_S} seconds.",
            headers={"Retry-After": str(_RETRY_AFTER_S)},
        )
    log.error("request_failed", method=request.method, path=request.url.path, exc_info=error)
    return ServiceError("The request failed by a fault of the service; its log tells more under this request_id.")


def problem_response(request: Request, error: ServiceError) -> JSONResponse:
    """The response that tells a client of an error."""
    content: dict[str, Any] = {
        **error.to_json(),
        "instance": request.url.path,
        "request_id": request.scope["state"]["request_id"],
    }
    return JSONResponse(content, error.status, headers=error.headers, media_type=PROBLEM_JSON)


def _http_error(request: Request, error: HTTPException) -> ServiceError:
    cls = _BY_STATUS.get(error.status_code)
    path = request.url.path
    if cls is NotFound:
        return NotFound(f"There is nothing at {path}; see /openapi.json for all paths.")
    if cls is MethodNotAllowed:
        allowed = _methods(request)
        return MethodNotAllowed(
            f"{path} does not know {request.method}; it knows {', '.join(allowed)}.",
            extra={"allowed": allowed},
            headers={"Allow": ", ".join(allowed)},
        )
    if cls is None:
        log.error("unexpected_http_error", status=error.status_code, path=path)
        cls = ServiceError
    return cls(f"{cls.title}.", headers=error.headers)


def _methods(request: Request) -> list[str]:
    """The methods of a path; the framework would name those of its first route only."""
    return sorted(method.upper() for method in describe_path(request))


def _validation_failed(request: Request, error: RequestValidationError) -> ValidationFailed:
    operation = describe_operation(request)
    found = error.errors()
    return ValidationFailed.of([_item(request, operation, fault) for fault in found[:MOST_ITEMS]], len(found))


def _item(request: Request, operation: Mapping[str, Any], found: Mapping[str, Any]) -> ErrorItem:
    source, *location = found["loc"]
    components: dict[str, Any] = {"components": request.app.openapi().get("components", {})}
    schema: dict[str, Any]
    if source == "body":
        content = operation.get("requestBody", {}).get("content", {})
        schema = content.get("application/json", {}).get("schema", {})
        return error_item(found, "", location, {**components, **schema})
    name = str(location[0])
    schema = next((p["schema"] for p in operation.get("parameters", ()) if p["name"].lower() == name.lower()), {})
    return error_item(found, name, location[1:], {**components, **schema})
