"""`python -m duramen` is the command line."""

import sys

from duramen.cli.main import main

sys.exit(main())
