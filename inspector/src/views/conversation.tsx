// The frame of one conversation: what it is, its views, and what can be done with it.

import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { api, at, type Conversation, type Epoch, good } from "../api.ts";
import { firstBuild } from "../builds.ts";
import { compact, count, plural, reasonText, words } from "../format.ts";
import { nameById, nameOf, shortId, starved, tagsOf, useTitle } from "../names.ts";
import { go, link, toConversation } from "../router.ts";
import { useResource } from "../resource.ts";
import { changes } from "../state.ts";
import { Action, Copy, Empty, Failed, Field, Loading, Pressure, When } from "../ui.tsx";
import { Compactions } from "./compactions.tsx";
import { Compare } from "./compare.tsx";
import { Live, useLive } from "./live.tsx";
import { Messages } from "./messages.tsx";
import { Timeline } from "./timeline.tsx";
import { Window } from "./window.tsx";

const VIEWS: [string, string][] = [
  ["window", "Window"],
  ["messages", "Messages"],
  ["compactions", "Compactions"],
  ["time", "Over time"],
  ["compare", "Compare builds"],
  ["live", "Live"],
];

export function ConversationPage({ id, view }: { id: string; view: string }): JSX.Element {
  const params = at(id);
  const found = useResource(() => good(api.GET("/v1/conversations/{conversation_id}", { params })), ["conversation", id]);
  const epochs = useResource(() => good(api.GET("/v1/conversations/{conversation_id}/epochs", { params: { ...at(id), query: { limit: 100 } } })), ["newest epochs", id]);
  const agentId = found.data?.agent_id;
  const agent = useResource(async () => (agentId ? good(api.GET("/v1/agents/{agent_id}", { params: { path: { agent_id: agentId } } })) : null), ["agent", agentId]);
  const live = useLive(id);
  const name = found.data ? nameOf(found.data) : nameById(id);
  useTitle(`${VIEWS.find(([each]) => each === view)?.[1] ?? "Window"} · ${name}`);
  const current = useRef<HTMLAnchorElement>(null);
  useEffect(() => current.current?.scrollIntoView({ block: "nearest", inline: "nearest" }), [view, Boolean(found.data)]);
  if (found.error) {
    return found.error.status === 404
      ? <Empty page title="There is no such conversation.">It may have been deleted, or it belongs to another tenant. <a href="#/conversations">All conversations</a></Empty>
      : <Failed error={found.error} retry={found.reload} />;
  }
  const conversation = found.data;
  if (!conversation) return <Loading what="the conversation" />;
  return (
    <section class="page">
      <nav class="crumbs" aria-label="Breadcrumb">
        <a href="#/conversations">Conversations</a>
        {conversation.agent_id && <> / <a href={link(["conversations"], { agent: conversation.agent_id })}>{agent.data?.name ?? shortId(conversation.agent_id)}</a></>}
      </nav>
      <div class="head">
        <div>
          <h1>{name}</h1>
          <p class="muted">
            <Copy text={id} label="Copy id" shown={shortId(id)} /> · {conversation.effective_model ?? "no model"} · {conversation.policy.strategy} · {plural(conversation.message_count, "message")} · {plural(conversation.turn_count, "turn")} · <span title={count(conversation.token_count)}>{compact(conversation.token_count)} log tokens</span> · active <When iso={conversation.last_message_at} />
          </p>
          <div class="tags">{tagsOf(conversation).map(([key, value]) => <span class="tag" key={key}>{key}={value}</span>)}</div>
        </div>
        <div class="side">
          {view !== "window" && <Fill id={id} />}
          <Actions conversation={conversation} />
        </div>
      </div>
      <Banner conversation={conversation} epochs={epochs.data?.data} />
      <nav class="tabs" aria-label="Views of the conversation">
        {VIEWS.map(([name, title]) => (
          <a key={name} ref={view === name ? current : null} href={toConversation(id, name)} aria-current={view === name ? "page" : undefined}>
            {title}{name === "live" && <i class={`dot ${live.value.state}`} aria-hidden="true" />}
          </a>
        ))}
      </nav>
      {conversation.head_seq === 0 && view !== "live" ? (
        <Empty title="This conversation has no messages yet.">They appear here as soon as one is appended with <code>POST /v1/conversations/{id}/messages</code>.</Empty>
      ) : view === "messages" ? <Messages conversation={conversation} />
        : view === "compactions" ? <Compactions conversation={conversation} />
        : view === "time" ? <Timeline conversation={conversation} />
        : view === "compare" ? <Compare conversation={conversation} />
        : view === "live" ? <Live id={id} live={live} />
        : <Window conversation={conversation} epochs={epochs} agent={agent.data} />}
    </section>
  );
}

/** The fullness that the view Window explains; there it is not said twice. */
function Fill({ id }: { id: string }): JSX.Element | null {
  const { data } = useResource(() => good(api.GET("/v1/conversations/{conversation_id}/budget", { params: at(id) })), ["budget", id]);
  return data?.budget ? <Pressure used={data.budget.tokens_used} window={data.budget.effective_window} level={data.pressure} /> : null;
}

/** How many epochs may begin within so many messages before the cache is said to be of no use. */
const BREAKS = 3;
const WITHIN = 9;

