"""The wider contract: uploads in parts, API keys, quotas, webhooks, idempotency keys."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_OPEN = "status IN ('cancelling', 'finalizing', 'in_progress', 'validating')"
_QUOTA_COLUMNS = ("enqueued_tokens", "enqueued_tokens_max", "queued_requests_max")
_ID = sa.Text().with_variant(sa.TEXT(collation="C"), "postgresql")


def upgrade() -> None:
    _uploads()
    _keys()
    _webhooks()
    for name in _QUOTA_COLUMNS:
        op.add_column("batches", sa.Column(name, sa.BigInteger()))
    op.create_index(
        "ix_batches_open", "batches", ["project_id"], sqlite_where=sa.text(_OPEN), postgresql_where=sa.text(_OPEN)
    )
    op.create_index("ix_files_listing_by_purpose", "files", ["project_id", "purpose", "created_at", "id"])


def _uploads() -> None:
    op.create_table(
        "uploads",
        sa.Column("id", _ID, nullable=False),
        sa.Column("project_id", _ID, nullable=False),
        sa.Column("filename", sa.Text(), nullable=False),
        sa.Column("purpose", sa.Text(), nullable=False),
        sa.Column("mime_type", sa.Text(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.Column("file_expires_after_seconds", sa.BigInteger()),
        sa.Column("file_id", _ID),
        sa.Column("completed_with", sa.Text()),
        sa.CheckConstraint(
            "status IN ('pending', 'completed', 'cancelled', 'expired')", name=op.f("ck_uploads_status")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_uploads")),
    )
    op.create_index("ix_uploads_listing", "uploads", ["project_id", "created_at", "id"])
    op.create_index(
        "ix_uploads_pending",
        "uploads",
        ["expires_at"],
        sqlite_where=sa.text("status = 'pending'"),
        postgresql_where=sa.text("status = 'pending'"),
    )
    op.create_table(
        "upload_parts",
        sa.Column("id", _ID, nullable=False),
        sa.Column("upload_id", _ID, nullable=False),
        sa.Column("key", _ID, nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["upload_id"], ["uploads.id"], name=op.f("fk_upload_parts_upload_id_uploads")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_upload_parts")),
    )
    op.create_index(op.f("ix_upload_parts_key"), "upload_parts", ["key"])
    op.create_index(op.f("ix_upload_parts_upload_id"), "upload_parts", ["upload_id"])


def _keys() -> None:
    op.create_table(
        "api_keys",
        sa.Column("id", _ID, nullable=False),
        sa.Column("project_id", _ID, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("digest", _ID, nullable=False),
        sa.Column("hint", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("revoked_at", sa.BigInteger()),
        sa.Column("quotas", sa.Text()),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_keys")),
        sa.UniqueConstraint("digest", name=op.f("uq_api_keys_digest")),
    )
    op.create_index("ix_api_keys_project", "api_keys", ["project_id", "created_at", "id"])
    op.create_table(
        "idempotency_keys",
        sa.Column("project_id", _ID, nullable=False),
        sa.Column("operation", _ID, nullable=False),
        sa.Column("key", _ID, nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("object_id", _ID),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("project_id", "operation", "key", name=op.f("pk_idempotency_keys")),
    )
    op.create_index(op.f("ix_idempotency_keys_expires_at"), "idempotency_keys", ["expires_at"])


def _webhooks() -> None:
    op.create_table(
        "webhook_endpoints",
        sa.Column("id", _ID, nullable=False),
        sa.Column("project_id", _ID, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("event_types", sa.Text(), nullable=False),
        sa.Column("secret", sa.Text(), nullable=False),
        sa.Column("old_secret", sa.Text()),
        sa.Column("old_secret_until", sa.BigInteger()),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_webhook_endpoints")),
    )
    op.create_index("ix_webhook_endpoints_listing", "webhook_endpoints", ["project_id", "created_at", "id"])
    op.create_table(
        "webhook_messages",
        sa.Column("id", _ID, nullable=False),
        sa.Column("endpoint_id", _ID, nullable=False),
        sa.Column("batch_id", _ID, nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("due_at", sa.Double()),
        sa.Column("lease_token", sa.Text()),
        sa.Column("leased_until", sa.Double()),
        sa.Column("delivered_at", sa.BigInteger()),
        sa.Column("gave_up_at", sa.BigInteger()),
        sa.Column("last_status", sa.Integer()),
        sa.ForeignKeyConstraint(
            ["endpoint_id"],
            ["webhook_endpoints.id"],
            name=op.f("fk_webhook_messages_endpoint_id_webhook_endpoints"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_webhook_messages")),
        sa.UniqueConstraint(
            "endpoint_id", "batch_id", "type", name=op.f("uq_webhook_messages_endpoint_id_batch_id_type")
        ),
    )
    op.create_index(
        "ix_webhook_messages_due",
        "webhook_messages",
        ["due_at"],
        sqlite_where=sa.text("delivered_at IS NULL AND gave_up_at IS NULL"),
        postgresql_where=sa.text("delivered_at IS NULL AND gave_up_at IS NULL"),
    )
    op.create_index(op.f("ix_webhook_messages_endpoint_id"), "webhook_messages", ["endpoint_id"])


def downgrade() -> None:
    op.drop_index("ix_files_listing_by_purpose", "files")
    op.drop_index("ix_batches_open", "batches")
    for name in _QUOTA_COLUMNS:
        op.drop_column("batches", name)
    op.drop_table("webhook_messages")
    op.drop_table("upload_parts")
    op.drop_table("webhook_endpoints")
    op.drop_table("uploads")
    op.drop_table("idempotency_keys")
    op.drop_table("api_keys")
