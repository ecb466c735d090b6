// The events of a conversation as they come.

import { effect, type Signal, signal } from "@preact/signals";
import { createParser } from "eventsource-parser";
import type { JSX } from "preact";
import { useEffect, useMemo } from "preact/hooks";
import { BASE } from "../api.ts";
import { time, words } from "../format.ts";
import { apiKey, changes } from "../state.ts";
import { Badge, Curl, Empty } from "../ui.tsx";

interface Event {
  id: string;
  type: string;
  created_at: string;
  data: Record<string, unknown>;
}

export interface LiveState {
  state: "connecting" | "open" | "closed";
  events: Event[];
}

const KEPT = 500;
const SEEN = new Set(["type", "conversation_id", "created_at"]);

/** Follow a stream of events until the signal aborts; it is opened again where it ends. */
async function follow(path: string, state: Signal<LiveState>, stop: AbortSignal): Promise<void> {
  let last = "";
  let pause = 1000;
  while (!stop.aborted) {
    try {
      const headers: Record<string, string> = { Accept: "text/event-stream" };
      if (apiKey.peek()) headers["Authorization"] = `Bearer ${apiKey.peek()}`;
      if (last) headers["Last-Event-ID"] = last;
      const answer = await fetch(`${BASE}${path}`, { headers, signal: stop });
      if (!answer.ok || !answer.body) {
        if (answer.status < 500 && answer.status !== 429) break;
        throw new Error(String(answer.status));
      }
      state.value = { ...state.value, state: "open" };
      pause = 1000;
      const parser = createParser({
        onEvent: ({ id, data }) => {
          if (id) last = id;
          const parsed = JSON.parse(data) as Record<string, unknown>;
          if (parsed["type"] === "ready") return;
          const event = { id: id ?? "", type: String(parsed["type"]), created_at: String(parsed["created_at"]), data: parsed };
          state.value = { state: "open", events: [event, ...state.value.events].slice(0, KEPT) };
          announce();
        },
      });
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      for (let read = await reader.read(); !read.done; read = await reader.read()) parser.feed(read.value);
    } catch {
      if (stop.aborted) return;
    }
    state.value = { ...state.value, state: "connecting" };
    await new Promise((resolve) => setTimeout(resolve, pause));
    pause = Math.min(pause * 2, 30_000);
  }
  state.value = { ...state.value, state: "closed" };
}

let pending = 0;
let announced = 0;
/** Let views read again, once for events that come together and every two seconds at most. */
function announce(): void {
  if (pending) return;
  pending = window.setTimeout(() => {
    pending = 0;
    announced = Date.now();
    changes.value += 1;
  }, Math.max(300, announced + 2000 - Date.now()));
}

const pathOf = (id: string): string => `/v1/conversations/${encodeURIComponent(id)}/events`;

export function useLive(id: string): Signal<LiveState> {
  const path = pathOf(id);
  const state = useMemo(() => signal<LiveState>({ state: "connecting", events: [] }), [path]);
  useEffect(() => {
    let stop = new AbortController();
    const dispose = effect(() => {
      void apiKey.value;
      stop.abort();
      stop = new AbortController();
      void follow(path, state, stop.signal);
    });
    return () => {
      dispose();
      stop.abort();
    };
  }, [path]);
  return state;
}

const STATES = { connecting: "Connecting…", open: "Connected: new events appear here.", closed: "The stream has ended." };

export function Live({ id, live }: { id: string; live: Signal<LiveState> }): JSX.Element {
  const { state, events } = live.value;
  return (
    <section class="card" aria-label="Events">
      <div class="title"><h2>Live events</h2><Curl path={pathOf(id)} /></div>
      <p class="status" role="status"><i class={`dot ${state}`} aria-hidden="true" /> {STATES[state]}</p>
      {events.length === 0 ? <Empty title="No events since the page was opened.">Appends, compactions, pins and other changes are listed as they happen.</Empty> : (
        <ol class="events" aria-live="polite">{events.map((event) => (
          <li key={event.id}>
            <time dateTime={event.created_at}>{time(event.created_at)}</time>
            <Badge kind={`event-${event.type}`}>{words(event.type)}</Badge>
            <span class="muted">{Object.entries(event.data).filter(([name]) => !SEEN.has(name)).map(([name, value]) => `${words(name)} ${typeof value === "string" ? value : JSON.stringify(value)}`).join(" · ")}</span>
          </li>
        ))}</ol>
      )}
    </section>
  );
}
