# expect: TIMEOUT
# slow
# Never finishes its import.

import time

while True:
    time.sleep(1)
