// All conversations: filters, search in their messages, and what each costs and uses.

import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { api, at, type ConversationItem, good, inTurn } from "../api.ts";
import { compact, count, plural, usd, words } from "../format.ts";
import { place, setQuery, toConversation } from "../router.ts";
import { usePages, useResource } from "../resource.ts";
import { Badge, Copy, Curl, Empty, Failed, Field, Loading, Marked, More, Pressure, When } from "../ui.tsx";
import { changes } from "../state.ts";
import { useStream } from "./live.tsx";

const ACTIVE: Record<string, number> = { hour: 3600, day: 86_400, week: 604_800 };

interface Figures {
  used: number | null;
  window: number;
  level: string | null;
  cost: number | null;
  saved: number;
  compaction: { at: string; trigger: string } | null;
}

const figures = new Map<string, Figures>();

async function read(item: ConversationItem): Promise<Figures> {
  const params = at(item.conversation_id);
  const [budget, usage, compactions] = await Promise.all([
    good(api.GET("/v1/conversations/{conversation_id}/budget", { params })),
    good(api.GET("/v1/conversations/{conversation_id}/usage", { params: { ...params, query: { limit: 1 } } })),
    good(api.GET("/v1/conversations/{conversation_id}/compactions", { params: { ...params, query: { limit: 1 } } })),
  ]);
  const last = compactions.data[0];
  return {
    used: budget.budget?.used_tokens ?? null,
    window: budget.budget?.effective_window ?? 0,
    level: budget.pressure,
    cost: usage.totals.cost_usd,
    saved: usage.totals.saved.tokens,
    compaction: last ? { at: last.created_at, trigger: last.trigger } : null,
  };
}

/** `version` grows with each event of the conversation: then its figures are read again. */
function Row({ item, version }: { item: ConversationItem; version: number }): JSX.Element {
  const id = item.conversation_id;
  const [known, setKnown] = useState(figures.get(id));
  useEffect(() => {
    if (item.archived) return; // Reading its figures would restore it.
    let gone = false;
    inTurn(() => (gone ? Promise.reject(new Error("gone")) : read(item))).then(
      (found) => {
        figures.set(id, found);
        if (!gone) setKnown(found);
      },
      () => undefined,
    );
    return () => {
      gone = true;
    };
  }, [id, item.head_seq, item.archived, version]);
  const metadata = Object.entries(item.metadata as Record<string, unknown>);
  return (
    <tr>
      <th scope="row" class="name">
        <a href={toConversation(id)} title={id}>{id}</a> <Copy text={id} label="Copy id" />
        {metadata.length > 0 && (
          <div class="tags">{metadata.slice(0, 4).map(([key, value]) => (
            <span class="tag" key={key}>{key}={typeof value === "string" ? value : JSON.stringify(value)}</span>
          ))}</div>
        )}
      </th>
      <td class="use">{known ? (known.used === null ? <span class="muted">no window</span> : <Pressure used={known.used} window={known.window} level={known.level} />) : item.archived ? <span class="muted" title="It is in the archive; to open it restores it.">archived</span> : <span class="skeleton" />}</td>
      <td>{item.agent_id ?? <span class="muted">–</span>}<div class="sub">{item.model ?? "model inherited"}</div></td>
      <td class="num">{count(item.message_count)}<div class="sub">{plural(item.turns, "turn")}</div></td>
      <td class="num" title={count(item.tokens)}>{compact(item.tokens)}</td>
      <td class="num">{known ? usd(known.cost) : ""}{known && known.saved > 0 && <div class="sub">{compact(known.saved)} tokens saved</div>}</td>
      <td>{known ? known.compaction ? <><When iso={known.compaction.at} /><div class="sub">{words(known.compaction.trigger)}</div></> : <span class="muted">none</span> : ""}</td>
      <td><When iso={item.last_message_at} /></td>
    </tr>
  );
}

