"""One form for all log lines of a process: JSON for machines, columns for a terminal.

An event is a stable name with fields. Ids that ``structlog.contextvars.bound_contextvars`` binds for the length of a
task appear in each of its lines, those of libraries included.
"""

from __future__ import annotations

import logging
import sys

import structlog
from structlog.typing import Processor

# They write a line for each request or migration; ours say the same.
_TALKATIVE = ("httpx", "httpcore", "alembic.runtime.migration", "alembic.runtime.plugins")


def configure_logging(level: int = logging.INFO, *, json_lines: bool | None = None) -> None:
    """Send the lines of structlog and of the standard library to stderr. For entry points only.

    Args:
        level: the least severe level that is written.
        json_lines: one JSON object per line; default: unless stderr is a terminal.
    """
    as_json = not sys.stderr.isatty() if json_lines is None else json_lines
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    form: list[Processor] = (
        [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str, ensure_ascii=False)]
        if as_json
        else [structlog.dev.ConsoleRenderer()]
    )
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler()
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared, processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *form]
        )
    )
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(max(level, logging.WARNING))
