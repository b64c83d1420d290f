"""Exit 0 when the service in this container answers `/health`: it lives, whether its model is loaded or not.

A worker's port is given as the argument.
"""

from __future__ import annotations

import os
import sys
import urllib.request


def main() -> int:
    """Ask once."""
    port = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("BATCHYARD_SERVER_PORT", "8000")
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=3) as response:
            return 0 if response.status == 200 else 1
    except OSError as exc:
        sys.stderr.write(f"{exc}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
