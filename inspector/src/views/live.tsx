// The events of a conversation as they come.

import { effect, type Signal, signal } from "@preact/signals";
import { createParser } from "eventsource-parser";
import type { JSX } from "preact";
import { useEffect, useMemo, useState } from "preact/hooks";
import { BASE, Refused } from "../api.ts";
import { count, plural, time, timeAfter, words } from "../format.ts";
import { toConversation } from "../router.ts";
import { useResource } from "../resource.ts";
import { apiKey, changes } from "../state.ts";
import { Badge, Curl, Empty, Failed, Field } from "../ui.tsx";

interface Event {
  id: string;
  type: string;
  created_at: string;
  data: Record<string, unknown>;
}

export interface LiveState {
  state: "connecting" | "open" | "closed";
  events: Event[];
  /** The position at which the stream began. */
  start: string;
}

function eventOf(id: string | undefined, text: string): Event {
  const data = JSON.parse(text) as Record<string, unknown>;
  return { id: id ?? "", type: String(data["type"]), created_at: String(data["created_at"]), data };
}

const KEPT = 500;
const PAST = 50;
/** Fields of events that are not repeated, or said in words. */
const SEEN = new Set(["type", "conversation_id", "created_at", "first_seq", "last_seq", "message_count", "head_seq", "compaction_id", "stages", "prompt_hash", "compacted", "summary_range", "estimated", "hidden_tokens", "hidden_messages", "before_messages", "after_messages", "before_tokens", "after_tokens", "seq", "message_id", "code", "detail", "calls"]);

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
          const event = eventOf(id, data);
          if (event.type === "ready") {
            state.value = { ...state.value, start: state.value.start || event.id };
            return;
          }
          state.value = { ...state.value, state: "open", events: [event, ...state.value.events].slice(0, KEPT) };
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
  const state = useMemo(() => signal<LiveState>({ state: "connecting", events: [], start: "" }), [path]);
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

/** Read the events between fifty before a position of the stream and now, the newest first. */
async function readPast(path: string, start: string): Promise<Event[]> {
  const from = start.split(".").map((number) => Math.max(0, Number(number) - PAST)).join(".");
  const headers = new Headers(apiKey.peek() ? { Authorization: `Bearer ${apiKey.peek()}` } : {});
  const answer = await fetch(`${BASE}${path}?follow=false&last_event_id=${from}`, { headers });
  if (!answer.ok) throw new Refused(answer.status);
  const events: Event[] = [];
  createParser({ onEvent: ({ id, data }) => {
    const event = eventOf(id, data);
    if (event.type !== "ready") events.unshift(event);
  } }).feed(await answer.text());
  return events.slice(0, PAST);
}

const number = (value: unknown): string => (typeof value === "number" ? count(value) : words(String(value)));

/** A field of an event in words: a number stands before its unit. */
function said(name: string, value: unknown): string {
  if (typeof value === "number") return name === "duration_ms" ? `${count(value)} ms` : `${count(value)} ${words(name)}`;
  return `${words(name)} ${Array.isArray(value) ? value.map(number).join(", ") : typeof value === "object" ? JSON.stringify(value) : number(value)}`;
}

/** What an event says, with links to what it is about. */
function What({ id, event: { type, data } }: { id: string; event: Event }): JSX.Element {
  const { first_seq: first, last_seq: last, compaction_id: compaction, before_tokens: before, after_tokens: after, seq, detail, calls } = data;
  const rest = Object.entries(data).filter(([name, value]) => !SEEN.has(name) && value !== null && value !== 0 && value !== false && !(Array.isArray(value) && value.length === 0));
  return (
    <span>
      {first !== undefined && <a href={toConversation(id, "messages", { seq: String(first) })}>{first === last ? `message ${first}` : `messages ${first}–${last}`}</a>}
      {seq !== undefined && <a href={toConversation(id, "messages", { seq: String(seq) })}>message {String(seq)} </a>}
      {before !== undefined && after !== undefined && <>{number(before)} → {number(after)} tokens </>}
      {typeof compaction === "string" && <a href={toConversation(id, "compactions", { c: compaction })}>{type === "compacted" ? "see it" : "its compaction"}</a>}
      {typeof detail === "string" && `${detail} `}
      <span class="muted"> {rest.map(([name, value]) => said(name, value)).join(" · ")}{typeof calls === "number" && calls > 0 && ` · ${plural(calls, "call")} of the model`}</span>
    </span>
  );
}

export function Live({ id, live }: { id: string; live: Signal<LiveState> }): JSX.Element {
  const { state, events, start } = live.value;
  const [type, setType] = useState("");
  const past = useResource(async () => (start ? readPast(pathOf(id), start) : []), ["past", id, start]);
  const fresh = new Set(events.map((event) => event.id));
  const all = [...events, ...(past.data ?? []).filter((event) => !fresh.has(event.id))];
  const shown = type ? all.filter((event) => event.type === type) : all;
  return (
    <section class="card" aria-label="Events">
      <div class="title"><h2>Events</h2><Curl path={pathOf(id)} /></div>
      <form class="filters" onSubmit={(event) => event.preventDefault()}>
        <Field label="Show"><select value={type} onChange={(event) => setType(event.currentTarget.value)}>
          <option value="">all events ({all.length})</option>
          {[...Map.groupBy(all, (event) => event.type)].map(([each, { length }]) => <option key={each} value={each}>{words(each)} ({length})</option>)}
        </select></Field>
        <p class="status" role="status"><i class={`dot ${state}`} aria-hidden="true" /> {STATES[state]}</p>
      </form>
      {past.error && <Failed error={past.error} retry={past.reload} />}
      {all.length === 0 ? <Empty title="No events yet.">Appends, compactions, pins and other changes are listed as they happen.</Empty> : (
        <ol class="events" aria-live="polite">{shown.map((event, index) => (
          <li key={event.id} class={fresh.has(event.id) ? "new" : ""}>
            <time dateTime={event.created_at} title={time(event.created_at)}>{timeAfter(event.created_at, shown[index - 1]?.created_at)}</time>
            <span><Badge kind={`event-${event.type}`}>{words(event.type)}</Badge></span>
            <What id={id} event={event} />
          </li>
        ))}</ol>
      )}
    </section>
  );
}
