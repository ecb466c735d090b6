// Two builds of the conversation side by side: what the later one has, and the earlier one had not.

import { diffArrays, diffWordsWithSpace } from "diff";
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { api, at, type Conversation, type Epoch, good, type Schemas } from "../api.ts";
import { lineOf } from "../content.ts";
import { plural, time, words } from "../format.ts";
import { place, setQuery } from "../router.ts";
import { useResource } from "../resource.ts";
import { Badge, Curl, Empty, Failed, Field, Loading, reasonText } from "../ui.tsx";

type Build = Schemas["EarlierBuild"];
type Fields = Record<string, unknown>;
const WORDS_UP_TO = 20_000;

interface Point {
  build_id: string;
  label: string;
}

/** The builds that are known: the first of each epoch, those of reports, and the newest. */
function points(epochs: Epoch[], reports: Schemas["ReportItem"][], head: number): Point[] {
  const newest = new Set<string>();
  return epochs.flatMap((epoch) => {
    const stream = `${epoch.format}:${epoch.model}`;
    const seqs = new Set([epoch.start_seq]);
    for (const report of reports) {
      if (report.epoch === epoch.epoch && report.format === epoch.format && report.model === epoch.model && report.through_seq !== null && report.through_seq >= epoch.start_seq) seqs.add(report.through_seq);
    }
    if (!newest.has(stream)) seqs.add(head);
    newest.add(stream);
    return [...seqs].sort((a, b) => b - a).map((seq) => ({
      build_id: `${epoch.epoch_id}.${seq}`,
      label: `${words(epoch.format)} · ${epoch.model} · epoch ${epoch.epoch} · up to message ${seq}${seq === epoch.start_seq ? ` · ${epoch.cache_break_reason ? reasonText(epoch.cache_break_reason) : "first"}, ${time(epoch.created_at)}` : ""}`,
    }));
  });
}

export function Compare({ conversation }: { conversation: Conversation }): JSX.Element {
  const id = conversation.conversation_id;
  const known = useResource(async () => {
    const query = { limit: 200 };
    const [epochs, reports] = await Promise.all([
      good(api.GET("/v1/conversations/{conversation_id}/epochs", { params: { ...at(id), query } })),
      good(api.GET("/v1/conversations/{conversation_id}/usage/reports", { params: { ...at(id), query } })),
    ]);
    return points(epochs.data, reports.data, conversation.head_seq);
  }, ["builds", id, conversation.head_seq]);
  if (known.error) return <Failed error={known.error} retry={known.reload} />;
  if (!known.data) return <Loading what="builds" />;
  const builds = known.data;
  if (builds.length === 0) return <Empty title="No payload was built yet.">A build is recorded with <code>POST /v1/conversations/{id}/context</code>; the tab Window previews the next one.</Empty>;
  const later = place.value.query.get("b") ?? builds[0]?.build_id ?? "";
  const earlier = place.value.query.get("a") ?? (builds[1] ?? builds[0])?.build_id ?? "";
  const choice = (label: string, name: string, chosen: string): JSX.Element => (
    <Field label={label}><select value={chosen} onChange={(event) => setQuery({ [name]: event.currentTarget.value })}>
      {builds.map((point) => <option key={point.build_id} value={point.build_id}>{point.label}</option>)}
    </select></Field>
  );
  return (
    <>
      <form class="filters wide" onSubmit={(event) => event.preventDefault()}>
        {choice("Earlier build", "a", earlier)}
        {choice("Later build", "b", later)}
        <p class="hint"><Curl path={`/v1/conversations/${encodeURIComponent(id)}/context?as_of=${encodeURIComponent(later)}`} /></p>
      </form>
      <Difference id={id} earlier={earlier} later={later} />
    </>
  );
}

