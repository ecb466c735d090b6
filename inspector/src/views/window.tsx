// What the next payload holds, to scale: regions, thresholds, and the messages by tokens.

import type { JSX } from "preact";
import { useMemo, useRef, useState } from "preact/hooks";
import { api, at, type Conversation, type Epoch, FORMATS, type Format, good, type Message, type Preview, type Schemas, type ShownMessage } from "../api.ts";
import { lineOf, partsOf, toolNames } from "../content.ts";
import { compact, count, percent, plural, reasonText, time, words } from "../format.ts";
import { readRange } from "../log.ts";
import { place, setQuery, toConversation } from "../router.ts";
import { type Resource, useResource } from "../resource.ts";
import { regionsOf } from "../regions.ts";
import { ConversationSettings } from "./settings.tsx";
import { Badge, Curl, Failed, Fact, Field, Loading } from "../ui.tsx";

const PEEKED = 40;
/** Which part of the settings a region comes from. */
const PARTS: Record<string, string> = { system: "system", skills: "system", tools: "tools" };
/** How far before a result its call is looked for. */
const CALL_BEFORE = 20;
const WINDOWS = [4_000, 8_000, 16_000, 32_000, 64_000, 128_000, 200_000, 1_000_000];

type Shown = { conversation: Conversation; epochs: Resource<{ data: Epoch[] }>; agent: Schemas["ShownAgent"] | null | undefined };

export function Window({ conversation, epochs, agent }: Shown): JSX.Element {
  const id = conversation.conversation_id;
  const query = place.value.query;
  const [choosing, setChoosing] = useState(false);
  // A thousand names, which only who chooses another one needs.
  const models = useResource(async () => (choosing ? good(api.GET("/v1/models", { params: { query: { limit: 1000 } } })) : undefined), ["models", choosing]);
  const used = epochs.data?.data[0];
  const format = (query.get("format") as Format | null) ?? used?.format ?? "openai_chat";
  const model = query.get("model") ?? "";
  const size = query.get("window") ?? "";
  const asked = { format, payload: false, ...(model && { model }), ...(size && { context_window: Number(size) }) };
  const search = new URLSearchParams(Object.entries(asked).map(([name, value]): [string, string] => [name, String(value)])).toString();
  const preview = useResource(
    async () => {
      if (!epochs.data && !epochs.error) await new Promise(() => undefined);
      return good(api.GET("/v1/conversations/{conversation_id}/context/dry-run", { params: { ...at(id), query: asked } }));
    },
    ["preview", id, search, Boolean(epochs.data ?? epochs.error)],
  );
  const shown = preview.data;
  // A build whose payload cannot fit is refused with the budget that it would need.
  const refused = (preview.error?.problem as { budget?: Schemas["ContextBudget"] } | undefined)?.budget;
  const epoch = epochs.data?.data.find((each) => each.format === format && each.model === (model || conversation.effective_model));
  return (
    <div class="window">
      <form class="filters" aria-label="Build to preview" onSubmit={(event) => event.preventDefault()}>
        <Field label="Format"><select value={format} onChange={(event) => setQuery({ format: event.currentTarget.value })}>
          {FORMATS.map((name) => <option key={name} value={name}>{words(name)}</option>)}
        </select></Field>
        <Field label="Model"><input list="models" onFocus={() => setChoosing(true)} value={model} placeholder={conversation.effective_model ?? "choose a model"} onChange={(event) => setQuery({ model: event.currentTarget.value })} /></Field>
        <datalist id="models">{models.data?.data.map((item) => <option key={item.model} value={item.model} />)}</datalist>
        <Field label="Context window"><select value={size} onChange={(event) => setQuery({ window: event.currentTarget.value })}>
          <option value="">as the policy says</option>
          {WINDOWS.map((tokens) => <option key={tokens} value={String(tokens)}>{count(tokens)} tokens</option>)}
          {size && !WINDOWS.includes(Number(size)) && <option value={size}>{count(Number(size))} tokens</option>}
        </select></Field>
        <p class="hint">A dry run: nothing is stored or compacted. <Curl path={`/v1/conversations/${encodeURIComponent(id)}/context/dry-run?${search}`} /></p>
      </form>
      {preview.error ? (
        <>
          <Failed error={preview.error} retry={preview.reload} />
          {refused && <section class="card" aria-label="Budget"><h2>What does not fit</h2><Legend id={id} budget={refused} /><p class="hint">A larger context window above shows the messages.</p></section>}
          {refused && <ConversationSettings conversation={conversation} agent={agent} epoch={epoch} />}
          {!refused && preview.error.status === 422 && <p class="hint">Choose another model or context window above.</p>}
        </>
      ) : !shown ? <Loading what="the window" /> : (
        <>
          <Regions id={id} preview={shown} first={!epoch} />
          <Cells conversation={conversation} preview={shown} />
          <ConversationSettings conversation={conversation} agent={agent} epoch={epoch} />
        </>
      )}
    </div>
  );
}

