"""Lines in doubt, and how often a chunk was taken over: what a poison line did outlives the process it killed."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_ID = sa.Text().with_variant(sa.TEXT(collation="C"), "postgresql")


def upgrade() -> None:
    op.add_column("chunks", sa.Column("takeovers", sa.Integer(), nullable=False, server_default="0"))
    op.create_table(
        "suspects",
        sa.Column("chunk_id", _ID, nullable=False),
        sa.Column("line", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("deaths", sa.Integer(), nullable=False),
        sa.Column("strikes", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["chunk_id"], ["chunks.id"], name=op.f("fk_suspects_chunk_id_chunks"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("chunk_id", "line", name=op.f("pk_suspects")),
    )


def downgrade() -> None:
    op.drop_table("suspects")
    op.drop_column("chunks", "takeovers")