function itemsOf({ payload }: Build): Fields[] {
  const fields = payload as Fields;
  const system = fields["system"] ?? fields["instructions"] ?? (fields["config"] as Fields | undefined)?.["system_instruction"];
  const items = (fields["messages"] ?? fields["input"] ?? fields["contents"] ?? []) as Fields[];
  // Providers read the tools before everything else.
  const tools = ((fields["tools"] ?? (fields["config"] as Fields | undefined)?.["tools"] ?? []) as Fields[]).map((tool) => ({ role: "tool definition", content: JSON.stringify(tool) }));
  return [...tools, ...(system === undefined || system === null ? [] : [{ role: "system", content: system }]), ...items];
}

function Difference({ id, earlier, later }: { id: string; earlier: string; later: string }): JSX.Element {
  const read = (as_of: string): Promise<Build> => good(api.GET("/v1/conversations/{conversation_id}/context", { params: { ...at(id), query: { as_of } } }));
  const both = useResource(() => Promise.all([read(earlier), read(later)]), ["compare", id, earlier, later]);
  const [unfolded, setUnfolded] = useState(false);
  if (both.error) return <Failed error={both.error} />;
  if (!both.data) return <Loading what="both payloads" />;
  const [before, after] = both.data.map(itemsOf) as [Fields[], Fields[]];
  const parts = diffArrays(before.map((item) => JSON.stringify(item)), after.map((item) => JSON.stringify(item)));
  const prefix = parts[0] && !parts[0].added && !parts[0].removed ? parts[0].value.length : 0;
  const rows: JSX.Element[] = [];
  parts.forEach((part, index) => {
    const kind = part.added ? "added" : part.removed ? "removed" : "same";
    if (kind === "same" && !unfolded && (index === 0 || part.value.length > 3)) {
      rows.push(<li key={`fold${index}`} class="fold"><button type="button" class="plain" onClick={() => setUnfolded(true)}>{index === 0 ? `Common prefix: ${plural(part.value.length, "item")}, which a provider can read from its cache` : plural(part.value.length, "equal item")}</button></li>);
      return;
    }
    const other = part.removed && parts[index + 1]?.added ? parts[index + 1]?.value : undefined;
    part.value.forEach((text, place) => {
      const item = JSON.parse(text) as Fields;
      const counterpart = other?.length === part.value.length ? other[place] : undefined;
      rows.push(<li key={`${index}.${place}`} class={kind}>
        <span class="sr">{kind}</span><Badge kind={String(item["role"] ?? "other")}>{String(item["role"] ?? item["type"] ?? "item")}</Badge>
        {counterpart !== undefined && text.length + counterpart.length < WORDS_UP_TO ? <Words before={lineOf(item, 10_000)} after={lineOf(JSON.parse(counterpart) as Fields, 10_000)} /> : <Text item={item} />}
      </li>);
    });
  });
  return (
    <section class="card" aria-label="Difference">
      <div class="title">
        <h2>{parts.length === 1 && prefix > 0 ? "The payloads are equal" : `Common prefix of ${plural(prefix, "item")}`}</h2>
        <span class="muted">{plural(before.length, "item")} → {plural(after.length, "item")}{unfolded && <> · <button type="button" class="plain" onClick={() => setUnfolded(false)}>Fold</button></>}</span>
      </div>
      <ol class="diff">{rows}</ol>
    </section>
  );
}

function Text({ item }: { item: Fields }): JSX.Element {
  const [whole, setWhole] = useState(false);
  const line = lineOf(item, whole ? 50_000 : 300);
  return <p>{line}{!whole && line.endsWith("…") && <button type="button" class="plain" onClick={() => setWhole(true)}>more</button>}</p>;
}

function Words({ before, after }: { before: string; after: string }): JSX.Element {
  return <p>{diffWordsWithSpace(before, after).map((part, index) => part.added ? <ins key={index}>{part.value}</ins> : part.removed ? <del key={index}>{part.value}</del> : part.value.length > 160 ? `${part.value.slice(0, 70)} … ${part.value.slice(-70)}` : part.value)}</p>;
}
