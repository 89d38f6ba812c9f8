"""What all response models share."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

Json = dict[str, Any]

UtcTime = Annotated[datetime, AfterValidator(lambda time: time.astimezone(UTC))]
"""A time, shown as RFC 3339 in UTC whatever zone the database session has."""


class Answer(BaseModel):
    """Base of all response models."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="null")


class StoredError(Answer):
    """Why something failed: a problem without the request that it would belong to."""

    model_config = ConfigDict(extra="allow")

    type: str
    title: str
    detail: str
    code: str
    retryable: bool
    errors: list[Json] = Field(default_factory=list)


def example(document: Json) -> ConfigDict:
    """Model configuration with one example for the documentation."""
    return ConfigDict(json_schema_extra={"examples": [document]})
