// Reads server-sent events from the body of a response. Used by the client's streams; knows nothing about jobs.

/** One event of a stream. */
export interface ServerEvent {
  event: string;
  data: string;
  id: string | undefined;
}

/** The longest event this client accepts: a server that sends more is broken, and must not fill the memory. */
const LONGEST = 4 * 1024 * 1024;

/** Takes the bytes of a stream in any pieces and returns the complete events. */
export class EventParser {
  #decoder = new TextDecoder();
  #rest = "";
  #event = "";
  #data: string[] = [];
  #id: string | undefined;

  push(bytes: Uint8Array): ServerEvent[] {
    this.#rest += this.#decoder.decode(bytes, { stream: true });
    if (this.#rest.length > LONGEST) throw new Error(`an event of more than ${LONGEST} characters`);
    const events: ServerEvent[] = [];
    for (;;) {
      const end = this.#rest.search(/\r\n|\n|\r(?!$)/);
      if (end < 0) return events;
      const line = this.#rest.slice(0, end);
      this.#rest = this.#rest.slice(end + (this.#rest.startsWith("\r\n", end) ? 2 : 1));
      const event = this.#line(line);
      if (event) events.push(event);
    }
  }

  #line(line: string): ServerEvent | undefined {
    if (line === "") return this.#finish();
    const colon = line.indexOf(":");
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (name === "event") this.#event = value;
    else if (name === "data") this.#data.push(value);
    else if (name === "id") this.#id = value;
    // Everything else is ignored, such as comments that keep the connection open.
    return undefined;
  }

  #finish(): ServerEvent | undefined {
    const event = { event: this.#event || "message", data: this.#data.join("\n"), id: this.#id };
    const empty = this.#data.length === 0 && this.#event === "";
    this.#event = "";
    this.#data = [];
    return empty ? undefined : event;
  }
}

/** The events of a response, until it ends. */
export async function* events(body: ReadableStream<Uint8Array>): AsyncGenerator<ServerEvent> {
  const reader = body.getReader();
  const parser = new EventParser();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield* parser.push(value);
    }
  } finally {
    // Also when the caller stops listening: the server then learns it at once.
    await reader.cancel().catch(() => {});
  }
}
