// What calls cost: by day as bars, by model, and each row of both.

import type { JSX } from "preact";
import { api, good, type Schemas } from "../api.ts";
import { compact, count, percent, plural, usd } from "../format.ts";
import { learn, useTitle } from "../names.ts";
import { link, place, setQuery } from "../router.ts";
import { useResource } from "../resource.ts";
import { Curl, Empty, Failed, Fact, Field, Loading } from "../ui.tsx";

type Row = Schemas["UsageRow"];

/** The colours of the models, the most expensive first; further ones share the last. */
const COLOURS = ["history", "tools", "summary", "result", "system", "other"];
const colourOf = (place: number): string => COLOURS[Math.min(place, COLOURS.length - 1)] ?? "other";
const DAY_MS = 86_400_000;
const RANGES = [7, 30, 90, 366];
const dayOf = (before: number): string => new Date(Date.now() - before * DAY_MS).toISOString().slice(0, 10);
const sentOf = ({ reported }: Row): number => reported.input_tokens + reported.cache_read_tokens + reported.cache_creation_tokens;
const sum = (rows: Row[], of: (row: Row) => number): number => rows.reduce((total, row) => total + of(row), 0);

/** All rows of a range, whose pages have a thousand each. */
async function readAll(query: { from: string; agent_id?: string }): Promise<Schemas["UsageTotalsAnswer"]> {
  const first = await good(api.GET("/v1/usage", { params: { query: { ...query, limit: 1000 } } }));
  for (let cursor = first.next_cursor; cursor; ) {
    const page = await good(api.GET("/v1/usage", { params: { query: { ...query, limit: 1000, cursor } } }));
    first.data.push(...page.data);
    cursor = page.next_cursor;
  }
  return first;
}

export function Spend(): JSX.Element {
  useTitle("Spend");
  const agent = place.value.query.get("agent") ?? "";
  const days = Number(place.value.query.get("days") ?? "30");
  const query = { from: dayOf(days - 1), ...(agent && { agent_id: agent }) };
  const usage = useResource(() => readAll(query), ["spend", agent, days]);
  const agents = useResource(() => good(api.GET("/v1/agents", { params: { query: { limit: 1000 } } })), ["agents"]);
  for (const each of agents.data?.data ?? []) learn(each.agent_id, each.name);
  return (
    <section class="page">
      <div class="title"><h1>Spend</h1><Curl path={`/v1/usage?from=${query.from}${agent && `&agent_id=${encodeURIComponent(agent)}`}`} /></div>
      <form class="filters" onSubmit={(event) => event.preventDefault()}>
        <Field label="Days"><select value={String(days)} onChange={(event) => setQuery({ days: event.currentTarget.value })}>{RANGES.map((each) => <option key={each} value={String(each)}>the last {each}</option>)}</select></Field>
        <Field label="Agent"><select value={agent} onChange={(event) => setQuery({ agent: event.currentTarget.value })}>
          <option value="">All agents</option>
          {agents.data?.data.map((item) => <option key={item.agent_id} value={item.agent_id}>{item.name}</option>)}
        </select></Field>
      </form>
      {usage.error ? <Failed error={usage.error} retry={usage.reload} /> : !usage.data ? <Loading what="the usage" /> : usage.data.data.length === 0 ? (
        <Empty title="No usage was reported in these days.">Report calls with <code>POST /v1/conversations/{"{id}"}/usage</code>; deleted conversations stay in the sums.</Empty>
      ) : <Figures usage={usage.data} days={days} />}
    </section>
  );
}

