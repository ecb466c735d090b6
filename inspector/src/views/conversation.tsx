// The frame of one conversation: what it is, its views, and what can be done with it.

import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { api, at, type Conversation, good } from "../api.ts";
import { compact, count, plural } from "../format.ts";
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
  const budget = useResource(() => good(api.GET("/v1/conversations/{conversation_id}/budget", { params })), ["budget", id]);
  const epochs = useResource(() => good(api.GET("/v1/conversations/{conversation_id}/epochs", { params: { ...at(id), query: { limit: 100 } } })), ["newest epochs", id]);
  const live = useLive(id);
  const current = useRef<HTMLAnchorElement>(null);
  const known = found.data !== undefined;
  useEffect(() => current.current?.scrollIntoView({ block: "nearest", inline: "nearest" }), [view, known]);
  if (found.error) {
    return found.error.status === 404
      ? <Empty page title="There is no such conversation.">It may have been deleted, or it belongs to another tenant. <a href="#/conversations">All conversations</a></Empty>
      : <Failed error={found.error} retry={found.reload} />;
  }
  const conversation = found.data;
  if (!conversation) return <Loading what="the conversation" />;
  const reading = budget.data;
  return (
    <section class="page">
      <nav class="crumbs" aria-label="Breadcrumb">
        <a href="#/conversations">Conversations</a>
        {conversation.agent_id && <> / <a href={link(["conversations"], { agent: conversation.agent_id })}>{conversation.agent_id}</a></>}
      </nav>
      <div class="head">
        <div>
          <h1 class="id"><Copy text={id} label="Copy id" shown={id} /></h1>
          <p class="muted">
            {conversation.effective_model ?? "no model"} · {conversation.policy.strategy} · {plural(conversation.message_count, "message")} · {plural(conversation.turn_count, "turn")} · <span title={count(conversation.token_count)}>{compact(conversation.token_count)} tokens in the log</span> · active <When iso={conversation.last_message_at} />
          </p>
          <div class="tags">{Object.entries(conversation.metadata as Record<string, unknown>).map(([key, value]) => <span class="tag" key={key}>{key}={typeof value === "string" ? value : JSON.stringify(value)}</span>)}</div>
        </div>
        <div class="side">
          {reading?.budget && <Pressure used={reading.budget.tokens_used} window={reading.budget.effective_window} level={reading.pressure} />}
          <Actions conversation={conversation} />
        </div>
      </div>
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
        : <Window conversation={conversation} reading={reading} epochs={epochs} />}
    </section>
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
