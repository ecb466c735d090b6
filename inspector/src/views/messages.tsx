// The transcript: virtualised by seq, with search, folded tools, stored outputs, pins and redaction.

import type { JSX } from "preact";
import { useEffect, useMemo, useReducer, useRef, useState } from "preact/hooks";
import { api, at, type Conversation, good, type Message } from "../api.ts";
import { itemsOf, kindOf, type PayloadItem, readBuild, useBuilds } from "../builds.ts";
import { lineOf, type Part, partsOf, toolNames } from "../content.ts";
import { bytes, count, plural, time } from "../format.ts";
import { readRange } from "../log.ts";
import { LongText } from "../markdown.tsx";
import { place, setQuery, toConversation } from "../router.ts";
import { usePages, useResource } from "../resource.ts";
import { RowsInView, useRows } from "../rows.tsx";
import { changes } from "../state.ts";
import { Action, Badge, Copy, Curl, Empty, Failed, Field, hasWords, Loading, Marked, More, When } from "../ui.tsx";
import { Blob } from "./blob.tsx";

const BLOCK = 100;
/** Characters of a text that are shown before a hit; twice as many after it. */
const AROUND = 160;
const LARGE_BYTES = 2000;
const LARGE_TOKENS = 2000;
/** How far before a result its call is looked for. */
const CALL_BEFORE = 20;
/** How the context shows a message, in the words of the badge and of its hint. */
const STATES: Record<Message["visibility"]["state"], { text: string; hint: string }> = {
  verbatim: { text: "verbatim", hint: "The payload has it word for word." },
  cleared: { text: "result cleared", hint: "A placeholder stands for the result; the model can read it by a tool." },
  summarised: { text: "summarised", hint: "A summary stands for it: the model sees that text only." },
  left_out: { text: "left out", hint: "The payload does not have it, and no summary stands for it." },
  outside: { text: "outside the window", hint: "The payload does not have it: it is older than the window or the last clear." },
};

const ROLES: Message["role"][] = ["user", "assistant", "tool", "system"];
/** What messages can be filtered by: how the context shows them, and what was done to them. */
const FILTERS: Record<string, { text: string; is: (message: Message) => boolean }> = {
  ...Object.fromEntries(Object.entries(STATES).map(([name, { text }]) => [name, { text, is: (message: Message) => message.visibility.state === name }])),
  pinned: { text: "pinned", is: (message) => message.pinned },
  redacted: { text: "redacted", is: (message) => message.redacted_at !== null },
  large: { text: "stored output", is: (message) => message.content_truncated },
};

export function Messages({ conversation }: { conversation: Conversation }): JSX.Element {
  const id = conversation.conversation_id;
  const query = place.value.query;
  const q = query.get("q") ?? "";
  const seq = Number(query.get("seq") ?? "0");
  const asOf = query.get("as_of") ?? "";
  const [role, state] = [query.get("role") ?? "", query.get("state") ?? ""];
  const builds = useBuilds(id, conversation.head_seq);
  return (
    <div class="messages">
      <form class="filters" role="search" onSubmit={(event) => event.preventDefault()}>
        <Field label="Search this conversation"><input type="search" value={q} placeholder="words" onChange={(event) => setQuery({ q: event.currentTarget.value, seq: undefined })} /></Field>
        <Field label="Go to message"><input type="number" min="1" max={conversation.head_seq} value={seq || ""} placeholder={`1–${conversation.head_seq}`} onChange={(event) => setQuery({ seq: event.currentTarget.value, q: undefined })} /></Field>
        <Field label="Show"><select value={asOf} onChange={(event) => setQuery({ as_of: event.currentTarget.value })}>
          <option value="">the whole log</option>
          {asOf && !builds.data?.some((build) => build.build_id === asOf) && <option value={asOf}>payload {asOf}</option>}
          {builds.data?.map((build) => <option key={build.build_id} value={build.build_id}>payload {build.label}</option>)}
        </select></Field>
        {!asOf && (
          <>
            <Field label="Role"><select value={role} onChange={(event) => setQuery({ role: event.currentTarget.value })}>
              <option value="">any</option>{ROLES.map((each) => <option key={each} value={each}>{each}</option>)}
            </select></Field>
            <Field label="State"><select value={state} onChange={(event) => setQuery({ state: event.currentTarget.value })}>
              <option value="">any</option>{Object.entries(FILTERS).map(([name, { text }]) => <option key={name} value={name}>{text}</option>)}
            </select></Field>
          </>
        )}
        <p class="hint">{plural(conversation.head_seq, "message")} <Curl path={`/v1/conversations/${encodeURIComponent(id)}/${asOf ? `context?as_of=${encodeURIComponent(asOf)}` : `messages${q ? `?query=${encodeURIComponent(q)}` : ""}`}`} /></p>
      </form>
      {asOf ? <Received key={asOf} id={id} asOf={asOf} q={q} seq={seq} /> : q || role || state ? <Found key={`${role}.${state}`} id={id} q={q} seq={seq} role={role} state={state} /> : <Transcript id={id} head={conversation.head_seq} seq={seq} />}
    </div>
  );
}

