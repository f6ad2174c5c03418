"""Safe reading of pickle files from others, without running their code.

A pickle is a program: it names functions, calls them, and gives their results a state. This module interprets that
program itself. It knows only the instructions that build numbers, text, lists, tuples, dicts and arrays. It never calls
a function by the name a file gives, and it never passes a state from a file to NumPy: an array is read from its bytes
after its type, shape and length are checked. A file that names anything else is refused.
"""

import pickle
import pickletools
import re
from collections.abc import Callable, Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.data.files.unpack import content, damaged
from coterie.errors import UserError

Names = Mapping[tuple[str, str], Callable[..., Any]]
"""What a file may name, by module and name."""

_MOST_INSTRUCTIONS = 5_000_000
"""Maximum number of instructions. The largest published file, CIFAR-100 for training, has about 250,000."""
_TYPE = re.compile(r"b1|[iu][1248]|f[248]")


class Record:
    """An object with attributes from a file. A format that needs one derives its own class."""


class _Type:
    """Replacement for numpy.dtype."""

    def __init__(self, code: object, *_: object) -> None:
        if not isinstance(code, str) or not _TYPE.fullmatch(code):
            raise pickle.UnpicklingError("an array has elements that are not plain numbers")
        self.dtype = np.dtype(code)

    def build(self, state: object) -> None:
        """Set the byte order, which is all that the state of a plain type can contain."""
        if not isinstance(state, tuple) or len(state) != 8 or state[2:5] != (None, None, None):
            raise pickle.UnpicklingError("the type of an array is invalid")
        if state[1] not in ("<", ">", "|"):
            raise pickle.UnpicklingError("the type of an array is invalid")
        if state[1] != "|":
            self.dtype = self.dtype.newbyteorder(state[1])


class _Array:
    """Replacement for numpy.ndarray, which gets its content later."""

    values: NDArray[Any] | None = None

    def build(self, state: object) -> None:
        """Read the values from (version, shape, type, Fortran order, bytes)."""
        if not isinstance(state, tuple) or len(state) != 5:
            raise pickle.UnpicklingError("an array has no content")
        _, shape, kind, fortran, raw = state
        if not isinstance(shape, tuple) or len(shape) > 8 or not all(type(n) is int and n >= 0 for n in shape):
            raise pickle.UnpicklingError("the shape of an array is invalid")
        self.values = _values(kind, raw, prod(shape)).reshape(shape, order="F" if fortran is True else "C")


def _values(kind: object, raw: object, count: int) -> NDArray[Any]:
    data = raw.encode("latin1") if isinstance(raw, str) else raw  # pickles of Python 2 store bytes as strings
    if not isinstance(kind, _Type) or not isinstance(data, bytes):
        raise pickle.UnpicklingError("an array has no type or no bytes")
    if len(data) != count * kind.dtype.itemsize:
        raise pickle.UnpicklingError(f"an array of {count} elements has {len(data)} bytes")
    return np.frombuffer(data, kind.dtype)


def _scalar(kind: object, raw: object) -> object:
    return _values(kind, raw, 1)[0].item()


def _encode(text: object, encoding: object = "latin1") -> bytes:
    """Encode bytes as pickles of protocol 2 store them. Other codecs are refused: they could unpack to any size."""
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError(f"encoding {encoding!r:.99}")
    return text.encode("latin1")


_KNOWN: Names = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Type,
    ("numpy.core.multiarray", "_reconstruct"): lambda *_: _Array(),
    ("numpy._core.multiarray", "_reconstruct"): lambda *_: _Array(),
    ("numpy.core.multiarray", "scalar"): _scalar,
    ("numpy._core.multiarray", "scalar"): _scalar,
    ("_codecs", "encode"): _encode,
}


def load(path: Path, more: Names | None = None) -> Any:
    """Load a pickle file. `more` lists what its format needs besides arrays, by module and name.

    The result is made of plain Python objects. Arrays are only at the top, in a dict at the top, or in a `Record`.
    """
    try:
        return _plain(_Machine(path, {**_KNOWN, **(more or {})}).run(content(path, cost=6)))
    except UserError:
        raise
    except Exception as error:  # damaged pickles raise almost any exception
        raise damaged(path, f"it is not a pickle of arrays ({error})") from error


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _array(each) for key, each in value.items()}
    return _array(value)


def _array(value: Any) -> Any:
    if not isinstance(value, _Array):
        return value
    if value.values is None:
        raise pickle.UnpicklingError("an array has no content")
    return value.values


_MARK = object()


