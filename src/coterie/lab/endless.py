"""Runs that are stopped from outside, to time their rounds or to follow a curve."""

from dataclasses import replace

from coterie.recipe import Recipe

FOREVER = 1_000_000
"""More rounds than any of these runs plays."""


def endless(recipe: Recipe) -> Recipe:
    """Return the recipe with so many rounds that none of those played is evaluated: a run evaluates its last round."""
    return replace(recipe, run=replace(recipe.run, rounds=FOREVER, eval_every=FOREVER, eval_last=1))
