"""Runs that their caller stops, to time rounds or to follow a curve."""

from dataclasses import replace

from coterie.recipe import Recipe

FOREVER = 1_000_000
"""Number of rounds that no such run reaches."""


def endless(recipe: Recipe) -> Recipe:
    """Return the recipe with so many rounds that no evaluation is due. A run always evaluates its last round."""
    return replace(recipe, run=replace(recipe.run, rounds=FOREVER, eval_every=FOREVER, eval_last=1))
