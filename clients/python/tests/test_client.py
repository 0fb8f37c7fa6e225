"""The client against a real server with the demo's handlers (`cargo xtask clients`). BEY-12, the client half."""

import asyncio
import contextlib
import threading
import time
import unittest

from windlass_client import AsyncClient, JobFailed, Problem, ProgressEvent, StatusEvent, Unreachable, WaitTimeout

from .server import KEY, URL, client, unique

PICTURE = {"picture": "cat", "width": 10}
HOUR_MS = 3_600_000


class Jobs(unittest.TestCase):
    def setUp(self):
        self.jobs = client()

    def test_a_submitted_job_is_waited_for_and_answers_its_output(self):
        submitted = self.jobs.submit("demo.thumbnail", PICTURE)
        self.assertTrue(submitted["id"].isdigit())
        self.assertFalse(submitted["duplicate"])
        self.assertEqual(self.jobs.wait(submitted["id"], timeout=20), "cat-10.webp")
        job = self.jobs.get(submitted["id"])
        self.assertEqual((job["status"], job["handler"]), ("succeeded", "demo.thumbnail"))
        self.assertEqual(self.jobs.result(submitted["id"]), {"status": "succeeded", "output": "cat-10.webp"})
        self.assertIn("succeeded", [entry["status"] for entry in self.jobs.history(submitted["id"])])

    def test_an_idempotency_key_answers_the_same_job_again(self):
        options = {"idempotency_key": unique("order")}
        first = self.jobs.submit("demo.thumbnail", PICTURE, options)
        second = self.jobs.submit("demo.thumbnail", PICTURE, options)
        self.assertEqual(second, {"id": first["id"], "duplicate": True})

    def test_many_jobs_are_stored_at_once_and_listed_page_by_page(self):
        tag = unique("many")
        inputs = [{"picture": "dog", "width": width} for width in range(7)]
        stored = self.jobs.submit_many("demo.thumbnail", inputs, {"tags": [tag]})["jobs"]
        listed = [job["id"] for job in self.jobs.list(f"tag:{tag}", limit=3)]
        self.assertEqual(sorted(listed), sorted(one["id"] for one in stored))
        self.assertEqual(len(self.jobs.page(f"tag:{tag}", limit=3)["jobs"]), 3)

    def test_progress_is_watched_live_until_the_end(self):
        id = self.jobs.submit("demo.report", {"month": "May", "pages": 3})["id"]
        events = list(self.jobs.watch(id))
        percents = [event.percent for event in events if isinstance(event, ProgressEvent)]
        self.assertGreaterEqual(len(percents), 2)
        self.assertEqual(percents, sorted(percents))
        self.assertEqual([event.status for event in events if isinstance(event, StatusEvent)][-1], "succeeded")

    def test_a_stream_that_breaks_goes_on_after_its_last_event(self):
        id = self.jobs.submit("demo.report", {"month": "June", "pages": 3})["id"]
        fragile = Fragile(URL, KEY)
        events = list(fragile.watch(id))
        sequences = [event.sequence for event in events if isinstance(event, ProgressEvent)]
        self.assertGreaterEqual(len(fragile.asked), 2, "it was opened again")
        self.assertTrue(any(fragile.asked[1:]), "and told where to go on")
        self.assertEqual(sequences, sorted(set(sequences)), "nothing came twice")
        self.assertEqual(events[-1].status, "succeeded")

    def test_a_job_that_fails_is_an_error_with_its_reason_and_can_be_replayed(self):
        input = {"service": "mail", "failures": 1}
        id = self.jobs.submit("demo.flaky", input, {"retry": {"max_attempts": 1}})["id"]
        with self.assertRaises(JobFailed) as failed:
            self.jobs.wait(id, timeout=20)
        self.assertEqual((failed.exception.status, failed.exception.error["code"]), ("dead_lettered", "upstream"))
        again = self.jobs.replay(id, input={"service": "mail", "failures": 0})
        self.assertNotEqual(again, id)
        self.assertEqual(self.jobs.wait(again, timeout=20), 1)

    def test_a_retrying_job_is_retried_now(self):
        retry = {"max_attempts": 2, "first_delay": HOUR_MS, "max_delay": HOUR_MS}
        id = self.jobs.submit("demo.flaky", {"service": "mail", "failures": 1}, {"retry": retry})["id"]
        for event in self.jobs.watch(id):
            if isinstance(event, StatusEvent) and event.status == "retrying":
                break
        self.assertEqual(self.jobs.retry(id), id)
        self.assertEqual(self.jobs.wait(id, timeout=20), 2)

    def test_a_job_is_canceled_once(self):
        id = self.jobs.submit("demo.reminder", {"note": "never"}, {"delay_ms": HOUR_MS})["id"]
        self.assertTrue(self.jobs.why(id)["text"])
        self.assertEqual(self.jobs.cancel(id, "not needed"), "canceled")
        self.assertEqual(self.jobs.cancel(id), "already_finished")
        with self.assertRaises(JobFailed) as failed:
            self.jobs.wait(id)
        self.assertEqual(failed.exception.status, "canceled")

    def test_waiting_ends_in_time_although_the_job_goes_on(self):
        id = self.jobs.submit("demo.reminder", {"note": "later"}, {"delay_ms": HOUR_MS})["id"]
        with self.assertRaises(WaitTimeout):
            self.jobs.wait(id, timeout=0.2)
        self.assertEqual(self.jobs.get(id)["status"], "scheduled")
        self.jobs.cancel(id)

    def test_the_feed_tells_of_every_job(self):
        stop = threading.Event()

        def submit():
            # The feed begins when the server has the request, which nothing announces: submit until one shows up.
            while not stop.is_set():
                self.jobs.wait(self.jobs.submit("demo.thumbnail", PICTURE)["id"])

        submitting = threading.Thread(target=submit)
        submitting.start()
        try:
            event = next(self.jobs.feed(handler_id="demo.thumbnail"))
        finally:
            stop.set()
            submitting.join()
        self.assertEqual(event.handler, "demo.thumbnail")
        self.assertTrue(event.sequence > 0 and event.job and event.status and event.at)

    def test_refusals_are_problems_with_a_code(self):
        for call, status, code in [
            (lambda: self.jobs.get("1"), 404, "job_not_found"),
            (lambda: self.jobs.submit("no.such.handler", {}), 404, "handler_not_found"),
            (lambda: self.jobs.submit("demo.thumbnail", {"picture": 1}), 422, "invalid_input"),
            (lambda: self.jobs.page("nonsense"), 422, "invalid_input"),
            (lambda: client(key="wl_test_wrong").counts(), 401, "unauthorized"),
        ]:
            with self.subTest(code=code), self.assertRaises(Problem) as refused:
                call()
            self.assertEqual((refused.exception.status, refused.exception.code), (status, code))

    def test_a_schedule_is_put_previewed_triggered_and_removed(self):
        jobs = client()
        name = f"python / {time.time_ns()}"
        content = {"cron": "30 2 * * *", "zone": "Europe/Berlin", "handler": "demo.thumbnail", "input": PICTURE}
        made = jobs.put_schedule(name, {**content, "missed": {"all": 5}, "version": 0})
        self.assertEqual((made["version"], made["missed"], made["paused"]), (1, {"all": 5}, False))
        for wrong, status, code in [({"version": 0}, 409, "schedule_changed"), ({"cron": "x"}, 422, "invalid_input")]:
            with self.assertRaises(Problem) as raised:
                jobs.put_schedule(name, {**content, **wrong})
            self.assertEqual((raised.exception.status, raised.exception.code), (status, code))
        next_runs = jobs.next_runs(name, count=3, zone="Asia/Kathmandu")
        self.assertEqual((next_runs["zone"], len(next_runs["runs"])), ("Europe/Berlin", 3))
        self.assertTrue(next_runs["runs"][0]["viewer"].endswith("+05:45"))
        self.assertTrue(jobs.pause_schedule(name)["paused"])
        id = jobs.trigger_schedule(name)["id"]
        self.assertEqual(jobs.wait(id, timeout=20), "cat-10.webp")
        self.assertEqual(jobs.schedule_runs(name)["jobs"][0]["id"], id)
        self.assertFalse(jobs.resume_schedule(name)["paused"])
        self.assertEqual(jobs.schedule(name)["version"], 3)
        self.assertIn(name, [schedule["name"] for schedule in jobs.schedules(limit=1)])
        jobs.remove_schedule(name)
        with self.assertRaises(Problem) as raised:
            jobs.schedule(name)
        self.assertEqual(raised.exception.code, "schedule_not_found")

    def test_a_server_that_is_not_there_is_unreachable(self):
        from windlass_client import Client

        # Port 9 is `discard`, which nobody runs.
        with self.assertRaises(Unreachable):
            Client("http://127.0.0.1:9", KEY, retries=0).counts()


