"""`python -m megalith` is `megalith`."""

import sys

from megalith.cli import main

if __name__ == "__main__":
    sys.exit(main())