/** Says in red what a reader must know first: a failure, a starved summary, a cache that never holds. */
function Banner({ conversation: { conversation_id: id }, epochs = [] }: { conversation: Conversation; epochs: Epoch[] | undefined }): JSX.Element | null {
  const state = useResource(() => good(api.GET("/v1/conversations/{conversation_id}/state", { params: at(id) })), ["state", id]);
  const newest = useResource(() => good(api.GET("/v1/conversations/{conversation_id}/compactions", { params: { ...at(id), query: { limit: 3 } } })), ["newest receipts", id]);
  const failure = state.data?.last_failure;
  const [receipt] = newest.data?.data ?? [];
  const cut = newest.data?.data.find((each) => each.trigger === "overflow" && each.status === "active");
  const hungry = receipt ? starved(receipt) : null;
  const [last] = epochs;
  const breaks = epochs.filter((epoch) => epoch.format === last?.format && epoch.model === last?.model && epoch.cache_break_reason && last.start_seq - epoch.start_seq <= WITHIN);
  if (!failure && !cut && !hungry && breaks.length < BREAKS) return null;
  return (
    <div class="failed banner" role="alert">
      {failure && <p><strong>The last automatic compaction failed</strong> <When iso={failure.failed_at} />: {failure.detail} ({words(failure.reason)}, {plural(failure.failures, "time")} in a row){failure.retry_at && Date.parse(failure.retry_at) > Date.now() && <>; next try <When iso={failure.retry_at} /></>} <a href={toConversation(id, "live")}>See the events</a></p>}
      {cut && <p><strong>The last payload did not fit</strong>: a provider refused it <When iso={cut.created_at} />, and it was cut from {count(cut.before_tokens)} to {count(cut.after_tokens)} tokens{cut.before_messages > cut.after_messages && ` (${plural(cut.before_messages - cut.after_messages, "message")} less)`}. <a href={toConversation(id, "compactions", { c: cut.compaction_id })}>See what was left out</a></p>}
      {hungry && receipt && <p><strong>{hungry}</strong> A higher target keeps more; a pinned message stays word for word. <a href={toConversation(id, "compactions", { c: receipt.compaction_id })}>See what was dropped</a></p>}
      {last && breaks.length >= BREAKS && <p><strong>The cache breaks at nearly every build</strong>: {breaks.length} times in the last {last.start_seq - (breaks.at(-1)?.start_seq ?? 0) + 1} messages ({[...new Set(breaks.map((epoch) => reasonText(epoch.cache_break_reason ?? "")))].join(", ")}). <a href={toConversation(id, "compare", { b: firstBuild(last) })}>See what changed</a></p>}
    </div>
  );
}

function Actions({ conversation }: { conversation: Conversation }): JSX.Element {
  const params = at(conversation.conversation_id);
  const [target, setTarget] = useState("");
  const changed = (text: string): string => {
    changes.value += 1;
    return text;
  };
  return (
    <div class="buttons">
      <Action name="Compact" primary title="Compact now" explain="Older messages are replaced by a summary in the context. The log keeps everything, and the compaction can be undone. The tab Compactions has a dry run."
        run={async (form) => {
          const instructions = String(form.get("instructions") ?? "").trim();
          const done = await good(api.POST("/v1/conversations/{conversation_id}/compact", { params, body: { ...(instructions && { instructions }), ...(target && { target_tokens: Number(target) }) } }));
          if (!("compacted" in done)) return changed("A job was started.");
          return changed(done.compacted ? `Compacted from ${count(done.before_tokens)} to ${count(done.after_tokens)} tokens.` : `Nothing was done: ${done.reason ?? ""}`);
        }}>
        <Field label="Target in tokens (by default that of the policy)"><input type="number" min="1" value={target} onInput={(event) => setTarget(event.currentTarget.value)} /></Field>
        <Field label="What the summary should keep (optional)"><textarea name="instructions" rows={2} /></Field>
      </Action>
      <Action name="Snapshot" title="Save the window" explain="A snapshot keeps the active window as it is now, so that it can be restored later."
        run={async (form) => {
          const description = String(form.get("description") ?? "").trim();
          await good(api.POST("/v1/conversations/{conversation_id}/snapshots", { params, body: description ? { description } : {} }));
          return changed("The snapshot was saved.");
        }}>
        <Field label="What it is for (optional)"><input name="description" /></Field>
      </Action>
      <Action name="Fork" title="Fork the conversation" explain="A copy of the log up to a message, which goes its own way from there."
        run={async (form) => {
          const fork = await good(api.POST("/v1/conversations/{conversation_id}/fork", { params, body: { through_seq: Number(form.get("seq")) } }));
          go(toConversation(fork.conversation_id));
          return changed("This is the fork.");
        }}>
        <Field label="Last message of the fork"><input name="seq" type="number" min="0" max={conversation.head_seq} defaultValue={String(conversation.head_seq)} required /></Field>
      </Action>
      <Action name="Clear" danger title="Clear the window" explain="Payloads show no message from before now. The log keeps everything; a snapshot made before can be restored."
        run={async () => {
          await good(api.POST("/v1/conversations/{conversation_id}/clear", { params }));
          return changed("The window was cleared.");
        }} />
    </div>
  );
}