export function Conversations(): JSX.Element {
  const query = place.value.query;
  const [q, agent, model, metadata, active, order] = ["q", "agent", "model", "metadata", "active", "order"].map((name) => query.get(name) ?? "") as [string, string, string, string, string, string];
  const [key, value] = metadata.split("=", 2);
  const filters = {
    ...(agent && { agent_id: agent }),
    ...(model && { model }),
    ...(key && value && { metadata: { [key]: value } }),
    ...(ACTIVE[active] && { active_after: new Date(Math.floor(Date.now() / 60_000) * 60_000 - ACTIVE[active] * 1000).toISOString() }),
  };
  const list = usePages(
    (cursor) => good(api.GET("/v1/conversations", { params: { query: { order: order === "created" ? "created" : "active", limit: 25, ...(cursor && { cursor }), ...filters } } })),
    [agent, model, metadata, active, order],
  );
  const agents = useResource(() => good(api.GET("/v1/agents", { params: { query: { limit: 1000 } } })), ["agents"]);
  const live = useStream("/v1/events");
  const events = new Map<string | null, number>();
  for (const { conversation_id } of live.value.events) events.set(conversation_id, (events.get(conversation_id) ?? 0) + 1);
  useEffect(() => {
    // Appends are no events of the tenant: they show by themselves a little later.
    const timer = setInterval(() => document.visibilityState === "visible" && (changes.value += 1), 15_000);
    return () => clearInterval(timer);
  }, []);
  const filtered = Boolean(agent || model || metadata || active);
  return (
    <section class="page">
      <div class="title">
        <h1>Conversations</h1>
        <Curl path={`/v1/conversations?order=${order === "created" ? "created" : "active"}&limit=25`} />
      </div>
      <form class="filters" role="search" onSubmit={(event) => event.preventDefault()}>
        <Field label="Search in messages"><input type="search" value={q} placeholder='words, "a phrase", -not' onChange={(event) => setQuery({ q: event.currentTarget.value })} /></Field>
        <Field label="Agent"><select value={agent} onChange={(event) => setQuery({ agent: event.currentTarget.value })}>
          <option value="">All agents</option>
          {agents.data?.data.map((item) => <option key={item.agent_id} value={item.agent_id}>{item.name}</option>)}
        </select></Field>
        <Field label="Own model"><input value={model} placeholder="any" onChange={(event) => setQuery({ model: event.currentTarget.value })} /></Field>
        <Field label="Metadata"><input value={metadata} placeholder="customer=42" onChange={(event) => setQuery({ metadata: event.currentTarget.value })} /></Field>
        <Field label="Active within"><select value={active} onChange={(event) => setQuery({ active: event.currentTarget.value })}>
          <option value="">any time</option><option value="hour">the hour</option><option value="day">the day</option><option value="week">the week</option>
        </select></Field>
        <Field label="Order"><select value={order} onChange={(event) => setQuery({ order: event.currentTarget.value })}>
          <option value="">newest message</option><option value="created">newest conversation</option>
        </select></Field>
      </form>
      {q && <Hits q={q} agent={agent} />}
      {list.error ? <Failed error={list.error} /> : !list.items ? <Loading what="conversations" /> : list.items.length === 0 && !list.more ? (
        filtered ? <Empty title="No conversation matches.">Remove a filter above.</Empty> : (
          <Empty title="There are no conversations yet.">Run <code>context-service demo</code> to see the sample conversations here, or append messages with <code>POST /v1/conversations</code>.</Empty>
        )
      ) : (
        <>
          <div class="scroll" tabIndex={0} role="region" aria-label="Conversations">
            <table class="list">
              <thead><tr><th scope="col">Conversation</th><th scope="col">Window used</th><th scope="col">Agent, model</th><th scope="col" class="num">Messages</th><th scope="col" class="num">Log tokens</th><th scope="col" class="num">Cost</th><th scope="col">Last compaction</th><th scope="col">Active</th></tr></thead>
              <tbody>{list.items.map((item) => <Row key={item.conversation_id} item={item} version={events.get(item.conversation_id) ?? 0} />)}</tbody>
            </table>
          </div>
          <More more={list.more} loading={list.loading} />
        </>
      )}
    </section>
  );
}

function Hits({ q, agent }: { q: string; agent: string }): JSX.Element {
  const hits = usePages(
    (cursor) => good(api.GET("/v1/search", { params: { query: { q, limit: 20, ...(agent && { agent_id: agent }), ...(cursor && { cursor }) } } })),
    ["search", q, agent],
  );
  return (
    <section class="card hits" aria-label="Messages found">
      <div class="title"><h2>Messages with “{q}”</h2><Curl path={`/v1/search?q=${encodeURIComponent(q)}`} /></div>
      {hits.error ? <Failed error={hits.error} /> : !hits.items ? <Loading what="messages" /> : hits.items.length === 0 ? <Empty title="No message has these words.">All words are required; a word of three letters also finds longer ones.</Empty> : (
        <ul>{hits.items.map((hit) => (
          <li key={`${hit.conversation_id}.${hit.seq}`}>
            <Badge kind={hit.role}>{hit.role}</Badge>{" "}
            <a href={toConversation(hit.conversation_id, "messages", { seq: String(hit.seq), q })}>{hit.conversation_id} · {hit.seq}</a>
            <span class="muted"> <When iso={hit.created_at} /></span>
            <p><Marked text={hit.snippet} query={q} /></p>
          </li>
        ))}</ul>
      )}
      <More more={hits.more} loading={hits.loading && hits.items !== undefined} />
    </section>
  );
}