function Regions({ id, preview, first }: { id: string; preview: Preview; first: boolean }): JSX.Element {
  const { budget, thresholds } = preview.diagnostics;
  const regions = regionsOf(budget);
  const scale = (tokens: number): string => `${(100 * tokens) / budget.context_window}%`;
  const marks = (["notice", "due", "compact", "blocked"] as const).flatMap((name) => {
    const tokens = thresholds[name];
    return tokens === null ? [] : [{ name, tokens }];
  }).toSorted((a, b) => a.tokens - b.tokens);
  const isReduced = preview.degraded.length > 0;
  const reading = useResource(async () => (isReduced ? good(api.GET("/v1/conversations/{conversation_id}/budget", { params: at(id) })) : undefined), ["budget", id, isReduced]).data;
  const deferred = preview.diagnostics.deferred_tools;
  return (
    <section class="card" aria-label="Budget">
      <dl class="facts">
        <Fact name="Used"><b>{count(budget.tokens_used)}</b> of {count(budget.effective_window)} tokens · {percent(budget.used_percentage)}</Fact>
        <Fact name="Pressure"><Badge kind={preview.pressure}>{preview.pressure}</Badge>{preview.diagnostics.next_threshold && <span class="muted"> {count(preview.diagnostics.tokens_to_next ?? 0)} to {preview.diagnostics.next_threshold}</span>}</Fact>
        <Fact name="Prompt cache" hint="Whether the next payload extends the last one byte for byte">
          {first ? "first payload for this model" : preview.cache_break_reason ? <span class="warn">breaks: {reasonText(preview.cache_break_reason)}</span> : "extends the last payload"}
          <span class="muted"> · epoch {preview.epoch}</span>
        </Fact>
        <Fact name="Counted" hint="How the tokens were counted">{preview.diagnostics.estimate.method}{preview.diagnostics.estimate.margin > 0 && <span class="muted"> · margin {percent(100 * preview.diagnostics.estimate.margin)}</span>}</Fact>
        {deferred > 0 && <Fact name="Deferred tools">{deferred}</Fact>}
        {preview.tail.length > 0 && <Fact name="Tail">{plural(preview.tail.length, "item")}</Fact>}
      </dl>
      {preview.pressure === "blocked" && !isReduced && <p class="failed"><strong>The window is full</strong>: the next build compacts before it answers, or is refused.</p>}
      {isReduced && <p class="warn">To fit, this payload is reduced without a model: {preview.degraded.map(reasonText).join(", ")}. {reading?.budget && reading.budget.tokens_used > preview.diagnostics.budget.effective_window && `Before that it takes ${count(reading.budget.tokens_used)} tokens. `}A build compacts first where its policy allows that.</p>}
      <div class="budget">
        <div class="regions" role="img" aria-label={`${regions.map((region) => `${region.name} ${region.tokens}`).join(", ")}, free ${budget.remaining_tokens}, kept for the answer ${budget.max_output_tokens} tokens`}>
          {regions.filter((region) => region.tokens > 0).map((region) => (
            <div key={region.kind} class={`region ${region.kind}`} style={{ width: scale(region.tokens) }} title={`${region.name}: ${count(region.tokens)} tokens`} />
          ))}
          <div class="region free" style={{ width: scale(Math.max(0, budget.remaining_tokens)) }} title={`Free: ${count(budget.remaining_tokens)} tokens`} />
          <div class="region output" style={{ width: scale(budget.max_output_tokens) }} title={`Kept for the answer: ${count(budget.max_output_tokens)} tokens`} />
        </div>
        <div class="marks" aria-hidden="true">
          {marks.map((mark, index) => (
            <div key={mark.name} class={`mark ${mark.name} row${index % 3}`} style={{ left: scale(mark.tokens) }}><span>{mark.name} {compact(mark.tokens)}</span></div>
          ))}
        </div>
      </div>
      <Legend id={id} budget={budget} />
    </section>
  );
}

