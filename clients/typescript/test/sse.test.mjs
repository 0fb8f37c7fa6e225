// The parser of event streams alone: any cut of the bytes gives the same events.

import assert from "node:assert/strict";
import { test } from "node:test";

import { EventParser } from "../dist/sse.js";

const STREAM = ': open\n\nevent: status\ndata: {"status":"running"}\nid: 0\n\nevent: progress\r\ndata: {"message":\r\ndata: "½ done"}\r\nid: 7\r\n\r\ndata\n\n';
const EVENTS = [
  { event: "status", data: '{"status":"running"}', id: "0" },
  { event: "progress", data: '{"message":\n"½ done"}', id: "7" },
  { event: "message", data: "", id: "7" },
];

test("events come out whole wherever the bytes are cut", () => {
  const bytes = new TextEncoder().encode(STREAM);
  for (let cut = 0; cut <= bytes.length; cut += 1) {
    const parser = new EventParser();
    const events = [...parser.push(bytes.slice(0, cut)), ...parser.push(bytes.slice(cut))];
    assert.deepEqual(events, EVENTS, `cut at ${cut}`);
  }
});

test("an event without an end is refused before it fills the memory", () => {
  const parser = new EventParser();
  const piece = new TextEncoder().encode("x".repeat(1024 * 1024));
  assert.throws(() => {
    for (let pieces = 0; pieces < 10; pieces += 1) parser.push(piece);
  }, /more than/);
});