/** The payload of a build, item by item, as the model received it; `seq` is to be seen first. */
function Received({ id, asOf, q, seq }: { id: string; asOf: string; q: string; seq: number }): JSX.Element {
  const build = useResource(() => readBuild(id, asOf), ["received", id, asOf]);
  if (build.error) return <Failed error={build.error} retry={build.reload} />;
  if (!build.data) return <Loading what="the payload" />;
  const all = itemsOf(build.data);
  const items = q ? all.filter(({ item }) => hasWords(partsOf(item).map((part) => `${part.name ?? ""} ${part.text}`).join(" "), q)) : all;
  return (
    <>
      <p class="muted" role="status">{q
        ? `“${q}” is in ${items.length || "none"} of the ${plural(all.length, "item")} that the model received.`
        : `The model received ${plural(all.length, "item")}, up to message ${build.data.through_seq}: tools, system prompt, then summaries and messages.`}</p>
      {items.length > 0 && <ReceivedItems key={q} id={id} asOf={asOf} items={items} all={all} q={q} seq={seq} />}
    </>
  );
}

function ReceivedItems({ id, asOf, items, all, q, seq }: { id: string; asOf: string; items: PayloadItem[]; all: PayloadItem[]; q: string; seq: number }): JSX.Element {
  const names = useMemo(() => toolNames(all.map(({ item }) => item)), [all]);
  const sought = seq ? items.findIndex((item) => item.seq !== null && item.seq >= seq) : -1;
  const rows = useRows(items.length, sought < 0 ? 0 : sought);
  return (
    <RowsInView rows={rows} label={`Payload of ${plural(items.length, "item")}`}>{(index) => {
      const shown = items[index];
      return shown ? <ReceivedItem id={id} asOf={asOf} shown={shown} names={names} q={q} marked={index === sought} /> : <article class="message" />;
    }}</RowsInView>
  );
}

function ReceivedItem({ id, asOf, shown: { item, number, seq }, names, q, marked }: { id: string; asOf: string; shown: PayloadItem; names: Map<string, string>; q: string; marked: boolean }): JSX.Element {
  const kind = kindOf(item);
  return (
    <article class={`message ${kind}${marked ? " marked" : ""}`} aria-label={`Item ${number}, ${kind}`}>
      <header>
        {seq === null ? <span class="seq">item {number}</span> : <a class="seq" href={toConversation(id, "messages", { as_of: asOf, seq: String(seq) })}>item {number}</a>}
        <Badge kind={kind}>{kind}</Badge>
        {seq !== null && <a href={toConversation(id, "messages", { seq: String(seq) })}>message {seq}</a>}
      </header>
      {partsOf(item).map((part, index) => <PartShown key={index} part={part} names={names} q={q} />)}
    </article>
  );
}

/** Read on until a page has some messages that match the filters of role and state. */
async function readMatching(id: string, q: string, matches: (message: Message) => boolean, from: string | null): Promise<{ data: Message[]; next_cursor: string | null }> {
  const found: Message[] = [];
  let cursor = from;
  do {
    const page = await good(api.GET("/v1/conversations/{conversation_id}/messages", { params: { ...at(id), query: { limit: q ? 30 : 200, ...(q ? { query: q } : { content: "view" as const }), ...(cursor && { cursor }) } } }));
    found.push(...(page.data as Message[]).filter(matches));
    cursor = page.next_cursor;
  } while (cursor && found.length < 30);
  return { data: found, next_cursor: cursor };
}

