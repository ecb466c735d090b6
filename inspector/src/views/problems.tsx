// What went wrong in any conversation: failed compactions, overflows, full windows, degraded summaries.

import type { JSX } from "preact";
import { api, at, type ConversationItem, good, inTurn } from "../api.ts";
import { count, plural, words } from "../format.ts";
import { nameOf, type Problem, problemsOf, useTitle } from "../names.ts";
import { place, setQuery, toConversation } from "../router.ts";
import { usePages, useResource } from "../resource.ts";
import { Badge, Curl, Empty, Failed, Loading, More, When } from "../ui.tsx";

const KINDS: [Problem["kind"], string][] = [["failed", "failed compaction"], ["overflow", "overflow"], ["blocked", "full window"], ["degraded", "degraded compaction"]];

export function Problems(): JSX.Element {
  useTitle("Problems");
  const kind = place.value.query.get("kind") ?? "";
  const list = usePages((cursor) => good(api.GET("/v1/conversations", { params: { query: { include: "usage", limit: 200, ...(cursor && { cursor }) } } })), ["problems"]);
  const all = list.items?.flatMap((item) => problemsOf(item).map((problem) => ({ item, problem }))).toSorted((a, b) => (b.problem.at ?? "9").localeCompare(a.problem.at ?? "9"));
  const rows = all?.filter(({ problem }) => !kind || problem.kind === kind);
  const numberOf = (name: string): number => all?.filter(({ problem }) => problem.kind === name).length ?? 0;
  const chip = (name: string, text: string): JSX.Element => <button key={name} type="button" aria-pressed={kind === name} onClick={() => setQuery({ kind: name })}>{text}</button>;
  return (
    <section class="page">
      <div class="title"><h1>Problems</h1><Curl path="/v1/conversations?include=usage&limit=200" /></div>
      {all && (
        <div class="chips" role="group" aria-label="Kinds of problems">
          {chip("", `all ${all.length}`)}
          {KINDS.map(([name, text]) => (numberOf(name) > 0 || kind === name) && chip(name, plural(numberOf(name), text)))}
          <span class="hint">in {plural(list.items?.length ?? 0, "conversation")} looked through</span>
        </div>
      )}
      {list.error ? <Failed error={list.error} /> : !rows ? <Loading what="problems" /> : rows.length === 0 ? (
        <Empty title="Nothing is wrong.">No compaction failed and no provider refused a payload in these conversations.</Empty>
      ) : (
        <div class="scroll" tabIndex={0} role="region" aria-label="Problems">
          <table class="list stacked"><thead><tr><th scope="col">What</th><th scope="col">Conversation</th><th scope="col">Why, and what to do</th><th scope="col" class="c1">When</th></tr></thead>
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
    if (problem.kind === "overflow") return { cuts: (await good(api.GET("/v1/conversations/{conversation_id}/compactions", { params }))).data.filter((receipt) => receipt.trigger === "overflow") };
    return {};
  }), ["why", id, problem.kind, problem.at]);
  if (problem.kind === "blocked") return <>{item.usage?.budget && `${count(item.usage.budget.tokens_used)} of ${count(item.usage.budget.effective_window)} tokens: the next build compacts before it answers. `}<a href={toConversation(id)}>see what fills it</a></>;
  if (problem.kind === "degraded") return <>{problem.hint} <a href={toConversation(id, "compactions", { c: item.usage?.last_compaction?.compaction_id })}>see it</a></>;
  if (why.error) return <span class="refused">{why.error.message}</span>;
  const { failure, cuts } = why.data ?? {};
  if (failure) return <>{failure.detail} ({words(failure.reason)}, {plural(failure.failures, "time")} in a row){failure.retry_at && Date.parse(failure.retry_at) > Date.now() && <>; next try <When iso={failure.retry_at} /></>} <a href={toConversation(id, "live")}>see its events</a></>;
  if (!cuts) return <span class="muted">…</span>;
  return <>{cuts.map((cut) => <div key={cut.compaction_id}>A provider refused the payload; it was cut from {count(cut.before_tokens)} to {count(cut.after_tokens)} tokens. <a href={toConversation(id, "compactions", { c: cut.compaction_id })}>see what was left out</a></div>)}</>;
}
