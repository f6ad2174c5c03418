"""A site process that answers with what it was asked, after its name. Run as a script.

    echo_site.py SOCKET NAME [SECONDS [COUNTS]]

It waits SECONDS before each answer, and appends a line to the file COUNTS for each request.
"""

import sys
import time
from pathlib import Path

from coterie.sites.socket import serve


def main() -> None:
    path, name, *rest = sys.argv[1:]
    seconds = float(rest[0]) if rest else 0.0

    def answer(request: bytes) -> bytes:
        if rest[1:]:
            with Path(rest[1]).open("a") as file:
                file.write("asked\n")
        time.sleep(seconds)
        return name.encode() + b":" + request

    serve(Path(path), answer)


if __name__ == "__main__":
    main()
