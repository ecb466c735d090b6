// Over time: tokens of each reported call, compactions as drops, epochs as bands, and the price.

import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import type uPlot from "uplot";
import { api, at, type Conversation, type Epoch, good, type Receipt, type Report, type Schemas } from "../api.ts";
import { firstBuild } from "../builds.ts";
import { compact, count, percent, plural, time, usd, words } from "../format.ts";
import { type Region, regionsOf } from "../regions.ts";
import { toConversation } from "../router.ts";
import { useResource } from "../resource.ts";
import { theme } from "../state.ts";
import { Badge, Curl, Empty, Failed, Fact, Loading, reasonText, When } from "../ui.tsx";

interface Point {
  at: number;
  label: string;
  built: number | null;
  sent: number | null;
  cached: number | null;
  cacheable: number | null;
  regions: Region[] | null;
}

/** The points of the chart, by time: what was sent, what the provider had cached, and drops. */
function pointsOf(reports: Report[], receipts: Receipt[]): Point[] {
  const last = new Map<string, number>();
  const points: Point[] = reports.toReversed().map((report) => {
    const usage = report.token_usage;
    const sent = usage.input_tokens + usage.cache_creation_tokens + usage.cache_read_tokens;
    const epoch = `${report.format}:${report.model}:${report.epoch}`;
    const cacheable = last.get(epoch) ?? 0;
    last.set(epoch, sent);
    return { at: Date.parse(report.created_at ?? ""), label: report.through_seq === null ? "" : `#${report.through_seq}`, built: report.estimated_tokens ?? sent, sent, cached: usage.cache_read_tokens, cacheable: Math.min(cacheable, sent), regions: report.regions && regionsOf(report.regions) };
  });
  for (const receipt of receipts) {
    const when = Date.parse(receipt.created_at);
    points.push(
      { at: when - 1, label: "", built: receipt.before_tokens, sent: null, cached: null, cacheable: null, regions: null },
      { at: when, label: "compaction", built: receipt.after_tokens, sent: null, cached: null, cacheable: null, regions: null },
    );
  }
  return points.sort((a, b) => a.at - b.at);
}

export function Timeline({ conversation }: { conversation: Conversation }): JSX.Element {
  const id = conversation.conversation_id;
  const all = useResource(async () => {
    const params = { ...at(id), query: { limit: 500 } };
    const [epochs, reports, receipts, usage, budget] = await Promise.all([
      good(api.GET("/v1/conversations/{conversation_id}/epochs", { params })),
      good(api.GET("/v1/conversations/{conversation_id}/usage/reports", { params })),
      good(api.GET("/v1/conversations/{conversation_id}/compactions", { params })),
      good(api.GET("/v1/conversations/{conversation_id}/usage", { params: { ...at(id), query: { limit: 100 } } })),
      good(api.GET("/v1/conversations/{conversation_id}/budget", { params: at(id) })),
    ]);
    return { epochs: epochs.data, reports: reports.data, receipts: receipts.data, usage, window: budget.budget?.effective_window ?? null };
  }, ["timeline", id]);
  if (all.error) return <Failed error={all.error} retry={all.reload} />;
  if (!all.data) return <Loading what="the history" />;
  const { epochs, reports, receipts, usage, window } = all.data;
  const points = pointsOf(reports, receipts);
  const unknown = reports.filter((report) => !report.regions).length;
  const sent = points.reduce((sum, point) => sum + (point.sent ?? 0), 0);
  const cached = points.reduce((sum, point) => sum + (point.cached ?? 0), 0);
  const cacheable = points.reduce((sum, point) => sum + (point.cacheable ?? 0), 0);
  return (
    <div>
      <section class="card" aria-label="Tokens over time">
        <div class="title"><h2>Tokens of the payload</h2><Curl path={`/v1/conversations/${encodeURIComponent(id)}/usage/reports`} /></div>
        <dl class="facts">
          <Fact name="Cost">{usd(usage.totals.cost_usd)}</Fact>
          <Fact name="Saved against the whole log" hint="tokens of the log minus tokens sent, at the price of input">{compact(usage.totals.saved_tokens)} tokens{usage.totals.saved_usd !== null && ` · ${usd(usage.totals.saved_usd)}`}</Fact>
          <Fact name="Cached by the provider">{sent ? percent((100 * cached) / sent) : "–"}</Fact>
          <Fact name="Cacheable" hint="The share of each payload that the one before in its epoch had as well">{sent ? percent((100 * cacheable) / sent) : "–"}</Fact>
        </dl>
        {reports.length === 0 && points.length > 1 && <p class="hint">No calls were reported, so the chart shows compactions alone. With <code>POST /v1/conversations/{id}/usage</code> and the <code>build_id</code> each call becomes a bar of its regions.</p>}
        {unknown > 0 && unknown < reports.length && <p class="hint">{plural(unknown, "call")} without a bar: their payload cannot be divided into regions, because it was reported without its build, or for an older epoch.</p>}
        {points.length > 1 ? <Chart points={points} epochs={epochs} window={window} /> : (
          <Empty title="There is too little to draw.">Report the usage of calls with <code>POST /v1/conversations/{id}/usage</code>, or in builds with <code>report</code>: each becomes a point here.</Empty>
        )}
      </section>
      <Epochs id={id} epochs={epochs} reports={reports} />
      <Said reports={reports} />
      <Usage usage={usage} />
    </div>
  );
}