class _Machine:
    """Interpreter of a pickle's instructions."""

    def __init__(self, path: Path, names: Names) -> None:
        self.path, self.names = path, names
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.uncopied = 0
        """Number of characters that may still be converted to bytes: a file must not convert the same text often."""

    def run(self, program: bytes) -> Any:
        """Execute all instructions and return the object that they build."""
        self.uncopied = len(program)
        argument: Any
        for count, (code, argument, _) in enumerate(pickletools.genops(program)):
            if count > _MOST_INSTRUCTIONS:
                raise pickle.UnpicklingError(f"more than {_MOST_INSTRUCTIONS:,} instructions")
            name = code.name
            if name in _CONSTANTS:
                self.stack.append(_CONSTANTS[name])
            elif name in _LITERALS:
                self.stack.append(argument)
            elif name in _PUTS:
                self.memo[len(self.memo) if name == "MEMOIZE" else argument] = self.stack[-1]
            elif name in _GETS:
                self.stack.append(self.memo[argument])
            elif name == "STOP":
                return self.stack.pop()
            elif name not in ("PROTO", "FRAME"):
                self._build(name, argument)
        raise pickle.UnpicklingError("it has no end")

    def _build(self, name: str, argument: Any) -> None:
        """Execute an instruction that makes an object from others."""
        match name:
            case "EMPTY_LIST" | "EMPTY_DICT":
                self.stack.append([] if name == "EMPTY_LIST" else {})
            case "MARK":
                self.stack.append(_MARK)
            case "TUPLE" | "LIST":
                inside = self._to_mark()
                self.stack.append(tuple(inside) if name == "TUPLE" else inside)
            case "DICT":
                self._set({}, self._to_mark())
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                self.stack[-int(name[-1]) :] = [tuple(self.stack[-int(name[-1]) :])]
            case "APPEND" | "APPENDS":
                added = [self.stack.pop()] if name == "APPEND" else self._to_mark()
                self._top(list).extend(added)
            case "SETITEM" | "SETITEMS":
                added = [self.stack.pop(-2), self.stack.pop()] if name == "SETITEM" else self._to_mark()
                self._set(self._pop(dict), added)
            case "GLOBAL" | "STACK_GLOBAL":
                module, _, named = argument.partition(" ") if argument else (self.stack.pop(-2), "", self.stack.pop())
                self.stack.append(self._named(module, named))
            case "REDUCE" | "NEWOBJ":
                arguments = self._pop(tuple)
                function = self.stack.pop()
                if not any(function is known for known in self.names.values()):
                    raise pickle.UnpicklingError("it calls what is not a function")
                self._copied(*arguments[:1])
                self.stack.append(function(*arguments))
            case "BUILD":
                state = self.stack.pop()
                self._state(self.stack[-1], state)
            case "POP":
                self.stack.pop()
            case _:
                raise pickle.UnpicklingError(f"instruction {name}")

    def _named(self, module: object, name: object) -> Callable[..., Any]:
        if isinstance(module, str) and isinstance(name, str) and (module, name) in self.names:
            return self.names[module, name]
        raise UserError(
            f"{self.path} is refused: it asks for {str(module)[:99]}.{str(name)[:99]}, which a file of arrays does not "
            "need; it may run harmful code, so do not open it with other programs"
        )

    def _state(self, target: object, state: object) -> None:
        if isinstance(target, _Array | _Type):
            self._copied(*(state if isinstance(state, tuple) else ())[-1:])
            target.build(state)
        elif isinstance(target, Record) and isinstance(state, dict):
            vars(target).update({key: _array(value) for key, value in state.items() if isinstance(key, str)})
        else:
            raise pickle.UnpicklingError("it gives a state to an object that has none")

    def _copied(self, text: object = None) -> None:
        self.uncopied -= len(text) if isinstance(text, str) else 0
        if self.uncopied < 0:
            raise pickle.UnpicklingError("it uses the same text many times")

    def _set(self, target: dict[Any, Any], flat: list[Any]) -> None:
        for key, value in zip(flat[::2], flat[1::2], strict=True):
            if not isinstance(key, str | int | bytes):  # a key made of tuples may take forever to hash
                raise pickle.UnpicklingError("the key of a dict is neither text nor a number")
            target[key] = value
        self.stack.append(target)

    def _to_mark(self) -> list[Any]:
        start = len(self.stack) - 1
        while self.stack[start] is not _MARK:
            start -= 1
            if start < 0:
                raise pickle.UnpicklingError("a mark is missing")
        inside = self.stack[start + 1 :]
        del self.stack[start:]
        return inside

    def _top(self, kind: type) -> Any:
        if type(self.stack[-1]) is not kind:
            raise pickle.UnpicklingError(f"an object is not a {kind.__name__}")
        return self.stack[-1]

    def _pop(self, kind: type) -> Any:
        self._top(kind)
        return self.stack.pop()


_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_LITERALS = {
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
    *("STRING", "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
    *("UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
}
_PUTS = {"PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"}
_GETS = {"GET", "BINGET", "LONG_BINGET"}
