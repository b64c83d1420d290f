"""Tables of the wider contract: uploads, API keys, webhooks, idempotency. Same conventions as `app.store.tables`."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    Table,
    Text,
    UniqueConstraint,
)

from app.domain.upload import UploadStatus
from app.store.tables import Id, listed, metadata, partial

__all__ = [
    "api_keys",
    "idempotency_keys",
    "metadata",
    "upload_parts",
    "uploads",
    "webhook_endpoints",
    "webhook_messages",
]

uploads = Table(
    "uploads",
    metadata,
    Column("id", Id, primary_key=True),
    Column("project_id", Id, nullable=False),
    Column("filename", Text, nullable=False),
    Column("purpose", Text, nullable=False),
    Column("mime_type", Text, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("status", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger, nullable=False),
    Column("file_expires_after_seconds", BigInteger),
    Column("file_id", Id),
    # What `complete` was asked with, so that an identical retry is answered by the same object.
    Column("completed_with", Text),
    listed("status", UploadStatus),
    Index("ix_uploads_listing", "project_id", "created_at", "id"),
    partial("ix_uploads_pending", "expires_at", where="status = 'pending'"),
)

upload_parts = Table(
    "upload_parts",
    metadata,
    Column("id", Id, primary_key=True),
    Column("upload_id", Id, ForeignKey("uploads.id"), nullable=False, index=True),
    Column("key", Id, nullable=False, index=True),
    Column("bytes", BigInteger, nullable=False),
    Column("created_at", BigInteger, nullable=False),
)

api_keys = Table(
    "api_keys",
    metadata,
    Column("id", Id, primary_key=True),
    Column("project_id", Id, nullable=False),
    Column("name", Text, nullable=False),
    # SHA-256 of the key, as hex; the key itself is shown once and never stored.
    Column("digest", Id, nullable=False, unique=True),
    Column("hint", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("revoked_at", BigInteger),
    # Quotas of this key's own, as JSON; null: those of the settings.
    Column("quotas", Text),
    Index("ix_api_keys_project", "project_id", "created_at", "id"),
)

webhook_endpoints = Table(
    "webhook_endpoints",
    metadata,
    Column("id", Id, primary_key=True),
    Column("project_id", Id, nullable=False),
    Column("name", Text, nullable=False),
    Column("url", Text, nullable=False),
    Column("event_types", Text, nullable=False),
    Column("secret", Text, nullable=False),
    Column("old_secret", Text),
    Column("old_secret_until", BigInteger),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    Index("ix_webhook_endpoints_listing", "project_id", "created_at", "id"),
)

webhook_messages = Table(
    "webhook_messages",
    metadata,
    # `wh_…`, the dedupe key of every attempt; the event has an id of its own inside `body`.
    Column("id", Id, primary_key=True),
    Column("endpoint_id", Id, ForeignKey("webhook_endpoints.id", ondelete="CASCADE"), nullable=False, index=True),
    Column("batch_id", Id, nullable=False),
    Column("type", Text, nullable=False),
    Column("body", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("attempts", Integer, nullable=False, default=0),
    Column("due_at", Double),
    Column("lease_token", Text),
    Column("leased_until", Double),
    Column("delivered_at", BigInteger),
    Column("gave_up_at", BigInteger),
    Column("last_status", Integer),
    UniqueConstraint("endpoint_id", "batch_id", "type"),
    partial("ix_webhook_messages_due", "due_at", where="delivered_at IS NULL AND gave_up_at IS NULL"),
)

idempotency_keys = Table(
    "idempotency_keys",
    metadata,
    Column("project_id", Id, primary_key=True),
    Column("operation", Id, primary_key=True),
    Column("key", Id, primary_key=True),
    Column("digest", Text, nullable=False),
    # Null while the first request is under way.
    Column("object_id", Id),
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger, nullable=False, index=True),
)
