// What went wrong in any conversation: failed compactions, overflows, full windows, degraded summaries.

import type { JSX } from "preact";
import { api, at, type ConversationItem, good, inTurn } from "../api.ts";
import { compact, plural, words } from "../format.ts";
import { nameOf, type Problem, problemsOf, useTitle } from "../names.ts";
import { place, setQuery, toConversation } from "../router.ts";
import { usePages, useResource } from "../resource.ts";
import { Badge, Curl, Empty, Failed, Field, Loading, More, When } from "../ui.tsx";

const KINDS: [Problem["kind"], string][] = [["failed", "compactions that failed"], ["overflow", "overflows"], ["blocked", "full windows"], ["degraded", "degraded compactions"]];

export function Problems(): JSX.Element {
  useTitle("Problems");
  const kind = place.value.query.get("kind") ?? "";
  const list = usePages((cursor) => good(api.GET("/v1/conversations", { params: { query: { include: "usage", limit: 200, ...(cursor && { cursor }) } } })), ["problems"]);
  const rows = list.items?.flatMap((item) => problemsOf(item).map((problem) => ({ item, problem }))).filter(({ problem }) => !kind || problem.kind === kind)
    .toSorted((a, b) => (b.problem.at ?? "9").localeCompare(a.problem.at ?? "9"));
  return (
    <section class="page">
      <div class="title"><h1>Problems</h1><Curl path="/v1/conversations?include=usage&limit=200" /></div>
      <form class="filters" onSubmit={(event) => event.preventDefault()}>
        <Field label="Show"><select value={kind} onChange={(event) => setQuery({ kind: event.currentTarget.value })}>
          <option value="">all problems</option>
          {KINDS.map(([name, text]) => <option key={name} value={name}>{text}</option>)}
        </select></Field>
        <p class="hint">{list.items && `${plural(list.items.length, "conversation")} looked through, the newest first`}</p>
      </form>
      {list.error ? <Failed error={list.error} /> : !rows ? <Loading what="problems" /> : rows.length === 0 ? (
        <Empty title="Nothing is wrong.">No compaction failed and no provider refused a payload in these conversations.</Empty>
      ) : (
        <div class="scroll" tabIndex={0} role="region" aria-label="Problems">
          <table class="list"><thead><tr><th scope="col">What</th><th scope="col">Conversation</th><th scope="col">Why, and what to do</th><th scope="col" class="c1">When</th></tr></thead>
            <tbody>{rows.map(({ item, problem }) => (
              <tr key={`${item.conversation_id}.${problem.kind}`}>
                <td><Badge kind={problem.kind === "degraded" ? "due" : "blocked"}>{problem.text}</Badge></td>
                <th scope="row" class="name"><a href={toConversation(item.conversation_id)}>{nameOf(item)}</a></th>
                <td><Why item={item} problem={problem} /></td>
                <td class="c1">{problem.at ? <When iso={problem.at} /> : "now"}</td>
              </tr>
            ))}</tbody></table>
        </div>
      )}
      <More more={list.more} loading={list.loading && list.items !== undefined} />
    </section>
  );
}

function Why({ item, problem }: { item: ConversationItem; problem: Problem }): JSX.Element {
  const id = item.conversation_id;
  const why = useResource(() => inTurn(async () => {
    const params = { ...at(id), query: { limit: 100 } };
    if (problem.kind === "failed") return { failure: (await good(api.GET("/v1/conversations/{conversation_id}/state", { params: at(id) }))).last_failure };
    if (problem.kind === "overflow") return { cuts: (await good(api.GET("/v1/conversations/{conversation_id}/compactions", { params }))).data.filter((receipt) => receipt.trigger === "emergency") };
    return {};
  }), ["why", id, problem.kind, problem.at]);
  if (problem.kind === "blocked") return <a href={toConversation(id)}>see what fills the window</a>;
  if (problem.kind === "degraded") return <>{problem.hint} <a href={toConversation(id, "compactions", { c: item.usage?.last_compaction?.compaction_id })}>see it</a></>;
  if (why.error) return <span class="refused">{why.error.message}</span>;
  const { failure, cuts } = why.data ?? {};
  if (failure) return <>{failure.detail} ({words(failure.reason)}, {plural(failure.failures, "time")} in a row, {plural(failure.calls, "call")} of the model){failure.retry_at && <>; next try <When iso={failure.retry_at} /></>} <a href={toConversation(id, "compactions")}>see compactions</a></>;
  if (!cuts) return <span class="muted">…</span>;
  return <>{cuts.map((cut) => <div key={cut.compaction_id}>cut from {compact(cut.before_tokens)} to {compact(cut.after_tokens)} tokens <a href={toConversation(id, "compactions", { c: cut.compaction_id })}>see what was left out</a></div>)}</>;
}
