// Receipts of compactions: before and after, what stands for what, what it cost; dry runs.

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { api, at, type Conversation, type CompactResult, good, type Message, type Receipt, Refused, type Schemas } from "../api.ts";
import { lineOf } from "../content.ts";
import { count, plural, reasonText, usd, words } from "../format.ts";
import { readRange } from "../log.ts";
import { Markdown } from "../markdown.tsx";
import { shortId, starved } from "../names.ts";
import { place, toConversation } from "../router.ts";
import { usePages, useResource } from "../resource.ts";
import { changes, mayWrite } from "../state.ts";
import { Action, Badge, BeforeAfter, Copy, Curl, Empty, Failed, Fact, Field, hasWords, Loading, Marked, More, When } from "../ui.tsx";

/** What began a compaction, in words. */
const TRIGGERS: Record<string, string> = { background: "in the background", build: "before a build", forced: "asked for", overflow: "after an overflow", tool_output: "to clear tool results", provider: "by the provider" };

/** Where a reader comes from: a message, and the words that led to it. */
interface Sought {
  seq: number;
  q: string;
}

export function Compactions({ conversation }: { conversation: Conversation }): JSX.Element {
  const { query } = place.value;
  const chosen = query.get("c");
  return chosen
    ? <Chosen key={chosen} id={conversation.conversation_id} compaction={chosen} sought={{ seq: Number(query.get("seq") ?? "0"), q: query.get("q") ?? "" }} />
    : <Receipts conversation={conversation} />;
}

function Chosen({ id, compaction, sought }: { id: string; compaction: string; sought: Sought }): JSX.Element {
  const path = { conversation_id: id, compaction_id: compaction };
  const found = useResource(() => good(api.GET("/v1/conversations/{conversation_id}/compactions/{compaction_id}", { params: { path } })), ["receipt", id, compaction]);
  return (
    <div>
      <div class="title"><h2>{sought.seq > 0 ? `The compaction that hides message ${sought.seq}` : "One compaction"}</h2><span class="hint"><a href={toConversation(id, "compactions")}>All compactions</a> <Curl path={`/v1/conversations/${encodeURIComponent(id)}/compactions/${compaction}`} /></span></div>
      {found.error ? <Failed error={found.error} /> : !found.data ? <Loading what="the receipt" /> : <Card receipt={found.data} id={id} newest sought={sought} />}
    </div>
  );
}

function Receipts({ conversation }: { conversation: Conversation }): JSX.Element {
  const id = conversation.conversation_id;
  const list = usePages(
    (cursor) => good(api.GET("/v1/conversations/{conversation_id}/compactions", { params: { ...at(id), query: { limit: 20, ...(cursor && { cursor }) } } })),
    ["compactions", id],
  );
  return (
    <div>
      <DryRuns conversation={conversation} />
      <div class="title"><h2>Receipts</h2><Curl path={`/v1/conversations/${encodeURIComponent(id)}/compactions`} /></div>
      {list.error ? <Failed error={list.error} /> : !list.items ? <Loading what="receipts" /> : list.items.length === 0 ? (
        <Empty title="Nothing was compacted yet.">Compactions come when the window fills up, or with the button Compact above. A dry run shows what one would do.</Empty>
      ) : list.items.map((receipt, index) => <Card key={receipt.compaction_id} receipt={receipt} id={id} newest={index === 0} />)}
      <More more={list.more} loading={list.loading && list.items !== undefined} />
    </div>
  );
}

