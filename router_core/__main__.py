"""``python -m router_core`` is the ``router-core`` command."""

import sys

from router_core.cli import main

if __name__ == "__main__":
    sys.exit(main())
