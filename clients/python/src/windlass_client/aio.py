"""The same client for asyncio. Each call runs in a thread, so that the event loop never waits for a socket."""

from __future__ import annotations

import asyncio
from typing import Any, AsyncIterator, Dict, Iterator, List, Optional, Sequence, TypeVar

from . import schema
from .client import Client, FeedEvent, WatchEvent

Item = TypeVar("Item")


class AsyncClient:
    """`Client` with `async` methods; takes the same arguments. Each wait and watch holds a thread of the event loop's
    executor; a program that waits for many jobs at once should give the loop a larger executor."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        self._client = Client(*arguments, **settings)

    async def submit(self, handler: str, input: Any, options: Optional[schema.Options] = None) -> schema.Submitted:
        return await asyncio.to_thread(self._client.submit, handler, input, options)

    async def submit_many(
        self, handler: str, inputs: Sequence[Any], options: Optional[schema.Options] = None, *, partial: bool = False
    ) -> schema.Batch:
        return await asyncio.to_thread(self._client.submit_many, handler, inputs, options, partial=partial)

    async def get(self, id: str) -> schema.Job:
        return await asyncio.to_thread(self._client.get, id)

    async def result(self, id: str) -> schema.Result:
        return await asyncio.to_thread(self._client.result, id)

    async def history(self, id: str) -> List[Dict[str, Any]]:
        return await asyncio.to_thread(self._client.history, id)

    async def why(self, id: str) -> Dict[str, Any]:
        return await asyncio.to_thread(self._client.why, id)

    async def logs(self, id: str, after: Optional[int] = None) -> List[Dict[str, Any]]:
        return await asyncio.to_thread(self._client.logs, id, after)

    async def counts(self) -> schema.Counts:
        return await asyncio.to_thread(self._client.counts)

    async def page(self, filter: Optional[str] = None, **query: Any) -> schema.JobPage:
        return await asyncio.to_thread(self._client.page, filter, **query)

    def list(self, filter: Optional[str] = None, **query: Any) -> AsyncIterator[schema.Job]:
        return _each(self._client.list(filter, **query))

    async def cancel(self, id: str, reason: Optional[str] = None) -> str:
        return await asyncio.to_thread(self._client.cancel, id, reason)

    async def replay(self, id: str, **how: Any) -> str:
        return await asyncio.to_thread(self._client.replay, id, **how)

    async def retry(self, id: str) -> str:
        return await asyncio.to_thread(self._client.retry, id)

    def schedules(self, after: Optional[str] = None, limit: Optional[int] = None) -> AsyncIterator[schema.Schedule]:
        return _each(self._client.schedules(after, limit))

    async def schedule(self, name: str) -> schema.Schedule:
        return await asyncio.to_thread(self._client.schedule, name)

    async def put_schedule(self, name: str, content: schema.NewSchedule) -> schema.Schedule:
        return await asyncio.to_thread(self._client.put_schedule, name, content)

    async def remove_schedule(self, name: str) -> None:
        await asyncio.to_thread(self._client.remove_schedule, name)

    async def pause_schedule(self, name: str) -> schema.Schedule:
        return await asyncio.to_thread(self._client.pause_schedule, name)

    async def resume_schedule(self, name: str) -> schema.Schedule:
        return await asyncio.to_thread(self._client.resume_schedule, name)

    async def trigger_schedule(self, name: str) -> schema.Submitted:
        return await asyncio.to_thread(self._client.trigger_schedule, name)

    async def next_runs(self, name: str, count: Optional[int] = None, zone: Optional[str] = None) -> schema.NextRuns:
        return await asyncio.to_thread(self._client.next_runs, name, count, zone)

    async def schedule_runs(
        self, name: str, limit: Optional[int] = None, before: Optional[str] = None
    ) -> schema.JobPage:
        return await asyncio.to_thread(self._client.schedule_runs, name, limit, before)

    async def wait(self, id: str, timeout: Optional[float] = None) -> Any:
        return await asyncio.to_thread(self._client.wait, id, timeout)

    def watch(self, id: str, after: Optional[int] = None) -> AsyncIterator[WatchEvent]:
        return _each(self._client.watch(id, after))

    def feed(self, after: Optional[int] = None, **query: Any) -> AsyncIterator[FeedEvent]:
        return _each(self._client.feed(after, **query))

    async def request(self, method: str, path: str, **more: Any) -> Any:
        return await asyncio.to_thread(self._client.request, method, path, **more)


async def _each(items: Iterator[Item]) -> AsyncIterator[Item]:
    """The items of a blocking iterator, each awaited in a thread."""
    end = object()
    while True:
        item: Any = await asyncio.to_thread(next, items, end)
        if item is end:
            return
        yield item