function Chart({ points, epochs, window }: { points: Point[]; epochs: Epoch[]; window: number | null }): JSX.Element {
  const frame = useRef<HTMLDivElement>(null);
  const chosen = theme.value;
  const [Plot, setPlot] = useState<{ of: typeof uPlot }>();
  const [failed, setFailed] = useState(false);
  useEffect(() => {
    // Charts are loaded when one is shown.
    import("uplot").then((module) => setPlot({ of: module.default }), () => setFailed(true));
  }, []);
  useEffect(() => {
    const element = frame.current;
    if (!element || !Plot) return;
    const style = getComputedStyle(element);
    const color = (name: string): string => style.getPropertyValue(`--${name}`).trim();
    const axis = { stroke: color("muted"), grid: { stroke: color("line"), width: 1 }, ticks: { stroke: color("line") }, font: "12px system-ui" };
    // Calls come in bursts, so that the axis counts them instead of seconds.
    const placeOf = (epoch: Epoch): number => {
      const place = points.findIndex((point) => point.at >= Date.parse(epoch.created_at));
      return (place < 0 ? points.length : place) - 0.5;
    };
    const bands = (chart: uPlot): void => {
      const { left, top, height, width } = chart.bbox;
      epochs.toReversed().forEach((epoch, index) => {
        const from = Math.max(left, chart.valToPos(placeOf(epoch), "x", true));
        if (from > left + width) return;
        chart.ctx.save();
        if (index % 2) {
          chart.ctx.fillStyle = color("band");
          const next = epochs.toReversed()[index + 1];
          const to = next ? Math.min(left + width, chart.valToPos(placeOf(next), "x", true)) : left + width;
          chart.ctx.fillRect(from, top, Math.max(0, to - from), height);
        }
        chart.ctx.strokeStyle = color(epoch.cache_break_reason ? "warn" : "line");
        chart.ctx.setLineDash([3, 3]);
        chart.ctx.beginPath();
        chart.ctx.moveTo(from, top);
        chart.ctx.lineTo(from, top + height);
        chart.ctx.stroke();
        chart.ctx.restore();
      });
    };
    const reasons = (chart: uPlot): void => {
      const { left, top, width } = chart.bbox;
      const ratio = devicePixelRatio;
      chart.ctx.save();
      chart.ctx.font = `${11 * ratio}px system-ui`;
      chart.ctx.textAlign = "left";
      chart.ctx.fillStyle = color("warn");
      let past = left + width;
      for (const epoch of epochs) {
        const from = chart.valToPos(placeOf(epoch), "x", true);
        const reason = epoch.cache_break_reason ? reasonText(epoch.cache_break_reason) : "";
        if (from + chart.ctx.measureText(reason).width + 8 * ratio < past) chart.ctx.fillText(reason, from + 4 * ratio, top - 5 * ratio);
        past = from;
      }
      chart.ctx.restore();
    };
    const values = (name: "built" | "cached" | "cacheable"): (number | null)[] => points.map((point) => point[name]);
    const tokens = (_: uPlot, value: number | null): string => (value === null ? "–" : count(Math.round(value)));
    // Bars of sums, the largest first, so that each region is what the next bar leaves of its own.
    const used = regionsIn(points);
    const stack = used.map(({ kind }, place) => ({
      kind,
      sums: points.map(({ regions }) => regions && used.slice(0, place + 1).reduce((sum, each) => sum + tokensOf(regions, each.kind), 0)),
    })).toReversed();
    const bars = Plot.of.paths.bars?.({ size: [0.72, 48] });
    const chart = new Plot.of(
      {
        width: element.clientWidth,
        height: 280,
        hooks: { drawClear: [bands], draw: [reasons] },
        scales: { x: { time: false, range: () => [-0.5, points.length - 0.5] }, y: { range: (_, __, most) => [0, Math.max(most * 1.1, 10)] } },
        axes: [{ ...axis, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500], values: (_, splits) => splits.map((place) => points[place]?.label ?? "") }, { ...axis, size: 64, values: (_, splits) => splits.map((value) => compact(value)) }],
        series: [
          { label: "Time", value: (_, value: number | null) => (value === null || !points[value] ? "–" : time(new Date(points[value].at).toISOString())) },
          ...stack.map(({ kind }) => ({
            label: used.find((region) => region.kind === kind)?.name ?? kind, fill: color(kind), stroke: color(kind), width: 0, ...(bars && { paths: bars }), points: { show: false },
            value: (_: uPlot, __: number | null, ___: number, place: number | null) => { const regions = place === null ? null : points[place]?.regions; return regions ? count(tokensOf(regions, kind)) : "–"; },
          })),
          { label: "Payload", stroke: color("text"), width: 1.5, spanGaps: true, value: tokens, points: { size: 5 } },
          { label: "Cached by the provider", stroke: color("good"), width: 2, spanGaps: true, value: tokens },
          { label: "Cacheable", stroke: color("tool"), dash: [5, 4], width: 1.5, spanGaps: true, value: tokens },
          ...(window !== null && Math.max(...points.map((point) => point.built ?? 0)) > window / 3 ? [{ label: "Window", stroke: color("muted"), dash: [2, 3], width: 1, value: tokens, points: { show: false } }] : []),
        ],
      },
      [points.map((_, place) => place), ...stack.map(({ sums }) => sums), values("built"), values("cached"), values("cacheable"), ...(window !== null && Math.max(...points.map((point) => point.built ?? 0)) > window / 3 ? [points.map(() => window)] : [])],
      element,
    );
    const resized = new ResizeObserver(() => chart.setSize({ width: element.clientWidth, height: 280 }));
    resized.observe(element);
    return () => {
      resized.disconnect();
      chart.destroy();
    };
  }, [points, epochs, window, chosen, Plot]);
  if (failed) return <p class="failed">This browser cannot draw the chart; the tables below have its figures.</p>;
  return <div class="chart" ref={frame} role="img" aria-label={`Chart of ${plural(points.length, "point")}: tokens of payloads by region, of what was cached, and of compactions, with epochs as bands`} />;
}

