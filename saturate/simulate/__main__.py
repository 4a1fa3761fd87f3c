"""`python -m saturate.simulate`."""

import sys

from saturate.simulate.command import main

if __name__ == "__main__":
    sys.exit(main())
