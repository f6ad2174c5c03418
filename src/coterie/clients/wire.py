"""Messages between the server and a site: a head of plain values, and trees of tensors.

A message is the length of its head (8 bytes), the head as JSON, and a safetensors file with all trees. Equal messages
have equal bytes, so that a message which is sent again can be recognized. Nothing is ever unpickled.
"""

import json
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

from safetensors import SafetensorError
from safetensors.torch import load, save

from coterie.core.tree import Tree

VERSION = 1
"""Version of the messages. A server and its sites must have the same one."""
_LONGEST_HEAD = 16_000_000
_LONGEST_TEXT = 300
_LENGTH = struct.Struct("<Q")


class BadMessageError(ValueError):
    """A message that is damaged, or that is not one of ours."""


class Message(NamedTuple):
    """A message. A tree that is not there is empty."""

    head: dict[str, Any]
    trees: Mapping[str, Tree]

    @property
    def kind(self) -> str:
        """What the message asks or answers."""
        return str(self.head.get("kind"))

    def tree(self, name: str) -> Tree:
        """Return one of the trees."""
        return self.trees.get(name, {})


def encode(kind: str, head: Mapping[str, Any], **trees: Tree) -> bytes:
    """Return the bytes of a message."""
    text = json.dumps({**head, "kind": kind, "version": VERSION}, sort_keys=True).encode()
    tensors = {
        f"{label}:{name}": value.detach().cpu().contiguous()
        for label, tree in trees.items()
        for name, value in tree.items()
    }
    return _LENGTH.pack(len(text)) + text + (save(_separate(tensors)) if tensors else b"")


def decode(content: bytes) -> Message:
    """Read a message. Raises BadMessageError if it is not whole or of another version."""
    if len(content) < _LENGTH.size:
        raise BadMessageError("it is empty or cut off")
    (size,) = _LENGTH.unpack_from(content)
    if size > min(_LONGEST_HEAD, len(content) - _LENGTH.size):
        raise BadMessageError("it is cut off, or is not a message of Coterie")
    text, tensors = content[_LENGTH.size : _LENGTH.size + size], content[_LENGTH.size + size :]
    try:
        head = json.loads(text)
        found = load(tensors) if tensors else {}
    except (ValueError, RecursionError, SafetensorError) as error:
        raise BadMessageError(f"it is damaged: {error}") from None
    if not isinstance(head, dict) or head.get("version") != VERSION:
        raise BadMessageError(
            "it has another version; install the same version of Coterie on the server and at the sites"
        )
    trees: dict[str, Tree] = {}
    for key, value in found.items():
        label, _, name = key.partition(":")
        trees.setdefault(label, {})[name] = value
    return Message(head, trees)


def shown(text: object) -> str:
    """Return a text from another machine as it can be printed and recorded: one short line of visible characters."""
    line = str(text)[: _LONGEST_TEXT + 1]
    cut = f"{line[:_LONGEST_TEXT]}..." if len(line) > _LONGEST_TEXT else line
    return "".join(each if each.isprintable() else "?" for each in cut)


def _separate(tensors: Tree) -> Tree:
    """Return the tensors without memory that two of them share, which safetensors refuses."""
    seen: set[int] = set()
    for name, value in tensors.items():
        if (start := value.data_ptr()) in seen and value.numel():
            tensors[name] = value.clone()
        seen.add(start)
    return tensors