const tokensOf = (regions: Region[], kind: string): number => regions.find((region) => region.kind === kind)?.tokens ?? 0;

/** The regions that any of the points has. */
const regionsIn = (points: Point[]): Region[] =>
  (points.find((point) => point.regions)?.regions ?? []).filter(({ kind }) => points.some((point) => point.regions && tokensOf(point.regions, kind) > 0));

/** The first call that was reported of an epoch: it pays for what the cache lost. */
function firstCall(epoch: Epoch, reports: Report[]): string {
  const first = reports.findLast((report) => report.epoch === epoch.epoch && report.format === epoch.format && report.model === epoch.model);
  if (!first) return "–";
  const { input_tokens, cache_creation_tokens, cache_read_tokens } = first.token_usage;
  return `${compact(cache_read_tokens)} of ${compact(input_tokens + cache_creation_tokens + cache_read_tokens)}`;
}

function Epochs({ id, epochs, reports }: { id: string; epochs: Epoch[]; reports: Report[] }): JSX.Element {
  return (
    <section class="card" aria-label="Epochs">
      <h2>Epochs</h2>
      <p class="muted">In an epoch each payload extends the one before, so that the provider's cache holds. A new one begins where the payload could not be extended.</p>
      {epochs.length === 0 ? <Empty title="No payload was built yet." /> : (
        <div class="scroll" tabIndex={0} role="region" aria-label="Table of epochs"><table class="list"><thead><tr><th scope="col">Because of</th><th scope="col" class="num">At message</th><th scope="col" class="num" title="Tokens of its first reported call that the provider had cached">First call cached</th><th scope="col">Began</th><th scope="col">Format, model</th></tr></thead>
          <tbody>{epochs.slice(0, 100).map((epoch) => (
            <tr key={epoch.epoch_id}>
              <td>{epoch.cache_break_reason ? <Badge kind="due">{reasonText(epoch.cache_break_reason)}</Badge> : <span class="muted">first payload</span>}
                <div class="sub">{epoch.cache_break_reason && <><a href={toConversation(id, "compare", { b: firstBuild(epoch) })}>what changed</a> · </>}<a href={toConversation(id, "messages", { as_of: firstBuild(epoch) })}>what it sent</a></div></td>
              <td class="num">{epoch.start_seq}</td><td class="num">{firstCall(epoch, reports)}</td><td><When iso={epoch.created_at} /><div class="sub">{time(epoch.created_at)}</div></td>
              <td>{words(epoch.format)}<div class="sub">{epoch.model}{epoch.context_window && ` · ${compact(epoch.context_window)} window`}</div></td>
            </tr>
          ))}</tbody></table></div>
      )}
    </section>
  );
}