function Card({ receipt, id, newest, sought }: { receipt: Receipt; id: string; newest: boolean; sought?: Sought }): JSX.Element {
  const [open, setOpen] = useState(newest);
  const [start = 0, end = 0] = receipt.hidden_range;
  const path = { conversation_id: id, compaction_id: receipt.compaction_id };
  return (
    <article class={`card receipt ${receipt.status}`}>
      <div class="title">
        <h3><Badge kind={receipt.status}>{receipt.status}</Badge> {words(receipt.strategy)} <span class="muted">· {TRIGGERS[receipt.trigger] ?? words(receipt.trigger)}</span></h3>
        <span class="buttons">
          <span class="muted"><When iso={receipt.created_at} /> · <a href={toConversation(id, "compactions", { c: receipt.compaction_id })}>link</a> · <Copy text={receipt.compaction_id} label="Copy id" shown={shortId(receipt.compaction_id)} /></span>
          <button type="button" aria-expanded={open} onClick={() => setOpen(!open)}>{open ? "Hide" : "Show"} summary and messages</button>
          {receipt.status === "active" && (
            <Action name="Undo" danger title="Undo this compaction" explain="The context shows its messages again. The receipt stays, and the log was never changed."
              run={async () => { await good(api.POST("/v1/conversations/{conversation_id}/compactions/{compaction_id}/undo", { params: { path } })); changes.value += 1; return "The compaction was undone."; }} />
          )}
        </span>
      </div>
      <div class="split">
        <BeforeAfter before={receipt.before_tokens} after={receipt.after_tokens} />
        <dl class="facts">
          <Fact name="Messages">{receipt.before_messages} → {receipt.after_messages}</Fact>
          <Fact name="Hides">{end > start ? <a href={toConversation(id, "messages", { seq: String(start) })}>{start}–{end - 1}</a> : "nothing"}{receipt.kept_seqs.length > 0 && <span class="muted"> but {receipt.kept_seqs.length} kept</span>}</Fact>
          {receipt.cleared_through_seq > 0 && <Fact name="Results cleared">up to {receipt.cleared_through_seq}</Fact>}
          <Fact name="Written by">{receipt.model ?? "no model"}{receipt.calls > 0 && <span class="muted"> · {plural(receipt.calls, "call")}, {count(receipt.input_tokens)} in, {count(receipt.output_tokens)} out{receipt.cache_read_tokens > 0 && `, ${count(receipt.cache_read_tokens)} cached`}</span>}</Fact>
          {receipt.target_tokens !== null && <Fact name="Target" hint="What the caller asked for">{count(receipt.target_tokens)}</Fact>}
          {receipt.cost_usd !== 0 && <Fact name="Price">{usd(receipt.cost_usd)}</Fact>}
          <Fact name="Took">{count(receipt.duration_ms)} ms</Fact>
          {receipt.stages.join() !== receipt.strategy && receipt.stages.length > 0 && <Fact name="Stages">{receipt.stages.map(words).join(" → ")}</Fact>}
          {receipt.prompt_hash && receipt.prompt_hash !== receipt.model && <Fact name="Prompt"><Copy text={receipt.prompt_hash} label="Copy the prompt's hash" shown={receipt.prompt_hash.slice(0, 10)} /></Fact>}
        </dl>
      </div>
      {receipt.degraded.length > 0 && <p class="warn">Not as asked: {receipt.degraded.map(reasonText).join(", ")}</p>}
      {open && <Detail receipt={receipt} id={id} sought={sought} />}
    </article>
  );
}

/** Find the compaction that wrote a summary which a later one only shows: it alone lists what was dropped. */
async function findMaker(id: string, summary: Receipt["made"][number]): Promise<{ compaction_id: string; unlisted: string } | null> {
  let cursor: string | null = null;
  do {
    const page: Schemas["ReceiptPage"] = await good(api.GET("/v1/conversations/{conversation_id}/compactions", { params: { ...at(id), query: { limit: 50, ...(cursor && { cursor }) } } }));
    for (const { compaction_id, made } of page.data) {
      const same = made.find((each) => each.summary_range.join() === summary.summary_range.join() && each.text === summary.text);
      if (same) return same.unlisted === null ? null : { compaction_id, unlisted: same.unlisted };
    }
    cursor = page.next_cursor;
  } while (cursor);
  return null;
}

/** Return dropped statements without their numbers (`@3`), those that the summary has, and headings without any. */
function shownOf(unlisted: string, summary: string): string {
  const lines = unlisted.split("\n").map((line) => line.replace(/^- @\d+ /, "- ")).filter((line) => !line.startsWith("- ") || !summary.includes(line.slice(2)));
  return lines.filter((line, at) => line.startsWith("- ") || (line.startsWith("## ") && lines[at + 1]?.startsWith("- "))).join("\n");
}

