"""What the supervisor starts: ``python -m router_core.processes FD``."""

import sys

from router_core.processes.child import main

if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
