"""Names of sites. They become names of files and folders on many systems, so not every text can be one."""

import re

from coterie.errors import UserError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


def check_name(name: str) -> str:
    """Return the name of a site. Raises UserError if a site cannot have it."""
    if not _NAME.fullmatch(name) or name.endswith("."):
        raise UserError(
            f"{name[:200]!r} cannot be the name of a site: use 1 to 63 letters, digits, hyphens, underscores and dots, "
            "with a letter or digit first and no dot at the end"
        )
    return name