class Asynchronous(unittest.IsolatedAsyncioTestCase):
    async def test_the_event_loop_goes_on_while_jobs_are_waited_for(self):
        jobs = AsyncClient(URL, KEY)
        submitted = await asyncio.gather(*(jobs.submit("demo.thumbnail", PICTURE) for _ in range(5)))
        outputs = await asyncio.gather(*(jobs.wait(one["id"], timeout=20) for one in submitted))
        self.assertEqual(outputs, ["cat-10.webp"] * 5)

    async def test_a_job_is_watched(self):
        jobs = AsyncClient(URL, KEY)
        id = (await jobs.submit("demo.report", {"month": "July", "pages": 1}))["id"]
        events = [event async for event in jobs.watch(id)]
        self.assertEqual(events[-1].status, "succeeded")


class Fragile(type(client())):
    """A client whose streams break after their first progress report, however the server goes on."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.asked = []

    @contextlib.contextmanager
    def _open(self, method, path, query, body, headers, timeout):
        with super()._open(method, path, query, body, headers, timeout) as (connection, answer):
            if path.endswith("/events"):
                self.asked.append(headers.get("Last-Event-ID"))
                answer = CutOff(answer)
            yield connection, answer


class CutOff:
    """An answer that breaks after the first progress report."""

    def __init__(self, answer):
        self.answer = answer
        self.reported = False

    def readline(self, limit):
        line = self.answer.readline(limit)
        if self.reported and line.strip() == b"":
            self.reported = False
            self.broken = True
            return line
        if getattr(self, "broken", False):
            raise ConnectionResetError("cut off")
        self.reported = self.reported or line.startswith(b"event: progress")
        return line


if __name__ == "__main__":
    unittest.main()