function Detail({ receipt, id, sought = { seq: 0, q: "" } }: { receipt: Receipt; id: string; sought?: Sought | undefined }): JSX.Element {
  const { seq, q } = sought;
  const path = { conversation_id: id, compaction_id: receipt.compaction_id };
  const originals = usePages(
    (cursor) => good(api.GET("/v1/conversations/{conversation_id}/compactions/{compaction_id}/messages", { params: { path, query: { limit: 30, ...(cursor && { cursor }) } } })),
    ["expanded", receipt.compaction_id],
  );
  const summaries = receipt.made.length ? receipt.made : receipt.summaries;
  const counts = summaries.flatMap((summary) => summary.headings);
  const dropped = counts.some((each) => each.dropped > 0);
  const [last, listed] = [summaries.at(-1), summaries.at(-1)?.unlisted];
  const maker = useResource(async () => (last && dropped && !listed ? findMaker(id, last) : null), ["maker", id, last?.summary_range, dropped && !listed]);
  const unlisted = shownOf(listed ?? maker.data?.unlisted ?? "", summaries.map((summary) => summary.text).join("\n"));
  const message = useResource(async () => (seq > 0 ? (await readRange(id, seq, seq + 1))[0] : undefined), ["sought", id, seq]);
  const standing = [receipt.retain, ...summaries.map((summary) => summary.text), receipt.note].filter(Boolean).join("\n");
  return (
    <>
      {q && <p role="status" class={hasWords(standing, q) ? "" : "warn"}>{standing ? `“${q}” is ${hasWords(standing, q) ? "" : "not "}in the text that stands for the messages.` : "No text stands for the messages."}</p>}
      {starved(receipt) && <p class="failed">{starved(receipt)}</p>}
      {(counts.length > 0 || unlisted) && (
        <div class="columns">
          {counts.length > 0 && <Counts counts={counts} />}
          {unlisted && <section aria-label="Dropped"><h4>Dropped: statements that had no room{maker.data && <> <a href={toConversation(id, "compactions", { c: maker.data.compaction_id })}>in the compaction that wrote the summary</a></>}</h4><div class="dropped" tabIndex={0}>{q ? <p class="pre"><Marked text={unlisted} query={q} /></p> : <Markdown text={unlisted} />}</div></section>}
        </div>
      )}
      {dropped && <p class="hint">{!unlisted && "What was dropped is listed only in the compaction that wrote the summary. "}A higher target keeps more, and a pinned message stays word for word.</p>}
      <div class="side-by-side">
        <section aria-label="Before: the messages">
          <h4>Before: the messages</h4>
          {message.data && <ol class="originals sought"><Original message={message.data} id={id} q={q} /></ol>}
          {originals.error ? <Failed error={originals.error} /> : !originals.items ? <Loading what="messages" /> : originals.items.length === 0 ? <p class="muted">No message is hidden by it.</p> : (
            <ol class="originals">{originals.items.map((message) => <Original key={message.seq} message={message as Message} id={id} q={q} />)}</ol>
          )}
          <More more={originals.more} loading={originals.loading && originals.items !== undefined} />
        </section>
        <section aria-label="After: what stands for them">
          <h4>After: what stands for them</h4>
          {receipt.retain && <><h5>Kept verbatim</h5><p class="pre">{receipt.retain}</p></>}
          {summaries.map((summary) => (
            <div key={summary.summary_range.join()}>
              <p class="muted">Level {summary.level} · messages {summary.summary_range[0]}–{(summary.summary_range[1] ?? 1) - 1} · {plural(summary.token_count, "token")}</p>
              {q ? <p class="pre"><Marked text={summary.text} query={q} /></p> : <Markdown text={summary.text} />}
            </div>
          ))}
          {receipt.note && <p class="pre">{receipt.note}</p>}
          {!receipt.retain && summaries.length === 0 && !receipt.note && <p class="muted">No text: {receipt.cleared_through_seq > 0 ? "placeholders stand for tool results." : "the messages are left out."}</p>}
        </section>
      </div>
    </>
  );
}

function Original({ message, id, q }: { message: Message; id: string; q: string }): JSX.Element {
  const [whole, setWhole] = useState(q !== "" && hasWords(lineOf(message, 20_000), q));
  const line = lineOf(message, whole ? 20_000 : 260);
  return (
    <li>
      <a href={toConversation(id, "messages", { seq: String(message.seq) })}>{message.seq}</a> <Badge kind={message.role}>{message.role}</Badge> <span class="muted">{message.token_count}</span>
      <p><Marked text={line} query={q} />{!whole && line.endsWith("…") && <button type="button" class="plain" onClick={() => setWhole(true)}>more</button>}</p>
    </li>
  );
}

const COLUMNS = ["found", "kept", "superseded", "dropped"] as const;