/** The tokens of each region, and what is left. */
function Legend({ id, budget }: { id: string; budget: Schemas["ContextBudget"] }): JSX.Element {
  const rest = [{ name: "Free", kind: "free", tokens: Math.max(0, budget.remaining_tokens) }, { name: "Kept for the answer", kind: "output", tokens: budget.max_output_tokens }];
  return (
    <table class="legend">
      <caption class="sr">Tokens by region</caption>
      <tbody>
        {[...regionsOf(budget).filter(({ kind, tokens }) => tokens > 0 || (kind in PARTS && kind !== "skills")), ...rest].map((region) => (
          <tr key={region.kind}><th scope="row"><i class={`swatch ${region.kind}`} aria-hidden="true" />{region.kind in PARTS ? <a href={toConversation(id, "window", { ...Object.fromEntries(place.value.query), open: PARTS[region.kind] })}>{region.name}</a> : region.name}</th><td class="num">{count(region.tokens)}</td><td class="num muted">{region.kind !== "output" && percent((100 * region.tokens) / budget.effective_window)}</td></tr>
        ))}
      </tbody>
    </table>
  );
}

type Item = { message: ShownMessage } | { from: number; to: number; state: string; tokens?: number | undefined };

function gaps(preview: Preview, from: number, to: number): Item[] {
  const items: Item[] = [];
  let at = from;
  for (const { summary_range: [start = 0, end = 0], token_count: tokens } of preview.diagnostics.summaries) {
    const [first, past] = [Math.max(start, at), Math.min(end, to)];
    if (first >= past) continue;
    if (first > at) items.push({ from: at, to: first, state: "not shown" });
    items.push({ from: first, to: past, state: "summarised", tokens });
    at = past;
  }
  if (at < to) items.push({ from: at, to, state: "not shown" });
  return items;
}

/** The messages of the transcript beside those that the reader points at, read in blocks. */
function usePeeked(id: string, shown: ShownMessage | undefined): Message | undefined {
  const block = shown ? Math.floor((shown.seq - 1) / PEEKED) : -1;
  const read = useResource(async () => (block < 0 ? [] : readRange(id, block * PEEKED + 1, (block + 1) * PEEKED + 1)), ["peeked", id, block]);
  return shown && read.data?.find((message) => message.seq === shown.seq);
}

/** What a message is, with the names of the tools whose result it is where they are known. */
function useKind(id: string, shown: ShownMessage | undefined): string {
  const isResult = shown?.role === "tool";
  const around = useResource(async () => (isResult ? readRange(id, Math.max(1, shown.seq - CALL_BEFORE), shown.seq + 1) : []), ["kind", id, isResult ? shown.seq : 0]);
  const names = toolNames(around.data ?? []);
  const result = around.data?.at(-1);
  const tools = new Set(result ? partsOf(result).flatMap((part) => (part.kind === "result" ? (part.name ?? names.get(part.id ?? "") ?? []) : [])) : []);
  return isResult ? `a tool result${tools.size ? ` of ${[...tools].join(", ")}` : ""}` : `by the ${shown?.role}`;
}

function Large({ id, message, window }: { id: string; message: ShownMessage; window: number }): JSX.Element {
  const kind = useKind(id, message);
  return <p class="warn">Message {message.seq}, {kind}, takes {count(message.token_count)} tokens, {percent((100 * message.token_count) / window)} of the window. <a href={toConversation(id, "messages", { seq: String(message.seq) })}>Open it</a></p>;
}