function Found({ id, q, seq, role, state }: { id: string; q: string; seq: number; role: string; state: string }): JSX.Element {
  const matches = (message: Message): boolean => (!role || message.role === role) && (!state || (FILTERS[state]?.is(message) ?? true));
  const hits = usePages((cursor) => readMatching(id, q, matches, cursor), ["found", id, q, role, state]);
  if (hits.error) return <Failed error={hits.error} />;
  if (!hits.items) return <Loading what="messages" />;
  if (hits.items.length === 0 && !hits.more) return q ? <Empty title="No message has these words.">All words are required; compacted messages are searched as well.</Empty> : <Empty title="No message is like that.">Choose another role or state.</Empty>;
  const names = toolNames(hits.items);
  return (
    <>
      <p class="muted" role="status">{hits.more ? `The first ${hits.items.length}` : count(hits.items.length)} found, hidden messages included.</p>
      <div class="found">{hits.items.map((message) => <Row key={message.seq} id={id} message={message} names={names} q={q} marked={message.seq === seq} />)}</div>
      <More more={hits.more} loading={hits.loading} />
    </>
  );
}

/** The blocks of messages that are in memory; blocks in view are read again after a change. */
function useBlocks(id: string, head: number, first: number, last: number): (seq: number) => Message | undefined {
  const blocks = useRef(new Map<number, Message[]>());
  const asked = useRef(new Set<string>());
  const [, redraw] = useReducer((times: number) => times + 1, 0);
  const version = `${changes.value}.${head}`;
  useEffect(() => {
    for (let block = Math.floor((first - 1) / BLOCK); block <= Math.floor((last - 1) / BLOCK); block += 1) {
      const name = `${block}.${version}`;
      if (block < 0 || asked.current.has(name)) continue;
      asked.current.add(name);
      const start = block * BLOCK + 1;
      readRange(id, start, Math.min(start + BLOCK, head + 1)).then(
        (messages) => {
          blocks.current.set(block, messages);
          redraw(0);
        },
        () => asked.current.delete(name),
      );
    }
  }, [first, last, version, id]);
  return (seq) => blocks.current.get(Math.floor((seq - 1) / BLOCK))?.[(seq - 1) % BLOCK];
}

function Transcript({ id, head, seq }: { id: string; head: number; seq: number }): JSX.Element {
  const rows = useRows(head, seq ? seq - 1 : "end");
  const [first, last] = [(rows.items[0]?.index ?? 0) + 1, (rows.items.at(-1)?.index ?? 0) + 1];
  const messageOf = useBlocks(id, head, first, last);
  const names = toolNames(Array.from({ length: last - first + CALL_BEFORE + 1 }, (_, index) => messageOf(first - CALL_BEFORE + index)));
  return (
    <RowsInView rows={rows} label={`Transcript of ${plural(head, "message")}`}>{(index) => {
      const message = messageOf(index + 1);
      return message ? <Row id={id} message={message} names={names} q="" marked={message.seq === seq} /> : <article class="message waiting"><span class="muted">#{index + 1}</span></article>;
    }}</RowsInView>
  );
}

