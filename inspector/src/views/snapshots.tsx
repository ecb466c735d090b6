// Saved windows: what they hold, downloads of them, and restoring them.

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { api, good, type Message, type Snapshot } from "../api.ts";
import { lineOf } from "../content.ts";
import { count, plural, range } from "../format.ts";
import { LongText } from "../markdown.tsx";
import { learn, nameById, nameOf, shortId, useTitle } from "../names.ts";
import { place, setQuery, toConversation } from "../router.ts";
import { usePages, useResource } from "../resource.ts";
import { changes, tell } from "../state.ts";
import { Action, Badge, Copy, Curl, Empty, Fact, Failed, Field, Loading, More, When } from "../ui.tsx";

const SHOWN = 40;

export function Snapshots(): JSX.Element {
  useTitle("Snapshots");
  const conversation = place.value.query.get("conversation") ?? "";
  const named = useResource(() => good(api.GET("/v1/conversations", { params: { query: { limit: 200 } } })), ["names"]);
  const agents = useResource(() => good(api.GET("/v1/agents", { params: { query: { limit: 1000 } } })), ["agents"]);
  named.data?.data.forEach(nameOf);
  agents.data?.data.forEach((agent) => learn(agent.agent_id, agent.name));
  const choices = named.data?.data.map((item) => item.conversation_id) ?? [];
  return (
    <section class="page">
      <div class="title"><h1>Snapshots</h1><Curl path="/v1/snapshots" /></div>
      <form class="filters" onSubmit={(event) => event.preventDefault()}>
        <Field label="Conversation"><select value={conversation} onChange={(event) => setQuery({ conversation: event.currentTarget.value })}>
          <option value="">All conversations</option>
          {conversation && !choices.includes(conversation) && <option value={conversation}>{nameById(conversation)}</option>}
          {choices.map((id) => <option key={id} value={id}>{nameById(id)}</option>)}
        </select></Field>
      </form>
      {(named.data ?? named.error) && (agents.data ?? agents.error) ? <SnapshotList conversation={conversation} /> : <Loading what="snapshots" />}
    </section>
  );
}

function SnapshotList({ conversation }: { conversation: string }): JSX.Element {
  const list = usePages(
    (cursor) => good(api.GET("/v1/snapshots", { params: { query: { limit: 25, ...(conversation && { conversation_id: conversation }), ...(cursor && { cursor }) } } })),
    ["snapshots", conversation],
  );
  if (list.error) return <Failed error={list.error} />;
  if (!list.items) return <Loading what="snapshots" />;
  if (list.items.length === 0) return <Empty title="There are no snapshots.">A snapshot keeps the active window of a conversation or an agent. Save one from a conversation's actions.</Empty>;
  return (
    <>
      {list.items.map((item) => <Card key={item.snapshot_id} item={item} />)}
      <More more={list.more} loading={list.loading} />
    </>
  );
}

/** Save the file of a snapshot: a link could not send the key. */
async function download(id: string): Promise<void> {
  try {
    const file = await good(api.GET("/v1/snapshots/{snapshot_id}", { params: { path: { snapshot_id: id }, query: { download: true } }, parseAs: "blob" }));
    const url = URL.createObjectURL(file as unknown as Blob);
    Object.assign(document.createElement("a"), { href: url, download: `snapshot-${id}.json` }).click();
    setTimeout(() => URL.revokeObjectURL(url), 60_000);
  } catch (error) {
    tell(error instanceof Error ? error.message : String(error), true);
  }
}

function Card({ item }: { item: Snapshot }): JSX.Element {
  const path = { snapshot_id: item.snapshot_id };
  const [open, setOpen] = useState(false);
  const [first = ""] = item.conversation_ids;
  const name = item.description ?? (item.agent_id && item.conversation_ids.length !== 1 ? `All windows of ${nameById(item.agent_id)}` : first ? `Window of ${nameById(first)}` : "An empty window");
  const about = item.summary === "(summary generation failed)" ? <p class="warn">There is no description: the model that writes it failed.</p> : <LongText text={item.summary} />;
  return (
    <article class="card">
      <div class="title">
        <h2>{name} <Copy text={item.snapshot_id} label="Copy id" shown={shortId(item.snapshot_id)} /></h2>
        <span class="buttons">
          <button type="button" aria-expanded={open} onClick={() => setOpen(!open)}>{open ? "Hide" : "Show"} its {plural(item.message_count, "message")}</button>
          <Action name="Restore" title="Restore this snapshot" explain="Its messages come back into the active windows of their conversations. Nothing is deleted."
            run={async () => { const done = await good(api.POST("/v1/snapshots/{snapshot_id}/restore", { params: { path }, body: {} })); changes.value += 1; return `${plural(done.restored, "message")} restored, ${done.skipped} were active.`; }} />
          <button type="button" onClick={() => void download(item.snapshot_id)}>Download</button>
          <Curl path={`/v1/snapshots/${item.snapshot_id}`} />
        </span>
      </div>
      <dl class="facts">
        <Fact name="Saved"><When iso={item.created_at} /></Fact>
        <Fact name="Window">{range(item.window_start, item.window_end)}</Fact>
        <Fact name="Models">{[...new Set(item.models.map((each) => each.model))].join(", ") || "–"}</Fact>
        <Fact name={item.conversation_ids.length === 1 ? "Conversation" : `${item.conversation_ids.length} conversations`}>{item.conversation_ids.slice(0, 6).map((id, index) => <span key={id}>{index > 0 && ", "}<a href={toConversation(id)} title={id}>{nameById(id)}</a></span>)}{item.conversation_ids.length > 6 && " …"}</Fact>
      </dl>
      {about}
      {open && <Contents id={item.snapshot_id} isOne={item.conversation_ids.length === 1} />}
    </article>
  );
}

function Contents({ id, isOne }: { id: string; isOne: boolean }): JSX.Element {
  const file = useResource(() => good(api.GET("/v1/snapshots/{snapshot_id}", { params: { path: { snapshot_id: id } } })), ["snapshot", id]);
  const [all, setAll] = useState(false);
  if (file.error) return <Failed error={file.error} retry={file.reload} />;
  if (!file.data) return <Loading what="the messages" />;
  const messages = file.data.messages as unknown as (Message & { conversation_id: string })[];
  return (
    <>
      <ol class="originals contents" tabIndex={0} aria-label="Messages of the snapshot">{(all ? messages : messages.slice(0, SHOWN)).map((message) => (
        <li key={`${message.conversation_id}.${message.seq}`}>
          <a href={toConversation(message.conversation_id, "messages", { seq: String(message.seq) })}>{!isOne && `${nameById(message.conversation_id)} `}#{message.seq}</a> <Badge kind={message.role}>{message.role}</Badge>
          <p>{lineOf(message, 200)}</p>
        </li>
      ))}</ol>
      {!all && messages.length > SHOWN && <p class="more"><button type="button" onClick={() => setAll(true)}>Show all {count(messages.length)}</button></p>}
    </>
  );
}
