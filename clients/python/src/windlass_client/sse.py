"""Reads server-sent events line by line. Used by the client's streams; knows nothing about jobs."""

from __future__ import annotations

from typing import Iterable, Iterator, List, NamedTuple, Optional

# The longest line this client accepts: a server that sends more is broken, and must not fill the memory.
LONGEST_LINE = 4 * 1024 * 1024


class ServerEvent(NamedTuple):
    event: str
    data: str
    id: Optional[str]


def parse(lines: Iterable[bytes]) -> Iterator[ServerEvent]:
    """The events in the lines of a stream; omits an incomplete event at the end."""
    event, data, last = "", [], None  # type: str, List[str], Optional[str]
    for raw in lines:
        if len(raw) > LONGEST_LINE:
            raise ValueError(f"the server sent a line of more than {LONGEST_LINE} bytes")
        line = raw.decode("utf-8").rstrip("\r\n")
        if line == "":
            if event or data:
                yield ServerEvent(event or "message", "\n".join(data), last)
            event, data = "", []
            continue
        name, _, value = line.partition(":")
        value = value[1:] if value.startswith(" ") else value
        if name == "event":
            event = value
        elif name == "data":
            data.append(value)
        elif name == "id":
            last = value
        # Everything else is ignored, such as comments that keep the connection open.
