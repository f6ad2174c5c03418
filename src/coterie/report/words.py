"""Counts in words, such as "3 clients and 1 new user"."""


def things(number: int, name: str) -> str:
    """Return a number with its noun, in the plural unless the number is 1."""
    return f"{number:,} {name}" + ("" if number == 1 else "s")


def people(existing: int, new: int) -> str:
    """Return the numbers of clients and, if there are any, of new users."""
    return things(existing, "client") + (f" and {things(new, 'new user')}" if new else "")
