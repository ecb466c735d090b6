// Agents: what each has used, and what all of its conversations share.

import { Fragment, type JSX } from "preact";
import { api, type Agent, good, inTurn, type Schemas } from "../api.ts";
import { compact, count, percent, plural, usd } from "../format.ts";
import { learn, shortId, useTitle } from "../names.ts";
import { link, place, setQuery } from "../router.ts";
import { usePages, useResource } from "../resource.ts";
import { changes } from "../state.ts";
import { Action, Copy, Curl, Empty, Failed, Loading, More, Sorted, When } from "../ui.tsx";
import { AgentSettings } from "./settings.tsx";

type Totals = Schemas["UsageFigures"];

const sentOf = ({ reported }: Totals): number => reported.total_tokens - reported.output_tokens;
const cachedOf = (totals: Totals): number => (100 * totals.reported.cache_read_tokens) / Math.max(1, sentOf(totals));
/** How the list may be sorted, by usage. */
const ORDERS: Record<string, (totals: Totals) => number> = {
  calls: ({ reported }) => reported.calls,
  tokens: ({ reported }) => reported.total_tokens,
  cached: cachedOf,
  cost: (totals) => totals.cost_usd ?? -1,
  saved: (totals) => totals.saved_tokens,
};

function Row({ agent, totals }: { agent: Agent; totals: Totals | undefined }): JSX.Element {
  const path = { agent_id: agent.agent_id };
  const open = place.value.query.get("open") === agent.agent_id;
  const [calls, cost] = [totals && count(totals.reported.calls), totals && usd(totals.cost_usd)];
  return (
    <Fragment>
      <tr>
        <th scope="row" class="name">
          <div>{agent.name} <Copy text={agent.agent_id} label="Copy id" shown={shortId(agent.agent_id)} /></div>
          <div class="sub c0">{agent.model ?? "inherited"} · {calls ?? "…"} calls · {cost ?? "…"}</div>
          <div class="sub links"><a href={link(["conversations"], { agent: agent.agent_id })}>Conversations</a> <a href={link(["spend"], { agent: agent.agent_id })}>Spend</a>
            <button type="button" class="plain small" aria-expanded={open} onClick={() => setQuery({ open: open ? undefined : agent.agent_id })}>{open ? "Hide settings" : "Settings"}</button></div>
        </th>
        <td class="c1">{agent.model ?? <span class="muted">inherited</span>}</td>
        <td class="c2">{agent.rolling_window_seconds === null ? <span class="muted">no limit</span> : plural(Math.round(agent.rolling_window_seconds / 3600), "hour")}</td>
        <td class="num c1">{calls}</td>
        <td class="num c2">{totals && compact(totals.reported.total_tokens)}</td>
        <td class="num">{totals && (sentOf(totals) ? percent(cachedOf(totals)) : "–")}</td>
        <td class="num c1">{cost}</td>
        <td class="num c2">{totals && compact(totals.saved_tokens)}</td>
        <td class="c2">{agent.last_cleared_at === agent.created_at ? <span class="muted">never</span> : <When iso={agent.last_cleared_at} />}</td>
        <td class="actions">
          <Action name="Snapshot" title={`Save the windows of ${agent.name}`} explain="A snapshot keeps the active windows of all conversations of this agent, so that they can be restored later."
            run={async () => { await good(api.POST("/v1/agents/{agent_id}/snapshots", { params: { path }, body: {} })); changes.value += 1; return "The snapshot was saved."; }} />
          <Action name="Clear" danger title={`Clear ${agent.name}`} explain="Payloads of all conversations of this agent show no message from before now. The log keeps everything."
            run={async () => { const done = await good(api.POST("/v1/agents/{agent_id}/clear", { params: { path } })); changes.value += 1; return `${plural(done.conversation_count, "conversation")} cleared.`; }} />
        </td>
      </tr>
      {open && <tr class="opened"><td colSpan={10}><AgentSettings id={agent.agent_id} /></td></tr>}
    </Fragment>
  );
}

export function Agents(): JSX.Element {
  useTitle("Agents");
  const list = usePages((cursor) => good(api.GET("/v1/agents", { params: { query: { limit: 25, ...(cursor && { cursor }) } } })), ["agents list"]);
  const ids = list.items?.map((agent) => agent.agent_id) ?? [];
  for (const agent of list.items ?? []) learn(agent.agent_id, agent.name);
  const used = useResource(async () => new Map(await Promise.all(ids.map((agent_id) => inTurn(async () => [agent_id, (await good(api.GET("/v1/usage", { params: { query: { agent_id, limit: 1 } } }))).totals] as const)))), ["usage of agents", ids]);
  const sorted = place.value.query.get("sort") ?? "";
  const order = ORDERS[sorted];
  const valueOf = ({ agent_id }: Agent): number => { const totals = used.data?.get(agent_id); return totals && order ? order(totals) : -1; };
  const items = order && list.items ? list.items.toSorted((a, b) => valueOf(b) - valueOf(a)) : list.items;
  const head = { sorted, sort: (by: string): void => setQuery({ sort: by }), num: true };
  return (
    <section class="page">
      <div class="title"><h1>Agents</h1><span class="hint">Calls, tokens and cost of 30 days <Curl path="/v1/agents" /></span></div>
      {list.error ? <Failed error={list.error} /> : !items ? <Loading what="agents" /> : items.length === 0 ? (
        <Empty title="There are no agents.">An agent shares a model, a policy, sections and tools between conversations: <code>POST /v1/agents</code> creates one.</Empty>
      ) : (
        <div class="scroll" tabIndex={0} role="region" aria-label="Agents"><table class="list rows">
          <thead><tr>
            <th scope="col">Agent</th><th scope="col" class="c1">Model</th><th scope="col" class="c2">Rolling window</th>
            <Sorted name="Calls" by="calls" size="c1" {...head} /><Sorted name="Tokens" by="tokens" size="c2" {...head} /><Sorted name="Cached" by="cached" {...head} /><Sorted name="Cost" by="cost" size="c1" {...head} /><Sorted name="Tokens saved" by="saved" size="c2" {...head} />
            <th scope="col" class="c2">Cleared</th><th scope="col"><span class="sr">Actions</span></th>
          </tr></thead>
          <tbody>{items.map((agent) => <Row key={agent.agent_id} agent={agent} totals={used.data?.get(agent.agent_id)} />)}</tbody>
        </table></div>
      )}
      <More more={list.more} loading={list.loading && list.items !== undefined} />
    </section>
  );
}
