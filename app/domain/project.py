"""Projects: the owners of files and batches. Every query is scoped by one."""

from __future__ import annotations

import re

from app.errors import InvalidRequest

#: The project of every configured key, and of a server without keys.
DEFAULT_PROJECT = "proj_default"

_SHAPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


def checked(project_id: str) -> str:
    """`project_id` again. Raises InvalidRequest unless it can name a project."""
    if _SHAPE.fullmatch(project_id) is None:
        raise InvalidRequest("A project's name has 1 to 64 letters, digits, '_', '.' and '-', a letter or digit first.")
    return project_id
