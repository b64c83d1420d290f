"""`python -m tests.unit.http.server DATABASE_URL FOLDER`: the application in a process, to look at its memory.

Prints its port. Ends when its standard input does.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from app.store.db import Database
from tests.unit.http.scenes import on_a_socket


async def main(url: str, folder: Path) -> None:
    database = Database(url)
    async with on_a_socket(database, folder) as served:
        print(served.client.base_url, flush=True)
        await asyncio.to_thread(sys.stdin.read)
    await database.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