/** What providers said of the prefixes of calls, nothing where they said nothing. */
function Said({ reports }: { reports: Report[] }): JSX.Element | null {
  const told = reports.filter((report) => report.cache_miss || report.removed_reasoning.length > 0);
  if (told.length === 0) return null;
  return (
    <section class="card" aria-label="What the provider said">
      <h2>What the provider said</h2>
      <div class="scroll" tabIndex={0} role="region" aria-label="Table of what the provider said"><table class="list"><thead><tr><th scope="col">Call</th><th scope="col">Cache missed</th><th scope="col">Reasoning removed</th></tr></thead>
        <tbody>{told.slice(0, 100).map(({ report_id, created_at, through_seq, cache_miss, removed_reasoning }) => (
          <tr key={report_id}>
            <td><When iso={created_at ?? ""} /><div class="sub">#{through_seq}</div></td>
            <td>{cache_miss ? <>{words(cache_miss.reason)}<div class="sub">{cache_miss.missed_tokens !== null && `${compact(cache_miss.missed_tokens)} tokens`}</div></> : "–"}</td>
            <td>{removed_reasoning.length ? removed_reasoning.map(({ seq, reason }) => <div>{seq !== null && `#${seq} `}{words(reason)}</div>) : "–"}</td>
          </tr>
        ))}</tbody></table></div>
    </section>
  );
}

function Usage({ usage }: { usage: Schemas["UsageTotalsAnswer"] }): JSX.Element {
  return (
    <section class="card" aria-label="Usage and cost">
      <h2>Usage and cost</h2>
      <p class="muted">By day and model, {usage.from} to {usage.to}.</p>
      {usage.data.length === 0 ? <Empty title="No usage was reported." /> : (
        <div class="scroll" tabIndex={0} role="region" aria-label="Table of usage"><table class="list"><thead><tr><th scope="col">Day</th><th scope="col">Model</th><th scope="col" class="num">Calls</th><th scope="col" class="num">Input, new</th><th scope="col" class="num">Input, cached</th><th scope="col" class="num">Output</th><th scope="col" class="num">Cost</th></tr></thead>
          <tbody>{usage.data.map((row) => (
            <tr key={`${row.day}${row.model}`}><td>{row.day}</td><td>{row.model}</td><td class="num">{row.reported.calls}{row.summaries.calls > 0 && <div class="sub">+{row.summaries.calls} summaries</div>}</td><td class="num">{compact(row.reported.input_tokens)}</td><td class="num">{compact(row.reported.cache_read_tokens)}</td><td class="num">{compact(row.reported.output_tokens)}</td><td class="num">{usd(row.cost_usd)}</td></tr>
          ))}</tbody></table></div>
      )}
    </section>
  );
}
