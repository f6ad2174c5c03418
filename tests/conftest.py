"""One thread a process: tests are many small operations, and the machine may be shared. No downloads either."""

import os

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["COTERIE_OFFLINE"] = "1"
