// Over time: what each call sent, by region, and what was cached of it; compactions; a table of calls.

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import type { Conversation, Epoch } from "../api.ts";
import { firstBuild } from "../builds.ts";
import { type Call, type History, readHistory } from "../calls.ts";
import { compact, count, percent, plural, reasonText, time, timeAfter, usd, words } from "../format.ts";
import { toConversation } from "../router.ts";
import { useResource } from "../resource.ts";
import { Badge, Curl, Empty, Failed, Fact, Loading } from "../ui.tsx";
import { Chart } from "./chart.tsx";
import { UsageTable } from "./spend.tsx";

const SHOWN = 50;

export function Timeline({ conversation }: { conversation: Conversation }): JSX.Element {
  const id = conversation.conversation_id;
  const all = useResource(() => readHistory(conversation), ["timeline", id]);
  if (all.error) return <Failed error={all.error} retry={all.reload} />;
  if (!all.data) return <Loading what="the history" />;
  const { calls, receipts, usage, more } = all.data;
  const sum = (of: (call: Call) => number): number => calls.reduce((total, call) => total + of(call), 0);
  const sent = sum((call) => call.sent);
  const undivided = calls.filter(({ regions }) => regions[0]?.kind === "other").length;
  return (
    <div>
      <section class="card" aria-label="Tokens over time">
        <div class="title"><h2>Tokens of each call</h2><Curl path={`/v1/conversations/${encodeURIComponent(id)}/usage/reports`} /></div>
        <dl class="facts">
          <Fact name="Cost">{usd(usage.totals.cost_usd)}</Fact>
          <Fact name="Saved against the whole log" hint="tokens of the log minus tokens sent, at the price of input">{compact(usage.totals.saved_tokens)} tokens{usage.totals.saved_usd !== null && ` · ${usd(usage.totals.saved_usd)}`}</Fact>
          <Fact name="Cached by the provider">{sent ? percent((100 * sum((call) => call.cached)) / sent) : "–"}</Fact>
          <Fact name="Cacheable" hint="The share of each payload that the one before in its epoch had as well">{sent ? percent((100 * sum((call) => call.cacheable)) / sent) : "–"}</Fact>
          <Fact name="Calls">{count(calls.length)}{more && " (the newest)"}</Fact>
          <Fact name="Compactions">{count(receipts.length)}</Fact>
        </dl>
        {undivided > 0 && <p class="hint">{plural(undivided, "call")} in grey: reported without its build, or after its sections or tools had changed: its regions are not known.</p>}
        {calls.length > 0 ? <Chart id={id} history={all.data} /> : (
          <Empty title="No call was reported yet.">Report the usage of calls with <code>POST /v1/conversations/{id}/usage</code> and their <code>build_id</code>, or in builds with <code>report</code>: each becomes a point here.</Empty>
        )}
      </section>
      <Calls id={id} history={all.data} />
      <UsageTable usage={usage} />
    </div>
  );
}

function Calls({ id, history: { calls, epochs } }: { id: string; history: History }): JSX.Element {
  const [breaks, setBreaks] = useState(false);
  const [all, setAll] = useState(false);
  const rows = [
    ...calls.map((call) => ({ when: new Date(call.at).toISOString(), call, epoch: call.begins })),
    ...epochs.map((epoch) => ({ when: new Date(epoch.created_at).toISOString(), call: null, epoch })),
  ].filter(({ epoch }) => !breaks || epoch?.cache_break_reason).toSorted((a, b) => b.when.localeCompare(a.when));
  const shown = all ? rows : rows.slice(0, SHOWN);
  return (
    <section class="card" aria-label="Calls">
      <div class="title"><h2>Calls</h2><label><input type="checkbox" checked={breaks} onChange={(event) => setBreaks(event.currentTarget.checked)} /> only where the cached prefix ended</label></div>
      {rows.length === 0 ? <Empty title={breaks ? "The cached prefix never ended." : "No payload was built yet."} /> : (
        <div class="scroll" tabIndex={0} role="region" aria-label="Table of calls"><table class="list">
          <thead><tr><th scope="col" class="c1">Time</th><th scope="col" class="num">Up to</th><th scope="col" class="num">Tokens in</th><th scope="col" class="num">Cached</th><th scope="col" class="num c1">Out</th><th scope="col" class="num" title="At the prices of now">Cost</th><th scope="col">Prefix</th></tr></thead>
          <tbody>{shown.map(({ when, call, epoch }, index) => (
            <tr key={`${when}.${call?.seq}.${epoch?.epoch_id}`}>
              <td class="c1" title={time(when)}>{timeAfter(when, shown[index - 1]?.when)}</td>
              <td class="num">{call?.build ? <a href={toConversation(id, "messages", { as_of: call.build })}>#{call.seq}</a> : `#${call?.seq ?? epoch?.start_seq}`}</td>
              <td class="num">{call ? count(call.sent) : <span class="muted">not reported</span>}</td>
              <td class="num cached" title={call ? `${count(call.cached)} tokens` : undefined}>{call ? percent((100 * call.cached) / Math.max(1, call.sent)) : "–"}</td>
              <td class="num c1">{call ? count(call.output) : "–"}</td>
              <td class="num">{usd(call?.cost)}</td>
              <td><Prefix id={id} epoch={epoch} call={call} />{call && <Said said={call.said} />}</td>
            </tr>
          ))}</tbody></table></div>
      )}
      {shown.length < rows.length && <p class="more"><button type="button" onClick={() => setAll(true)}>Show all {rows.length}</button></p>}
    </section>
  );
}

/** Why the cached prefix ended before a call, where it did; and what the call says of changed settings. */
function Prefix({ id, epoch, call }: { id: string; epoch: Epoch | null; call: Call | null }): JSX.Element {
  if (!epoch && call?.changed.length) return <span title="An item of the payload says it; the prefix stays as it was."><Badge kind="ok">{plural(call.changed.length, "change")} of sections or tools</Badge> {call.build && <a href={toConversation(id, "compare", { b: call.build })}>what changed</a>}</span>;
  if (!epoch) return <span class="muted">extends</span>;
  if (!epoch.cache_break_reason) return <span class="muted">first of {epoch.model}</span>;
  return <><Badge kind="due">{reasonText(epoch.cache_break_reason)}</Badge> <a href={toConversation(id, "compare", { b: firstBuild(epoch) })}>what changed</a></>;
}

/** What the provider said of the prefix, nothing where it said nothing. */
function Said({ said: { cache_miss: miss, removed_reasoning: removed } }: Pick<Call, "said">): JSX.Element {
  return (
    <>
      {miss && <div class="sub">provider: the cache missed, {words(miss.reason)}{miss.missed_tokens !== null && `, ${compact(miss.missed_tokens)} tokens`}</div>}
      {removed.map(({ seq, reason }, index) => <div key={index} class="sub">provider: reasoning removed{seq !== null && ` of #${seq}`}, {words(reason)}</div>)}
    </>
  );
}
