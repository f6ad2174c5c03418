"""A site process that answers with what it was asked, after its name. Run as a script, with `python -I`.

    echo_site.py SOCKET NAME SECONDS ASKED

It appends a line to the file ASKED for each request, and waits SECONDS before each answer.
"""

import runpy
import sys
import time
from pathlib import Path

CLIENTS = Path(__file__).parents[2] / "src" / "coterie" / "clients"
runpy.run_path(str(CLIENTS / "flower_child.py"))["make_empty_packages"]("site")  # spares the start of PyTorch

from coterie.sites.socket import serve  # noqa: E402


def main() -> None:
    path, name, seconds, asked = sys.argv[1:]

    def answer(request: bytes) -> bytes:
        with Path(asked).open("a") as file:
            file.write("asked\n")
        time.sleep(float(seconds))
        return name.encode() + b":" + request

    serve(Path(path), answer)


if __name__ == "__main__":
    main()
