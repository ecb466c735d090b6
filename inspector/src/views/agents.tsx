// Agents, and what each of them has used.

import type { JSX } from "preact";
import { api, type Agent, good, inTurn } from "../api.ts";
import { compact, plural, usd } from "../format.ts";
import { link } from "../router.ts";
import { usePages, useResource } from "../resource.ts";
import { changes } from "../state.ts";
import { Action, Copy, Curl, Empty, Failed, Loading, More, When } from "../ui.tsx";

function Row({ agent }: { agent: Agent }): JSX.Element {
  const path = { agent_id: agent.agent_id };
  const usage = useResource(
    () => inTurn(() => good(api.GET("/v1/usage", { params: { query: { ...path, limit: 1 } } }))),
    ["agent usage", agent.agent_id],
  );
  return (
    <tr>
      <th scope="row" class="name"><a href={link(["conversations"], { agent: agent.agent_id })}>{agent.name}</a><div class="sub">{agent.agent_id} <Copy text={agent.agent_id} label="Copy id" /></div></th>
      <td>{agent.model ?? <span class="muted">inherited</span>}</td>
      <td>{agent.rolling_window_seconds === null ? "no limit" : plural(Math.round(agent.rolling_window_seconds / 3600), "hour")}</td>
      <td class="num">{usage.data && compact(usage.data.totals.reported.total_tokens)}</td>
      <td class="num">{usage.data && usd(usage.data.totals.cost_usd)}{usage.data && usage.data.totals.saved_tokens > 0 && <div class="sub">{compact(usage.data.totals.saved_tokens)} saved</div>}</td>
      <td><When iso={agent.last_cleared_at} /></td>
      <td class="actions">
        <Action name="Snapshot" title={`Save the windows of ${agent.name}`} explain="A snapshot keeps the active windows of all conversations of this agent, so that they can be restored later."
          run={async () => { await good(api.POST("/v1/agents/{agent_id}/snapshots", { params: { path }, body: {} })); changes.value += 1; return "The snapshot was saved."; }} />
        <Action name="Clear" danger title={`Clear ${agent.name}`} explain="Payloads of all conversations of this agent show no message from before now. The log keeps everything."
          run={async () => { const done = await good(api.POST("/v1/agents/{agent_id}/clear", { params: { path } })); changes.value += 1; return `${plural(done.conversation_count, "conversation")} cleared.`; }} />
      </td>
    </tr>
  );
}

export function Agents(): JSX.Element {
  const list = usePages((cursor) => good(api.GET("/v1/agents", { params: { query: { limit: 25, ...(cursor && { cursor }) } } })), ["agents list"]);
  return (
    <section class="page">
      <div class="title"><h1>Agents</h1><Curl path="/v1/agents" /></div>
      {list.error ? <Failed error={list.error} /> : !list.items ? <Loading what="agents" /> : list.items.length === 0 ? (
        <Empty title="There are no agents.">An agent shares a model, a policy, sections and tools between conversations: <code>POST /v1/agents</code> creates one.</Empty>
      ) : (
        <div class="scroll" tabIndex={0} role="region" aria-label="Agents">
          <table class="list">
            <thead><tr><th scope="col">Agent</th><th scope="col">Model</th><th scope="col">Rolling window</th><th scope="col" class="num">Tokens</th><th scope="col" class="num">Cost</th><th scope="col">Cleared</th><th scope="col"><span class="sr">Actions</span></th></tr></thead>
            <tbody>{list.items.map((agent) => <Row key={agent.agent_id} agent={agent} />)}</tbody>
          </table>
        </div>
      )}
      <More more={list.more} loading={list.loading && list.items !== undefined} />
    </section>
  );
}
