"""A server that asks its sites for ever. Run as a script.

    server_loop.py FOLDER LISTEN ROSTER (fresh | resume)

ROSTER is a JSON file of public keys and names. What is told and what comes back goes to stdout.
"""

import json
import os
import sys
import time
from pathlib import Path

from coterie.clients.flower_server import FlowerTransport
from coterie.clients.transport import Failure


def main() -> None:
    folder, listen, roster, mode = sys.argv[1:]

    def told(sentence: str) -> None:
        print("told", sentence, flush=True)

    names = json.loads(Path(roster).read_text())
    transport = FlowerTransport(Path(folder), listen, None, lambda: names, mode == "resume", told=told)
    print("address", transport.address, flush=True)
    for number in range(1000):
        for name, answer in transport.ask(dict.fromkeys(names.values(), b"%d" % number), 60):
            print("reply", name, answer if isinstance(answer, Failure) else answer.decode(), os.getpid(), flush=True)
        time.sleep(0.1)


if __name__ == "__main__":
    main()
