"""All of the service room, as the HTTP side receives it."""

from __future__ import annotations

from dataclasses import dataclass

from app.service.batches import BatchService
from app.service.files import FileService
from app.service.health import HealthService
from app.service.interactive import InteractiveService
from app.service.keys import KeyService
from app.service.quotas import QuotaService
from app.service.results import ResultService
from app.service.retries import RetryService
from app.service.uploads import UploadService
from app.service.webhooks import WebhookService


@dataclass(frozen=True, slots=True)
class Services:
    """One of each."""

    files: FileService
    uploads: UploadService
    batches: BatchService
    results: ResultService
    retries: RetryService
    health: HealthService
    keys: KeyService
    quotas: QuotaService
    interactive: InteractiveService
    webhooks: WebhookService
