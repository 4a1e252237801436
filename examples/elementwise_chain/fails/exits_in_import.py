# expect: LOAD_ERROR|CRASHED
# Leaves during its import.

import sys

sys.exit(0)
