// Two builds of the conversation side by side: what the later one has, and the earlier one had not.

import { diffArrays, diffWordsWithSpace } from "diff";
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import type { Conversation } from "../api.ts";
import { type Fields, itemsOf, kindOf, readBuild, useBuilds } from "../builds.ts";
import { lineOf } from "../content.ts";
import { plural } from "../format.ts";
import { place, setQuery, toConversation } from "../router.ts";
import { useResource } from "../resource.ts";
import { Badge, Curl, Empty, Failed, Field, Loading } from "../ui.tsx";

const WORDS_UP_TO = 20_000;
const LONG_RUN = 8;

export function Compare({ conversation }: { conversation: Conversation }): JSX.Element {
  const id = conversation.conversation_id;
  const known = useBuilds(id, conversation.head_seq);
  if (known.error) return <Failed error={known.error} retry={known.reload} />;
  if (!known.data) return <Loading what="builds" />;
  const builds = known.data;
  if (builds.length === 0) return <Empty title="No payload was built yet.">A build is recorded with <code>POST /v1/conversations/{id}/context</code>; the tab Window previews the next one.</Empty>;
  const later = place.value.query.get("b") ?? builds[0]?.build_id ?? "";
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
      <Difference key={`${earlier} ${later}`} id={id} earlier={earlier} later={later} oneCache={streamOf(earlier) === streamOf(later)} />
    </>
  );
}

function Difference({ id, earlier, later, oneCache }: { id: string; earlier: string; later: string; oneCache: boolean }): JSX.Element {
  const both = useResource(() => Promise.all([readBuild(id, earlier), readBuild(id, later)]), ["compare", id, earlier, later]);
  const [unfolded, setUnfolded] = useState(false);
  if (both.error) return <Failed error={both.error} />;
  if (!both.data) return <Loading what="both payloads" />;
  const [before, after] = both.data.map((build) => itemsOf(build).map(({ item }) => item)) as [Fields[], Fields[]];
  const parts = diffArrays(before.map((item) => JSON.stringify(item)), after.map((item) => JSON.stringify(item)));
  const prefix = parts[0] && !parts[0].added && !parts[0].removed ? parts[0].value.length : 0;
  const rows: JSX.Element[] = [];
  const row = (name: string, kind: string, text: string, counterpart?: string): void => {
    const item = JSON.parse(text) as Fields;
    rows.push(<li key={name} class={kind}>
      <Badge kind={kindOf(item)}>{kindOf(item)}</Badge> <span class="muted">{kind}</span>
      {counterpart === undefined ? <Text item={item} /> : <Words before={lineOf(item, WORDS_UP_TO)} after={lineOf(JSON.parse(counterpart) as Fields, WORDS_UP_TO)} />}
    </li>);
  };
  const fold = (name: string, text: string): number => rows.push(<li key={name} class="fold"><button type="button" class="plain" onClick={() => setUnfolded(true)}>{text}</button></li>);
  parts.forEach((part, index) => {
    const kind = part.added ? "added" : part.removed ? "removed" : "same";
    if (kind === "same" && !unfolded && (index === 0 || part.value.length > 3)) {
      fold(`${index}`, index === 0 ? `Common prefix: ${plural(part.value.length, "item")}, which a provider can read from its cache` : plural(part.value.length, "equal item"));
      return;
    }
    // An item in the place of another one is shown once, with its words compared.
    const [old, next] = part.added ? [parts[index - 1], part] : [part, parts[index + 1]];
    const paired = old?.removed && next?.added ? Math.min(old.value.length, next.value.length) : 0;
    const isPair = (place: number): boolean => place < paired && (old?.value[place]?.length ?? 0) + (next?.value[place]?.length ?? 0) < WORDS_UP_TO
      && kindOf(JSON.parse(old?.value[place] ?? "{}") as Fields) === kindOf(JSON.parse(next?.value[place] ?? "{}") as Fields);
    const most = unfolded || part.value.length <= LONG_RUN ? part.value.length : LONG_RUN / 2;
    part.value.slice(0, most).forEach((text, place) => {
      if (!isPair(place)) row(`${index}.${place}`, kind, text);
      else if (part.removed) row(`${index}.${place}`, "changed", text, next?.value[place]);
    });
    if (most < part.value.length) fold(`${index}.more`, `${plural(part.value.length - most, "more item")} ${kind}`);
  });
  const broken = before[prefix];
  return (
    <section class="card" aria-label="Difference">
      <div class="title">
        <h2>{broken ? `First difference: item ${prefix + 1} of ${before.length}, ${kindOf(broken)}. ${oneCache ? "A cached prefix ends there" : "Other formats and models have caches of their own"}` : before.length === after.length ? "The payloads are equal" : `The later payload extends the earlier one by ${plural(after.length - prefix, "item")}`}</h2>
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
