// All conversations: filters, search in their messages, and what each costs and uses.

import type { JSX } from "preact";
import { useEffect } from "preact/hooks";
import { api, type ConversationItem, good, type Schemas } from "../api.ts";
import { compact, count, plural, usd } from "../format.ts";
import { learn, nameById, nameOf, problemsOf, shortId, tagsOf, useTitle } from "../names.ts";
import { place, setQuery, toConversation } from "../router.ts";
import { type Pages, usePages, useResource } from "../resource.ts";
import { Badge, Copy, Curl, Empty, Failed, Field, hasWords, Loading, Marked, More, Pressure, Sorted, When } from "../ui.tsx";
import { changes } from "../state.ts";

const PAGE = 50;
const NO_HITS = { data: [], next_cursor: null };

/** How the list may be sorted: by the window's use, price, or the newest message. */
const ORDERS: Record<string, (item: ConversationItem) => number> = {
  fill: ({ usage }) => usage?.budget?.used_percentage ?? -1,
  cost: ({ usage }) => usage?.cost_usd ?? -1,
  messages: (item) => item.message_count,
  tokens: (item) => item.token_count,
  activity: (item) => Date.parse(item.last_message_at ?? item.created_at),
  health: (item) => problemsOf(item).length,
};

export function Health({ item }: { item: ConversationItem }): JSX.Element {
  const problems = problemsOf(item);
  if (problems.length === 0) return <span class="muted">ok</span>;
  return <span class="health">{problems.map(({ kind, text, hint }) => <span key={kind} title={hint}><Badge kind={kind === "degraded" ? "due" : "blocked"}>{text}</Badge></span>)}</span>;
}

function Row({ item }: { item: ConversationItem }): JSX.Element {
  const { conversation_id: id, usage } = item;
  return (
    <tr>
      <th scope="row" class="name">
        <div class="named"><a href={toConversation(id)} title={id}>{nameOf(item)}</a> <Copy text={id} label="Copy id" shown={shortId(id) === nameOf(item) ? undefined : shortId(id)} />
          {tagsOf(item).slice(0, 3).map(([key, value]) => <span class="tag c2" key={key}>{key}={value}</span>)}</div>
        <div class="sub c0">{usage && usd(usage.cost_usd)} · {plural(item.message_count, "message")} · <When iso={item.last_message_at} /></div>
      </th>
      <td><Health item={item} /></td>
      <td class="use">{usage && (usage.budget === null ? <span class="muted">no window</span> : <Pressure used={usage.budget.tokens_used} window={usage.budget.effective_window} level={usage.pressure} />)}</td>
      <td class="num c1" title={usage && usage.saved_tokens > 0 ? `${compact(usage.saved_tokens)} tokens saved against the whole log` : undefined}>{usage && usd(usage.cost_usd)}</td>
      <td class="c1"><When iso={item.last_message_at} /></td>
      <td class="num c1">{count(item.message_count)}</td>
      <td class="num c2" title={count(item.token_count)}>{compact(item.token_count)}</td>
      <td class="c2"><div class="who" title={item.agent_id ?? ""}>{item.agent_id ? nameById(item.agent_id) : <span class="muted">–</span>}</div></td>
      <td class="c2 who">{item.model ?? <span class="muted">inherited</span>}</td>
    </tr>
  );
}

export function Conversations(): JSX.Element {
  const query = place.value.query;
  const [q, agent, metadata] = ["q", "agent", "metadata"].map((name) => query.get(name) ?? "") as [string, string, string];
  const sorted = query.get("sort") ?? "";
  const sort = (by: string): void => setQuery({ sort: by });
  const [key, value] = metadata.split("=", 2);
  const filters = {
    ...(agent && { agent_id: agent }),
    ...(key && value && { metadata: { [key]: value } }),
  };
  const list = usePages(
    (cursor) => good(api.GET("/v1/conversations", { params: { query: { include: "usage", limit: PAGE, ...(cursor && { cursor }), ...filters } } })),
    [agent, metadata],
  );
  const hits = usePages(
    async (cursor) => (q ? good(api.GET("/v1/search", { params: { query: { query: q, limit: 20, ...(agent && { agent_id: agent }), ...(cursor && { cursor }) } } })) : NO_HITS),
    ["search", q, agent],
  );
  const found = new Set(hits.items?.map((hit) => hit.conversation_id));
  const matching = q ? list.items?.filter((item) => found.has(item.conversation_id) || hasWords(`${item.conversation_id} ${JSON.stringify(item.metadata)}`, q)) : list.items;
  const agents = useResource(() => good(api.GET("/v1/agents", { params: { query: { limit: 1000 } } })), ["agents"]);
  for (const each of agents.data?.data ?? []) learn(each.agent_id, each.name);
  const order = ORDERS[sorted];
  const items = order && matching ? matching.toSorted((a, b) => order(b) - order(a)) : matching;
  useTitle("Conversations");
  useEffect(() => {
    const timer = setInterval(() => document.visibilityState === "visible" && (changes.value += 1), 15_000);
    return () => clearInterval(timer);
  }, []);
  return (
    <section class="page">
      <div class="title">
        <h1>Conversations</h1>
        <Curl path="/v1/conversations?include=usage&limit=50" />
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
        agent || metadata ? <Empty title="No conversation matches.">Remove a filter above.</Empty> : (
          <Empty title="There are no conversations yet.">Run <code>context-service demo</code> to see the sample conversations here, or append messages with <code>POST /v1/conversations</code>.</Empty>
        )
      ) : (
        <>
          <div class="scroll" tabIndex={0} role="region" aria-label="Conversations">
            <table class="list rows">
              <thead><tr>
                <th scope="col">Conversation</th>
                <Sorted name="Health" by="health" sorted={sorted} sort={sort} />
                <Sorted name="Window used" by="fill" sorted={sorted} sort={sort} />
                <Sorted name="Cost" by="cost" sorted={sorted} sort={sort} size="c1" num />
                <Sorted name="Active" by="activity" sorted={sorted} sort={sort} size="c1" />
                <Sorted name="Messages" by="messages" sorted={sorted} sort={sort} size="c1" num />
                <Sorted name="Log tokens" by="tokens" sorted={sorted} sort={sort} size="c2" num />
                <th scope="col" class="c2">Agent</th><th scope="col" class="c2">Model</th>
              </tr></thead>
              <tbody>{items.map((item) => <Row key={item.conversation_id} item={item} />)}</tbody>
            </table>
          </div>
          {sorted && list.more && <p class="hint">Sorted are the {items.length} listed so far.</p>}
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
            <a href={toConversation(hit.conversation_id, "messages", { seq: String(hit.seq), q })}>{nameById(hit.conversation_id)} · {hit.seq}</a>
            <span class="muted"> <When iso={hit.created_at} /></span>
            <p><Marked text={hit.snippet} query={q} /></p>
          </li>
        ))}</ul>
      )}
      <More more={hits.more} loading={hits.loading && hits.items !== undefined} />
    </section>
  );
}