/** What became of the statements below each heading; a column of zeros is left out. */
function Counts({ counts }: { counts: Receipt["made"][number]["headings"] }): JSX.Element {
  const columns = COLUMNS.filter((column) => counts.some((each) => each[column] > 0));
  return (
    <table class="list narrow">
      <caption>Statements: what became of them</caption>
      <thead><tr><th scope="col">Heading</th><th scope="col" class="kept-share">share kept</th>{columns.map((column) => <th key={column} scope="col" class="num">{column}</th>)}</tr></thead>
      <tbody>{counts.map((each, index) => (
        <tr key={index}><th scope="row">{each.heading}</th><td><div class={each.dropped > 0 ? "meter due" : "meter"}><div style={{ width: `${(100 * each.kept) / Math.max(1, each.kept + each.dropped)}%` }} /></div></td>{columns.map((column) => <td key={column} class="num">{column === "dropped" && each.dropped > 0 ? <b class="warn">{each.dropped}</b> : each[column] || ""}</td>)}</tr>
      ))}</tbody>
    </table>
  );
}

type Run = { strategy: string; result?: CompactResult; refused?: string };

function DryRuns({ conversation }: { conversation: Conversation }): JSX.Element | null {
  const strategies = useResource(() => good(api.GET("/v1/strategies")), ["strategies"]);
  const [runs, setRuns] = useState<Run[]>([]);
  const [busy, setBusy] = useState(false);
  if (!mayWrite.value) return null;
  const submit = (event: SubmitEvent): void => {
    event.preventDefault();
    const form = new FormData(event.target as HTMLFormElement);
    const [model, target] = [String(form.get("model") ?? "").trim(), String(form.get("target") ?? "")];
    const chosen = form.getAll("strategy").map(String) as Conversation["policy"]["strategy"][];
    setBusy(true);
    Promise.all(chosen.map(async (strategy): Promise<Run> => {
      try {
        const result = await good(api.POST("/v1/conversations/{conversation_id}/compact", { params: at(conversation.conversation_id), body: { strategy, dry_run: true, ...(model && { model }), ...(target && { target_tokens: Number(target) }) } }));
        return { strategy, result: result as CompactResult };
      } catch (error) {
        return { strategy, refused: error instanceof Refused ? error.message : String(error) };
      }
    })).then(setRuns).finally(() => setBusy(false));
  };
  return (
    <details class="card folded">
      <summary><h2>Dry run</h2> <span class="muted">what a compaction would do now, without doing it</span></summary>
      <form class="filters" onSubmit={submit}>
        <fieldset><legend>Strategies, side by side</legend>
          {strategies.data?.data.map((item) => (
            <label key={item.name} title={item.description}><input type="checkbox" name="strategy" value={item.name} defaultChecked={item.name === conversation.policy.strategy || item.default} /> {words(item.name)}</label>
          ))}
        </fieldset>
        <Field label="Target in tokens"><input name="target" type="number" min="1" placeholder="of the policy" /></Field>
        <Field label="Model"><input name="model" placeholder="of the policy" /></Field>
        <button type="submit" class="primary" disabled={busy}>{busy ? "Running…" : "Run"}</button>
      </form>
      {runs.length > 0 && <div class="columns" role="status">{runs.map((run) => <RunCard key={run.strategy} run={run} />)}</div>}
    </details>
  );
}

function RunCard({ run: { strategy, result, refused } }: { run: Run }): JSX.Element {
  if (!result) return <article class="run"><h3>{words(strategy)}</h3><p class="refused">{refused}</p></article>;
  return (
    <article class="run">
      <h3>{words(strategy)}</h3>
      {result.reason && result.reason !== "dry run" && <p class="muted">{words(result.reason)}</p>}
      <BeforeAfter before={result.before_tokens} after={result.after_tokens} />
      <p class="muted">{result.before_messages} → {plural(result.after_messages, "message")}{result.estimated && " · estimated"}{result.cost_usd !== null && result.cost_usd > 0 && ` · ${usd(result.cost_usd)}`}</p>
      {result.degraded.length > 0 && <p class="warn">{result.degraded.map(reasonText).join(", ")}</p>}
      {result.summary_range && <p class="muted">Summary of {result.summary_range[0]}–{(result.summary_range[1] ?? 1) - 1}, {plural(result.summary_tokens, "token")}</p>}
    </article>
  );
}
