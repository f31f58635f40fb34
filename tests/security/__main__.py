"""`python -m tests.security`: every verb on every hostile directory; `--count N --seed S` for a part of them."""

import sys

from tests.security.hostile import main

sys.exit(main(sys.argv[1:]))
