"""The Celery side of the queue: a message says "queue X has work" and nothing else.

Messages may be lost, doubled or late; the job's row decides. Relay and workers share this configuration.
"""

from __future__ import annotations

from hashlib import sha256

from celery import Celery
from kombu.exceptions import OperationalError

from service.jobs.queues import DEFAULT_QUEUE, QUEUES

WAKE_TASK = "vitailor.wake"
PING_TASK = "vitailor.ping"
"""What a worker sends to itself, in a queue of its own, to know that it hears."""

_TRANSPORT_OPTIONS = {
    "global_keyprefix": "vitailor:",
    "socket_keepalive": True,
    # A worker whose connection has gone dead hears again after brpop_timeout (10 s) and two of these.
    "health_check_interval": 10,
    # Without it a publish on a dead connection would wait for ever. Longer than brpop_timeout.
    "socket_timeout": 15,
    "socket_connect_timeout": 5,
}


def celery_app(broker_url: str, *own_queues: str) -> Celery:
    """A Celery app for the doorbell alone: early acknowledgement, nothing reserved ahead, no results, JSON only.

    Args:
        broker_url: ``redis://``, ``rediss://`` or ``redis+socket:///path``.
        own_queues: of this process, beside those in which jobs are announced.
    """
    app = Celery("vitailor", broker=broker_url, set_as_current=False)
    app.conf.update(
        task_acks_late=False,
        task_ignore_result=True,
        result_backend=None,
        worker_prefetch_multiplier=1,
        worker_disable_prefetch=True,
        task_serializer="json",
        accept_content=["json"],
        task_queues={name: {} for name in (*QUEUES, *own_queues)},
        task_default_queue=DEFAULT_QUEUE,
        task_create_missing_queues=False,
        broker_connection_retry_on_startup=True,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        worker_send_task_events=False,
        worker_hijack_root_logger=False,
        # Who publishes is a loop that will publish again.
        task_publish_retry=False,
        broker_transport_options=_TRANSPORT_OPTIONS,
    )
    return app


def ring(app: Celery, queue: str) -> None:
    """Send one message that wakes an idle worker of the queue.

    It does not expire: Celery would compare the clocks of two machines, and a worker whose clock is ahead would throw
    every message away as too old. Who rings counts those that wait instead.

    Raises:
        kombu.exceptions.OperationalError: the broker cannot be reached.
    """
    app.send_task(WAKE_TASK, args=[queue], queue=queue)


def ping_queue(worker: str) -> str:
    """The queue in which a worker, by name, hears itself. A worker that is started again has the same one."""
    return f"ping.{sha256(worker.encode()).hexdigest()[:16]}"


def ping(app: Celery, queue: str) -> None:
    """Send one message to the worker's own queue, unless one is still waiting there.

    Raises:
        kombu.exceptions.OperationalError: the broker cannot be reached.
    """
    if not count_waiting(app, queue):
        app.send_task(PING_TASK, queue=queue)


def count_waiting(app: Celery, queue: str) -> int:
    """Messages of the queue that no worker has taken yet.

    Raises:
        kombu.exceptions.OperationalError: the broker cannot be reached.
    """
    with app.amqp.producer_pool.acquire(block=True) as producer:
        try:
            return int(producer.channel.queue_declare(queue=queue).message_count)
        except producer.connection.recoverable_connection_errors as error:
            raise OperationalError(f"{type(error).__name__}: {error}") from error
