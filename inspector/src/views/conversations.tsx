// All conversations: filters, search in their messages, and what each costs and uses.

import type { JSX } from "preact";
import { useEffect } from "preact/hooks";
import { api, type ConversationItem, good, type Schemas } from "../api.ts";
import { compact, count, plural, usd, words } from "../format.ts";
import { place, setQuery, toConversation } from "../router.ts";
import { type Pages, usePages, useResource } from "../resource.ts";
import { Badge, Copy, Curl, Empty, Failed, Field, hasWords, Loading, Marked, More, Pressure, When } from "../ui.tsx";
import { changes } from "../state.ts";

const NO_HITS = { data: [], next_cursor: null };

function Row({ item, agent }: { item: ConversationItem; agent: string | undefined }): JSX.Element {
  const { conversation_id: id, usage } = item;
  const metadata = Object.entries(item.metadata as Record<string, unknown>);
  return (
    <tr>
      <th scope="row" class="name">
        <div class="named"><a href={toConversation(id)} title={id}>{id}</a> <Copy text={id} label="Copy id" /></div>
        {metadata.length > 0 && (
          <div class="tags">{metadata.slice(0, 4).map(([key, value]) => (
            <span class="tag" key={key}>{key}={typeof value === "string" ? value : JSON.stringify(value)}</span>
          ))}</div>
        )}
      </th>
      <td class="use">{usage && (usage.budget === null ? <span class="muted">no window</span> : <Pressure used={usage.budget.tokens_used} window={usage.budget.effective_window} level={usage.pressure} />)}</td>
      <td>{item.agent_id ? <div class="who" title={item.agent_id}>{agent ?? item.agent_id}</div> : <span class="muted">–</span>}<div class="sub">{item.model ?? "model inherited"}</div></td>
      <td class="num">{count(item.message_count)}<div class="sub">{plural(item.turn_count, "turn")}</div></td>
      <td class="num" title={count(item.token_count)}>{compact(item.token_count)}</td>
      <td class="num">{usage && usd(usage.cost_usd)}{usage && usage.saved_tokens > 0 && <div class="sub">{compact(usage.saved_tokens)} saved</div>}</td>
      <td>{usage?.last_compaction ? <><When iso={usage.last_compaction.created_at} /><div class="sub">{words(usage.last_compaction.trigger)}</div></> : usage && <span class="muted">none</span>}</td>
      <td><When iso={item.last_message_at} /></td>
    </tr>
  );
}

export function Conversations(): JSX.Element {
  const query = place.value.query;
  const [q, agent, metadata] = ["q", "agent", "metadata"].map((name) => query.get(name) ?? "") as [string, string, string];
  const [key, value] = metadata.split("=", 2);
  const filters = {
    ...(agent && { agent_id: agent }),
    ...(key && value && { metadata: { [key]: value } }),
  };
  const list = usePages(
    (cursor) => good(api.GET("/v1/conversations", { params: { query: { include: "usage", limit: 25, ...(cursor && { cursor }), ...filters } } })),
    [agent, metadata],
  );
  const hits = usePages(
    async (cursor) => (q ? good(api.GET("/v1/search", { params: { query: { query: q, limit: 20, ...(agent && { agent_id: agent }), ...(cursor && { cursor }) } } })) : NO_HITS),
    ["search", q, agent],
  );
  const found = new Set(hits.items?.map((hit) => hit.conversation_id));
  const items = q ? list.items?.filter((item) => found.has(item.conversation_id) || hasWords(`${item.conversation_id} ${JSON.stringify(item.metadata)}`, q)) : list.items;
  const agents = useResource(() => good(api.GET("/v1/agents", { params: { query: { limit: 1000 } } })), ["agents"]);
  const names = new Map<string | null, string>(agents.data?.data.map((each) => [each.agent_id, each.name]));
  useEffect(() => {
    const timer = setInterval(() => document.visibilityState === "visible" && (changes.value += 1), 15_000);
    return () => clearInterval(timer);
  }, []);
  const filtered = Boolean(agent || metadata);
  return (
    <section class="page">
      <div class="title">
        <h1>Conversations</h1>
        <Curl path="/v1/conversations?include=usage&limit=25" />
      </div>
      <form class="filters" role="search" onSubmit={(event) => event.preventDefault()}>
        <Field label="Search"><input type="search" value={q} placeholder="words, id, metadata" onChange={(event) => setQuery({ q: event.currentTarget.value })} /></Field>
        <Field label="Agent"><select value={agent} onChange={(event) => setQuery({ agent: event.currentTarget.value })}>
          <option value="">All agents</option>
          {agents.data?.data.map((item) => <option key={item.agent_id} value={item.agent_id}>{item.name}</option>)}
        </select></Field>
        <Field label="Metadata"><input value={metadata} placeholder="customer=42" onChange={(event) => setQuery({ metadata: event.currentTarget.value })} /></Field>
      </form>
      {list.error ? <Failed error={list.error} /> : !list.items || !items ? <Loading what="conversations" /> : q && items.length === 0 ? (
        <>
          <p class="muted">None of the {plural(list.items.length, "conversation")} listed so far has these words in its id, its metadata or the messages below.</p>
          <More more={list.more} loading={list.loading} />
        </>
      ) : items.length === 0 && !list.more ? (
        filtered ? <Empty title="No conversation matches.">Remove a filter above.</Empty> : (
          <Empty title="There are no conversations yet.">Run <code>context-service demo</code> to see the sample conversations here, or append messages with <code>POST /v1/conversations</code>.</Empty>
        )
      ) : (
        <>
          <div class="scroll" tabIndex={0} role="region" aria-label="Conversations">
            <table class="list">
              <thead><tr><th scope="col">Conversation</th><th scope="col">Window used</th><th scope="col">Agent, model</th><th scope="col" class="num">Messages</th><th scope="col" class="num">Log tokens</th><th scope="col" class="num">Cost</th><th scope="col">Last compaction</th><th scope="col">Active</th></tr></thead>
              <tbody>{items.map((item) => <Row key={item.conversation_id} item={item} agent={names.get(item.agent_id)} />)}</tbody>
            </table>
          </div>
          <More more={list.more} loading={list.loading} />
        </>
      )}
      {q && <Hits q={q} hits={hits} />}
    </section>
  );
}

function Hits({ q, hits }: { q: string; hits: Pages<Schemas["SearchHit"]> }): JSX.Element {
  return (
    <section class="card hits" aria-label="Messages found">
      <div class="title"><h2>Messages with “{q}”</h2><Curl path={`/v1/search?query=${encodeURIComponent(q)}`} /></div>
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
