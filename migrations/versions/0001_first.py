"""First schema: files and their segments, batches, chunks and parts."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_ID = sa.Text().with_variant(sa.TEXT(collation="C"), "postgresql")


def _usage() -> Sequence[sa.Column[int]]:
    names = ("input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens", "total_tokens")
    return [sa.Column(name, sa.BigInteger(), nullable=False) for name in names]


def _partial(name: str, table: str, columns: list[str], where: str) -> None:
    op.create_index(name, table, columns, sqlite_where=sa.text(where), postgresql_where=sa.text(where))


def upgrade() -> None:
    _files()
    _batches()
    _chunks()


def _files() -> None:
    op.create_table(
        "files",
        sa.Column("id", _ID, nullable=False),
        sa.Column("project_id", _ID, nullable=False),
        sa.Column("purpose", sa.Text(), nullable=False),
        sa.Column("filename", sa.Text(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.Text()),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger()),
        sa.Column("deleted_at", sa.BigInteger()),
        sa.Column("purged_at", sa.BigInteger()),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_files")),
    )
    op.create_index("ix_files_listing", "files", ["project_id", "created_at", "id"])
    _partial("ix_files_expiring", "files", ["expires_at"], "purged_at IS NULL")
    _partial("ix_files_deleted", "files", ["deleted_at"], "purged_at IS NULL")
    op.create_table(
        "segments",
        sa.Column("file_id", _ID, nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("key", _ID, nullable=False),
        sa.Column("start", sa.BigInteger(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["file_id"], ["files.id"], name=op.f("fk_segments_file_id_files")),
        sa.PrimaryKeyConstraint("file_id", "position", name=op.f("pk_segments")),
    )
    op.create_index("ix_segments_key", "segments", ["key"])


def _batches() -> None:
    words = "'validating', 'failed', 'in_progress', 'finalizing', 'completed', 'expired', 'cancelling', 'cancelled'"
    op.create_table(
        "batches",
        sa.Column("id", _ID, nullable=False),
        sa.Column("project_id", _ID, nullable=False),
        sa.Column("endpoint", sa.Text(), nullable=False),
        sa.Column("input_file_id", _ID, nullable=False),
        sa.Column("input_found", sa.Boolean(), nullable=False),
        sa.Column("output_file_id", _ID),
        sa.Column("error_file_id", _ID),
        sa.Column("completion_window", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.Column("in_progress_at", sa.BigInteger()),
        sa.Column("finalizing_at", sa.BigInteger()),
        sa.Column("completed_at", sa.BigInteger()),
        sa.Column("failed_at", sa.BigInteger()),
        sa.Column("expired_at", sa.BigInteger()),
        sa.Column("cancelling_at", sa.BigInteger()),
        sa.Column("cancelled_at", sa.BigInteger()),
        sa.Column("model", sa.Text()),
        sa.Column("errors", sa.Text()),
        sa.Column("metadata", sa.Text()),
        sa.Column("output_expires_after_seconds", sa.BigInteger()),
        sa.Column("total", sa.BigInteger(), nullable=False),
        sa.Column("completed", sa.BigInteger(), nullable=False),
        sa.Column("failed", sa.BigInteger(), nullable=False),
        *_usage(),
        sa.Column("lease_token", sa.Text()),
        sa.Column("leased_until", sa.Double()),
        sa.CheckConstraint(f"status IN ({words})", name=op.f("ck_batches_status")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_batches")),
    )
    op.create_index("ix_batches_input_file_id", "batches", ["input_file_id"])
    op.create_index("ix_batches_listing", "batches", ["project_id", "created_at", "id"])
    op.create_index("ix_batches_queue", "batches", ["status", "created_at", "id"])


def _chunks() -> None:
    op.create_table(
        "chunks",
        sa.Column("id", _ID, nullable=False),
        sa.Column("batch_id", _ID, nullable=False),
        sa.Column("project_id", _ID, nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("start", sa.BigInteger(), nullable=False),
        sa.Column("end", sa.BigInteger(), nullable=False),
        sa.Column("first_line", sa.BigInteger(), nullable=False),
        sa.Column("lines", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("lease_token", sa.Text()),
        sa.Column("leased_until", sa.Double()),
        sa.Column("completed", sa.BigInteger(), nullable=False),
        sa.Column("failed", sa.BigInteger(), nullable=False),
        sa.Column("unrun", sa.BigInteger(), nullable=False),
        *_usage(),
        sa.Column("output_key", _ID),
        sa.Column("output_bytes", sa.BigInteger()),
        sa.Column("output_rows", sa.BigInteger()),
        sa.Column("error_key", _ID),
        sa.Column("error_bytes", sa.BigInteger()),
        sa.Column("error_rows", sa.BigInteger()),
        sa.CheckConstraint("state IN ('pending', 'leased', 'sealed')", name=op.f("ck_chunks_state")),
        sa.CheckConstraint(
            "(state = 'leased') = (lease_token IS NOT NULL AND leased_until IS NOT NULL)", name=op.f("ck_chunks_lease")
        ),
        sa.ForeignKeyConstraint(["batch_id"], ["batches.id"], name=op.f("fk_chunks_batch_id_batches")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_chunks")),
        sa.UniqueConstraint("batch_id", "position", name=op.f("uq_chunks_batch_id_position")),
    )
    op.create_index("ix_chunks_output_key", "chunks", ["output_key"])
    op.create_index("ix_chunks_error_key", "chunks", ["error_key"])
    _partial("ix_chunks_open", "chunks", ["batch_id", "position"], "state <> 'sealed'")
    _partial("ix_chunks_leased", "chunks", ["project_id"], "state = 'leased'")
    op.create_table(
        "parts",
        sa.Column("chunk_id", _ID, nullable=False),
        sa.Column("sequence", sa.Integer(), nullable=False),
        sa.Column("key", _ID, nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("completed", sa.BigInteger(), nullable=False),
        sa.Column("failed", sa.BigInteger(), nullable=False),
        sa.Column("unrun", sa.BigInteger(), nullable=False),
        *_usage(),
        sa.ForeignKeyConstraint(["chunk_id"], ["chunks.id"], name=op.f("fk_parts_chunk_id_chunks")),
        sa.PrimaryKeyConstraint("chunk_id", "sequence", name=op.f("pk_parts")),
    )
    op.create_index("ix_parts_key", "parts", ["key"])


def downgrade() -> None:
    for table in ("parts", "chunks", "batches", "segments", "files"):
        op.drop_table(table)
