"""The statistics that tables show, with their headings."""

import math

from coterie.measure.protocols import PROTOCOLS, Figures
from coterie.report.units import known


def shown_statistics(figures: Figures) -> dict[str, str]:
    """Return the statistics to show, as name -> heading. `restricted_mean` is shown only if it differs from `mean`."""
    restricted = {"restricted_mean": "restricted"} if restricted_differs(figures) else {}
    return {
        "mean": "mean",
        "weighted_mean": "weighted",
        **restricted,
        "std": "std",
        "stderr": "stderr",
        "bottom_decile": "bottom decile",
        "last10_mean": "last ten",
    }


def restricted_differs(figures: Figures) -> bool:
    """Return whether any mean changes when each client chooses only among its own classes."""
    for protocol in PROTOCOLS:
        found = figures[protocol.key]
        plain, restricted = known(found.mean), known(found.restricted_mean)
        if plain is not None and restricted is not None and not math.isclose(plain, restricted, abs_tol=1e-9):
            return True
    return False
