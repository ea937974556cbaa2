"""Makes the plugin under test and the kit beside this file importable, installed or not."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
for folder in (HERE, HERE.parents[2] / "plugins"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
