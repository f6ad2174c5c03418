"""One thread a process: tests are many small operations, and the machine may be shared."""

import os

os.environ["OMP_NUM_THREADS"] = "1"
