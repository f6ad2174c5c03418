"""The bundle that every run of Flower has to have. Nobody runs it: sites only compare its digest."""

import hashlib
import io
import zipfile

PROJECT = """\
[project]
name = "coterie"
version = "1.0.0"
description = "Marks runs of Coterie. It contains no code."

[tool.flwr.app]
publisher = "coterie"

[tool.flwr.app.components]
serverapp = "nothing:app"
clientapp = "nothing:app"

[tool.flwr.app.config]
"""


def bundle() -> bytes:
    """Return the bundle, with the same bytes on every machine: stored without compression, and with a fixed date."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_STORED) as archive:
        entry = zipfile.ZipInfo("pyproject.toml", (2000, 1, 1, 0, 0, 0))
        entry.create_system = 3
        archive.writestr(entry, PROJECT)
    return content.getvalue()


def digest() -> str:
    """Return the SHA-256 of the bundle. It is the version of the protocol: sites accept runs with this digest only."""
    return hashlib.sha256(bundle()).hexdigest()
