"""`python -m captioner`, for a checkout that is not installed."""

from __future__ import annotations

import sys

from captioner.cli import main

sys.exit(main())
