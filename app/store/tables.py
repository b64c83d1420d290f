"""Tables, constraints, indexes. Times are integer Unix seconds; a lease's end is a float, by the database's clock."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    ColumnElement,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    literal_column,
    text,
)
from sqlalchemy.dialects import postgresql

from app.domain.batch import BatchStatus
from app.domain.chunk import ChunkState

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)

#: Ids order by byte on both databases, so that a keyset page ends where the next one starts.
Id = Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")


def word(value: StrEnum) -> ColumnElement[str]:
    """`value` spelled out in the statement: a planner matches a partial index with a literal, not with a parameter."""
    return literal_column(f"'{value.value}'", Text)


def words(values: Iterable[StrEnum]) -> list[ColumnElement[str]]:
    """Several of `word`, in a stable order."""
    return [word(value) for value in sorted(values)]


def listed(column: str, enum: type[StrEnum]) -> CheckConstraint:
    return CheckConstraint(f"{column} IN ({', '.join(repr(value.value) for value in enum)})", name=column)


def partial(name: str, *columns: str, where: str) -> Index:
    return Index(name, *columns, sqlite_where=text(where), postgresql_where=text(where))


def _counters(*names: str) -> list[Column[Any]]:
    usage = ("input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens", "total_tokens")
    return [Column(name, BigInteger, nullable=False, default=0) for name in (*names, *usage)]


files = Table(
    "files",
    metadata,
    Column("id", Id, primary_key=True),
    Column("project_id", Id, nullable=False),
    Column("purpose", Text, nullable=False),
    Column("filename", Text, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("sha256", Text),
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger),
    Column("deleted_at", BigInteger),
    Column("purged_at", BigInteger),
    Index("ix_files_listing", "project_id", "created_at", "id"),
    Index("ix_files_listing_by_purpose", "project_id", "purpose", "created_at", "id"),
    partial("ix_files_expiring", "expires_at", where="purged_at IS NULL"),
    partial("ix_files_deleted", "deleted_at", where="purged_at IS NULL"),
)

segments = Table(
    "segments",
    metadata,
    Column("file_id", Id, ForeignKey("files.id"), primary_key=True),
    Column("position", Integer, primary_key=True, autoincrement=False),
    Column("key", Id, nullable=False, index=True),
    Column("start", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
)

batches = Table(
    "batches",
    metadata,
    Column("id", Id, primary_key=True),
    Column("project_id", Id, nullable=False),
    Column("endpoint", Text, nullable=False),
    # The file ids are no foreign keys: an unknown input is accepted (openai-contract 3.3), results may be deleted.
    Column("input_file_id", Id, nullable=False, index=True),
    Column("input_found", Boolean, nullable=False),
    Column("output_file_id", Id),
    Column("error_file_id", Id),
    Column("completion_window", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger, nullable=False),
    Column("in_progress_at", BigInteger),
    Column("finalizing_at", BigInteger),
    Column("completed_at", BigInteger),
    Column("failed_at", BigInteger),
    Column("expired_at", BigInteger),
    Column("cancelling_at", BigInteger),
    Column("cancelled_at", BigInteger),
    Column("model", Text),
    Column("errors", Text),
    Column("metadata", Text),
    Column("output_expires_after_seconds", BigInteger),
    Column("total", BigInteger, nullable=False, default=0),
    *_counters("completed", "failed"),
    # Estimated tokens, once validated; and the limits that were in force when the batch was made (null: none).
    Column("enqueued_tokens", BigInteger),
    Column("enqueued_tokens_max", BigInteger),
    Column("queued_requests_max", BigInteger),
    Column("lease_token", Text),
    Column("leased_until", Double),
    listed("status", BatchStatus),
    Index("ix_batches_listing", "project_id", "created_at", "id"),
    Index("ix_batches_queue", "status", "created_at", "id"),
    # Of a project's many batches the few that count against its quotas; the words as `words` writes them.
    partial(
        "ix_batches_open",
        "project_id",
        where="status IN ('cancelling', 'finalizing', 'in_progress', 'validating')",
    ),
)

chunks = Table(
    "chunks",
    metadata,
    Column("id", Id, primary_key=True),
    Column("batch_id", Id, ForeignKey("batches.id"), nullable=False),
    Column("project_id", Id, nullable=False),
    Column("position", Integer, nullable=False),
    Column("start", BigInteger, nullable=False),
    Column("end", BigInteger, nullable=False),
    Column("first_line", BigInteger, nullable=False),
    Column("lines", BigInteger, nullable=False),
    Column("state", Text, nullable=False),
    Column("lease_token", Text),
    Column("leased_until", Double),
    # Claims from a lapsed lease since the last committed part: so often a process went with this chunk in hand.
    Column("takeovers", Integer, nullable=False, server_default="0"),
    *_counters("completed", "failed", "unrun"),
    Column("output_key", Id, index=True),
    Column("output_bytes", BigInteger),
    Column("output_rows", BigInteger),
    Column("error_key", Id, index=True),
    Column("error_bytes", BigInteger),
    Column("error_rows", BigInteger),
    listed("state", ChunkState),
    CheckConstraint("(state = 'leased') = (lease_token IS NOT NULL AND leased_until IS NOT NULL)", name="lease"),
    UniqueConstraint("batch_id", "position"),
    # A claim finds a batch's first free chunk in `open`, however many are sealed; `leased` holds a few rows a worker.
    partial("ix_chunks_open", "batch_id", "position", where="state <> 'sealed'"),
    partial("ix_chunks_leased", "project_id", where="state = 'leased'"),
)

parts = Table(
    "parts",
    metadata,
    Column("chunk_id", Id, ForeignKey("chunks.id"), primary_key=True),
    Column("sequence", Integer, primary_key=True, autoincrement=False),
    Column("key", Id, nullable=False, index=True),
    Column("bytes", BigInteger, nullable=False),
    *_counters("completed", "failed", "unrun"),
)

suspects = Table(
    "suspects",
    metadata,
    Column("chunk_id", Id, ForeignKey("chunks.id", ondelete="CASCADE"), primary_key=True),
    Column("line", Integer, primary_key=True, autoincrement=False),
    Column("deaths", Integer, nullable=False),
    Column("strikes", Integer, nullable=False),
)
