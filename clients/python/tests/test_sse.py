"""The parser of event streams alone."""

import unittest

from windlass_client.sse import LONGEST_LINE, parse


class Events(unittest.TestCase):
    def check(self, text, *events):
        self.assertEqual([tuple(event) for event in parse(text.encode().splitlines(keepends=True))], list(events))

    def test_events_have_a_name_data_and_the_last_id(self):
        self.check(
            ': open\n\nevent: status\ndata: {}\nid: 4\n\nevent: progress\ndata: a\r\ndata: ½\r\n\r\ndata\n\n',
            ("status", "{}", "4"),
            ("progress", "a\n½", "4"),
            ("message", "", "4"),
        )

    def test_an_event_that_is_cut_off_is_left_out(self):
        self.check("event: status\ndata: {}\n")

    def test_a_line_without_an_end_is_refused(self):
        with self.assertRaises(ValueError):
            list(parse([b"x" * (LONGEST_LINE + 1)]))


if __name__ == "__main__":
    unittest.main()
