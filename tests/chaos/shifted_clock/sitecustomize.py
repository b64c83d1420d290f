"""First on PYTHONPATH, it moves the clock of a Python process by CLOCK_SHIFT_SECONDS, but not its steady clock."""

from __future__ import annotations

import os
import time

_SHIFT_SECONDS = float(os.environ["CLOCK_SHIFT_SECONDS"])
_time, _time_ns = time.time, time.time_ns

time.time = lambda: _time() + _SHIFT_SECONDS
time.time_ns = lambda: _time_ns() + int(_SHIFT_SECONDS * 1e9)
