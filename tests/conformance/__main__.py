"""`make conformance`: exit code 1 when an assertion fails or has no test that ran, or a client did not do its job."""

from __future__ import annotations

import sys

from tests.conformance.report import render
from tests.conformance.run import install, record

install()
text, good = render(record(sys.argv[1:]))
print(text)
sys.exit(not good)
