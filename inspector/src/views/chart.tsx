// The chart of calls: stacked areas of regions, and below them the shares that were cached.

import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import type uPlot from "uplot";
import type { Call, History } from "../calls.ts";
import { compact, count, percent, plural, reasonText, time, usd } from "../format.ts";
import { go, toConversation } from "../router.ts";
import { theme } from "../state.ts";

const HEIGHT = 280;
const BELOW = 120;
const tokensOf = (call: Call, kind: string): number => call.regions.find((region) => region.kind === kind)?.tokens ?? 0;
const share = (part: number, call: Call): number => (100 * part) / Math.max(1, call.sent);

export function Chart({ id, history: { calls, receipts, window } }: { id: string; history: History }): JSX.Element {
  const frame = useRef<HTMLDivElement>(null);
  const below = useRef<HTMLDivElement>(null);
  const chosen = theme.value;
  const [Plot, setPlot] = useState<{ of: typeof uPlot }>();
  const [failed, setFailed] = useState(false);
  const [pointed, setPointed] = useState<Call>();
  // Areas of sums, the largest first, so that each region is what the next area leaves of its own.
  const kinds = new Map(calls.flatMap(({ regions }) => regions.filter(({ tokens }) => tokens > 0).map(({ kind, name }) => [kind, name] as const)));
  const order = ["system", "skills", "tools", "summary", "history", "other"].filter((kind) => kinds.has(kind));
  const isNear = window !== null && Math.max(...calls.map((call) => call.sent)) > window / 3;
  useEffect(() => {
    // Charts are loaded when one is shown.
    import("uplot").then((module) => setPlot({ of: module.default }), () => setFailed(true));
  }, []);
  useEffect(() => {
    const [top, bottom] = [frame.current, below.current];
    if (!top || !bottom || !Plot) return;
    const style = getComputedStyle(top);
    const color = (name: string): string => style.getPropertyValue(`--${name}`).trim();
    const axis = { stroke: color("muted"), grid: { stroke: color("line"), width: 1 }, ticks: { stroke: color("line") }, font: "12px system-ui", labelFont: "12px system-ui", labelSize: 18 };
    const numbers: uPlot.Axis = { ...axis, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500], values: (_, splits) => splits.map((place) => (calls[place] ? `#${calls[place].seq}` : "")) };
    const places = calls.map((_, place) => place);
    const common = (height: number): Pick<uPlot.Options, "width" | "height" | "legend" | "cursor"> => ({
      width: top.clientWidth, height, legend: { show: false },
      cursor: { sync: { key: `calls of ${id}` }, drag: { x: false, y: false }, points: { show: false } },
    });
    const scale: uPlot.Scale = { time: false, range: () => [-0.5, Math.max(calls.length - 0.5, 1)] };
    const marks = (chart: uPlot): void => {
      const { left, top: edge, height, width } = chart.bbox;
      const [{ ctx }, ratio] = [chart, devicePixelRatio];
      ctx.save();
      Object.assign(ctx, { font: `${11 * ratio}px system-ui`, textAlign: "left", textBaseline: "alphabetic" });
      let past = left + width;
      calls.toReversed().forEach(({ begins }, index) => {
        if (!begins?.cache_break_reason) return;
        const from = chart.valToPos(calls.length - index - 1.5, "x", true);
        const reason = reasonText(begins.cache_break_reason);
        ctx.strokeStyle = ctx.fillStyle = color("warn");
        ctx.setLineDash([3, 3]);
        ctx.beginPath();
        ctx.moveTo(from, edge);
        ctx.lineTo(from, edge + height);
        ctx.stroke();
        if (from + ctx.measureText(reason).width + 8 * ratio < past) ctx.fillText(reason, from + 4 * ratio, edge - 5 * ratio);
        past = from;
      });
      // A compaction is a mark at the edge, and no point of a line.
      ctx.fillStyle = color("summary");
      for (const receipt of receipts) {
        const place = calls.findIndex((call) => call.at >= Date.parse(receipt.created_at));
        const x = chart.valToPos((place < 0 ? calls.length : place) - 0.5, "x", true);
        ctx.beginPath();
        ctx.moveTo(x, edge + 9 * ratio);
        ctx.lineTo(x - 5 * ratio, edge);
        ctx.lineTo(x + 5 * ratio, edge);
        ctx.fill();
      }
      // A change that an item says leaves the prefix as it is.
      ctx.fillStyle = color("accent");
      calls.forEach(({ changed }, place) => {
        if (changed.length === 0) return;
        ctx.beginPath();
        ctx.arc(chart.valToPos(place, "x", true), edge + 5 * ratio, 4 * ratio, 0, 2 * Math.PI);
        ctx.fill();
      });
      ctx.restore();
    };
    const stack = order.map((kind, place) => ({ kind, sums: calls.map((call) => order.slice(0, place + 1).reduce((sum, each) => sum + tokensOf(call, each), 0)) })).toReversed();
    const point = (chart: uPlot): void => setPointed(chart.cursor.idx == null ? undefined : calls[chart.cursor.idx]);
    const areas = new Plot.of(
      {
        ...common(HEIGHT), padding: [18, 12, 0, 0], hooks: { draw: [marks], setCursor: [point] },
        scales: { x: scale, y: { range: (_, __, most) => [0, Math.max(most * 1.1, 10)] } },
        axes: [{ ...numbers, size: 28 }, { ...axis, size: 56, label: "tokens", values: (_, splits) => splits.map((value) => compact(value)) }],
        series: [{}, ...stack.map(({ kind }) => ({ fill: color(kind), stroke: color(kind), width: 1, points: { show: calls.length < 3 } })), ...(isNear ? [{ stroke: color("muted"), dash: [2, 3], width: 1, points: { show: false } }] : [])],
      },
      [places, ...stack.map(({ sums }) => sums), ...(isNear ? [calls.map(() => window)] : [])], top,
    );
    const shares = new Plot.of(
      {
        ...common(BELOW), padding: [6, 12, 0, 0], hooks: { setCursor: [point] },
        scales: { x: scale, y: { range: () => [0, 102] } },
        axes: [{ ...numbers, label: "calls, by the newest message of each", size: 28 }, { ...axis, size: 56, label: "% of it", incrs: [50] }],
        series: [{}, { fill: color("good-soft"), stroke: color("muted"), dash: [4, 3], width: 1, points: { show: false } }, { stroke: color("good"), width: 2, points: { show: calls.length < 3 } }],
      },
      [places, calls.map((call) => share(call.cacheable, call)), calls.map((call) => share(call.cached, call))], bottom,
    );
    const resized = new ResizeObserver(() => [areas, shares].forEach((chart) => chart.setSize({ width: top.clientWidth, height: chart === areas ? HEIGHT : BELOW })));
    resized.observe(top);
    return () => {
      resized.disconnect();
      areas.destroy();
      shares.destroy();
    };
  }, [calls, receipts, window, chosen, Plot]);
  if (failed) return <p class="failed">This browser cannot draw the chart; the table below has its figures.</p>;
  const open = (): void => {
    if (pointed?.build) go(toConversation(id, "messages", { as_of: pointed.build }));
  };
  return (
    <>
      <ul class="key-list chart-legend" aria-label="Legend">
        {order.toReversed().map((kind) => <li key={kind}><i class={`swatch ${kind}`} />{kinds.get(kind)}</li>)}
        {isNear && <li><i class="swatch limit" />Window of {compact(window ?? 0)}</li>}
        <li><i class="swatch triangle" />compaction</li><li><i class="swatch dashes" />the cached prefix ends</li>
        {calls.some(({ changed }) => changed.length > 0) && <li><i class="swatch change" />sections or tools changed by an item</li>}
        <li><i class="swatch cacheable" />cacheable</li><li><i class="swatch line" />cached by the provider</li>
      </ul>
      <p class="readout">{pointed ? (
        <><b>#{pointed.seq}</b> {time(new Date(pointed.at).toISOString())} · <b>{count(pointed.sent)}</b> tokens in: {pointed.regions.filter(({ tokens }) => tokens > 0).map(({ name, tokens }) => `${name.toLowerCase()} ${compact(tokens)}`).join(", ")} · cached {percent(share(pointed.cached, pointed))} of {percent(share(pointed.cacheable, pointed))} · {count(pointed.output)} out · {usd(pointed.cost)}</>
      ) : <span class="muted">Point at a call to read it; click to open its build.</span>}</p>
      <div class={pointed?.build ? "charts click" : "charts"} onClick={open}>
        <div class="chart" ref={frame} role="img" aria-label={`Chart of ${plural(calls.length, "call")}: tokens by region, with compactions and ends of the cached prefix`} />
        <div class="chart" ref={below} role="img" aria-label="Chart of the share of each call that was cached, beside the share that could be" />
      </div>
    </>
  );
}
