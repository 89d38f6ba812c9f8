from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine

from service.settings import Settings
from tests.faults.stack import Stack


@pytest.fixture
def stack(settings: Settings, engine: Engine) -> Iterator[Stack]:
    """Patient enough for a busy machine, quick enough to watch a lease run out."""
    patient = settings.model_copy(update={"lease_s": 5.0, "heartbeat_s": 0.5, "stop_grace_s": 3.0})
    stack = Stack(patient, engine)
    yield stack
    stack.close()
