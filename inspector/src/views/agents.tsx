// Agents: what each has used, and what all of its conversations share.

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { api, type Agent, good, inTurn } from "../api.ts";
import { compact, count, percent, plural, usd } from "../format.ts";
import { learn, shortId, useTitle } from "../names.ts";
import { link, place } from "../router.ts";
import { usePages, useResource } from "../resource.ts";
import { changes } from "../state.ts";
import { Action, Copy, Curl, Empty, Fact, Failed, Loading, More, When } from "../ui.tsx";
import { AgentSettings } from "./settings.tsx";

function Card({ agent }: { agent: Agent }): JSX.Element {
  const path = { agent_id: agent.agent_id };
  const [open, setOpen] = useState(place.value.query.get("open") === agent.agent_id);
  const usage = useResource(
    () => inTurn(() => good(api.GET("/v1/usage", { params: { query: { ...path, limit: 1 } } }))),
    ["agent usage", agent.agent_id],
  );
  const totals = usage.data?.totals;
  const sent = totals ? totals.reported.total_tokens - totals.reported.output_tokens : 0;
  return (
    <article class="card">
      <div class="title">
        <h2>{agent.name} <Copy text={agent.agent_id} label="Copy id" shown={shortId(agent.agent_id)} /></h2>
        <span class="buttons">
          <Action name="Snapshot" title={`Save the windows of ${agent.name}`} explain="A snapshot keeps the active windows of all conversations of this agent, so that they can be restored later."
            run={async () => { await good(api.POST("/v1/agents/{agent_id}/snapshots", { params: { path }, body: {} })); changes.value += 1; return "The snapshot was saved."; }} />
          <Action name="Clear" danger title={`Clear ${agent.name}`} explain="Payloads of all conversations of this agent show no message from before now. The log keeps everything."
            run={async () => { const done = await good(api.POST("/v1/agents/{agent_id}/clear", { params: { path } })); changes.value += 1; return `${plural(done.conversation_count, "conversation")} cleared.`; }} />
        </span>
      </div>
      <dl class="facts">
        <Fact name="Model">{agent.model ?? <span class="muted">inherited</span>}</Fact>
        <Fact name="Rolling window">{agent.rolling_window_seconds === null ? "no limit" : plural(Math.round(agent.rolling_window_seconds / 3600), "hour")}</Fact>
        <Fact name="Calls in 30 days">{totals && count(totals.reported.calls)}</Fact>
        <Fact name="Tokens">{totals && compact(totals.reported.total_tokens)}</Fact>
        <Fact name="Cached">{totals && (sent ? percent((100 * totals.reported.cache_read_tokens) / sent) : "–")}</Fact>
        <Fact name="Cost">{totals && usd(totals.cost_usd)}</Fact>
        <Fact name="Saved">{totals && `${compact(totals.saved_tokens)} tokens`}</Fact>
        <Fact name="Cleared">{agent.last_cleared_at === agent.created_at ? "never" : <When iso={agent.last_cleared_at} />}</Fact>
      </dl>
      <p class="buttons"><a href={link(["conversations"], { agent: agent.agent_id })}>Conversations</a> <a href={link(["spend"], { agent: agent.agent_id })}>Spend</a>
        <button type="button" class="plain" aria-expanded={open} onClick={() => setOpen(!open)}>{open ? "Hide" : "Show"} sections, tools and policy</button></p>
      {open && <AgentSettings id={agent.agent_id} />}
    </article>
  );
}

export function Agents(): JSX.Element {
  useTitle("Agents");
  const list = usePages((cursor) => good(api.GET("/v1/agents", { params: { query: { limit: 25, ...(cursor && { cursor }) } } })), ["agents list"]);
  for (const agent of list.items ?? []) learn(agent.agent_id, agent.name);
  return (
    <section class="page">
      <div class="title"><h1>Agents</h1><Curl path="/v1/agents" /></div>
      {list.error ? <Failed error={list.error} /> : !list.items ? <Loading what="agents" /> : list.items.length === 0 ? (
        <Empty title="There are no agents.">An agent shares a model, a policy, sections and tools between conversations: <code>POST /v1/agents</code> creates one.</Empty>
      ) : list.items.map((agent) => <Card key={agent.agent_id} agent={agent} />)}
      <More more={list.more} loading={list.loading && list.items !== undefined} />
    </section>
  );
}
