// Server-sent events from a POST, which EventSource cannot make.

/** Takes the stream's text in any pieces, and calls `onEvent(name, data)` for each event that is whole. */
export class EventParser {
  #onEvent;
  #rest = "";
  #name = "";
  #data = [];

  constructor(onEvent) {
    this.#onEvent = onEvent;
  }

  push(text) {
    const lines = (this.#rest + text).split(/\r\n|\n|\r(?!$)/);
    this.#rest = lines.pop();
    for (const line of lines) this.#take(line);
  }

  #take(line) {
    if (line === "") {
      if (this.#data.length) this.#onEvent(this.#name || "message", this.#data.join("\n"));
      this.#name = "";
      this.#data = [];
      return;
    }
    const colon = line.indexOf(":");
    if (colon === 0) return; // a comment, which only keeps the connection open
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (field === "event") this.#name = value;
    if (field === "data") this.#data.push(value);
  }
}

/** Reads a response to its end. */
export async function readEvents(response, onEvent) {
  const parser = new EventParser(onEvent);
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  for (;;) {
    const { done, value } = await reader.read();
    parser.push(decoder.decode(value, { stream: !done }));
    if (done) return;
  }
}
