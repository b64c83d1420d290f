"""Projects: the owners of files and batches. Every query is scoped by one."""

from __future__ import annotations

#: The project of every configured key, and of a server without keys.
DEFAULT_PROJECT = "proj_default"
