// Saved windows: what they hold, and restoring them.

import type { JSX } from "preact";
import { api, BASE, good, type Snapshot } from "../api.ts";
import { plural, time } from "../format.ts";
import { place, setQuery, toConversation } from "../router.ts";
import { usePages } from "../resource.ts";
import { changes } from "../state.ts";
import { Action, Copy, Curl, Empty, Failed, Field, Loading, More, When } from "../ui.tsx";

export function Snapshots(): JSX.Element {
  const conversation = place.value.query.get("conversation") ?? "";
  return (
    <section class="page">
      <div class="title"><h1>Snapshots</h1><Curl path="/v1/snapshots" /></div>
      <form class="filters" onSubmit={(event) => event.preventDefault()}>
        <Field label="Conversation"><input value={conversation} placeholder="any" onChange={(event) => setQuery({ conversation: event.currentTarget.value })} /></Field>
      </form>
      <SnapshotList conversation={conversation} />
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
      <div class="cards">{list.items.map((item) => <Card key={item.snapshot_id} item={item} />)}</div>
      <More more={list.more} loading={list.loading} />
    </>
  );
}

function Card({ item }: { item: Snapshot }): JSX.Element {
  const path = { snapshot_id: item.snapshot_id };
  return (
    <article class="card">
      <div class="title"><h2>{item.description ?? "Snapshot"}</h2><When iso={item.created_at} /></div>
      <p class="muted"><Copy text={item.snapshot_id} label="Copy id" shown={item.snapshot_id} /> · {plural(item.message_count, "message")}</p>
      <p class="pre">{item.summary}</p>
      <p class="muted">Window {time(item.window_start)} to {time(item.window_end)}</p>
      <ul class="plain-list">{item.conversation_ids.slice(0, 5).map((id) => <li key={id}><a href={toConversation(id)}>{id}</a></li>)}</ul>
      <footer class="buttons">
        <Action name="Restore" primary title="Restore this snapshot" explain="Its messages come back into the active windows of their conversations. Nothing is deleted."
          run={async () => { const done = await good(api.POST("/v1/snapshots/{snapshot_id}/restore", { params: { path }, body: {} })); changes.value += 1; return `${plural(done.restored, "message")} restored, ${done.skipped} were active.`; }} />
        <Copy text={`curl '${BASE}/v1/snapshots/${item.snapshot_id}'`} label="Copy as curl" shown="curl" />
      </footer>
    </article>
  );
}