function Row({ id, message, names, q, marked }: { id: string; message: Message; names: Map<string, string>; q: string; marked: boolean }): JSX.Element {
  const [blob, setBlob] = useState(false);
  const { state, compaction_id } = message.visibility;
  const parts = partsOf(message);
  const path = { conversation_id: id, message_id: message.id };
  const changed = (text: string): string => {
    changes.value += 1;
    return text;
  };
  return (
    <article class={`message ${message.role} ${state}${marked ? " marked" : ""}`} aria-label={`Message ${message.seq}, ${message.role}`}>
      <header>
        <a class="seq" href={toConversation(id, "messages", { seq: String(message.seq) })}>#{message.seq}</a>
        <Badge kind={message.role}>{message.role}</Badge>
        {compaction_id ? <a class={`badge ${state}`} title={`${STATES[state].hint} See the compaction.`} href={toConversation(id, "compactions", { c: compaction_id, seq: String(message.seq), q })}>{STATES[state].text}</a>
          : state !== "verbatim" && <span title={STATES[state].hint}><Badge kind={state}>{STATES[state].text}</Badge></span>}
        {message.content_truncated && <Badge kind="preview">preview</Badge>}
        {message.pinned && <Badge kind="pin">pinned</Badge>}
        {message.redacted_at && <Badge kind="redacted">redacted</Badge>}
        <span class="grow" />
        <span class="muted" title={time(message.created_at)}><span class="c1">turn {message.turn} · </span>{message.token_count > LARGE_TOKENS ? <b>{plural(message.token_count, "token")}</b> : plural(message.token_count, "token")} · <When iso={message.created_at} /></span>
        {q && <a href={toConversation(id, "messages", { seq: String(message.seq) })}>show among its neighbours</a>}
        <Copy text={message.id} label="Copy id" />
        <span class="row-actions">
          {message.pinned
            ? <Action name="Unpin" title={`Unpin message ${message.seq}`} explain="The next compaction may hide or clear it." run={async () => { await good(api.DELETE("/v1/conversations/{conversation_id}/messages/{message_id}/pin", { params: { path } })); return changed("Unpinned."); }} />
            : <Action name="Pin" title={`Pin message ${message.seq}`} explain="It stays in the context word for word, with its call group. No compaction hides it." run={async (form) => { await good(api.PUT("/v1/conversations/{conversation_id}/messages/{message_id}/pin", { params: { path, query: { scope: form.get("scope") === "turn" ? "turn" : "message" } } })); return changed("Pinned."); }}>
                <label><input type="checkbox" name="scope" value="turn" /> the whole turn</label>
              </Action>}
          {!message.redacted_at && (
            <Action name="Redact" danger title={`Redact message ${message.seq}`} explain="Its content is deleted for ever, here and in forks, and a tombstone takes its place. This cannot be undone."
              run={async (form) => { const reason = String(form.get("reason") ?? "").trim(); await good(api.POST("/v1/conversations/{conversation_id}/messages/{message_id}/redact", { params: { path }, body: reason ? { reason } : {} })); return changed("Redacted."); }}>
              <Field label="Reason (kept in the record; quote no content)"><input name="reason" /></Field>
            </Action>
          )}
        </span>
      </header>
      {parts.length === 0 && <p class="muted">(empty)</p>}
      {parts.map((part, index) => <PartShown key={index} part={part} names={names} q={q} />)}
      {message.output_ref && (message.content_truncated || message.output_ref.byte_size > LARGE_BYTES) && (
        <p class="output"><button type="button" onClick={() => setBlob(true)}>Read by lines</button> <span class="muted">{bytes(message.output_ref.byte_size)}, {plural(message.output_ref.line_count, "line")}{message.content_collected && ", collected"}</span></p>
      )}
      {blob && message.output_ref && <Blob id={id} output={message.output_ref} close={() => setBlob(false)} />}
    </article>
  );
}

/** The part of a text around the first word of a search; the whole text on demand. */
function Snippet({ text, q }: { text: string; q: string }): JSX.Element {
  const [whole, setWhole] = useState(false);
  const at = Math.max(0, text.toLowerCase().indexOf((q.match(/[^\s"-]+/)?.[0] ?? "").toLowerCase()));
  const [start, end] = whole ? [0, text.length] : [Math.max(0, at - AROUND), Math.min(text.length, at + 2 * AROUND)];
  return (
    <p class="pre">{start > 0 && "…"}<Marked text={text.slice(start, end)} query={q} />{end < text.length && "…"}
      {(start > 0 || end < text.length) && <button type="button" class="plain small" onClick={() => setWhole(true)}>Show all {count(text.length)} characters</button>}</p>
  );
}

function PartShown({ part, names, q }: { part: Part; names: Map<string, string>; q: string }): JSX.Element {
  const name = part.name ?? names.get(part.id ?? "");
  if (part.kind === "media") return <p class="muted">[{part.text}]</p>;
  if (part.kind === "text") return q ? <Snippet text={part.text} q={q} /> : <LongText text={part.text} />;
  const hint = part.kind === "definition" ? (/"description": "([^"]*)/.exec(part.text)?.[1] ?? "") : lineOf({ content: part.text }, 240);
  const found = q !== "" && part.text.toLowerCase().includes((q.match(/[^\s"-]+/)?.[0] ?? "").toLowerCase());
  const title = part.kind === "call" ? <><span aria-hidden="true">→</span> calls <b>{part.name}</b></> : part.kind === "definition" ? <>defines <b>{part.name}</b></> : part.kind === "removal" ? <>removes <b>{part.name}</b></>
    : part.kind === "reasoning" ? <>reasoning</> : <><span aria-hidden="true">←</span> {part.kind}{name && <> of <b>{name}</b></>}</>;
  return (
    <>
      <details class="part"><summary>{title} <span class="muted">{hint}</span></summary><pre tabIndex={0}><Marked text={part.text} query={q} /></pre></details>
      {found && <Snippet text={part.text} q={q} />}
    </>
  );
}
