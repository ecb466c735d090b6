// Two builds of the conversation side by side: what the later one has, and the earlier one had not.

import { diffArrays, diffWordsWithSpace } from "diff";
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import type { Conversation } from "../api.ts";
import { type Fields, itemsOf, kindOf, type PayloadItem, readBuild, useBuilds } from "../builds.ts";
import { lineOf } from "../content.ts";
import { percent, plural, reasonText } from "../format.ts";
import { place, setQuery, toConversation } from "../router.ts";
import { useResource } from "../resource.ts";
import { Badge, Curl, Empty, Failed, Field, Loading } from "../ui.tsx";

const WORDS_UP_TO = 20_000;
const LONG_RUN = 8;
/** How many rows are shown before the others are asked for. */
const ROWS = 24;
/** How many ends of the cached prefix are listed. */
const ENDS = 6;
const sizeOf = (items: PayloadItem[]): number => items.reduce((sum, { item }) => sum + JSON.stringify(item).length, 0);

export function Compare({ conversation }: { conversation: Conversation }): JSX.Element {
  const id = conversation.conversation_id;
  const known = useBuilds(id, conversation.head_seq);
  if (known.error) return <Failed error={known.error} retry={known.reload} />;
  if (!known.data) return <Loading what="builds" />;
  const builds = known.data;
  if (builds.length === 0) return <Empty title="No payload was built yet.">A build is recorded with <code>POST /v1/conversations/{id}/context</code>; the tab Window previews the next one.</Empty>;
  // Mostly a reader comes to see why a prefix ended.
  const ends = builds.filter((build) => build.begins?.cache_break_reason);
  const later = place.value.query.get("b") ?? (ends[0] ?? builds[0])?.build_id ?? "";
  const index = builds.findIndex((build) => build.build_id === later);
  const older = builds.slice(index + 1);
  const before = older.find((build) => build.stream === builds[index]?.stream) ?? older[0] ?? builds[index];
  const earlier = place.value.query.get("a") ?? before?.build_id ?? later;
  const streamOf = (id: string): string | undefined => builds.find((build) => build.build_id === id)?.stream;
  const choice = (label: string, name: string, chosen: string): JSX.Element => (
    <Field label={label}><select value={chosen} onChange={(event) => setQuery({ [name]: event.currentTarget.value })}>
      {builds.map((build) => <option key={build.build_id} value={build.build_id}>{build.label}</option>)}
    </select></Field>
  );
  return (
    <>
      <form class="filters wide" onSubmit={(event) => event.preventDefault()}>
        {choice("Earlier build", "a", earlier)}
        {choice("Later build", "b", later)}
        <p class="hint">Read the <a href={toConversation(id, "messages", { as_of: earlier })}>earlier</a> or <a href={toConversation(id, "messages", { as_of: later })}>later</a> payload <Curl path={`/v1/conversations/${encodeURIComponent(id)}/context?as_of=${encodeURIComponent(later)}`} /></p>
      </form>
      <nav class="chips" aria-label="Builds to compare">
        <a href={toConversation(id, "compare", { b: builds[0]?.build_id })} aria-current={later === builds[0]?.build_id ? "true" : undefined}>the newest build</a>
        {ends.length > 0 && <span class="muted">where the cached prefix ended:</span>}
        {ends.slice(0, ENDS).map(({ build_id, seq, begins }) => <a key={build_id} href={toConversation(id, "compare", { b: build_id })} aria-current={later === build_id ? "true" : undefined}>{reasonText(begins?.cache_break_reason ?? "")} <span class="muted">at #{seq}</span></a>)}
        {ends.length > ENDS && <a href={toConversation(id, "time")}>{ends.length - ENDS} more</a>}
      </nav>
      <Difference key={`${earlier} ${later}`} id={id} earlier={earlier} later={later} oneCache={streamOf(earlier) === streamOf(later)} reason={builds[index]?.begins?.cache_break_reason ?? null} />
    </>
  );
}

function Difference({ id, earlier, later, oneCache, reason }: { id: string; earlier: string; later: string; oneCache: boolean; reason: string | null }): JSX.Element {
  const both = useResource(() => Promise.all([readBuild(id, earlier), readBuild(id, later)]), ["compare", id, earlier, later]);
  const [unfolded, setUnfolded] = useState(false);
  if (both.error) return <Failed error={both.error} />;
  if (!both.data) return <Loading what="both payloads" />;
  const [before, after] = both.data.map(itemsOf) as [PayloadItem[], PayloadItem[]];
  const texts = (items: PayloadItem[]): string[] => items.map(({ item }) => JSON.stringify(item));
  const parts = diffArrays(texts(before), texts(after));
  const prefix = parts[0] && !parts[0].added && !parts[0].removed ? parts[0].value.length : 0;
  const share = percent((100 * sizeOf(after.slice(0, prefix))) / Math.max(1, sizeOf(after)));
  const rows: JSX.Element[] = [];
  const row = (kind: string, shown: PayloadItem, counterpart?: PayloadItem): void => {
    const { item, number, seq } = shown;
    rows.push(<li key={`${kind}.${number}`} class={kind}>
      <span class="muted">{kind} · item {number}</span> <Badge kind={kindOf(item)}>{kindOf(item)}</Badge> {seq !== null && <a href={toConversation(id, "messages", { seq: String(seq) })}>message {seq}</a>}
      {counterpart === undefined ? <Text item={item} /> : <Words before={lineOf(item, WORDS_UP_TO)} after={lineOf(counterpart.item, WORDS_UP_TO)} />}
    </li>);
  };
  const fold = (name: string, text: string): number => rows.push(<li key={name} class="fold"><button type="button" class="plain" onClick={() => setUnfolded(true)}>{text}</button></li>);
  let [old, next] = [0, 0];
  parts.forEach((part, index) => {
    const kind = part.added ? "added" : part.removed ? "removed" : "same";
    const { length } = part.value;
    const [from, other] = part.removed ? [before.slice(old, old + length), after.slice(next)] : [after.slice(next, next + length), before.slice(0, old)];
    if (!part.added) old += length;
    if (!part.removed) next += length;
    if (kind === "same" && !unfolded && (index === 0 || length > 3)) {
      fold(`${index}`, index === 0 ? `Common prefix: ${plural(length, "item")}, ${share} of the later payload's text, which a provider can read from its cache` : plural(length, "equal item"));
      return;
    }
    // An item in the place of another one is shown once, with its words compared.
    const [follows, precedes] = [part.removed ? parts[index + 1] : undefined, part.added ? parts[index - 1] : undefined];
    const paired = follows?.added ? Math.min(length, follows.value.length) : precedes?.removed ? Math.min(length, precedes.value.length) : 0;
    const counterparts = part.removed ? other.slice(0, paired) : other.slice(other.length - (precedes?.value.length ?? 0)).slice(0, paired);
    const isPair = (one: PayloadItem, two: PayloadItem | undefined): two is PayloadItem => two !== undefined && kindOf(one.item) === kindOf(two.item) && sizeOf([one, two]) < WORDS_UP_TO;
    const most = unfolded || length <= LONG_RUN ? length : LONG_RUN / 2;
    from.slice(0, most).forEach((shown, place) => {
      const counterpart = counterparts[place];
      if (!isPair(shown, counterpart)) row(kind, shown);
      else if (part.removed) row("changed", shown, counterpart);
    });
    if (most < length) fold(`${index}.more`, `${plural(length - most, "more item")} ${kind}`);
  });
  const [broken, rest] = [before[prefix], rows.length - ROWS];
  if (!unfolded && rest > 1) {
    rows.splice(ROWS);
    fold("rest", `${rest} more rows`);
  }
  return (
    <section class="card" aria-label="Difference">
      <div class="title">
        <h2>{broken ? `First difference: item ${prefix + 1} of ${before.length}, ${kindOf(broken.item)}. ${oneCache ? "A cached prefix ends there" : "Other formats and models have caches of their own"}` : before.length === after.length ? "The payloads are equal" : `The later payload extends the earlier one by ${plural(after.length - prefix, "item")}`}</h2>
        <span class="muted">{reason && <><Badge kind="due">{reasonText(reason)}</Badge> </>}{plural(before.length, "item")} → {plural(after.length, "item")}{unfolded && <> · <button type="button" class="plain" onClick={() => setUnfolded(false)}>Fold</button></>}</span>
      </div>
      {broken && prefix === 0 && oneCache && <p class="warn">Nothing of the later payload can be read from the cache.</p>}
      <ol class="diff">{rows}</ol>
    </section>
  );
}

function Text({ item }: { item: Fields }): JSX.Element {
  const [whole, setWhole] = useState(false);
  const line = lineOf(item, whole ? 50_000 : 300);
  return <p>{line}{!whole && line.endsWith("…") && <button type="button" class="plain" onClick={() => setWhole(true)}>more</button>}</p>;
}

const middleOut = (text: string, most: number): string => (text.length > most ? `${text.slice(0, most / 2)} … ${text.slice(-most / 2)}` : text);

function Words({ before, after }: { before: string; after: string }): JSX.Element {
  const [was, is] = [before, after].map((text) => text.split(/(?= - | ## )/)) as [string[], string[]];
  // Lists, as in summaries, are compared by their items.
  const parts = was.length > LONG_RUN ? diffArrays(was, is).map((part) => ({ ...part, value: part.value.join("") })) : diffWordsWithSpace(before, after);
  const common = parts.reduce((sum, { added, removed, value }) => sum + (added || removed ? 0 : value.trim().length), 0);
  if (common * 3 < Math.min(before.length, after.length)) return <p><del>{middleOut(before, 300)}</del> <ins>{middleOut(after, 300)}</ins></p>; // another text
  return <p>{parts.map((part, index) => part.added ? <ins key={index}>{middleOut(part.value, 800)}</ins> : part.removed ? <del key={index}>{middleOut(part.value, 400)}</del> : middleOut(part.value, 160))}</p>;
}