function Cells({ conversation, preview }: { conversation: Conversation; preview: Preview }): JSX.Element {
  const id = conversation.conversation_id;
  const head = preview.through_seq;
  const messages = preview.diagnostics.shown_messages;
  const skipped = preview.diagnostics.shown_ranges.reduce((sum, [start = 1, end = 1]) => sum + Math.max(0, Math.min(end, head + 1) - start), 0) - messages.length;
  const [pointed, setPointed] = useState<ShownMessage>();
  const [largest] = messages.toSorted((a, b) => b.token_count - a.token_count);
  const peeked = pointed ?? largest;
  const text = usePeeked(id, pointed);
  const kind = useKind(id, pointed);
  const list = useRef<HTMLDivElement>(null);
  const items = useMemo(() => {
    const result: Item[] = [];
    let next = 1;
    const first = messages[0]?.seq ?? 1;
    if (skipped > 0) {
      // Of what is before, only the summaries are drawn.
      next = first;
      for (const { summary_range: [from = 0, to = 0], token_count: tokens } of preview.diagnostics.summaries) if (to <= first) result.push({ from, to, state: "summarised", tokens });
    }
    for (const message of messages) {
      if (message.seq > next) result.push(...gaps(preview, next, message.seq));
      result.push({ message });
      next = message.seq + 1;
    }
    if (next <= head) result.push(...gaps(preview, next, head + 1));
    return result;
  }, [preview]);
  const total = messages.reduce((sum, message) => sum + message.token_count, 0);
  const stable = preview.diagnostics.stable_through_seq ?? 0;
  const stableTokens = messages.filter((message) => message.seq <= stable).reduce((sum, message) => sum + message.token_count, 0);
  const prefix = preview.diagnostics.budget.system_prompt + preview.diagnostics.budget.skill_prompts + preview.diagnostics.budget.tool_descriptions + preview.diagnostics.budget.summary + stableTokens;
  const breakpoints = new Set(preview.diagnostics.breakpoint_seqs);
  // One scale for all cells: the largest message takes a row at most.
  const row = Math.max(total / 7, ...messages.map((message) => message.token_count), 1);
  const widthOf = (tokens: number): string => `max(8px, ${(99.5 * tokens) / row}%)`;
  const move = (event: KeyboardEvent): void => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!step || !list.current) return;
    const cells = [...list.current.querySelectorAll<HTMLElement>("a.cell")];
    const index = cells.indexOf(document.activeElement as HTMLElement) + step;
    cells[Math.max(0, Math.min(index, cells.length - 1))]?.focus();
    event.preventDefault();
  };
  return (
    <section class="card" aria-label="Messages in the payload">
      <div class="title">
        <h2>Messages in the payload</h2>
        <span class="muted">{plural(messages.length + skipped, "message")}, {compact(preview.diagnostics.budget.conversation)} tokens · stable prefix: {compact(Math.min(prefix, preview.tokens_used))} of {compact(preview.tokens_used)} tokens</span>
      </div>
      <ul class="key-list" aria-label="Legend">
        <li><i class="swatch user" />user</li><li><i class="swatch assistant" />assistant</li><li><i class="swatch tool" />tool result</li>
        <li><i class="swatch tool cleared" />cleared</li><li><i class="swatch tool preview" />preview of a large result</li><li><i class="swatch hidden" />not in the payload</li>
        <li><i class="swatch pin" />pinned</li><li><i class="swatch stable" />stable prefix</li><li><i class="swatch break" />cache breakpoint</li>
      </ul>
      {largest && largest.token_count > preview.diagnostics.budget.effective_window / 4 && <Large id={id} message={largest} window={preview.diagnostics.budget.effective_window} />}
      {skipped > 0 && <p class="hint">{plural(skipped, "earlier message")} that the payload also shows are not drawn. <a href={toConversation(id, "messages")}>Read them</a></p>}
      <div class="cells" ref={list} onKeyDown={move}>
        {items.map((item, index) => "message" in item ? (
          <a key={item.message.seq} class={`cell ${item.message.role} ${item.message.state}${item.message.pinned ? " pinned" : ""}${item.message.seq <= stable ? " stable" : ""}${breakpoints.has(item.message.seq) ? " breakpoint" : ""}`}
            style={{ width: widthOf(item.message.token_count) }} tabIndex={index === items.length - 1 || item.message === pointed ? 0 : -1}
            href={toConversation(id, "messages", { seq: String(item.message.seq) })}
            aria-label={`${item.message.seq}, ${item.message.role}, ${item.message.token_count} tokens, ${item.message.state}${item.message.pinned ? ", pinned" : ""}${breakpoints.has(item.message.seq) ? ", cache breakpoint after it" : ""}`}
            onMouseEnter={() => setPointed(item.message)} onFocus={() => setPointed(item.message)} />
        ) : (
          <a key={`gap${item.from}`} class={`gap ${item.state === "summarised" ? "summarised" : ""}`} href={item.state === "summarised" ? toConversation(id, "compactions") : toConversation(id, "messages", { seq: String(item.from) })}>
            {plural(item.to - item.from, "message")} {item.state}{item.tokens ? ` in ${compact(item.tokens)} tokens` : ""}
          </a>
        ))}
      </div>
      <div class="peek" aria-live="polite">
        {peeked && (
          <>
            <p>{peeked === largest && <span class="muted">the largest: </span>}<a href={toConversation(id, "messages", { seq: String(peeked.seq) })}><b>#{peeked.seq}</b></a> <Badge kind={peeked.role}>{peeked.role}</Badge> <Badge kind={peeked.state}>{peeked.state}</Badge> {peeked.pinned && <Badge kind="pin">pinned</Badge>} <span class="muted">{pointed?.role === "tool" && `${kind} · `}{plural(peeked.token_count, "token")}{text && ` · turn ${text.turn} · ${time(text.created_at)}`}{peeked.seq <= stable && " · in the stable prefix"}{breakpoints.has(peeked.seq) && " · cache breakpoint"}</span></p>
            <p class="text">{text ? lineOf(text, 700) : pointed ? "…" : <span class="muted">Point at a message to read it, or move with the arrow keys; open it to see it in the transcript.</span>}</p>
          </>
        )}
      </div>
    </section>
  );
}