function Figures({ usage, days }: { usage: Schemas["UsageTotalsAnswer"]; days: number }): JSX.Element {
  const { totals, data } = usage;
  const byModel = [...Map.groupBy(data, (row) => row.model)].map(([model, rows]) => ({ model, rows, cost: sum(rows, (row) => row.cost_usd ?? 0) })).toSorted((a, b) => b.cost - a.cost);
  const sent = sum(data, sentOf);
  return (
    <>
      <section class="card" aria-label="Cost by day">
        <dl class="facts">
          <Fact name="Cost">{usd(totals.cost_usd)}</Fact>
          <Fact name="Of it for summaries">{usd(totals.summaries.cost_usd)}</Fact>
          <Fact name="Calls">{compact(totals.reported.calls)}{totals.reported.unpriced_calls > 0 && <span class="warn"> · {totals.reported.unpriced_calls} without a price</span>}</Fact>
          <Fact name="Read from the cache">{sent ? percent((100 * totals.reported.cache_read_tokens) / sent) : "–"}</Fact>
          <Fact name="Saved against the whole log">{compact(totals.saved_tokens)} tokens{totals.saved_usd !== null && ` · ${usd(totals.saved_usd)}`}</Fact>
        </dl>
        <Days byModel={byModel} days={days} />
      </section>
      <section class="card" aria-label="By model">
        <div class="title"><h2>By model</h2><a href={link(["conversations"], { sort: "cost" })}>the most expensive conversations</a></div>
        <div class="scroll" tabIndex={0} role="region" aria-label="Table of models"><table class="list">
          <thead><tr><th scope="col">Model</th><th scope="col" class="num">Cost</th><th scope="col" class="num">Share</th><th scope="col" class="num c1">Calls</th><th scope="col" class="num">Cached</th><th scope="col" class="num c1">Tokens out</th><th scope="col" class="num c1">Tokens saved</th></tr></thead>
          <tbody>{byModel.map(({ model, rows, cost }, place) => (
            <tr key={model}><th scope="row"><i class={`swatch ${colourOf(place)}`} />{model}</th><td class="num">{usd(rows.every((row) => row.cost_usd === null) ? null : cost)}</td><td class="num">{totals.cost_usd ? percent((100 * cost) / totals.cost_usd) : "–"}</td><td class="num c1">{count(sum(rows, (row) => row.reported.calls))}</td>
              <td class="num">{percent((100 * sum(rows, (row) => row.reported.cache_read_tokens)) / Math.max(1, sum(rows, sentOf)))}</td><td class="num c1">{compact(sum(rows, (row) => row.reported.output_tokens))}</td><td class="num c1">{compact(sum(rows, (row) => row.saved_tokens))}</td></tr>
          ))}</tbody></table></div>
      </section>
      <UsageTable usage={usage} />
    </>
  );
}

function Days({ byModel, days }: { byModel: { model: string; rows: Row[] }[]; days: number }): JSX.Element {
  const costs = Array.from({ length: days }, (_, index) => {
    const day = dayOf(days - 1 - index);
    const parts = byModel.map(({ model, rows }) => ({ model, cost: sum(rows.filter((row) => row.day === day), (row) => row.cost_usd ?? 0) }));
    return { day, parts, cost: parts.reduce((total, part) => total + part.cost, 0) };
  });
  const most = Math.max(...costs.map(({ cost }) => cost), 1e-9);
  return (
    <div class="days" role="img" aria-label={`Cost of each of ${plural(days, "day")}, at most ${usd(most)}`}>
      <span class="most">{usd(most)}</span>
      <div>{costs.map(({ day, cost, parts }) => (
        <i key={day} title={[`${day}: ${usd(cost)}`, ...parts.filter((part) => part.cost > 0).map((part) => `${part.model} ${usd(part.cost)}`)].join("\n")}>
          {parts.map((part, place) => part.cost > 0 && <b key={part.model} class={`region ${colourOf(place)}`} style={{ height: `${(100 * part.cost) / most}%` }} />)}
        </i>
      ))}</div>
      <p><span>{costs[0]?.day}</span><span>US dollars a day (UTC)</span><span>{costs.at(-1)?.day}</span></p>
    </div>
  );
}

export function UsageTable({ usage }: { usage: Schemas["UsageTotalsAnswer"] }): JSX.Element {
  return (
    <section class="card" aria-label="Usage and cost">
      <div class="title"><h2>By day and model</h2><span class="muted">{usage.from} to {usage.to}{place.value.parts[0] !== "spend" && <> · <a href={link(["spend"])}>all conversations</a></>}</span></div>
      {usage.data.length === 0 ? <Empty title="No usage was reported." /> : (
        <div class="scroll" tabIndex={0} role="region" aria-label="Table of usage"><table class="list"><thead><tr><th scope="col">Day</th><th scope="col">Model</th><th scope="col" class="num">Calls</th><th scope="col" class="num c1">Input, new</th><th scope="col" class="num c1">Input, cached</th><th scope="col" class="num c1">Output</th><th scope="col" class="num">Cost</th></tr></thead>
          <tbody>{usage.data.toReversed().map((row) => (
            <tr key={`${row.day}${row.model}`}><td class="day">{row.day}</td><td>{row.model}</td><td class="num">{count(row.reported.calls)}{row.summaries.calls > 0 && <span class="muted"> + {row.summaries.calls} for summaries</span>}</td><td class="num c1">{compact(row.reported.input_tokens)}</td><td class="num c1">{compact(row.reported.cache_read_tokens)}</td><td class="num c1">{compact(row.reported.output_tokens)}</td><td class="num">{usd(row.cost_usd)}</td></tr>
          ))}</tbody></table></div>
      )}
    </section>
  );
}
