"""Reading LLVM IR text: where a type ends, where a value ends, how many bytes a type has.

>>> next_type("<4 x float>, ptr %p", 0)
('<4 x float>', 11)
>>> bytes_of("{ i32, i1 }")
8
>>> argument_list("call void @f(i32 noundef %a, ptr align 4 %b)", 13)
[('i32', '%a'), ('ptr', '%b')]
"""

from __future__ import annotations

import re
from functools import cache

_BYTES = {"half": 2, "bfloat": 2, "float": 4, "double": 8, "ptr": 8}
_OPEN, _CLOSE = "([{<", ")]}>"
_NAME = re.compile(r'[%@](?:"[^"]*"|[\w.$-]+)')
_WORD = re.compile(r"[^\s,()\[\]{}<>]+")
_ATTRIBUTE = re.compile(
    r"(?:noundef|nonnull|immarg|readonly|readnone|writeonly|nocapture|noalias|inreg|zeroext|signext|"
    r"captures\([^)]*\)|range\([^)]*\)|align \d+|dereferenceable(?:_or_null)?\(\d+\)|nofree|"
    r"nofpclass\([^)]*\)) "
)


def _balanced(text: str, start: int) -> int:
    """The end of a bracket that begins at a place."""
    depth = 0
    for position in range(start, len(text)):
        if text[position] in _OPEN:
            depth += 1
        elif text[position] in _CLOSE:
            depth -= 1
            if not depth:
                return position + 1
    raise ValueError(f"a bracket has no end: {text[start:]}")


def next_type(text: str, start: int) -> tuple[str, int]:
    """The type that begins at a place, and where it ends."""
    if text[start] in "<[{":
        end = _balanced(text, start)
    else:
        word = _WORD.match(text, start)
        if word is None:
            raise ValueError(f"no type: {text[start:]}")
        end = word.end()
    return text[start:end], end


def next_value(text: str, start: int) -> tuple[str, int]:
    """The value (a name, a number or a constant expression) that begins at or after a place."""
    while text[start] == " ":
        start += 1
    name = _NAME.match(text, start)
    if name:
        return name[0], name.end()
    end = start
    while end < len(text) and text[end] != ",":
        if text[end] in _OPEN:
            return text[start : _balanced(text, end)], _balanced(text, end)
        after = _WORD.match(text, end)
        end = after.end() if after else end
        rest = re.match(r" (?=[\w ]*[(<\[{])", text[end:])
        if rest is None:
            break
        end += 1
    return text[start:end], end


def argument_list(text: str, start: int) -> list[tuple[str, str]]:
    """(type, value) of each argument of a call, from behind its opening bracket."""
    end = _balanced(text, start - 1) - 1
    found, position = [], start
    while position < end:
        kind, position = next_type(text, position)
        position += 1
        attribute = _ATTRIBUTE.match(text, position)
        while attribute:
            position = attribute.end()
            attribute = _ATTRIBUTE.match(text, position)
        depth, begin = 0, position
        while position < end and (depth or text[position] != ","):
            depth += (text[position] in _OPEN) - (text[position] in _CLOSE)
            position += 1
        found.append((kind, text[begin:position].strip()))
        position += 2
    return found


def parts(kind: str) -> list[str]:
    """The types of a struct's members, in order; of any other type, itself."""
    if not kind.startswith("{"):
        return [kind]
    found, position = [], 2
    while position < len(kind) - 1:
        part, position = next_type(kind, position)
        found.append(part)
        position += 2
    return found


@cache
def bytes_of(kind: str) -> int:
    """The size of a type in memory, as the targets' data layouts have it."""
    return _layout(kind)[0]


def _layout(kind: str) -> tuple[int, int]:
    """Bytes and alignment."""
    kind = kind.strip()
    if kind in _BYTES or kind.startswith("ptr"):
        size = _BYTES.get(kind, 8)
        return size, size
    if re.fullmatch(r"i\d+", kind):
        size = 1
        while size * 8 < int(kind[1:]):
            size *= 2
        return size, min(size, 16)
    counted = re.match(r"[<\[](\d+) x (.*)[>\]]$", kind)
    if counted:
        size, alignment = _layout(counted[2])
        total = int(counted[1]) * size
        if kind[0] == "<":
            if counted[2] == "i1":
                total = -(-int(counted[1]) // 8)
            return total, max(total, 1)
        return total, alignment
    if kind.startswith("{"):
        offset, most = 0, 1
        for part in parts(kind):
            size, alignment = _layout(part)
            offset = -(-offset // alignment) * alignment + size
            most = max(most, alignment)
        return -(-offset // most) * most, most
    raise ValueError(f"a type of unknown size: {kind}")
