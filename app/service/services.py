"""All of the service room, as the HTTP side receives it."""

from __future__ import annotations

from dataclasses import dataclass

from app.service.batches import BatchService
from app.service.files import FileService
from app.service.health import HealthService


@dataclass(frozen=True, slots=True)
class Services:
    """One of each."""

    files: FileService
    batches: BatchService
    health: HealthService
