"""One thread a process: tests are many small operations, and the machine may be shared. No downloads either."""

import os
import tempfile

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["COTERIE_OFFLINE"] = "1"
os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="coterie-tests-")  # as on a machine that has fetched nothing
